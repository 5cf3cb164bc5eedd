//! Policies of replacement: each says which unit of a full memory goes next. All but the last know what was used, and nothing else.

mod arc;
mod bound;
mod clock;
mod lru;
mod order;
mod s3_fifo;
mod sieve;
mod two_queue;

#[cfg(test)]
mod tests;

pub use super::trace::Unit;
use clap::ValueEnum;

/// Which unit goes next.
pub trait Policy {
    /// A unit has come. `next` is the number of its next use.
    fn insert(&mut self, unit: Unit, next: usize);
    /// A unit that is there was used.
    fn hit(&mut self, unit: Unit, next: usize);
    /// The unit that goes, which is forgotten.
    fn evict(&mut self) -> Option<Unit>;
    /// A unit that was to go stays for one more round.
    fn spare(&mut self, unit: Unit);
    /// A unit has gone by itself.
    fn remove(&mut self, unit: Unit);
}

/// A policy by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Least recently used.
    Lru,
    /// First in, first out.
    Fifo,
    /// Second chance.
    Clock,
    /// SIEVE (Zhang et al., NSDI 2024).
    Sieve,
    /// 2Q (Johnson, Shasha, VLDB 1994).
    TwoQueue,
    /// ARC (Megiddo, Modha, FAST 2003).
    Arc,
    /// S3-FIFO (Yang et al., SOSP 2023): a tenth of the memory for what is new, which stays if used twice since.
    S3Fifo,
    /// The same where one use since is enough.
    S3FifoOnce,
    /// The same with at least 32 units for what is new, or a quarter: the product's.
    Product,
    /// The product's, if it took two uses.
    ProductTwice,
    /// Belady's: that which is used again latest goes. No policy of one node has fewer misses.
    Bound,
}

impl Kind {
    /// A policy for a memory of so many units.
    pub fn policy(self, capacity: usize) -> Box<dyn Policy> {
        match self {
            Self::Lru => Box::new(lru::Lru::default()),
            Self::Fifo => Box::new(clock::Clock::new(0)),
            Self::Clock => Box::new(clock::Clock::new(1)),
            Self::Sieve => Box::new(sieve::Sieve::default()),
            Self::TwoQueue => Box::new(two_queue::TwoQueue::new(capacity)),
            Self::Arc => Box::new(arc::Arc::new(capacity)),
            Self::S3Fifo => Box::new(s3_fifo::S3Fifo::new(capacity, 10, 1, 2)),
            Self::S3FifoOnce => Box::new(s3_fifo::S3Fifo::new(capacity, 10, 1, 1)),
            Self::Product => Box::new(s3_fifo::S3Fifo::new(capacity, 10, 32, 1)),
            Self::ProductTwice => Box::new(s3_fifo::S3Fifo::new(capacity, 10, 32, 2)),
            Self::Bound => Box::new(bound::Bound::default()),
        }
    }
}
