//! The backup's side: makes the changes of primaries on this node's copies.

use super::ReplicaParts;
use super::compare::digest_of_home;
use super::join::keys_of;
use parking_lot::Mutex;
use serde_bytes::ByteBuf;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tameike_core::ranges::RangeSet;
use tameike_core::wire::replica::{
    BLOCKS_READ_MAX, CLEAN_UNITS_MAX, RecordPart, ReplicaReply, ReplicaRequest,
};
use tameike_core::{Errno, Fault, Generation, HomeId, HomeSet, InodeId, Layout, NodeId, Result, UnitId};
use tameike_io::Payload;
use tameike_store::extent::{Examined, Expected, Pieces};
use tameike_store::ledger::BODY_SIZE_MAX;
use tameike_store::locks::Locks;
use tameike_store::{ExtentStore, Ledger, RecordKind, copied};

/// Serves [`ReplicaRequest`]s.
pub struct BackupService {
    parts: ReplicaParts,
    ledger: Arc<Ledger>,
    extents: Arc<ExtentStore>,
    partial: Mutex<PartialRecords>,
    /// Shared while a request is served.
    serving: Locks<()>,
    /// The epoch of the last map before which all requests have ended.
    fenced: AtomicU64,
    /// Held while copies are dropped.
    discarding: Locks<()>,
    /// Units that this node had when a copy of their home began, as long as the primary may lack them or have other bytes.
    unconfirmed: Mutex<BTreeMap<HomeId, BTreeSet<UnitId>>>,
}

/// What is dropped of a home.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dropped {
    /// All records and units.
    All,
    /// All but units of the job-shared view, which a later copy of the home may need.
    ButUnits,
}

/// Keys that one log record removes, when a copy of a home is dropped.
const KEYS_DROPPED: usize = 256;

impl BackupService {
    /// The copies in one store.
    pub fn new(parts: ReplicaParts, ledger: Arc<Ledger>, extents: Arc<ExtentStore>) -> Self {
        let (partial, serving, fenced, discarding, unconfirmed) = Default::default();
        Self { parts, ledger, extents, partial, serving, fenced, discarding, unconfirmed }
    }

    /// Serves one request of a primary with the same home map.
    ///
    /// # Errors
    /// `EREMCHG` if this node is no backup of the sender's home; `EINVAL` for a malformed request; those of the store.
    pub async fn serve(
        &self,
        from: NodeId,
        request: ReplicaRequest,
        payload: Option<Payload>,
    ) -> Result<ReplicaReply> {
        self.end_earlier_requests().await;
        let _serving = self.serving.share(()).await;
        let extents = &self.extents;
        let required =
            || payload.ok_or_else(|| Fault::new(Errno::EINVAL, "a change of bytes has no payload"));
        match request {
            ReplicaRequest::Records(parts) => return self.append(from, parts).await,
            ReplicaRequest::Write { home, unit, ranges, generation } => {
                self.begin_change(from, (home, unit)).await?;
                self.write(home, unit, Pieces::new(ranges, required()?)?, generation).await?;
            }
            ReplicaRequest::Patch { home, unit } => {
                self.begin_change(from, (home, unit)).await?;
                extents.patch(home, unit, required()?).await?;
            }
            ReplicaRequest::SetNumber { home, unit, offset, value } => {
                self.begin_change(from, (home, unit)).await?;
                extents.set_number(home, unit, offset, value).await?;
            }
            ReplicaRequest::Clean { inode, units, generation } => {
                self.clean(from, inode, units, generation).await?;
            }
            ReplicaRequest::OnlyDirty { home, units } => {
                self.check(from, home)?;
                self.clean_others(home, units).await?;
            }
            ReplicaRequest::Truncate { homes, inode, size } => {
                self.check_all(from, &homes)?;
                extents.truncate(&homes, inode, size).await?;
            }
            ReplicaRequest::Space { homes, inode, change, start, end, layout } => {
                self.check_all(from, &homes)?;
                let own = self.parts.cluster.units_of_homes(layout, inode, |home| homes.contains(home));
                extents.change_space(&homes, inode, change, start..end, own).await?;
            }
            ReplicaRequest::Sync => self.ledger.sync_own(true).await?,
            ReplicaRequest::BeginCopy { home } => {
                self.check(from, home)?;
                let has_units = self.begin_copy(home).await?;
                return Ok(ReplicaReply::CopyBegun { has_units });
            }
            ReplicaRequest::EndCopy { home } => {
                self.check(from, home)?;
                self.end_copy(home).await?;
            }
            ReplicaRequest::CopyEntries { home, entries } => {
                self.check(from, home)?;
                self.put_entries(entries.into_iter().map(|(key, value)| (key, Some(value))).collect())
                    .await?;
            }
            ReplicaRequest::Examine { home, unit, data, is_exact } => {
                self.check(from, home)?;
                // What differs is sent.
                self.confirm(home, unit);
                return self.examine(unit, Expected { data, is_exact }).await;
            }
            ReplicaRequest::ReadBlocks { home, unit, first, count } => {
                self.check(from, home)?;
                let blocks = first..first.saturating_add(count.min(BLOCKS_READ_MAX));
                return Ok(ReplicaReply::Blocks(extents.read_whole_blocks(unit, blocks).await?.into()));
            }
            ReplicaRequest::DigestEntries { home } => {
                self.check(from, home)?;
                let (number, digest) = digest_of_home(&self.ledger, &self.parts.cluster, home)?;
                return Ok(ReplicaReply::Digest { number, digest });
            }
        }
        Ok(ReplicaReply::Done)
    }

