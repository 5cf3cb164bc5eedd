//! The check of lock waits that would not end: each program passes, and fails with an injected bug.

use super::programs::{passes_on, shared};
use tameike_core::View;
use tameike_core::wire::lock::{LockKind, LockRange};
use tameike_sim::op::{Flags, Op};
use tameike_sim::program::{Action, Injection, Program, Step};
use tameike_sim::run::run;
use tameike_sim::world::{Canary, WorldConfig};

const NODES: usize = 3;

fn call(node: usize, op: Op) -> Action {
    Action::Call { node, view: View::JobShared, op }
}

fn open(node: usize, slot: u8, path: &str) -> Step {
    shared(node, Op::open(slot, path, Flags::CREATE))
}

fn lock(node: usize, slot: u8) -> Action {
    call(node, Op::Lock { slot, range: Some(LockRange::ALL), kind: LockKind::Exclusive, wait: true })
}

/// Runs programs on several seeds: all pass; with the injected bug some fail, with this message only.
fn is_found(canary: Canary, programs: &[Vec<Step>], words: &str) {
    let run = |steps: &[Step], seed, canary| {
        let world = WorldConfig { canary, ..WorldConfig::plain(seed, NODES) };
        run(&Program { world, steps: steps.to_vec(), crashes: false })
    };
    let mut found = 0;
    for (steps, seed) in programs.iter().flat_map(|steps| (0..5).map(move |seed| (steps, seed))) {
        assert_eq!(run(steps, seed, None), Ok(()), "seed {seed}");
        if let Err(failure) = run(steps, seed, Some(canary)) {
            assert!(failure.message.contains(words), "seed {seed}: {}", failure.message);
            found += 1;
        }
    }
    assert!(found > 0, "{canary:?} is not found");
}

fn passes(steps: &[Step]) {
    passes_on(NODES, 0..20, steps);
}

#[test]
fn a_lock_is_released_when_its_node_fails_in_the_same_step() {
    for after in (0..4000).step_by(400) {
        for (node, other) in [(0, 1), (1, 2), (2, 0)] {
            let kill = Action::Injection(after, Injection::Kill { node, power: false });
            let locks = Step::Together(vec![lock(node, 0), lock(other, 0), kill]);
            passes(&[open(node, 0, "a/x"), open(other, 0, "a/x"), locks]);
        }
    }
}

/// The owner keeps the rest of the lock.
#[test]
fn a_failed_lock_call_puts_only_its_bytes_in_doubt() {
    let bytes = |start, last, wait| {
        let range = Some(LockRange { start, last });
        call(2, Op::Lock { slot: 0, range, kind: LockKind::Exclusive, wait })
    };
    let cut = |to| Action::Injection(0, Injection::Partition { from: 2, to, both: true });
    for to in 0..2 {
        passes(&[
            open(2, 0, "z"),
            Step::Together(vec![bytes(100, 199, true)]),
            Step::Together(vec![bytes(0, 150, false), cut(to)]),
            Step::Check,
            open(0, 0, "z"),
            Step::Together(vec![lock(0, 0)]),
        ]);
    }
}

#[test]
fn a_wait_for_a_lock_of_a_failed_node_ends() {
    // One of the nodes is the file's home; if that one fails, the lock is gone.
    let program = |(holder, waiter)| {
        let kill = Action::Injection(0, Injection::Kill { node: holder, power: false });
        let locks = [vec![lock(holder, 0)], vec![kill], vec![lock(waiter, 0)]];
        let opens = [open(holder, 0, "a/x"), open(waiter, 0, "a/x")];
        opens.into_iter().chain(locks.map(Step::Together)).collect()
    };
    let programs = [(0, 1), (1, 2), (2, 0)].map(program);
    is_found(Canary::UnreportedFailure, &programs, "it waits forever, and no lock conflicts");
}

#[test]
fn a_deadlock_is_reported() {
    let paths = ["x", "y", "z"];
    let mut steps = Vec::new();
    for node in 0..NODES {
        steps.extend([open(node, 0, paths[node]), open(node, 2, paths[(node + 1) % NODES])]);
    }
    steps.extend([0, 2].map(|slot| Step::Together((0..NODES).map(|node| lock(node, slot)).collect())));
    is_found(Canary::UnreportedDeadlock, &[steps], "it is in a deadlock, and no call got EDEADLK");
}
