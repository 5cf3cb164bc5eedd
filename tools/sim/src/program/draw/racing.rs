//! Concurrent appends to one file.

use super::{Profile, draw_rival_slots, draw_some_injection, reopen};
use crate::op::{Flags, Op};
use crate::program::{Action, Step};
use crate::rng::Rng;

/// Several descriptors, on any nodes, append to one file concurrently.
pub(super) fn draw_race(rng: &mut Rng, profile: &Profile, tag: &mut u64) -> Vec<Step> {
    let (view, path, racers) = draw_rival_slots(rng, profile);
    let mut steps = Vec::new();
    for &(node, slot) in &racers {
        steps.extend(reopen(node, view, slot, &path, Flags::APPEND));
    }
    for _ in 0..1 + rng.below(3) {
        let appends = racers.iter().map(|&(node, slot)| {
            *tag += 1;
            // A single byte would not identify its write.
            let length = *rng.pick(&profile.lengths[1..]);
            Action::Call { node, view, op: Op::Write { slot, offset: 0, length, tag: *tag } }
        });
        let mut actions: Vec<_> = appends.collect();
        actions.extend(draw_some_injection(rng, profile));
        steps.push(Step::Together(actions));
    }
    steps
}
