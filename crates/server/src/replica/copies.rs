//! Copies of units: each change of units at homes with backups is made on all replicas.
//!
//! A change is made here first, then on the backups. If a backup has no space for it, its error is that of the change. If its device fails,
//! the change waits for a home map without it. While a unit changes on the backups, its lock here keeps other changes of it from being sent, so that the replicas end with the
//! same bytes: a change either holds the lock from before it is made here, or sends the bytes that the store has then.
//!
//! A write from another node holds one of this node's request frames. It keeps the frame while it waits for locks and backups only if another
//! one is free. Else it gives the frame back when the bytes are stored here, and later sends what the store has. So requests of other
//! primaries always get a frame, and two nodes never wait for each other's frames.

use super::{Replicas, may_be_repeated};
use parking_lot::Mutex;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::patch::{PAGE_SIZE, patches};
use tameike_core::ranges::RangeSet;
use tameike_core::wire::Request;
use tameike_core::wire::replica::{CLEAN_UNITS_MAX, ReplicaRequest};
use tameike_core::wire::unit::{SpaceChange, UnitRequest};
use tameike_core::{
    Cluster, Errno, Generation, HomeId, HomeMap, HomeSet, InodeId, Layout, NodeId, Result, UnitId,
    UnitsOfHomes,
};
use tameike_fabric::join_calls;
use tameike_io::{Payload, Pool};
use tameike_store::ExtentStore;
use tameike_store::extent::{DirtyUnit, Pieces};
use tameike_store::locks::{Held, Locks, Shared};

/// The parts that changes of units need.
pub struct CopiesParts {
    /// All nodes.
    pub cluster: Arc<Cluster>,
    /// This node.
    pub node: NodeId,
    /// The primary's side; `None` if the homes of the job have no replicas.
    pub replicas: Option<Arc<Replicas>>,
    /// The store of this node.
    pub extents: Arc<ExtentStore>,
    /// Frames for payloads of incoming requests.
    pub request_pools: [Pool; 2],
    /// Frames for bytes that are sent from the store. Only for these: their holders wait for locks and backups.
    pub pool: Pool,
}

/// Makes changes of units on all replicas.
pub struct Copies {
    pub(super) parts: CopiesParts,
    /// Exclusive while all units of a file change, shared while single ones do.
    files: Locks<InodeId>,
    /// Exclusive while a unit changes.
    units: Locks<UnitId>,
    /// Units that were changed here without their lock, with the number of such changes: the backups lack them.
    unsent: Mutex<BTreeMap<UnitId, u32>>,
}

/// A change of a unit without its lock.
struct Unsent<'a> {
    copies: &'a Copies,
    unit: UnitId,
}

impl Drop for Unsent<'_> {
    fn drop(&mut self) {
        if let Entry::Occupied(mut place) = self.copies.unsent.lock().entry(self.unit) {
            *place.get_mut() -= 1;
            if *place.get() == 0 {
                place.remove();
            }
        }
    }
}

impl Copies {
    /// The changes of one store.
    pub fn new(parts: CopiesParts) -> Self {
        let (files, units, unsent) = Default::default();
        Self { parts, files, units, unsent }
    }

