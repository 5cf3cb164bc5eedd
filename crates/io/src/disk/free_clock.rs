//! A logical clock of freed blocks for a disk in memory, by which other processes validate their direct reads.
//!
//! ```text
//! memory  0  the clock: number of frees                                              u64
//!         8  for each MiB of the disk: the clock at the last free in it              u64, ...
//! ```
//!
//! A location is valid if no block in it was freed since the clock value at which it was returned. Readers check this after the
//! copy. Checksums alone are not enough: all blocks that end with the checksum of their rest have the same checksum.

use super::DiskMemory;
use crate::os::arena::Notice;
use rustix::io::{pread, retry_on_intr};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};
use tameike_core::wire::call::Run;

/// Bytes of the disk for each word.
const REGION_SIZE: u64 = 1 << 20;
const WORD_SIZE: usize = 8;
/// Words per read: those of a contiguous unit.
const WORDS_AT_ONCE: usize = 2;

/// The clock of a disk.
pub struct FreeClock(Notice);

impl FreeClock {
    /// Creates the clock of a disk of `disk_size` bytes.
    pub fn create(disk_size: u64) -> std::io::Result<Self> {
        let words = usize::try_from(1 + disk_size.div_ceil(REGION_SIZE)).unwrap_or(usize::MAX);
        Notice::create("tameike-free", words.saturating_mul(WORD_SIZE)).map(Self)
    }

    /// The current value.
    pub fn now(&self) -> u64 {
        self.0.long(0).load(Ordering::Acquire)
    }

    /// Marks bytes as freed. Called before their reuse, by one thread at a time.
    pub fn freed(&self, bytes: &Range<u64>) {
        let time = self.now() + 1;
        for region in bytes.start / REGION_SIZE..bytes.end.div_ceil(REGION_SIZE) {
            self.0.long(place(region)).store(time, Ordering::Release);
        }
        self.0.long(0).store(time, Ordering::Release);
    }

    /// A read-only descriptor for other processes.
    pub fn memory(&self) -> std::io::Result<OwnedFd> {
        self.0.memory().try_clone()
    }
}

impl DiskMemory {
    /// True if no block of these runs was freed since `time`. Allocates nothing.
    pub(crate) fn is_as_of(&self, runs: impl Iterator<Item = Run>, time: u64) -> bool {
        is_as_of(&self.clock, runs, time)
    }
}

/// As [`DiskMemory::is_as_of`], for a disk with this clock.
pub fn is_as_of(clock: impl AsFd, mut runs: impl Iterator<Item = Run>, time: u64) -> bool {
    // The fence orders the copy before the check.
    fence(Ordering::SeqCst);
    runs.all(|run| {
        let Some(end) = run.at.checked_add(run.length.into()) else { return false };
        let mut regions = run.at / REGION_SIZE..end.div_ceil(REGION_SIZE);
        while !regions.is_empty() {
            let mut words = [0; WORDS_AT_ONCE * WORD_SIZE];
            let count = (regions.end - regions.start).min(WORDS_AT_ONCE as u64);
            let words = &mut words[..count as usize * WORD_SIZE];
            let at = place(regions.start) as u64;
            if retry_on_intr(|| pread(&clock, &mut *words, at)) != Ok(words.len()) {
                return false;
            }
            let mut times = words.chunks_exact(WORD_SIZE).flat_map(|word| word.first_chunk());
            if !times.all(|word| u64::from_ne_bytes(*word) <= time) {
                return false;
            }
            regions.start += count;
        }
        true
    })
}

fn place(region: u64) -> usize {
    (1 + region as usize) * WORD_SIZE
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn run(at: u64, length: u64) -> Run {
        Run { at, length: length as u32 }
    }

    #[test]
    fn a_free_marks_its_regions() {
        let clock = FreeClock::create(5 * MIB + 1).expect("memory");
        let memory = clock.memory().expect("a descriptor");
        let is_as_of = |run, time| is_as_of(&memory, std::iter::once(run), time);
        assert_eq!(clock.now(), 0);
        assert!(is_as_of(run(0, 5 * MIB), 0));
        clock.freed(&(2 * MIB + 4096..2 * MIB + 8192));
        assert_eq!(clock.now(), 1);
        let learnt = [run(0, 2 * MIB), run(3 * MIB, 2 * MIB)];
        assert!(learnt.into_iter().all(|run| is_as_of(run, 0)));
        for changed in [run(2 * MIB, 4096), run(0, 5 * MIB), run(3 * MIB - 4096, 8192)] {
            assert!(!is_as_of(changed, 0) && is_as_of(changed, 1), "{changed:?}");
        }
        clock.freed(&(4 * MIB - 4096..5 * MIB + 1));
        assert!(!is_as_of(run(5 * MIB, 1), 1) && !is_as_of(run(3 * MIB, 4096), 1));
        assert!(is_as_of(run(2 * MIB, 4096), 1) && is_as_of(run(0, 5 * MIB), 2));
    }

    #[test]
    fn runs_beyond_the_disk_are_invalid() {
        let clock = FreeClock::create(MIB).expect("memory");
        let memory = clock.memory().expect("a descriptor");
        for run in [run(MIB, 4096), run(0, 2 * MIB), run(u64::MAX, 4096), run(u64::MAX - 5000, 4096)] {
            assert!(!is_as_of(&memory, std::iter::once(run), 9), "{run:?}");
        }
        assert!(rustix::io::pwrite(&memory, b"x", 0).is_err(), "the descriptor is read-only");
    }
}
