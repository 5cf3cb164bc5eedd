//! Several nodes read one file from each other's peer caches.
//!
//! Homes are slow; cache holders fail, are partitioned, have few frames or evict; and programs write, truncate, lock, remove and warm
//! the file meanwhile.

use super::{FILES, Profile, UNIT, draw_slot, draw_some_injection, reopen};
use crate::op::{DIRS, Flags, Op};
use crate::program::{Action, Injection, Step};
use crate::rng::Rng;
use crate::world::WorldConfig;
use std::time::Duration;
use tameike_core::View;
use tameike_core::wire::lock::LockKind;
use tameike_core::wire::unit::SpaceChange;
use tameike_fabric::simulated::NetworkFaults;

/// Percentages of steps with shared reads.
const SHARES: [u64; 4] = [0, 0, 8, 20];
/// Maximum delay of a slow home, in microseconds.
const HOME_TIME_MAX: u64 = 20_000;

/// A file, with the descriptor of each node.
struct Shared {
    view: View,
    path: String,
    slots: Vec<u8>,
    writer: usize,
}

/// Chooses the percentage of shared reads. If there are any, configures the cluster so that peer reads are likely.
pub(super) fn draw_percent(rng: &mut Rng, world: &mut WorldConfig) -> u64 {
    let shares = if world.devices.len() > 1 { *rng.pick(&SHARES) } else { 0 };
    if shares > 0 {
        if rng.percent(70) {
            for time in &mut world.slowness {
                *time = Duration::from_micros(rng.below(HOME_TIME_MAX));
            }
        }
        world.view_frames = *rng.pick(&[u32::MAX, u32::MAX, 6, 3]);
    }
    shares
}

pub(super) fn draw_sharing(rng: &mut Rng, profile: &Profile, tag: &mut u64) -> Vec<Step> {
    let view = *rng.pick(&profile.views);
    let dir = *rng.pick(&DIRS);
    let shared = Shared {
        view,
        path: crate::model::path::join(dir, FILES[rng.below(profile.files) as usize]),
        slots: (0..profile.nodes).map(|_| draw_slot(rng)).collect(),
        writer: rng.below(profile.nodes as u64) as usize,
    };
    let mut steps = shared.open(shared.writer, Flags::CREATE).to_vec();
    for _ in 0..1 + rng.below(2) {
        steps.push(Step::Together(vec![shared.write(rng, profile, tag)]));
    }
    steps.push(Step::Together(vec![shared.call(shared.writer, |slot| Op::Fsync { slot })]));
    if shared.view == View::Cache && rng.percent(15) {
        steps.push(Step::Drain);
    }
    for node in (0..profile.nodes).filter(|node| *node != shared.writer) {
        steps.extend(shared.open(node, Flags { write: rng.percent(30), ..Flags::READ }));
    }
    for _ in 0..3 + rng.below(6) {
        let mut actions = Vec::new();
        for node in 0..profile.nodes {
            for _ in 0..*rng.pick(&[0, 1, 1, 1, 2, 3]) {
                actions.push(shared.read(rng, node));
            }
        }
        if rng.percent(30) {
            actions.push(shared.change(rng, profile, tag));
        }
        if profile.injection > 0 && rng.percent(40) {
            let latest = *rng.pick(&[1, 500, 5000, 20_000]);
            let after = rng.below(latest);
            actions.push(Action::Injection(after, shared.injection(rng, profile)));
        }
        actions.extend(draw_some_injection(rng, profile));
        steps.push(Step::Together(actions));
        if rng.percent(30) {
            let node = rng.below(profile.nodes as u64) as usize;
            steps.extend(shared.open(node, Flags { write: rng.percent(50), ..Flags::READ }));
        }
    }
    steps
}

impl Shared {
    fn call(&self, node: usize, op: impl FnOnce(u8) -> Op) -> Action {
        Action::Call { node, view: self.view, op: op(self.slots[node]) }
    }

    fn open(&self, node: usize, flags: Flags) -> [Step; 2] {
        reopen(node, self.view, self.slots[node], &self.path, flags)
    }

    fn read(&self, rng: &mut Rng, node: usize) -> Action {
        let offset = *rng.pick(&[0, 0, 4096, 65_536, UNIT - 40, UNIT, UNIT + 70_000]);
        let length = *rng.pick(&[100, 5000, 70_000, 70_000, UNIT as u32]);
        self.call(node, |slot| Op::Read { slot, offset, length })
    }

    fn write(&self, rng: &mut Rng, profile: &Profile, tag: &mut u64) -> Action {
        *tag += 1;
        let offset = *rng.pick(&[0, 0, 0, 3000, 40_000, UNIT - 50, UNIT]);
        let lengths: &[u32] = &[5000, 70_000, 70_000, 400_000, UNIT as u32];
        let length = *rng.pick(if profile.is_ample { lengths } else { &lengths[..3] });
        self.call(self.writer, |slot| Op::Write { slot, offset, length, tag: *tag })
    }

    /// A call that may invalidate the frames of other nodes.
    fn change(&self, rng: &mut Rng, profile: &Profile, tag: &mut u64) -> Action {
        let node = if rng.percent(60) { self.writer } else { rng.below(profile.nodes as u64) as usize };
        match rng.below(16) {
            0..5 => self.write(rng, profile, tag),
            5..7 => self.call(self.writer, |slot| Op::Fsync { slot }),
            7 => self.call(node, |slot| Op::Close { slot }),
            8..10 => {
                let size = *rng.pick(&[0, 3000, 65_536, UNIT, UNIT + 5000]);
                self.call(node, |_| Op::Truncate { path: self.path.clone(), size })
            }
            10 => self.call(node, |_| Op::Unlink { path: self.path.clone() }),
            11..13 => {
                let kind = if rng.percent(50) { LockKind::Exclusive } else { LockKind::Shared };
                self.call(node, |slot| Op::Lock { slot, range: None, kind, wait: false })
            }
            13 => self.call(node, |slot| Op::Unlock { slot, range: None }),
            _ => {
                let change = *rng.pick(&[SpaceChange::Punch, SpaceChange::Punch, SpaceChange::Zero]);
                let change = if profile.is_ample { change } else { SpaceChange::Punch };
                let (offset, length) = (*rng.pick(&[0, 4096, 30_000]), *rng.pick(&[4096, 60_000, UNIT]));
                self.call(node, |slot| Op::Space { slot, change, offset, length })
            }
        }
    }

    /// A fault, in half of the cases of the writer: it is a likely target of peer reads.
    fn injection(&self, rng: &mut Rng, profile: &Profile) -> Injection {
        let node = if rng.percent(50) { self.writer } else { rng.below(profile.nodes as u64) as usize };
        let to = rng.below(profile.nodes as u64) as usize;
        match rng.below(12) {
            0..4 => Injection::Flip(node),
            4 if self.view == View::Cache => Injection::Warm(node),
            4..6 => Injection::Slow(node, *rng.pick(&[0, 30, 300])),
            6..8 => Injection::Kill { node, power: false },
            8..10 => Injection::Partition { from: node, to, both: rng.percent(50) },
            10 => Injection::Heal,
            _ => {
                let delay_max = Duration::from_micros(*rng.pick(&[100, 1000, 30_000]));
                Injection::Network(NetworkFaults { delay_max, ..NetworkFaults::NONE })
            }
        }
    }
}
