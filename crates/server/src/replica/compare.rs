//! Checks of copies: the primary of a home compares its copy with those of the backups, and repairs what differs.
//!
//! - Units: each is compared by checksums with its lock held, so that no change of it is in flight. What is damaged on the primary comes from
//!   a backup, and then what differs on a backup from the primary.
//! - Records: the stream of the home stops at one record while all copies digest their entries. A copy that differs is of no use: the authority
//!   of the home map is notified, and has the home copied again.

use super::join::{JoinsParts, entries_of};
use super::{Copies, RETRY_TIME, Replicas};
use futures_util::{TryStreamExt, stream};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tameike_core::limits::{BLOCK_SIZE, BLOCKS_PER_UNIT, UNIT_SIZE};
use tameike_core::ranges::RangeSet;
use tameike_core::wire::admin::CopyReport;
use tameike_core::wire::replica::{BLOCKS_READ_MAX, ReplicaReply, ReplicaRequest};
use tameike_core::wire::unit::SpaceChange;
use tameike_core::{Cluster, Errno, Fault, Generation, HomeId, HomeSet, Layout, NodeId, Result, UnitId};
use tameike_io::{BlockSums, Frame, Payload};
use tameike_store::Ledger;
use tameike_store::extent::Examined;
use tameike_store::ledger::{last_record, last_record_entry};

const BLOCK: u32 = BLOCK_SIZE as u32;
const WHOLE: std::ops::Range<u32> = 0..UNIT_SIZE as u32;
/// Units that are compared at a time.
const UNITS_PARALLEL: usize = 2;
/// Longest wait for a quiet node between two units.
const YIELD_TIME_MAX: Duration = Duration::from_millis(2);
/// Attempts to compare a unit while changes of it are in flight.
const ATTEMPTS_MAX: u32 = 100;

/// Checks the copies of the homes that a node serves.
pub struct CopyCheck {
    parts: JoinsParts,
    alone: async_lock::Mutex<()>,
}

/// A copy of a unit that was damaged or differed.
struct Difference {
    node: NodeId,
    bytes: RangeSet,
    is_repaired: bool,
}

/// A comparison of one unit, which is locked.
struct Comparison<'a> {
    copies: &'a Copies,
    replicas: &'a Replicas,
    home: HomeId,
    unit: UnitId,
}

/// The number of a home's last record, and a digest of its entries in the table.
pub(super) fn digest_of_home(ledger: &Ledger, cluster: &Cluster, home: HomeId) -> Result<(u64, [u8; 32])> {
    ledger.read(|table| {
        let last = last_record(table, home)?;
        let mut digest = blake3::Hasher::new();
        for (key, value) in
            entries_of(table, cluster, home)?.into_iter().chain([last_record_entry(home, last)])
        {
            for part in [key, value] {
                digest.update(&(part.len() as u64).to_le_bytes());
                digest.update(&part);
            }
        }
        Ok((last.number, digest.finalize().into()))
    })
}

/// All bytes of the blocks that have some of these.
fn whole_blocks(bytes: &RangeSet) -> RangeSet {
    bytes.iter().map(|range| range.start / BLOCK * BLOCK..range.end.next_multiple_of(BLOCK)).collect()
}

fn is_in_unit(bytes: &RangeSet) -> bool {
    bytes.is_in_order() && bytes.end() <= WHOLE.end
}

/// The blocks, as bytes, that a backup must get from the primary.
fn differing(own: &Examined, backup: &Examined) -> RangeSet {
    let sums = own.sums.as_bytes().chunks(4).zip(backup.sums.as_bytes().chunks(4));
    let other = (0..).zip(sums).filter(|(_, (own, backup))| own != backup);
    let mut bytes: RangeSet = other.map(|(block, _): (u32, _)| block * BLOCK..(block + 1) * BLOCK).collect();
    bytes.insert_all(&whole_blocks(&backup.bad));
    bytes.without(&whole_blocks(&own.bad))
}

impl CopyCheck {
    /// A check of the copies of one node's homes.
    pub fn new(parts: JoinsParts) -> Self {
        Self { parts, alone: async_lock::Mutex::default() }
    }

    /// Compares and repairs the copies of all homes that this node serves, while programs change them.
    pub async fn run(&self) -> CopyReport {
        // Two would hold back and release the same records.
        let _alone = self.alone.lock().await;
        let own = &self.parts.replicas.parts;
        let report = Mutex::new(CopyReport::default());
        let homes: Vec<_> = own.cluster.map().served_by(own.node).collect();
        for home in homes {
            if let Err(fault) = self.check_home(home, &report).await {
                let report = &mut *report.lock();
                report.failed += 1;
                report.describe(format!("{home} is not compared completely: {fault}"));
            }
        }
        report.into_inner()
    }

