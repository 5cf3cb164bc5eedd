//! Bit rot on a disk: the damaged bytes are lost and never returned, and nothing else is lost. Clean bytes of the shared file
//! system are not lost.

use super::programs::{CLOSE, FSYNC, UNIT, cached, open, passes_on, passes_with, read, write};
use tameike_core::View;
use tameike_core::limits::UNIT_SIZE;
use tameike_sim::op::{Flags, Op};
use tameike_sim::program::{Action, Injection, Step};
use tameike_sim::world::WorldConfig;

/// Views, and whether the bytes are clean when they rot.
const CASES: [(View, bool); 3] = [(View::JobShared, false), (View::Cache, false), (View::Cache, true)];

#[test]
fn rotten_bytes_are_neither_read_nor_flushed_and_all_others_are() {
    for (view, is_clean) in CASES {
        let call = |op| Step::call(1, view, op);
        let mut steps = Vec::new();
        for (slot, path) in (0..).zip(["x", "a/y", "b/z"]) {
            let write = Op::Write { slot, offset: 0, length: 70_000, tag: u64::from(slot) + 1 };
            steps.extend([Op::open(slot, path, Flags::CREATE), write, Op::Fsync { slot }].map(call));
        }
        steps.extend(is_clean.then_some(Step::Drain));
        steps.extend((0..3).map(|node| Step::inject(Injection::Rot(node))));
        for slot in 0..3 {
            steps.extend([Op::Read { slot, offset: 0, length: 70_000 }, Op::Close { slot }].map(call));
        }
        for (seed, crashes) in (0..20).flat_map(|seed| [(seed, false), (seed, true)]) {
            passes_with(WorldConfig::plain(seed, 3), steps.clone(), crashes);
        }
    }
}

/// A reader that found rotten clean bytes already dropped by another reader got EIO.
#[test]
fn rotten_clean_bytes_are_fetched_again_for_all_readers() {
    let open = |slot| Op::open(slot, "a/x", Flags::CREATE);
    for writer in 0..3 {
        let calls = [open(0), write(0, 70_000, 1), CLOSE].map(|op| cached(writer, op));
        let mut steps = [&calls[..], &[Step::Drain]].concat();
        for node in (0..3).filter(|node| *node != writer) {
            steps.extend((0..2).map(|slot| cached(node, open(slot))));
            steps.push(Step::inject(Injection::Rot(node)));
            let read = |slot| Op::Read { slot, offset: 0, length: 70_000 };
            let reads = [read(0), read(1)].map(|op| Action::Call { node, view: View::Cache, op });
            steps.push(Step::Together(reads.into()));
        }
        passes_on(3, 0..10, &steps);
    }
}

/// The check of the stores did not see records that an agent had not logged yet: a read failed with EIO, and the check knew of no
/// loss.
#[test]
fn bytes_that_rot_before_their_record_is_logged_are_known_to_be_lost() {
    for rots in 0..2 {
        let steps = [
            cached(0, open("b/x", Flags::CREATE)),
            cached(0, write(UNIT - 50, 5000, 1)),
            cached(0, FSYNC),
            cached(1, open("b/x", Flags::READ)),
            // The client sends a full unit to its home at once.
            cached(0, write(0, UNIT_SIZE as u32, 2)),
            Step::Together(vec![Action::Injection(3000, Injection::Rot(rots))]),
            cached(1, read(0, 5000)),
        ];
        passes_on(2, 0..20, &steps);
    }
}
