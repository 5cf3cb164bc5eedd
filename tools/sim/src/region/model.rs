//! The reference model: what SEMANTICS.md allows the memories of a region to see.
//!
//! A program without data races stores to a cell from one memory at a time. So the values of a cell have an order, and a memory may see
//! any of them from the oldest that it must see up to the last one stored.

use super::cells::{Cell, Kind};
use std::collections::BTreeMap;

/// The states of all cells after an event.
#[derive(Clone, Debug)]
pub(super) struct Snapshot(Vec<u64>);

/// What is known of a cell. A value is the number of stores up to it; that of a sum is the sum.
#[derive(Clone, Debug)]
struct Values {
    /// The last one stored; of a sum, with the additions in flight.
    latest: u64,
    /// The last one that a flush has announced.
    flushed: u64,
    /// By memory: the oldest that it may see.
    oldest: Vec<u64>,
    /// By memory: the last one of its own.
    own: Vec<u64>,
    /// Additions that may or may not have taken effect.
    doubt: u64,
}

/// Barriers since the processes have attached.
#[derive(Default)]
struct Barrier {
    called: usize,
    stored: Option<Snapshot>,
}

pub(super) struct Model {
    cells: Vec<Cell>,
    values: Vec<Values>,
    /// Additions: the sum before each, with the addend.
    additions: BTreeMap<usize, BTreeMap<u64, u64>>,
    /// By lock: what its last holder has stored before the release.
    released: BTreeMap<u32, Snapshot>,
    barriers: Vec<Barrier>,
}

type Checked<T = ()> = Result<T, String>;

impl Model {
    pub fn new(cells: &[Cell]) -> Self {
        let values = Values { latest: 0, flushed: 0, oldest: Vec::new(), own: Vec::new(), doubt: 0 };
        Self {
            cells: cells.to_vec(),
            values: vec![values; cells.len()],
            additions: BTreeMap::new(),
            released: BTreeMap::new(),
            barriers: Vec::new(),
        }
    }

    /// Processes attach to new memories. All earlier stores are at their homes.
    pub fn attach(&mut self, memories: usize) {
        for values in &mut self.values {
            values.flushed = values.latest - values.doubt;
            values.oldest = vec![values.flushed; memories];
            values.own = vec![0; memories];
        }
        self.released.clear();
        self.barriers.clear();
    }

    fn is_sum(&self, cell: usize) -> bool {
        self.cells[cell].kind == Kind::Sum
    }

    /// A memory stores to a cell; returns the value.
    pub fn store(&mut self, memory: usize, cell: usize) -> u64 {
        let values = &mut self.values[cell];
        values.latest += 1;
        values.oldest[memory] = values.latest;
        values.own[memory] = values.latest;
        values.latest
    }

    /// A memory has loaded these bytes: it never sees an older value afterwards.
    pub fn load(&mut self, memory: usize, cell: usize, bytes: &[u8]) -> Checked<u64> {
        let oldest = self.values[cell].oldest[memory];
        let seen = self.check(cell, oldest, bytes).map_err(|why| format!("memory {memory} {why}"))?;
        self.values[cell].oldest[memory] = seen;
        Ok(seen)
    }

    /// Checks bytes of a cell, and returns their value.
    pub fn check(&self, cell: usize, oldest: u64, bytes: &[u8]) -> Checked<u64> {
        let latest = self.values[cell].latest;
        self.cells[cell].value(bytes, oldest, latest).ok_or_else(|| {
            let shown = &bytes[..bytes.len().min(16)];
            let found = self.cells[cell].value(bytes, 0, latest + 1000);
            let values = &self.values[cell];
            format!(
                "sees {shown:?}, value {found:?}, in cell {cell} ({}), not {oldest} to {latest}: {values:?}",
                self.cells[cell]
            )
        })
    }

    /// The value that all must see who see everything.
    pub fn latest(&self, cell: usize) -> u64 {
        self.values[cell].latest - self.values[cell].doubt
    }

    /// The last announced value of a cell.
    pub fn flushed(&self, cell: usize) -> u64 {
        self.values[cell].flushed
    }

