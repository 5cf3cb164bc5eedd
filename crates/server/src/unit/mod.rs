//! The unit service: stores the bytes of units on their home.
//!
//! - A read fills the gaps of a unit with zeros, or from the shared file system. Concurrent reads of a unit share one fetch.
//! - A write to a cached file is dirty until it is flushed. A flush writes exactly the dirty bytes.
//! - Flushed bytes become clean after the fsyncs of all nodes that flushed the file in the same round have succeeded.
//! - Requests carry paths and sizes of files: the service stores neither.

mod damaged;
pub(crate) mod digest;
mod ends;
mod fetch;
mod flush;
mod freeing;
mod gaps;
mod load;
mod open_files;
mod patch;
mod save;

use crate::cache::Activity;
use crate::replica::Copies;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use tameike_core::limits::{FILE_SIZE_MAX, HOLDER_TIMEOUT, UNIT_SIZE};
use tameike_core::wire::unit::{
    Backing, LOCATIONS_MAX, Sought, SpaceChange, UnitLocation, UnitReply, UnitRequest,
};
use tameike_core::{Cluster, Errno, Fault, Generation, HomeId, InodeId, Layout, NodeId, Result, UnitId};
use tameike_fabric::{Carried, MapLease, Rpc, Target, TimeLimitedCalls};
use tameike_io::shared::SharedFs;
use tameike_io::{Frame, Payload, Pool, Runtime};
use tameike_store::ExtentStore;
use tameike_store::extent::Pieces;
use tameike_store::locks::Locks;

/// The environment of the unit service.
pub struct UnitParts {
    /// Time and tasks.
    pub runtime: Runtime,
    /// The nodes of the job.
    pub cluster: Arc<Cluster>,
    /// The extents of this node.
    pub extents: Arc<ExtentStore>,
    /// Makes changes of extents on all replicas.
    pub copies: Arc<Copies>,
    /// The shared file system.
    pub shared: Arc<dyn SharedFs>,
    /// Without it, nothing is written to the shared file system.
    pub lease: Arc<MapLease>,
    /// Sends requests to other agents.
    pub rpc: Arc<dyn Rpc>,
    /// Frames for replies to reads.
    pub read_pool: Pool,
    /// Frames for flushes: a separate pool, so that a flush never waits for readers or writers.
    pub flush_pool: Pool,
    /// Foreground requests of this node, shared with the cache service.
    pub activity: Arc<Activity>,
}

/// Bytes of a unit to read, and the generation of the file.
#[derive(Clone)]
struct ReadOrder {
    unit: UnitId,
    range: Range<u32>,
    generation: Generation,
}

/// Serves [`UnitRequest`]s.
pub struct UnitService {
    parts: UnitParts,
    /// Exclusive while bytes of a file are dropped or become clean, shared while bytes are fetched: bytes read before a truncate must not
    /// be stored after it.
    file_locks: Locks<InodeId>,
    /// Serializes the fetches of a unit.
    unit_locks: Locks<UnitId>,
    /// Serializes the flushes of a file.
    flush_locks: Locks<InodeId>,
    /// Units of flush rounds whose success is not known yet.
    flushed: Mutex<BTreeMap<InodeId, flush::Flushed>>,
    flushed_ends: ends::FlushedEnds,
    freeing: async_lock::Mutex<()>,
    allocations: freeing::Allocations,
    /// Cache holders to try before the shared file.
    time_limit: TimeLimitedCalls,
    loading: load::Loads,
    loaded: fetch::Loaded,
    open_files: open_files::OpenFiles,
}

impl UnitService {
    /// Creates the service of one node.
    pub fn new(parts: UnitParts) -> Arc<Self> {
        let open_files = open_files::OpenFiles::new(&parts.cluster, parts.rpc.local());
        Arc::new(Self {
            time_limit: TimeLimitedCalls::new(parts.runtime.clone(), HOLDER_TIMEOUT),
            parts,
            file_locks: Locks::default(),
            unit_locks: Locks::default(),
            flush_locks: Locks::default(),
            flushed: Mutex::default(),
            flushed_ends: ends::FlushedEnds::default(),
            freeing: async_lock::Mutex::new(()),
            allocations: freeing::Allocations::default(),
            loading: load::Loads::default(),
            loaded: fetch::Loaded::default(),
            open_files,
        })
    }

