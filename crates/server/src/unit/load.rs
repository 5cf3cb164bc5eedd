//! Loads units before programs read them (`warm`).
//!
//! A node reads few units at a time for all loads together. While programs have requests here, it reads only one unit now and then. Units
//! of one load do not evict each other: a unit without space is not read, and the reply counts it.

use super::{UnitService, check_index};
use async_lock::Semaphore;
use futures_util::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::time::Duration;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::unit::{LOAD_UNITS_MAX, UnitReply};
use tameike_core::{Errno, Fault, Generation, InodeId, Result, UnitId, View};

/// Units that are read concurrently for all loads together.
const LOADED_PARALLEL: usize = 4;
/// How long the load of one unit waits for the node to be idle.
const YIELD_TIME: Duration = Duration::from_millis(100);
/// Maximum number of tracked loads.
const LOADS_MAX: usize = 8;

/// The running loads.
pub(super) struct Loads {
    turns: Semaphore,
    /// The latest loads. For each, only units last used before this time may be evicted.
    started: Mutex<VecDeque<(u64, u64)>>,
}

impl Default for Loads {
    fn default() -> Self {
        Self { turns: Semaphore::new(LOADED_PARALLEL), started: Mutex::default() }
    }
}

impl Loads {
    /// Returns the time before which units must have been last used to be evicted for a load. A new load begins `now`.
    fn victims_until(&self, loading: u64, now: u64) -> u64 {
        let mut started = self.started.lock();
        if let Some((_, until)) = started.iter().find(|(known, _)| *known == loading) {
            return *until;
        }
        if started.len() == LOADS_MAX {
            started.pop_front();
        }
        started.push_back((loading, now));
        now
    }
}

/// The file to load.
pub(super) struct Order {
    pub(super) size: u64,
    pub(super) generation: Generation,
    pub(super) path: Vec<u8>,
    pub(super) loading: u64,
}

impl UnitService {
    /// Loads units of a file into this node's store.
    pub(super) async fn load(&self, inode: InodeId, units: Vec<u64>, order: Order) -> Result<UnitReply> {
        if units.len() > LOAD_UNITS_MAX {
            return Err(Fault::new(
                Errno::EINVAL,
                format!("{} units are too many for one load", units.len()),
            ));
        }
        let now = self.parts.extents.time_of_use();
        let until = self.loading.victims_until(order.loading, now);
        let loads = units.into_iter().map(|index| self.load_unit(UnitId { inode, index }, &order, until));
        let sums = stream::iter(loads).buffer_unordered(LOADED_PARALLEL);
        let add = |(held, left_out), one: (u64, u64)| async move { Ok((held + one.0, left_out + one.1)) };
        let (held, left_out) = sums.try_fold((0, 0), add).await?;
        Ok(UnitReply::Loaded { held, left_out })
    }

    /// Loads a unit. Returns the number of its bytes that are stored or in holes, and of those without space.
    async fn load_unit(&self, unit: UnitId, order: &Order, victims_until: u64) -> Result<(u64, u64)> {
        check_index(unit.index)?;
        let range = 0..order.size.saturating_sub(unit.start()).min(UNIT_SIZE as u64) as u32;
        let _turn = self.loading.turns.acquire().await;
        let (extents, generation) = (&self.parts.extents, order.generation);
        let missing = |held: &tameike_core::ranges::RangeSet| {
            held.gaps(range.clone()).iter().map(|gap| u64::from(gap.end - gap.start)).sum::<u64>()
        };
        let length = u64::from(range.end);
        let before = missing(&extents.held(unit, generation).await?);
        if before == 0 {
            return Ok((length, 0));
        }
        self.parts.runtime.timeout(YIELD_TIME, self.parts.activity.until_quiet()).await;
        if !extents.has_space(View::Cache, victims_until) {
            return Ok((length - before, before));
        }
        let frame = self.parts.read_pool.take().await;
        let part = (generation, victims_until);
        let read = self.fill(unit, range.clone(), frame, part, order.path.clone()).await?;
        let mut lost = read;
        extents.held(unit, generation).await?.iter().for_each(|held| lost.remove(held));
        let left_out = u64::from(lost.len());
        Ok((length - left_out, left_out))
    }
}
