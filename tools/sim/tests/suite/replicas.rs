//! Regressions with replicas that random seeds found, as reduced programs. The comment of each test describes the former bug.

use super::programs::{CLOSE, FSYNC, UNIT, cached, open, passes, read, shared, write};
use tameike_core::View;
use tameike_core::limits::UNIT_SIZE;
use tameike_fabric::simulated::NetworkFaults;
use tameike_sim::op::{Flags, Op};
use tameike_sim::program::{Action, Injection, Step};
use tameike_sim::world::WorldConfig;

/// Three nodes whose homes have two replicas.
fn replicated(seed: u64) -> WorldConfig {
    WorldConfig { replicas: 2, ..WorldConfig::plain(seed, 3) }
}

/// A primary waited for another frame with the lock of a unit, because a message that was sent twice kept the first one. The holder of that
/// frame waited for the lock.
#[test]
fn writes_of_two_nodes_to_a_unit_end_if_messages_arrive_twice() {
    let append = |node| Action::Call {
        node,
        view: View::Cache,
        op: Op::Write { slot: 0, offset: 0, length: 3000, tag: 7 },
    };
    let twice = NetworkFaults { duplicated: 300_000, ..NetworkFaults::NONE };
    let mut steps = vec![Step::inject(Injection::Network(twice))];
    steps.extend((0..3).map(|node| cached(node, open("a/x", Flags::APPEND))));
    steps.extend((0..4).map(|_| Step::Together((0..3).map(append).collect())));
    for seed in 0..20 {
        passes(WorldConfig { service_frames: 1, ..replicated(seed) }, steps.clone());
    }
}

/// A drain flushed the files of a home again and again, without a pause, while its node took the home over.
#[test]
fn a_drain_waits_while_nodes_take_homes_over() {
    for seed in 0..20 {
        let mut steps = Vec::new();
        for path in ["x", "y", "z", "a/x", "a/y", "b/x"] {
            for (node, offset) in [(0, 0), (1, UNIT)] {
                let calls = [open(path, Flags::CREATE), write(offset, 70_000, 3), FSYNC, CLOSE];
                steps.extend(calls.map(|call| cached(node, call)));
            }
        }
        steps.extend([Step::inject(Injection::Hang { node: 1, milliseconds: 7000 }), Step::Drain]);
        passes(replicated(seed), steps);
    }
}

/// An excluded node read zeros from a removed file that it had open: the homes had dropped its open, and then the file.
#[test]
fn a_removed_file_that_an_excluded_node_has_open_does_not_become_zeros() {
    let apart = Injection::Partition { from: 2, to: 1, both: false };
    let create = |path| [open(path, Flags::CREATE), write(UNIT - 50, UNIT_SIZE as u32, 3), FSYNC];
    for (seed, path) in (0..10).flat_map(|seed| ["a/x", "a/y", "b/x", "x", "z"].map(|path| (seed, path))) {
        let mut steps = Vec::from(create(path).map(|op| shared(0, op)));
        steps.push(shared(2, open(path, Flags::READ)));
        // Until the node is excluded.
        steps.extend([Step::inject(apart.clone()), Step::Rest(20_000)]);
        steps.extend([shared(0, Op::unlink(path)), shared(0, CLOSE), Step::Rest(1000)]);
        steps.extend([0, UNIT, 2 * UNIT - 70].map(|offset| shared(2, read(offset, 10))));
        passes(WorldConfig { replicas: 2, ..WorldConfig::plain(seed, 4) }, steps);
    }
}