    /// Serves one request to a home, or to all homes that this node serves (`None`).
    ///
    /// # Errors
    /// `EINVAL` for a malformed request; `ENOSPC` for a write if the store is full and the shared file system accepts no more; `ESTALE` if
    /// another file has the path now, or the flush round is unknown; the errors of devices and of the shared file system.
    pub async fn serve(
        &self,
        home: Option<HomeId>,
        request: UnitRequest,
        payload: Option<Payload>,
        target: Target,
    ) -> Result<(UnitReply, Carried)> {
        let home = || home.ok_or_else(|| Fault::new(Errno::EINVAL, "a request for a unit names no home"));
        let reply = match request {
            UnitRequest::Write { unit, ranges, generation } => {
                let payload = required(payload)?;
                check_index(unit.index)?;
                let _allocation = self.allocations.begin();
                self.write(home()?, unit, Pieces::new(ranges, payload)?, generation).await?;
                UnitReply::Done
            }
            UnitRequest::WaitForSpace { attempt } => {
                self.free_space(attempt).await.map(|()| UnitReply::Done)?
            }
            UnitRequest::Read { unit, offset, length, generation, backing } => {
                check_index(unit.index)?;
                let order = ReadOrder { unit, range: range_in_unit(offset, length)?, generation };
                return Ok((UnitReply::Read, self.read_to(target, order, backing).await?));
            }
            UnitRequest::Sync { inode: _, durable } => {
                self.parts.extents.sync(durable).await?;
                UnitReply::Done
            }
            UnitRequest::Truncate { inode, size } => {
                self.truncate(inode, size).await.map(|()| UnitReply::Done)?
            }
            UnitRequest::Flush { inode, path, size, generation, patient, distrust, round, ending } => {
                let order = flush::Order { inode, path, size, generation, patient, distrust, round, ending };
                self.flush(order).await?
            }
            request @ UnitRequest::Save { .. } => self.save(request).await?,
            UnitRequest::MarkClean { inode, round } => {
                self.mark_round_clean(inode, round).await?;
                UnitReply::Done
            }
            UnitRequest::Space { inode, change, start, end, layout } => {
                check_bytes(start, end)?;
                self.change_space(inode, change, start..end, layout).await?;
                UnitReply::Done
            }
            UnitRequest::Seek { inode, sought, start, layout } => self.seek(inode, sought, start, layout)?,
            UnitRequest::Usage { inode } => {
                UnitReply::Usage(self.parts.extents.usage(&self.parts.copies.served(), inode)?)
            }
            UnitRequest::Locations { inode, units, generation } => {
                UnitReply::Locations(self.locations(inode, units, generation).await?)
            }
            UnitRequest::Load { inode, units, size, generation, path, loading } => {
                self.load(inode, units, load::Order { size, generation, path, loading }).await?
            }
            UnitRequest::DirtyInodes { coordinator, after, limit } => {
                UnitReply::DirtyInodes(self.dirty_inodes(coordinator, after, limit)?)
            }
            UnitRequest::Digest { inode, path, size, units } => {
                UnitReply::Digests(self.digests(inode, path, size, units).await?)
            }
            UnitRequest::Patch { inode, layout } => {
                self.patch(inode, layout, required(payload)?).await.map(|()| UnitReply::Done)?
            }
            UnitRequest::FetchAdd { unit, offset, addend } => {
                check_index(unit.index)?;
                let _allocation = self.allocations.begin();
                UnitReply::Previous(self.parts.copies.fetch_add(home()?, unit, offset, addend).await?)
            }
        };
        Ok((reply, Carried::Nothing))
    }

    async fn truncate(&self, inode: InodeId, size: u64) -> Result<()> {
        // A read that waits for bytes behind the new end holds the file's lock.
        self.flushed_ends.lower(inode, size);
        // A flush that the coordinator has abandoned must not write truncated bytes after this.
        let _only = self.flush_locks.hold(inode).await;
        let _alone = self.file_locks.hold(inode).await;
        self.flushed.lock().remove(&inode);
        self.flushed_ends.lower(inode, size);
        self.parts.copies.truncate(inode, size).await?;
        if inode.is_cached() {
            // Truncated dirty bytes must not reappear after a crash of the agent: the coordinator forgets the truncate after this
            // reply.
            self.parts.extents.sync(false).await?;
        }
        Ok(())
    }

    async fn change_space(
        &self,
        inode: InodeId,
        change: SpaceChange,
        bytes: Range<u64>,
        layout: Layout,
    ) -> Result<()> {
        let _alone = self.file_locks.hold(inode).await;
        self.flushed.lock().remove(&inode);
        self.parts.copies.change_space(inode, change, bytes, layout).await?;
        if inode.is_cached() {
            // As after a truncate.
            self.parts.extents.sync(false).await?;
        }
        Ok(())
    }

