//! A node that writes more to the cache view than the nodes have space for, so that writes wait for space at several homes.

use super::{FILES, Profile, UNIT, draw_slot, reopen};
use crate::op::{Flags, Op};
use crate::program::Step;
use crate::rng::Rng;
use tameike_core::View;

/// Maximum number of units written between two fsyncs.
const UNITS_MAX: u64 = 6;
/// Bytes written of each unit.
const LENGTHS: [u32; 3] = [70_000, 400_000, 900_000];

/// Percentage of steps that begin to fill the cache view.
pub(super) fn draw_percent(rng: &mut Rng, profile: &Profile) -> u64 {
    if profile.is_ample || !profile.views.contains(&View::Cache) { 0 } else { *rng.pick(&[0, 5, 15]) }
}

pub(super) fn draw_filling(rng: &mut Rng, profile: &Profile, tag: &mut u64) -> Vec<Step> {
    let (node, slot) = (rng.below(profile.nodes as u64) as usize, draw_slot(rng));
    let path = FILES[rng.below(profile.files) as usize];
    let mut steps = reopen(node, View::Cache, slot, path, Flags::CREATE).to_vec();
    let mut call = |op| steps.push(Step::call(node, View::Cache, op));
    for _ in 0..1 + rng.below(3) {
        for index in 0..2 + rng.below(UNITS_MAX - 1) {
            *tag += 1;
            let length = *rng.pick(&LENGTHS);
            call(Op::Write { slot, offset: index * UNIT, length, tag: *tag });
        }
        // The fsync sends all of it at the same time.
        call(Op::Fsync { slot });
    }
    steps
}
