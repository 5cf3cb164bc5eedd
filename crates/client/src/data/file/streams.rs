//! Detection of sequential readers of a file: tracks several streams at the same time.

use tameike_core::limits::UNIT_SIZE;

/// Streams tracked per file.
const STREAMS: usize = 4;
/// A read continues a stream if it begins within this many times its length of the stream's end: processes that share out the records of a
/// file each skip the records of the others.
const REACH: u64 = 16;

/// The streams, most recently used first.
pub(super) struct Streams([Stream; STREAMS]);

#[derive(Clone, Copy)]
struct Stream {
    /// Expected offset of the next read.
    end: u64,
    /// True if the last read continued the one before it.
    goes_on: bool,
}

impl Default for Streams {
    /// A first read at the start of the file counts as sequential.
    fn default() -> Self {
        let mut streams = [Stream { end: u64::MAX, goes_on: false }; STREAMS];
        streams[0] = Stream { end: 0, goes_on: true };
        Self(streams)
    }
}

impl Streams {
    /// Records a read and returns true if it continues a sequence. Two random reads that happen to be near each other do not.
    pub(super) fn read(&mut self, offset: u64, length: u64) -> bool {
        let near = self.near(offset, length);
        let (place, goes_on) = (near.unwrap_or(STREAMS - 1), near.is_some());
        let was_sequence = self.0[place].goes_on;
        self.0[place] = Stream { end: offset.saturating_add(length), goes_on };
        self.0[..=place].rotate_right(1);
        goes_on && was_sequence
    }

    /// Returns true if a read would continue a sequence.
    pub(super) fn goes_on(&self, offset: u64, length: u64) -> bool {
        self.near(offset, length).is_some_and(|place| self.0[place].goes_on)
    }

    /// Returns the stream that a read continues.
    fn near(&self, offset: u64, length: u64) -> Option<usize> {
        let reach = (REACH * length).min(UNIT_SIZE as u64);
        let distances = self.0.iter().map(|stream| offset.abs_diff(stream.end));
        let (place, nearest) = distances.enumerate().min_by_key(|&(_, distance)| distance)?;
        (nearest <= reach).then_some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    #[test]
    fn who_reads_from_the_start_or_on_from_anywhere_reads_a_sequence() {
        let mut streams = Streams::default();
        assert!((0..100).all(|step| streams.read(step * 4 * KIB, 4 * KIB)));
        let elsewhere: Vec<bool> = (0..5).map(|step| streams.read(500 * MIB + step * MIB, MIB)).collect();
        assert_eq!(elsewhere, [false, false, true, true, true]);
        assert!(streams.read(400 * KIB, 4 * KIB), "the first stream continues");
    }

    #[test]
    fn programs_that_read_by_turns_do_not_disturb_each_other() {
        let mut streams = Streams::default();
        let starts = [0, 64 * MIB, 128 * MIB, 192 * MIB];
        let rounds = (0..50).map(|step| starts.map(|start| streams.read(start + step * MIB, MIB)));
        assert!(rounds.skip(2).all(|round| round == [true; 4]));
    }

    #[test]
    fn records_that_are_shared_out_are_a_sequence() {
        let mut streams = Streams::default();
        let record = 47_008;
        // One process drifts away from the other; until they are far enough apart, they count as two streams.
        let sequences = (0..200).flat_map(|step| [2 * step, 2 * (step + step / 10) + 1]);
        let alone = sequences.filter(|place| !streams.read(place * record, record)).count();
        assert!(alone <= 2, "{alone} of 400");
    }

    #[test]
    fn reads_at_random_are_none() {
        let mut streams = Streams::default();
        let mut place = 1_u64;
        let mut next = || {
            place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (place >> 40) % (16 * KIB) * 4 * KIB
        };
        let found = (0..10_000).filter(|_| streams.read(next(), 4 * KIB)).count();
        assert!(found < 100, "{found} of 10,000 in 64 MiB");
    }
}
