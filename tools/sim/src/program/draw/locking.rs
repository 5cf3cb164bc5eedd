//! Processes on several nodes that lock, write and read the same files.

use super::{FILES, Kind, Profile, draw_rival_slots, draw_some_injection, reopen};
use crate::op::{DIRS, Flags, Op};
use crate::program::{Action, Injection, Step};
use crate::rng::Rng;
use tameike_core::wire::lock::{LockKind, LockRange};

/// The two slots of one process in a ring of waits.
const HELD: u8 = 0;
const WANTED: u8 = 2;

pub(super) fn draw_locking(rng: &mut Rng, profile: &Profile, tag: &mut u64) -> Vec<Step> {
    if rng.percent(20) { draw_ring(rng, profile) } else { draw_rivals(rng, profile, tag) }
}

/// Descriptors of one file that compete for its locks.
fn draw_rivals(rng: &mut Rng, profile: &Profile, tag: &mut u64) -> Vec<Step> {
    let (view, path, rivals) = draw_rival_slots(rng, profile);
    let mut steps = Vec::new();
    if rng.percent(70) {
        for &(node, slot) in &rivals {
            steps.extend(reopen(node, view, slot, &path, Flags::CREATE));
        }
    }
    for _ in 0..2 + rng.below(6) {
        let locks = rivals.iter().map(|&(node, slot)| (node, draw_lock(rng, slot, tag)));
        let mut actions: Vec<_> = locks.map(|(node, op)| Action::Call { node, view, op }).collect();
        actions.extend(draw_some_injection(rng, profile));
        steps.push(Step::Together(actions));
    }
    steps
}

/// A ring of waits: one process per node holds a lock of a file and waits for that of the next process, whose node may have failed.
fn draw_ring(rng: &mut Rng, profile: &Profile) -> Vec<Step> {
    let (view, dir) = (*rng.pick(&profile.views), *rng.pick(&DIRS));
    let nodes = profile.nodes.min(FILES.len());
    let path = |node: usize| crate::model::path::join(dir, FILES[node % nodes]);
    let mut steps = Vec::new();
    for node in 0..nodes {
        steps.extend(reopen(node, view, HELD, &path(node), Flags::CREATE));
        steps.extend(reopen(node, view, WANTED, &path(node + 1), Flags::CREATE));
    }
    for slot in [HELD, WANTED] {
        if slot == WANTED
            && profile.injection > 0
            && profile.injections.contains(&Kind::Kill)
            && rng.percent(50)
        {
            let node = rng.below(nodes as u64) as usize;
            steps.push(Step::inject(Injection::Kill { node, power: false }));
        }
        let range = Some(LockRange { start: 0, last: *rng.pick(&[99, u64::MAX]) });
        let op = Op::Lock { slot, range, kind: LockKind::Exclusive, wait: true };
        let mut actions: Vec<_> =
            (0..nodes).map(|node| Action::Call { node, view, op: op.clone() }).collect();
        actions.extend(draw_some_injection(rng, profile));
        steps.push(Step::Together(actions));
    }
    steps
}

fn draw_lock(rng: &mut Rng, slot: u8, tag: &mut u64) -> Op {
    let start = rng.below(3) * 100;
    let bytes = LockRange { start, last: *rng.pick(&[start + 99, start + 99, start + 150, u64::MAX]) };
    let range = rng.percent(60).then_some(bytes);
    match rng.below(20) {
        0..8 => {
            let kind = if rng.percent(60) { LockKind::Exclusive } else { LockKind::Shared };
            Op::Lock { slot, range, kind, wait: rng.percent(60) }
        }
        8..13 => Op::Unlock { slot, range },
        13..16 => {
            *tag += 1;
            Op::Write { slot, offset: start, length: 100, tag: *tag }
        }
        16..19 => Op::Read { slot, offset: 0, length: 400 },
        _ => Op::Close { slot },
    }
}
