//! Regressions: small programs in which each call to disks, network and shared file system fails once.

use tameike_core::View;
use tameike_sim::countdown::Countdown;
use tameike_sim::op::{Flags, Op};
use tameike_sim::program::{Action, Program, Step};
use tameike_sim::run::run_counted;
use tameike_sim::world::WorldConfig;

/// Runs a program once for each call and fault.
fn passes_with_each_call_failing(steps: Vec<Step>) {
    // Frequent checkpoints, so that the homes read records from the table.
    let world = WorldConfig { checkpoint_bytes: 300, ..WorldConfig::plain(1, 2) };
    let program = Program { world, steps, crashes: false };
    let counting = Countdown::counting();
    assert_eq!(run_counted(&program, &counting), Ok(()));
    for (site, call) in counting.counted().into_iter().zip(1..) {
        for &fault in site.faults {
            let outcome = run_counted(&program, &Countdown::armed(call, fault));
            assert_eq!(outcome, Ok(()), "call {call}, {site}: {fault:?}");
        }
    }
}

fn shared(node: usize, op: Op) -> Step {
    Step::Together(vec![Action::Call { node, view: View::JobShared, op }])
}

/// The home of a removed file could not read its table when the last node closed the file: inode and bytes stayed until the end of the
/// job.
#[test]
fn the_last_close_frees_a_removed_file_although_a_call_fails() {
    let flags = Flags { write: true, create: true, ..Flags::default() };
    let calls = [
        Op::Open { slot: 0, path: "x".to_owned(), flags },
        Op::Write { slot: 0, offset: 0, length: 5000, tag: 1 },
        Op::Unlink { path: "x".to_owned() },
        Op::Close { slot: 0 },
    ];
    passes_with_each_call_failing(calls.map(|op| shared(1, op)).into());
}

/// A small file grew, and the record that moved its content to a unit failed: the removal of the file left the unit.
#[test]
fn removal_frees_a_small_file_although_a_call_failed_when_it_grew() {
    let append = Flags { write: true, append: true, create: true, ..Flags::default() };
    let open = || Op::Open { slot: 0, path: "x".to_owned(), flags: append };
    let write = |length| Op::Write { slot: 0, offset: 0, length, tag: u64::from(length) };
    let calls = [open(), write(3000), Op::Close { slot: 0 }, open(), write(5000), Op::Close { slot: 0 }];
    passes_with_each_call_failing(calls.map(|op| shared(1, op)).into());
}