    /// Notes a change of a unit that begins without its lock. It is sent with the lock.
    fn begin_unlocked(&self, unit: UnitId) -> Unsent<'_> {
        *self.unsent.lock().entry(unit).or_default() += 1;
        Unsent { copies: self, unit }
    }

    /// Whether the backups of a unit, which the caller has locked, may lack a change.
    pub(super) fn is_unsent(&self, unit: UnitId) -> bool {
        self.unsent.lock().contains_key(&unit)
    }

    /// The homes that this node serves.
    pub(crate) fn served(&self) -> HomeSet {
        HomeSet::served(&self.parts.cluster.map(), self.parts.node)
    }

    /// The homes that this node serves, with the units of a file there.
    pub(crate) fn own_units(&self, layout: Layout, inode: InodeId) -> (HomeSet, UnitsOfHomes) {
        let CopiesParts { cluster, node, .. } = &self.parts;
        let map = cluster.map();
        let own = cluster.units_of_homes(layout, inode, |home| map.primary(home) == *node);
        (HomeSet::served(&map, *node), own)
    }

    /// Whether a change may keep its frame while it waits: then not all frames can be held by such changes, since the last one that got
    /// a frame gives it back.
    fn may_keep_frame(&self) -> bool {
        self.parts.request_pools.iter().all(Pool::has_free)
    }

    pub(super) async fn lock(&self, unit: UnitId) -> (Shared<InodeId>, Held<UnitId>) {
        (self.files.share(unit.inode).await, self.units.hold(unit).await)
    }

    /// Writes bytes of a unit. `store` writes them to this node's store, and does not keep them.
    pub(crate) async fn write<F: Future<Output = Result<()>> + Send>(
        &self,
        home: HomeId,
        unit: UnitId,
        pieces: Pieces,
        generation: Generation,
        store: impl FnOnce(Pieces) -> F,
    ) -> Result<()> {
        let Some(replicas) = &self.parts.replicas else { return store(pieces).await };
        let ranges = pieces.ranges().clone();
        if !self.may_keep_frame() {
            let _unsent = self.begin_unlocked(unit);
            store(pieces).await?;
            return self.send_stored(replicas, (home, unit), &ranges, generation).await;
        }
        let _locks = self.lock(unit).await;
        store(pieces.clone()).await?;
        let request = ReplicaRequest::Write { home, unit, ranges, generation };
        replicas.repeat(home, &request, Some(pieces.into_payload())).await
    }

    /// Applies a patch; as [`ExtentStore::patch`]. `units` has the places of the records of each unit in it.
    pub(crate) async fn patch(&self, units: Vec<(HomeId, UnitId, Range<u32>)>, patch: Payload) -> Result<()> {
        let extents = &self.parts.extents;
        let Some(replicas) = self.parts.replicas.as_ref().filter(|_| self.may_keep_frame()) else {
            let mut changed = Vec::with_capacity(units.len());
            for (home, unit, place) in units {
                let patch = patch.slice(place);
                changed.push(((home, unit), pages_of(unit, &patch), self.begin_unlocked(unit)));
                extents.patch(home, unit, patch).await?;
            }
            let Some(replicas) = &self.parts.replicas else { return Ok(()) };
            drop(patch);
            for (unit, pages, _unsent) in changed {
                self.send_stored(replicas, unit, &pages, Generation(0)).await?;
            }
            return Ok(());
        };
        for (home, unit, place) in units {
            let _locks = self.lock(unit).await;
            let patch = patch.slice(place);
            extents.patch(home, unit, patch.clone()).await?;
            replicas.repeat(home, &ReplicaRequest::Patch { home, unit }, Some(patch)).await?;
        }
        Ok(())
    }

    /// Sends to the backups what the store has of changed bytes. Bytes that were dropped meanwhile need not be sent.
    async fn send_stored(
        &self,
        replicas: &Replicas,
        unit: (HomeId, UnitId),
        changed: &RangeSet,
        generation: Generation,
    ) -> Result<()> {
        self.send_stored_to(replicas, unit, changed, generation, None).await
    }

    /// Sends a unit of a home that is being copied to a node.
    pub(super) async fn send_unit(
        &self,
        replicas: &Replicas,
        unit: (HomeId, UnitId),
        to: NodeId,
    ) -> Result<()> {
        let whole = RangeSet::from(0..UNIT_SIZE as u32);
        self.send_stored_to(replicas, unit, &whole, Generation(0), Some(to)).await
    }

    async fn send_stored_to(
        &self,
        replicas: &Replicas,
        (home, unit): (HomeId, UnitId),
        changed: &RangeSet,
        generation: Generation,
        to: Option<NodeId>,
    ) -> Result<()> {
        let mut spare = None;
        for range in changed.iter() {
            // Before the locks: their holders need no frame of this pool.
            let frame = match spare.take() {
                Some(frame) => frame,
                None => self.parts.pool.take().await,
            };
            let _locks = self.lock(unit).await;
            let (filled, held) = self.parts.extents.read(unit, range.clone(), frame, generation).await;
            let (filled, held) = (Arc::new(filled), held?);
            let mut stored = RangeSet::from(range.clone());
            let missing = held.ranges.gaps(range.clone()).into_iter().filter(|_| held.sums.is_none());
            missing.for_each(|gap| stored.remove(gap));
            if unit.inode.is_cached() {
                // The shared file system has bytes that are clean by now.
                self.parts.extents.dirty_of(unit)?.gaps(range).into_iter().for_each(|gap| stored.remove(gap));
            }
            for range in stored.iter() {
                let bytes = Payload::new(filled.clone(), range.clone());
                let request = ReplicaRequest::Write { home, unit, ranges: range.into(), generation };
                match to {
                    Some(node) => replicas.ask_copy(home, node, request, Some(bytes)).await.map(drop)?,
                    None => replicas.repeat(home, &request, Some(bytes)).await?,
                }
            }
            // A second message with these bytes, or one to a backup of an earlier map, may have the frame still.
            spare = Arc::into_inner(filled);
        }
        Ok(())
    }

    /// Adds to a number; as [`ExtentStore::fetch_add`].
    pub(crate) async fn fetch_add(
        &self,
        home: HomeId,
        unit: UnitId,
        offset: u32,
        addend: u64,
    ) -> Result<u64> {
        let extents = &self.parts.extents;
        let Some(replicas) = &self.parts.replicas else {
            return extents.fetch_add(home, unit, offset, addend).await;
        };
        let _locks = self.lock(unit).await;
        let previous = extents.fetch_add(home, unit, offset, addend).await?;
        let value = previous.wrapping_add(addend);
        replicas.repeat(home, &ReplicaRequest::SetNumber { home, unit, offset, value }, None).await?;
        Ok(previous)
    }

    /// Frees space on the backups that refused a change.
    pub(crate) async fn free_space(&self, attempt: u32) -> Result<()> {
        match &self.parts.replicas {
            Some(replicas) => replicas.free_space(attempt).await,
            None => Ok(()),
        }
    }

    /// Locks all units of a file, if they have replicas.
    async fn lock_file(&self, inode: InodeId) -> Option<(&Replicas, Held<InodeId>)> {
        let replicas = self.parts.replicas.as_deref()?;
        Some((replicas, self.files.hold(inode).await))
    }

    /// Truncates the units at homes that this node serves; as [`ExtentStore::truncate`].
    pub(crate) async fn truncate(&self, inode: InodeId, size: u64) -> Result<()> {
        let locked = self.lock_file(inode).await;
        self.parts.extents.truncate(&self.served(), inode, size).await?;
        let Some((replicas, _lock)) = locked else { return Ok(()) };
        replicas.repeat_at_all(|homes| ReplicaRequest::Truncate { homes, inode, size }).await
    }

    /// Changes the space of units at homes that this node serves; as [`ExtentStore::change_space`].
    pub(crate) async fn change_space(
        &self,
        inode: InodeId,
        change: SpaceChange,
        bytes: Range<u64>,
        layout: Layout,
    ) -> Result<()> {
        let locked = self.lock_file(inode).await;
        let (served, own) = self.own_units(layout, inode);
        self.parts.extents.change_space(&served, inode, change, bytes.clone(), own).await?;
        let Some((replicas, _lock)) = locked else { return Ok(()) };
        let (start, end) = (bytes.start, bytes.end);
        let request = |homes| ReplicaRequest::Space { homes, inode, change, start, end, layout };
        replicas.repeat_at_all(request).await
    }

    /// Marks flushed units of a file clean; as [`ExtentStore::mark_clean`].
    pub(crate) async fn mark_clean(
        &self,
        inode: InodeId,
        flushed: &[DirtyUnit],
        generation: Generation,
    ) -> Result<()> {
        let locked = self.lock_file(inode).await;
        if let Some((replicas, _)) = &locked {
            let left =
                |unit: &DirtyUnit| Ok((unit.home, (unit.unit.index, self.parts.extents.dirty_after(unit)?)));
            let left = flushed.iter().map(left).collect::<Result<Vec<_>>>()?;
            // First: what fails here stays dirty, and is flushed again.
            for left in left.chunks(CLEAN_UNITS_MAX) {
                replicas.repeat_clean(inode, left, generation).await?;
            }
        }
        for unit in flushed {
            self.parts.extents.mark_clean(unit, generation).await?;
        }
        Ok(())
    }
}

