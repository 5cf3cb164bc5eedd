//! Concurrent appends to one file.

use super::{Profile, draw_path, draw_slot, draw_some_injection};
use crate::op::{Flags, Op};
use crate::program::{Action, Step};
use crate::rng::Rng;

/// Several descriptors, on any nodes, append to one file concurrently.
pub(super) fn draw_race(rng: &mut Rng, profile: &Profile, tag: &mut u64) -> Vec<Step> {
    let (view, path) = (*rng.pick(&profile.views), draw_path(rng, profile));
    let racers: Vec<_> =
        (0..2 + rng.below(3)).map(|_| (rng.below(profile.nodes as u64) as usize, draw_slot(rng))).collect();
    let alone = |node, op| Step::Together(vec![Action::Call { node, view, op }]);
    let mut steps = Vec::new();
    for &(node, slot) in &racers {
        let flags = Flags { write: true, append: true, create: true, ..Flags::default() };
        steps.push(alone(node, Op::Close { slot }));
        steps.push(alone(node, Op::Open { slot, path: path.clone(), flags }));
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