    fn seek(&self, inode: InodeId, sought: Sought, start: u64, layout: Layout) -> Result<UnitReply> {
        check_bytes(start, start)?;
        let (served, own) = self.parts.copies.own_units(layout, inode);
        let found = self.parts.extents.seek(&served, inode, sought, start, &own)?;
        let (at, found) = found.map_or_else(|at| (at, false), |at| (at, true));
        Ok(UnitReply::Found { at, found })
    }

    async fn read_to(&self, target: Target, order: ReadOrder, backing: Backing) -> Result<Carried> {
        let ReadOrder { unit, range, generation } = &order;
        let frame = match target {
            Target::Frame(frame) => frame,
            Target::Any => self.parts.read_pool.take().await,
            Target::AnyOrLocation => {
                // The read below detects and reports damage of the unit.
                let location = self.parts.extents.extent_location(*unit, range, *generation).await;
                if let Ok(Some(location)) = location {
                    return Ok(Carried::Location(location));
                }
                self.parts.read_pool.take().await
            }
        };
        self.read(order, frame, backing).await.map(Carried::Payload)
    }

    /// Returns the extent locations of units that this node has completely. It does not detect damage; a read does.
    async fn locations(
        &self,
        inode: InodeId,
        units: Vec<u64>,
        generation: Generation,
    ) -> Result<Vec<Option<UnitLocation>>> {
        if units.len() > LOCATIONS_MAX {
            let why = format!("a request for the locations of {} units exceeds {LOCATIONS_MAX}", units.len());
            return Err(Fault::new(Errno::EINVAL, why));
        }
        let mut locations = Vec::with_capacity(units.len());
        for index in units {
            check_index(index)?;
            let location = self.parts.extents.unit_location(UnitId { inode, index }, generation).await;
            locations.push(location.unwrap_or_default());
        }
        Ok(locations)
    }

    async fn read(&self, order: ReadOrder, frame: Frame, backing: Backing) -> Result<Payload> {
        let ReadOrder { unit, range, generation } = order.clone();
        let path = match &backing {
            Backing::Shared { path, .. } => Some(path.as_slice()),
            Backing::Zeros => None,
        };
        let (mut frame, held) = self.read_held(unit, range.clone(), frame, generation, path).await;
        let held = held?;
        if let Some(sums) = held.sums {
            return Ok(Payload::new(Arc::new(frame), range).with_sums(sums));
        }
        let gaps = held.ranges.gaps(range.clone());
        match backing {
            Backing::Shared { path, holders } if !gaps.is_empty() => {
                match self.read_holders(&order, holders).await {
                    Some(bytes) => Ok(fetch::filled(frame, range, gaps, &bytes)),
                    None => self.fetch(order, frame, path).await,
                }
            }
            Backing::Zeros | Backing::Shared { .. } => {
                gaps.into_iter().for_each(|gap| frame[gap.start as usize..gap.end as usize].fill(0));
                Ok(Payload::new(Arc::new(frame), range))
            }
        }
    }

    fn dirty_inodes(&self, coordinator: NodeId, after: InodeId, limit: u32) -> Result<Vec<InodeId>> {
        let (limit, cluster) = (limit as usize, &self.parts.cluster);
        let map = cluster.map();
        let is_coordinated = |inode| map.primary(cluster.inode_home(inode)) == coordinator;
        let (mut found, mut after, served) = (Vec::new(), after, self.parts.copies.served());
        while found.len() < limit {
            let inodes = self.parts.extents.dirty_inodes(&served, after)?;
            let Some(&last) = inodes.last() else { break };
            found.extend(inodes.into_iter().filter(|&id| is_coordinated(id)));
            after = last;
        }
        found.truncate(limit);
        Ok(found)
    }
}

fn required(payload: Option<Payload>) -> Result<Payload> {
    payload.ok_or_else(|| Fault::new(Errno::EINVAL, "a request to change bytes of a unit has no payload"))
}

/// The largest file size bounds the index of a unit, so that its offset cannot overflow.
fn check_index(index: u64) -> Result<()> {
    if index <= FILE_SIZE_MAX / UNIT_SIZE as u64 { Ok(()) } else { Err(Errno::EFBIG.into()) }
}

fn check_bytes(start: u64, end: u64) -> Result<()> {
    if start <= end && end <= FILE_SIZE_MAX {
        return Ok(());
    }
    Err(Fault::new(Errno::EINVAL, format!("bytes {start} to {end} are not a range of a file")))
}

fn range_in_unit(offset: u32, length: u32) -> Result<Range<u32>> {
    match offset.checked_add(length) {
        Some(end) if end as usize <= UNIT_SIZE => Ok(offset..end),
        _ => Err(Fault::new(Errno::EINVAL, format!("{length} bytes at {offset} do not lie in one unit"))),
    }
}