/// Bytes of the pages of a unit that a valid patch changes.
fn pages_of(unit: UnitId, patch: &[u8]) -> RangeSet {
    let page = |page: u32| {
        let start = (u64::from(page) * PAGE_SIZE as u64).saturating_sub(unit.start());
        let start = start.min((UNIT_SIZE - PAGE_SIZE) as u64) as u32;
        start..start + PAGE_SIZE as u32
    };
    patches(patch).flatten().map(|record| page(record.page())).collect()
}

impl Replicas {
    /// Has backups that refused a change for lack of space flush files, as this node does for its own space.
    async fn free_space(&self, attempt: u32) -> Result<()> {
        let full = std::mem::take(&mut *self.full.lock());
        let calls = full.into_iter().map(|backup| async move {
            let request = Request::Unit(UnitRequest::WaitForSpace { attempt });
            match self.rpc()?.call(backup.into(), request, None, None).await {
                // Without the backup, its space does not matter.
                Err(fault) if !may_be_repeated(&fault) => {
                    Err(fault.context(format_args!("replica on {backup}")))
                }
                _ => Ok(()),
            }
        });
        join_calls(calls).await.map(drop)
    }

    /// Repeats a change of a unit on the backups of its home.
    ///
    /// # Errors
    /// `EREMCHG` if this node does not serve the home any more; the error of a backup that could not make the change.
    async fn repeat(&self, home: HomeId, request: &ReplicaRequest, payload: Option<Payload>) -> Result<()> {
        self.on_all_backups(
            || {
                let (map, backups) = self.targets(home)?;
                Ok((map, backups.into_iter().map(|backup| (backup, request.clone())).collect()))
            },
            payload,
        )
        .await
    }