    async fn check_home(&self, home: HomeId, report: &Mutex<CopyReport>) -> Result<()> {
        let JoinsParts { replicas, extents, .. } = &self.parts;
        replicas.wait_for_stream(home).await?;
        let of_home = HomeSet::from_iter([home]);
        let units = extents.units_of(&of_home);
        let check = |unit| self.check_unit((home, unit), report);
        stream::iter(units).try_for_each_concurrent(UNITS_PARALLEL, check).await?;
        for backup in self.differing_records(home).await? {
            replicas.note_differing(backup, &[home]);
            let report = &mut *report.lock();
            report.differences += 1;
            report
                .describe(format!("{home}: the names or records on {backup} differ, and it gets a new copy"));
        }
        let is_alone = replicas.parts.cluster.map().backups(home).is_empty();
        let report = &mut *report.lock();
        report.homes += 1;
        report.homes_with_one_copy += u64::from(is_alone);
        Ok(())
    }

    /// Compares a unit. Returns an error if another node serves the home now.
    async fn check_unit(&self, (home, unit): (HomeId, UnitId), report: &Mutex<CopyReport>) -> Result<()> {
        let JoinsParts { replicas, copies, activity, .. } = &self.parts;
        let comparison = Comparison { copies, replicas, home, unit };
        let name = format!("unit {} of {}", unit.index, unit.inode);
        let mut compared = Ok(None);
        for _ in 0..ATTEMPTS_MAX {
            compared = comparison.run().await;
            match &compared {
                Ok(None) => replicas.parts.runtime.sleep(RETRY_TIME).await,
                Ok(Some(_)) | Err(_) => break,
            }
        }
        let differences = match compared {
            Ok(Some(differences)) => differences,
            Err(fault) if fault.errno == Errno::EREMCHG => return Err(fault),
            other => {
                let why = other
                    .err()
                    .map_or_else(|| "it changes all the time".to_owned(), |fault| fault.to_string());
                let report = &mut *report.lock();
                report.failed += 1;
                report.describe(format!("{name} is not compared: {why}"));
                return Ok(());
            }
        };
        {
            let report = &mut *report.lock();
            report.units += 1;
            for Difference { node, bytes, is_repaired } in differences {
                report.differences += 1;
                report.repaired += u64::from(is_repaired);
                let outcome = if is_repaired { "repaired" } else { "NOT repaired" };
                let blocks = bytes.len() / BLOCK;
                report.describe(format!("{name}: damaged or other blocks on {node}: {blocks}, {outcome}"));
            }
        }
        replicas.parts.runtime.timeout(YIELD_TIME_MAX, activity.until_quiet()).await;
        Ok(())
    }

    /// The backups of a home whose entries differ from this node's.
    async fn differing_records(&self, home: HomeId) -> Result<Vec<NodeId>> {
        let JoinsParts { replicas, ledger, .. } = &self.parts;
        let cluster = &replicas.parts.cluster;
        let held = replicas.hold_records(home);
        let (own_number, own_digest) = digest_of_home(ledger, cluster, home)?;
        held.send_up_to(own_number);
        let mut differing = Vec::new();
        for &backup in cluster.map().backups(home) {
            replicas.wait_for_record(home, backup, own_number).await?;
            match replicas.ask_copy(home, backup, ReplicaRequest::DigestEntries { home }, None).await? {
                ReplicaReply::Digest { number, digest } if number == own_number => {
                    if digest != own_digest {
                        differing.push(backup);
                    }
                }
                other => return Err(unexpected(backup, &other)),
            }
        }
        Ok(differing)
    }
}

fn unexpected(backup: NodeId, reply: &ReplicaReply) -> Fault {
    Fault::new(Errno::EPROTO, format!("{backup} answered a comparison with {reply:?}"))
}