    /// The last value of a cell that a memory has stored is the last one of all.
    pub fn is_last_writer(&self, memory: usize, cell: usize) -> bool {
        let values = &self.values[cell];
        !self.is_sum(cell) && values.latest > 0 && values.own[memory] == values.latest
    }

    /// The stores of a memory so far.
    pub fn own(&self, memory: usize) -> Snapshot {
        Snapshot(self.values.iter().map(|values| values.own[memory]).collect())
    }

    /// A flush that began at this snapshot of its memory has ended.
    pub fn flush_ended(&mut self, own: &Snapshot) {
        for (values, &own) in self.values.iter_mut().zip(&own.0) {
            values.flushed = values.flushed.max(own);
        }
    }

    /// What an update that begins now must make visible to its memory.
    pub fn before_update(&self, memory: usize) -> Snapshot {
        let visible = |(values, cell): (&Values, usize)| match self.is_sum(cell) {
            true => values.flushed.max(values.own[memory]),
            false => values.flushed,
        };
        Snapshot(self.values.iter().zip(0..).map(visible).collect())
    }

    /// The memory has been updated.
    pub fn updated(&mut self, memory: usize, visible: &Snapshot) {
        for (values, &visible) in self.values.iter_mut().zip(&visible.0) {
            values.oldest[memory] = values.oldest[memory].max(visible);
        }
    }

    /// A process of a memory calls barrier `number`, the last of `processes`.
    pub fn call_barrier(&mut self, number: usize, processes: usize) {
        if self.barriers.len() <= number {
            self.barriers.resize_with(number + 1, Barrier::default);
        }
        self.barriers[number].called += 1;
        if self.barriers[number].called == processes {
            let stored = self.values.iter().map(|values| values.latest - values.doubt);
            self.barriers[number].stored = Some(Snapshot(stored.collect()));
        }
    }

    /// A barrier has returned to a process of a memory.
    pub fn barrier_ended(&mut self, memory: usize, number: usize) -> Checked {
        let barrier = self.barriers.get(number);
        let stored = barrier.and_then(|barrier| barrier.stored.clone());
        let stored = stored.ok_or_else(|| format!("barrier {number} returned before all had called it"))?;
        self.flush_ended(&stored);
        self.updated(memory, &stored);
        Ok(())
    }

    /// A process of a memory begins to release a lock.
    pub fn release(&mut self, memory: usize, lock: u32) {
        let own = self.own(memory);
        self.released.insert(lock, own);
    }

    /// The node of the last holder of a lock failed before it released the lock.
    pub fn forget_release(&mut self, lock: u32) {
        self.released.remove(&lock);
    }

    /// A process of a memory has acquired a lock, with an update that began after `visible`.
    pub fn acquired(&mut self, memory: usize, lock: u32, visible: &Snapshot) {
        if let Some(released) = self.released.get(&lock).cloned() {
            self.flush_ended(&released);
            self.updated(memory, &released);
        }
        self.updated(memory, visible);
    }

    /// A process adds to a sum.
    pub fn begin_add(&mut self, cell: usize, addend: u64) {
        self.values[cell].latest += addend;
        self.values[cell].doubt += addend;
    }

    /// The addition has taken effect, and returned the number before.
    pub fn added(&mut self, memory: usize, cell: usize, addend: u64, before: u64) -> Checked {
        let values = &mut self.values[cell];
        values.doubt -= addend;
        values.own[memory] = values.own[memory].max(before + addend);
        let other = self.additions.entry(cell).or_default().insert(before, addend);
        match other {
            Some(_) => Err(format!("two additions to cell {cell} returned {before}")),
            None => Ok(()),
        }
    }

    /// The additions to all sums form chains, unless one of them is in doubt.
    pub fn check_additions(&self) -> Checked {
        for (cell, additions) in &self.additions {
            let mut sum = 0;
            for (before, addend) in additions {
                if self.values[*cell].doubt == 0 && *before != sum {
                    return Err(format!("an addition to cell {cell} returned {before}, not {sum}"));
                }
                sum = before + addend;
            }
        }
        Ok(())
    }
}