    /// Repeats a change of units at all homes that this node serves.
    async fn repeat_at_all(&self, request: impl Fn(HomeSet) -> ReplicaRequest) -> Result<()> {
        self.on_all_backups(
            || {
                let (map, backups) = self.all_targets();
                let requests =
                    backups.into_iter().map(|(backup, homes)| (backup, request(HomeSet::Of(homes))));
                Ok((map, requests.collect()))
            },
            None,
        )
        .await
    }

    /// Repeats that units became clean: `left` has the homes of units, with their indexes and the bytes that stayed dirty.
    async fn repeat_clean(
        &self,
        inode: InodeId,
        left: &[(HomeId, (u64, RangeSet))],
        generation: Generation,
    ) -> Result<()> {
        self.on_all_backups(
            || {
                let mut of_backup = BTreeMap::<NodeId, Vec<_>>::new();
                let mut map = self.parts.cluster.map();
                for (home, unit) in left {
                    let (now, backups) = self.targets(*home)?;
                    map = now;
                    for backup in backups {
                        of_backup.entry(backup).or_default().push(unit.clone());
                    }
                }
                let clean = |units| ReplicaRequest::Clean { inode, units, generation };
                Ok((map, of_backup.into_iter().map(|(backup, units)| (backup, clean(units))).collect()))
            },
            None,
        )
        .await
    }

    /// Sends requests to backups, and again after each change of the home map and while a backup does not answer. `choose` returns the
    /// backups under the current map.
    async fn on_all_backups(
        &self,
        choose: impl Fn() -> Result<(Arc<HomeMap>, Vec<(NodeId, ReplicaRequest)>)>,
        payload: Option<Payload>,
    ) -> Result<()> {
        // Backups that have made the change.
        let mut done = BTreeSet::new();
        loop {
            let joins = self.joins_begun.load(Ordering::Acquire);
            let (map, mut requests) = choose()?;
            requests.retain(|(backup, _)| !done.contains(backup));
            let calls = requests.into_iter().map(|(backup, request)| {
                let (map, payload) = (&map, payload.clone());
                async move {
                    match self.ask(map, backup, request, payload).await {
                        Ok(_) => Ok(Some(backup)),
                        Err(fault) if may_be_repeated(&fault) => {
                            self.wait_for_backup(map, backup, &fault).await;
                            Ok(None)
                        }
                        Err(fault) => {
                            // A copy that has no space for the home is no replica of it.
                            let is_joining =
                                map.served_by(self.parts.node).any(|home| map.joining(home) == Some(backup));
                            if fault.errno == Errno::EIO || is_joining {
                                self.note_failed(backup, &fault);
                                self.wait_for_backup(map, backup, &fault).await;
                                return Ok(None);
                            }
                            if fault.errno == Errno::ENOSPC {
                                self.full.lock().insert(backup);
                            }
                            Err(fault.context(format_args!("replica on {backup}")))
                        }
                    }
                }
            });
            let ended = join_calls(calls).await?;
            let is_complete = ended.iter().all(Option::is_some);
            done.extend(ended.into_iter().flatten());
            let is_current =
                self.parts.cluster.epoch() == map.epoch && self.joins_begun.load(Ordering::Acquire) == joins;
            if is_complete && is_current {
                return Ok(());
            }
        }
    }
}
