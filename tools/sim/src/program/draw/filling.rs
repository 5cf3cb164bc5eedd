//! A node that writes more to the cache view than the nodes have space for, so that writes wait for space at several homes.

use super::{FILES, Profile, UNIT, draw_slot};
use crate::op::{Flags, Op};
use crate::program::{Action, Step};
use crate::rng::Rng;
use tameike_core::View;

const CREATE: Flags = Flags { write: true, create: true, append: false, truncate: false, exclusive: false };
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
    let path = FILES[rng.below(profile.files) as usize].to_owned();
    let alone = |op| Step::Together(vec![Action::Call { node, view: View::Cache, op }]);
    let mut steps = vec![alone(Op::Close { slot }), alone(Op::Open { slot, path, flags: CREATE })];
    for _ in 0..1 + rng.below(3) {
        for index in 0..2 + rng.below(UNITS_MAX - 1) {
            *tag += 1;
            let length = *rng.pick(&LENGTHS);
            steps.push(alone(Op::Write { slot, offset: index * UNIT, length, tag: *tag }));
        }
        // The fsync sends all of it at the same time.
        steps.push(alone(Op::Fsync { slot }));
    }
    steps
}
