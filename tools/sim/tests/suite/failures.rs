//! Regressions: small programs in which each call to disks, network and shared file system fails once.

use super::programs::{CLOSE, open, shared, write};
use tameike_sim::countdown::Countdown;
use tameike_sim::op::{Flags, Op};
use tameike_sim::program::Program;
use tameike_sim::run::run_counted;
use tameike_sim::world::WorldConfig;

/// Runs a program of node 1 once for each call and fault.
fn passes_with_each_call_failing(calls: impl IntoIterator<Item = Op>) {
    // Frequent checkpoints, so that the homes read records from the table.
    let world = WorldConfig { checkpoint_bytes: 400, ..WorldConfig::plain(1, 2) };
    let steps = calls.into_iter().map(|op| shared(1, op)).collect();
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

/// The home of a removed file could not read its table when the last node closed the file: inode and bytes stayed until the end of the
/// job.
#[test]
fn the_last_close_frees_a_removed_file_although_a_call_fails() {
    passes_with_each_call_failing([open("x", Flags::CREATE), write(0, 5000, 1), Op::unlink("x"), CLOSE]);
}

/// A small file grew, and the record that moved its content to a unit failed: the removal of the file left the unit.
#[test]
fn removal_frees_a_small_file_although_a_call_failed_when_it_grew() {
    let append = |length| [open("x", Flags::APPEND), write(0, length, u64::from(length)), CLOSE];
    passes_with_each_call_failing(append(3000).into_iter().chain(append(5000)));
}
