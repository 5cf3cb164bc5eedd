//! The unit service: bytes of units on the node where they lie.
//!
//! Reads fill what the node does not hold: with zeros, or from the shared file system, each unit once however
//! many ask. Writes to cached files are dirty until flushed. A flush writes exactly the dirty bytes, and bytes
//! become clean only after the shared file system has confirmed an fsync, of every node that flushed the file at the
//! same time. The service knows no names and no sizes of files: those come with the requests.

mod damaged;
pub(crate) mod digest;
mod ends;
mod fetch;
mod flush;
mod gaps;
mod kept;
mod load;
mod relief;
mod save;

use crate::cache::Activity;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use tameike_core::limits::{FILE_SIZE_MAX, HOLDER_PATIENCE, UNIT_SIZE};
use tameike_core::wire::unit::{Backing, PLACES_MAX, SpaceChange, UnitPlace, UnitReply, UnitRequest};
use tameike_core::{Cluster, Errno, Fault, Generation, InodeId, NodeId, Result, UnitId};
use tameike_fabric::{Carried, Patience, Rpc, Target};
use tameike_io::shared::SharedFs;
use tameike_io::{Frame, Payload, Pool, Runtime};
use tameike_store::ExtentStore;
use tameike_store::extent::Pieces;
use tameike_store::locks::Locks;

/// What the unit service works with.
pub struct UnitParts {
    /// Time and tasks.
    pub runtime: Runtime,
    /// The nodes of the job.
    pub cluster: Arc<Cluster>,
    /// The bytes of this node.
    pub extents: Arc<ExtentStore>,
    /// The shared file system.
    pub shared: Arc<dyn SharedFs>,
    /// Asks other agents.
    pub rpc: Arc<dyn Rpc>,
    /// Frames for answers to reads.
    pub read_pool: Pool,
    /// Frames for flushes, apart so that a flush never waits for readers or writers.
    pub flush_pool: Pool,
    /// Whether this node is busy; the same as the cache service's.
    pub activity: Arc<Activity>,
}

/// Answers [`UnitRequest`]s.
pub struct UnitService {
    parts: UnitParts,
    /// Held alone while a file's bytes are dropped or become clean, shared while bytes of it are fetched: what
    /// was read from the shared file before a cut must not be kept after it.
    file_locks: Locks<InodeId>,
    /// One fetch of a unit at a time.
    unit_locks: Locks<UnitId>,
    /// One flush of a file at a time.
    flush_locks: Locks<InodeId>,
    /// What was flushed in a round that is not yet known to be good.
    flushed: Mutex<BTreeMap<InodeId, flush::Flushed>>,
    flushed_ends: ends::FlushedEnds,
    relief: async_lock::Mutex<()>,
    takers: relief::Takers,
    /// With holders that are asked before the shared file is read.
    patience: Patience,
    loading: load::Loading,
    loaded: fetch::Loaded,
    keeping: kept::Keeping,
}

impl UnitService {
    /// The service of one node.
    pub fn new(parts: UnitParts) -> Arc<Self> {
        let keeping = kept::Keeping::new(&parts.cluster, parts.rpc.local());
        Arc::new(Self {
            patience: Patience::new(parts.runtime.clone(), HOLDER_PATIENCE),
            parts,
            file_locks: Locks::default(),
            unit_locks: Locks::default(),
            flush_locks: Locks::default(),
            flushed: Mutex::default(),
            flushed_ends: ends::FlushedEnds::default(),
            relief: async_lock::Mutex::new(()),
            takers: relief::Takers::default(),
            loading: load::Loading::default(),
            loaded: fetch::Loaded::default(),
            keeping,
        })
    }

