//! Concurrent appends to one file.

use super::{Taste, draw_path, draw_slot, draw_some_trouble};
use crate::chance::Chance;
use crate::op::{Flags, Op};
use crate::program::{Action, Step};

/// Several descriptors, on any nodes, append to one file concurrently.
pub(super) fn draw_race(chance: &mut Chance, taste: &Taste, tag: &mut u64) -> Vec<Step> {
    let (view, path) = (*chance.of(&taste.views), draw_path(chance, taste));
    let racers: Vec<_> = (0..2 + chance.below(3))
        .map(|_| (chance.below(taste.nodes as u64) as usize, draw_slot(chance)))
        .collect();
    let alone = |node, op| Step::Together(vec![Action::Call { node, view, op }]);
    let mut steps = Vec::new();
    for &(node, slot) in &racers {
        let flags = Flags { write: true, append: true, create: true, ..Flags::default() };
        steps.push(alone(node, Op::Close { slot }));
        steps.push(alone(node, Op::Open { slot, path: path.clone(), flags }));
    }
    for _ in 0..1 + chance.below(3) {
        let appends = racers.iter().map(|&(node, slot)| {
            *tag += 1;
            // A single byte would not identify its write.
            let length = *chance.of(&taste.lengths[1..]);
            Action::Call { node, view, op: Op::Write { slot, offset: 0, length, tag: *tag } }
        });
        let mut actions: Vec<_> = appends.collect();
        actions.extend(draw_some_trouble(chance, taste));
        steps.push(Step::Together(actions));
    }
    steps
}