    /// Begins a copy of a home. Returns whether this node has units that may be those of the primary.
    async fn begin_copy(&self, home: HomeId) -> Result<bool> {
        self.discard([home].into(), Dropped::ButUnits, |_| true).await?;
        let units: BTreeSet<_> = self.extents.units_of(&HomeSet::from_iter([home])).collect::<Result<_>>()?;
        let has_units = !units.is_empty();
        self.unconfirmed.lock().insert(home, units);
        Ok(has_units)
    }

    /// Returns true if the primary may lack the unit, or have other bytes. It counts as confirmed from then on.
    fn confirm(&self, home: HomeId, unit: UnitId) -> bool {
        self.unconfirmed.lock().get_mut(&home).is_some_and(|units| units.remove(&unit))
    }

    async fn examine(&self, unit: UnitId, expected: Expected) -> Result<ReplicaReply> {
        let Examined { sums, digest, bad, surplus, .. } = self.extents.examine(unit, Some(expected)).await?;
        Ok(ReplicaReply::Examined { sums: sums.as_bytes().to_vec(), digest, bad, surplus })
    }

    /// Checks a change of a unit. If the unit may have other bytes than that of the primary, drops these first.
    async fn begin_change(&self, from: NodeId, (home, unit): (HomeId, UnitId)) -> Result<()> {
        self.check(from, home)?;
        if self.confirm(home, unit) { self.extents.drop_unit(unit).await } else { Ok(()) }
    }

    /// Drops the units of a home that the primary has neither compared nor changed.
    async fn end_copy(&self, home: HomeId) -> Result<()> {
        let surplus = self.unconfirmed.lock().remove(&home).unwrap_or_default();
        for unit in surplus {
            self.extents.drop_unit(unit).await?;
        }
        Ok(())
    }

    /// Makes bytes of units of a cached file clean but those that stay dirty.
    async fn clean(
        &self,
        from: NodeId,
        inode: InodeId,
        units: Vec<(u64, RangeSet)>,
        generation: Generation,
    ) -> Result<()> {
        if units.len() > CLEAN_UNITS_MAX || !inode.is_cached() {
            let problem = format!("{} units of {inode} cannot become clean", units.len());
            return Err(Fault::new(Errno::EINVAL, problem));
        }
        for (index, dirty) in units {
            let unit = UnitId { inode, index };
            self.check(from, self.parts.cluster.unit_home(Layout::Striped, unit))?;
            self.extents.clean_all_but(unit, dirty, generation).await?;
        }
        Ok(())
    }

    /// Sets entries of the table, or removes those without a value.
    async fn put_entries(&self, entries: Vec<(ByteBuf, Option<ByteBuf>)>) -> Result<()> {
        self.ledger.wait_for_space().await?;
        let body = copied::encode(&entries)?;
        self.ledger.execute(RecordKind::Copied, &body, |table| copied::apply(&body, table)).map(drop)
    }

    /// The units of this node.
    pub(super) fn extents(&self) -> &Arc<ExtentStore> {
        &self.extents
    }

    /// Waits until the requests that began under earlier maps have ended, so that none of an earlier primary changes a copy after one of the next
    /// primary.
    async fn end_earlier_requests(&self) {
        let epoch = self.parts.cluster.epoch().0;
        if self.fenced.load(Ordering::Acquire) < epoch {
            drop(self.serving.hold(()).await);
            self.fenced.fetch_max(epoch, Ordering::AcqRel);
        }
    }

    /// Writes bytes of a unit. A partial write of a block reads the rest of the block: damaged clean bytes there are dropped.
    async fn write(&self, home: HomeId, unit: UnitId, pieces: Pieces, generation: Generation) -> Result<()> {
        let (extents, is_cached) = (&self.extents, unit.inode.is_cached());
        match extents.write(home, unit, pieces.clone(), is_cached, generation).await {
            Err(fault) if is_cached && fault.errno == Errno::EIO => {
                extents.drop_damaged(unit).await?;
                extents.write(home, unit, pieces, is_cached, generation).await
            }
            written => written,
        }
    }