    /// Serves one request.
    ///
    /// # Errors
    /// `EINVAL` for a malformed request, `ENOSPC` for a write without room in the store, and where the shared file system takes no more,
    /// `ESTALE` when the file's path now belongs to another file or a round of flushes is not known here, and what disks and the shared file system say.
    pub async fn serve(
        &self,
        request: UnitRequest,
        payload: Option<Payload>,
        target: Target,
    ) -> Result<(UnitReply, Carried)> {
        let reply = match request {
            UnitRequest::Write { unit, ranges, generation } => {
                let payload =
                    payload.ok_or_else(|| Fault::new(Errno::EINVAL, "a write came without its bytes"))?;
                check_index(unit.index)?;
                let _taker = self.takers.begin();
                self.write_held(unit, &Pieces::new(ranges, payload)?, generation).await?;
                UnitReply::Done
            }
            UnitRequest::MakeRoom { attempt } => self.make_room(attempt).await.map(|()| UnitReply::Done)?,
            UnitRequest::Read { unit, offset, length, generation, backing } => {
                check_index(unit.index)?;
                let range = range_in_unit(offset, length)?;
                let read = self.read_to(target, unit, range, generation, backing).await?;
                return Ok((UnitReply::Read, read));
            }
            UnitRequest::Sync { inode: _, durable } => {
                self.parts.extents.sync(durable).await?;
                UnitReply::Done
            }
            UnitRequest::Truncate { inode, size } => {
                // Who waits for bytes behind that holds the file's lock.
                self.flushed_ends.lower(inode, size);
                // A flush that its coordinator has given up writes nothing of what is cut after this.
                let _only = self.flush_locks.hold(inode).await;
                let _alone = self.file_locks.hold(inode).await;
                self.flushed.lock().remove(&inode);
                self.flushed_ends.lower(inode, size);
                self.parts.extents.truncate(inode, size).await?;
                if inode.is_cached() {
                    // Dirty bytes that were cut must not come back when the agent dies: the coordinator
                    // forgets the cut once it is done here.
                    self.parts.extents.sync(false).await?;
                }
                UnitReply::Done
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
            UnitRequest::Space { inode, change, start, end, step } => {
                check_bytes(start, end, step)?;
                self.change_space(inode, change, start..end, step).await?;
                UnitReply::Done
            }
            UnitRequest::Seek { inode, sought, start, step } => {
                check_bytes(start, start, step)?;
                match self.parts.extents.seek(inode, sought, start, step)? {
                    Ok(at) => UnitReply::Found { at, found: true },
                    Err(at) => UnitReply::Found { at, found: false },
                }
            }
            UnitRequest::Usage { inode } => UnitReply::Usage(self.parts.extents.usage(inode)?),
            UnitRequest::Places { inode, units, generation } => {
                UnitReply::Places(self.places(inode, units, generation).await?)
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
        };
        Ok((reply, Carried::Nothing))
    }

    async fn change_space(
        &self,
        inode: InodeId,
        change: SpaceChange,
        bytes: Range<u64>,
        step: u64,
    ) -> Result<()> {
        let _alone = self.file_locks.hold(inode).await;
        self.flushed.lock().remove(&inode);
        self.parts.extents.change_space(inode, change, bytes, step).await?;
        if inode.is_cached() {
            // As after a cut.
            self.parts.extents.sync(false).await?;
        }
        Ok(())
    }

    async fn read_to(
        &self,
        target: Target,
        unit: UnitId,
        range: Range<u32>,
        generation: Generation,
        backing: Backing,
    ) -> Result<Carried> {
        let frame = match target {
            Target::Frame(frame) => frame,
            Target::Any => self.parts.read_pool.take().await,
            Target::AnyOrPlace => {
                // What is wrong with the unit is found, and seen to, by reading it.
                if let Ok(Some(place)) = self.parts.extents.place(unit, &range, generation).await {
                    return Ok(Carried::Place(place));
                }
                self.parts.read_pool.take().await
            }
        };
        self.read(unit, range, frame, generation, backing).await.map(Carried::Payload)
    }

    /// Where units lie of which this node holds every byte. What is wrong with one is found by reading it.
    async fn places(
        &self,
        inode: InodeId,
        units: Vec<u64>,
        generation: Generation,
    ) -> Result<Vec<Option<UnitPlace>>> {
        if units.len() > PLACES_MAX {
            let why = format!("the places of {} units are asked for at once", units.len());
            return Err(Fault::new(Errno::EINVAL, why));
        }
        let mut places = Vec::with_capacity(units.len());
        for index in units {
            check_index(index)?;
            let place = self.parts.extents.unit_place(UnitId { inode, index }, generation).await;
            places.push(place.unwrap_or_default());
        }
        Ok(places)
    }

    async fn read(
        &self,
        unit: UnitId,
        range: Range<u32>,
        frame: Frame,
        generation: Generation,
        backing: Backing,
    ) -> Result<Payload> {
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
                match self.read_holders(unit, &range, generation, holders).await {
                    Some(bytes) => Ok(fetch::filled(frame, range, gaps, &bytes)),
                    None => self.fetch(unit, range, frame, generation, path).await,
                }
            }
            Backing::Zeros | Backing::Shared { .. } => {
                gaps.into_iter().for_each(|gap| frame[gap.start as usize..gap.end as usize].fill(0));
                Ok(Payload::new(Arc::new(frame), range))
            }
        }
    }

    fn dirty_inodes(&self, coordinator: NodeId, after: InodeId, limit: u32) -> Result<Vec<InodeId>> {
        let limit = limit as usize;
        let (mut found, mut after) = (Vec::new(), after);
        while found.len() < limit {
            let inodes = self.parts.extents.dirty_inodes(after)?;
            let Some(&last) = inodes.last() else { break };
            found.extend(inodes.into_iter().filter(|&id| self.parts.cluster.inode_home(id) == coordinator));
            after = last;
        }
        found.truncate(limit);
        Ok(found)
    }
}

/// The largest offset of a file bounds the index of a unit, so that its place can be computed.
fn check_index(index: u64) -> Result<()> {
    if index <= FILE_SIZE_MAX / UNIT_SIZE as u64 { Ok(()) } else { Err(Errno::EFBIG.into()) }
}

fn check_bytes(start: u64, end: u64, step: u64) -> Result<()> {
    if start <= end && end <= FILE_SIZE_MAX && step > 0 {
        return Ok(());
    }
    Err(Fault::new(Errno::EINVAL, format!("bytes {start} to {end} by {step} are none of a file")))
}

fn range_in_unit(offset: u32, length: u32) -> Result<Range<u32>> {
    match offset.checked_add(length) {
        Some(end) if end as usize <= UNIT_SIZE => Ok(offset..end),
        _ => Err(Fault::new(Errno::EINVAL, format!("{length} bytes at {offset} do not lie in one unit"))),
    }
}