impl Comparison<'_> {
    /// Compares the unit, and repairs it. Returns nothing if changes of it are in flight to the backups.
    async fn run(&self) -> Result<Option<Vec<Difference>>> {
        // Before the locks: their holders need no frame of this pool.
        let mut frame = self.copies.parts.pool.take().await;
        let _locks = self.copies.lock(self.unit).await;
        let (node, extents) = (self.replicas.parts.node, &self.copies.parts.extents);
        let mut own = extents.examine(self.unit, None).await?;
        let backups = self.examine_backups(&own).await?;
        let mut differences = Vec::new();
        if !own.bad.is_empty() {
            frame = self.restore(frame, &own.bad, &backups).await?;
            let restored = extents.examine(self.unit, None).await?;
            let (bytes, is_repaired) = (whole_blocks(&own.bad), restored.bad.is_empty());
            differences.push(Difference { node, bytes, is_repaired });
            own = restored;
        }
        for (node, backup) in backups {
            let mut bytes = differing(&own, &backup);
            if bytes.is_empty() && backup.surplus.is_empty() {
                continue;
            }
            if self.copies.is_unsent(self.unit) {
                return Ok((!differences.is_empty()).then_some(differences));
            }
            self.drop_surplus(node, &backup.surplus).await?;
            frame = self.send(frame, node, &own, &bytes).await?;
            let sent = self.examine_on(node, &own).await?;
            bytes.insert_all(&whole_blocks(&backup.surplus));
            let is_repaired = differing(&own, &sent).is_empty() && sent.surplus.is_empty();
            differences.push(Difference { node, bytes, is_repaired });
        }
        Ok(Some(differences))
    }

    async fn examine_backups(&self, own: &Examined) -> Result<Vec<(NodeId, Examined)>> {
        let map = self.replicas.parts.cluster.map();
        let mut examined = Vec::new();
        for &backup in map.backups(self.home) {
            examined.push((backup, self.examine_on(backup, own).await?));
        }
        Ok(examined)
    }

    async fn examine_on(&self, backup: NodeId, own: &Examined) -> Result<Examined> {
        let &Self { home, unit, .. } = self;
        let data = if unit.inode.is_cached() { own.data.clone() } else { WHOLE.into() };
        let request = ReplicaRequest::Examine { home, unit, data: data.clone() };
        match self.replicas.ask_copy(home, backup, request, None).await? {
            ReplicaReply::Examined { sums, bad, surplus }
                if sums.len() == 4 * BLOCKS_PER_UNIT && [&bad, &surplus].into_iter().all(is_in_unit) =>
            {
                Ok(Examined { data, sums: BlockSums::from_bytes(sums), bad, surplus })
            }
            other => Err(unexpected(backup, &other)),
        }
    }

    /// Replaces this node's damaged bytes by those of backups, in a frame.
    async fn restore(&self, frame: Frame, bad: &RangeSet, backups: &[(NodeId, Examined)]) -> Result<Frame> {
        let &Self { home, unit, .. } = self;
        let (mut frame, mut sound) = (frame, RangeSet::new());
        for (backup, examined) in backups {
            let wanted = whole_blocks(bad).without(&whole_blocks(&examined.bad)).without(&sound);
            for blocks in wanted.iter().flat_map(|bytes| parts(bytes.start / BLOCK, bytes.end / BLOCK)) {
                let (first, count) = (blocks.start, blocks.end - blocks.start);
                let request = ReplicaRequest::ReadBlocks { home, unit, first, count };
                let bytes = blocks.start * BLOCK..blocks.end * BLOCK;
                match self.replicas.ask_copy(home, *backup, request, None).await? {
                    ReplicaReply::Blocks(content) if content.len() == bytes.len() => {
                        frame[bytes.start as usize..bytes.end as usize].copy_from_slice(&content);
                    }
                    other => return Err(unexpected(*backup, &other)),
                }
                sound.insert(bytes);
            }
        }
        let bytes = Payload::new(Arc::new(frame), WHOLE);
        self.copies.parts.extents.restore(unit, bytes.clone(), sound).await?;
        self.frame_again(bytes.into_frame()).await
    }

    /// Sends what the store has of these bytes, which are whole blocks, to a backup.
    async fn send(&self, frame: Frame, to: NodeId, own: &Examined, bytes: &RangeSet) -> Result<Frame> {
        let &Self { home, unit, .. } = self;
        let (mut frame, generation) = (frame, Generation(0));
        for range in bytes.iter() {
            let (filled, held) = self.copies.parts.extents.read(unit, range.clone(), frame, generation).await;
            let (mut filled, held) = (filled, held?);
            for gap in held.ranges.gaps(range.clone()).into_iter().filter(|_| held.sums.is_none()) {
                filled[gap.start as usize..gap.end as usize].fill(0);
            }
            let whole = RangeSet::from(range);
            let ranges = if unit.inode.is_cached() { whole.intersection(&own.data) } else { whole };
            // One write replaces all data of a block, so that the backup does not read its damaged blocks.
            let mut end = 0;
            for range in ranges.iter().map(|range| range.start as usize..range.end as usize) {
                filled.copy_within(range.clone(), end);
                end += range.len();
            }
            let filled = Arc::new(filled);
            if end > 0 {
                let payload = Payload::new(filled.clone(), 0..end as u32);
                let request = ReplicaRequest::Write { home, unit, ranges, generation };
                self.replicas.ask_copy(home, to, request, Some(payload)).await?;
            }
            frame = self.frame_again(Arc::into_inner(filled)).await?;
        }
        Ok(frame)
    }

    /// The frame again. A message to a backup of an earlier map may have it still.
    async fn frame_again(&self, frame: Option<Frame>) -> Result<Frame> {
        match frame {
            Some(frame) => Ok(frame),
            None => Ok(self.copies.parts.pool.take().await),
        }
    }

    /// Drops dirty bytes of a cached file on a backup that the primary does not have.
    async fn drop_surplus(&self, backup: NodeId, surplus: &RangeSet) -> Result<()> {
        let UnitId { inode, .. } = self.unit;
        for range in surplus.iter() {
            let [start, end] = [range.start, range.end].map(|place| self.unit.start() + u64::from(place));
            let homes = HomeSet::from_iter([self.home]);
            let (change, layout) = (SpaceChange::Punch, Layout::Striped);
            let request = ReplicaRequest::Space { homes, inode, change, start, end, layout };
            self.replicas.ask_copy(self.home, backup, request, None).await?;
        }
        Ok(())
    }
}

/// Divides blocks among requests.
fn parts(start: u32, end: u32) -> impl Iterator<Item = std::ops::Range<u32>> {
    let step = BLOCKS_READ_MAX;
    (start..end).step_by(step as usize).map(move |first| first..end.min(first + step))
}
