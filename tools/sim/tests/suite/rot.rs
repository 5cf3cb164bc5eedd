//! Bit rot on a disk: the damaged bytes are lost and never returned, and nothing else is lost. Clean bytes of the shared file
//! system are not lost.

use tameike_core::View;
use tameike_core::limits::UNIT_SIZE;
use tameike_sim::op::{Flags, Op};
use tameike_sim::program::{Action, Injection, Program, Step};
use tameike_sim::run::run;
use tameike_sim::world::WorldConfig;

/// Views, and whether the bytes are clean when they rot.
const CASES: [(View, bool); 3] = [(View::JobShared, false), (View::Cache, false), (View::Cache, true)];

#[test]
fn rotten_bytes_are_neither_read_nor_flushed_and_all_others_are() {
    let create = Flags { write: true, create: true, ..Flags::default() };
    for (view, is_clean) in CASES {
        for (seed, crashes) in (0..20).flat_map(|seed| [(seed, false), (seed, true)]) {
            let call = |op| Step::Together(vec![Action::Call { node: 1, view, op }]);
            let mut steps = Vec::new();
            for (slot, path) in ["x", "a/y", "b/z"].into_iter().enumerate() {
                let slot = slot as u8;
                steps.push(call(Op::Open { slot, path: path.to_owned(), flags: create }));
                steps.push(call(Op::Write { slot, offset: 0, length: 70_000, tag: u64::from(slot) + 1 }));
                steps.push(call(Op::Fsync { slot }));
            }
            steps.extend(is_clean.then_some(Step::Drain));
            steps.extend((0..3).map(|node| Step::Together(vec![Action::Injection(0, Injection::Rot(node))])));
            for slot in 0..3 {
                steps.push(call(Op::Read { slot, offset: 0, length: 70_000 }));
                steps.push(call(Op::Close { slot }));
            }
            let program = Program { world: WorldConfig::plain(seed, 3), steps, crashes };
            assert_eq!(run(&program), Ok(()), "{view:?}, clean: {is_clean}, seed {seed}, crashes: {crashes}");
        }
    }
}

/// A reader that found rotten clean bytes already dropped by another reader got EIO.
#[test]
fn rotten_clean_bytes_are_fetched_again_for_all_readers() {
    let create = Flags { write: true, create: true, ..Flags::default() };
    let call = |node, op| Action::Call { node, view: View::Cache, op };
    let open = |node, slot| call(node, Op::Open { slot, path: "a/x".to_owned(), flags: create });
    for (seed, writer) in (0..10).flat_map(|seed| (0..3).map(move |writer| (seed, writer))) {
        let alone = |action| Step::Together(vec![action]);
        let mut steps = vec![
            alone(open(writer, 0)),
            alone(call(writer, Op::Write { slot: 0, offset: 0, length: 70_000, tag: 1 })),
            alone(call(writer, Op::Close { slot: 0 })),
            Step::Drain,
        ];
        for node in (0..3).filter(|node| *node != writer) {
            steps.extend((0..2).map(|slot| alone(open(node, slot))));
            steps.push(alone(Action::Injection(0, Injection::Rot(node))));
            let read = |slot| call(node, Op::Read { slot, offset: 0, length: 70_000 });
            steps.push(Step::Together(vec![read(0), read(1)]));
        }
        let program = Program { world: WorldConfig::plain(seed, 3), steps, crashes: false };
        assert_eq!(run(&program), Ok(()), "seed {seed}, written on node {writer}");
    }
}

/// The check of the stores did not see records that an agent had not logged yet: a read failed with EIO, and the check knew of no
/// loss.
#[test]
fn bytes_that_rot_before_their_record_is_logged_are_known_to_be_lost() {
    let call = |node, op| Step::Together(vec![Action::Call { node, view: View::Cache, op }]);
    let open = |slot, flags| Op::Open { slot, path: "b/x".to_owned(), flags };
    let write = |offset, length, tag| Op::Write { slot: 0, offset, length, tag };
    let create = Flags { write: true, create: true, ..Flags::default() };
    for (seed, rots) in (0..20).flat_map(|seed| (0..2).map(move |rots| (seed, rots))) {
        let steps = vec![
            call(0, open(0, create)),
            call(0, write(UNIT_SIZE as u64 - 50, 5000, 1)),
            call(0, Op::Fsync { slot: 0 }),
            call(1, open(0, Flags::default())),
            // The client sends a full unit to its home at once.
            call(0, write(0, UNIT_SIZE as u32, 2)),
            Step::Together(vec![Action::Injection(3000, Injection::Rot(rots))]),
            call(1, Op::Read { slot: 0, offset: 0, length: 5000 }),
        ];
        let program = Program { world: WorldConfig::plain(seed, 2), steps, crashes: false };
        assert_eq!(run(&program), Ok(()), "seed {seed}, on node {rots}");
    }
}