    /// Drops what this node has of homes of which it is no replica any more, but units that it may be asked to have again: those of homes
    /// which lack a replica.
    pub(super) async fn discard_old(&self, homes: BTreeSet<HomeId>) {
        let cluster = &self.parts.cluster;
        let is_old = |home: HomeId| !cluster.map().is_on(home, self.parts.node);
        let is_complete = |home: &HomeId| cluster.map().copies(*home) >= cluster.replicas();
        let (complete, lacking) = homes.into_iter().partition(is_complete);
        let discarded = async {
            self.discard(lacking, Dropped::ButUnits, is_old).await?;
            self.discard(complete, Dropped::All, is_old).await
        };
        if let Err(fault) = discarded.await {
            log::error!("cannot drop old copies of homes: {fault}");
        }
    }

    /// Drops units and entries of homes, as long as `is_meant` returns true for them.
    async fn discard(
        &self,
        homes: BTreeSet<HomeId>,
        what: Dropped,
        is_meant: impl Fn(HomeId) -> bool,
    ) -> Result<()> {
        // Not while a copy of one of them begins.
        let _alone = self.discarding.hold(()).await;
        for home in homes.into_iter().filter(|&home| is_meant(home)) {
            self.unconfirmed.lock().remove(&home);
            let of_home = HomeSet::from_iter([home]);
            let inodes = self.extents.units_of(&of_home).map(|unit| unit.map(|unit| unit.inode));
            let is_dropped = |inode: &InodeId| what == Dropped::All || inode.is_cached();
            for inode in inodes.collect::<Result<BTreeSet<_>>>()?.into_iter().filter(is_dropped) {
                self.extents.truncate(&of_home, inode, 0).await?;
            }
            let keys = self.ledger.read(|table| keys_of(table, &self.parts.cluster, home))?;
            for keys in keys.chunks(KEYS_DROPPED) {
                self.put_entries(keys.iter().map(|key| (ByteBuf::from(key.clone()), None)).collect()).await?;
            }
        }
        Ok(())
    }

    /// Waits until the requests of earlier primaries have ended, when this node has a map in which it is the primary of a home. Later ones are
    /// refused.
    pub(super) async fn finish_requests(&self, home: HomeId) {
        drop(self.serving.hold(()).await);
        self.partial.lock().0.remove(&home);
    }

    /// Checks that this node is a backup of a home that the sender serves. Otherwise the home map has changed since the request began.
    fn check(&self, from: NodeId, home: HomeId) -> Result<()> {
        let map = self.parts.cluster.map();
        let is_home = u64::from(home.0) < map.count();
        if is_home && map.primary(home) == from && map.is_on(home, self.parts.node) {
            return Ok(());
        }
        let problem = format!("{} is no backup of {home}, or {from} does not serve it", self.parts.node);
        Err(Fault::new(Errno::EREMCHG, problem))
    }

    fn check_all(&self, from: NodeId, homes: &HomeSet) -> Result<()> {
        match homes {
            HomeSet::All => Err(Fault::new(Errno::EPROTO, format!("{from} named no homes for its backup"))),
            HomeSet::Of(homes) => homes.iter().try_for_each(|&home| self.check(from, home)),
        }
    }

    async fn append(&self, from: NodeId, parts: Vec<RecordPart>) -> Result<ReplicaReply> {
        parts.iter().try_for_each(|part| self.check(from, part.home))?;
        let mut differing = Vec::new();
        for part in parts {
            let home = part.home;
            if !differing.contains(&home) && !self.append_part(part).await? {
                log::error!("this copy of {home} does not continue with the record that {from} sent");
                differing.push(home);
            }
        }
        Ok(ReplicaReply::Appended { differing })
    }

    /// Appends a record when all of it has arrived. Returns false if it does not follow the last one.
    async fn append_part(&self, part: RecordPart) -> Result<bool> {
        let arrived = self.partial.lock().add(part);
        match arrived {
            Arrived::Whole(record) => {
                self.ledger.wait_for_space().await?;
                self.ledger.append_of_home(&record, crate::replay)
            }
            Arrived::Part => Ok(true),
            Arrived::Gap => Ok(false),
        }
    }
}

/// Records of which some parts have arrived, by home, with their numbers.
#[derive(Default)]
pub(super) struct PartialRecords(BTreeMap<HomeId, (u64, Vec<u8>)>);

/// What has arrived of a record.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Arrived {
    /// All of it.
    Whole(Vec<u8>),
    /// All parts up to this one.
    Part,
    /// Not all parts before this one, or more than a record may have.
    Gap,
}

impl PartialRecords {
    /// Adds a part. The first part of a record replaces an earlier record of the home.
    pub(super) fn add(&mut self, RecordPart { home, number, offset, ends, bytes }: RecordPart) -> Arrived {
        if offset == 0 && ends {
            return Arrived::Whole(bytes);
        }
        let begun = self.0.remove(&home).filter(|_| offset > 0);
        let (of, mut begun) = begun.unwrap_or((number, Vec::new()));
        if of != number || begun.len() != offset as usize || begun.len() + bytes.len() > BODY_SIZE_MAX {
            return Arrived::Gap;
        }
        begun.extend(bytes);
        if ends {
            return Arrived::Whole(begun);
        }
        self.0.insert(home, (number, begun));
        Arrived::Part
    }
}
