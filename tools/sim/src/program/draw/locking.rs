//! Processes on several nodes that lock, write and read the same files.

use super::{FILES, Kind, Taste, draw_path, draw_slot, draw_some_trouble};
use crate::chance::Chance;
use crate::op::{DIRS, Flags, Op};
use crate::program::{Action, Step, Trouble};
use tameike_core::View;
use tameike_core::wire::lock::{LockKind, LockRange};

/// Flags with which lock programs open files.
const FLAGS: Flags = Flags { write: true, create: true, append: false, truncate: false, exclusive: false };
/// The two slots of one process in a ring of waits.
const HELD: u8 = 0;
const WANTED: u8 = 2;

pub(super) fn draw_locking(chance: &mut Chance, taste: &Taste, tag: &mut u64) -> Vec<Step> {
    if chance.percent(20) { draw_ring(chance, taste) } else { draw_rivals(chance, taste, tag) }
}

/// Closes the slot, then opens a file in it.
fn open_anew(node: usize, view: View, slot: u8, path: &str) -> [Step; 2] {
    [Op::Close { slot }, Op::Open { slot, path: path.to_owned(), flags: FLAGS }]
        .map(|op| Step::Together(vec![Action::Call { node, view, op }]))
}

/// Descriptors of one file that compete for its locks.
fn draw_rivals(chance: &mut Chance, taste: &Taste, tag: &mut u64) -> Vec<Step> {
    let (view, path) = (*chance.of(&taste.views), draw_path(chance, taste));
    let rivals: Vec<_> = (0..2 + chance.below(3))
        .map(|_| (chance.below(taste.nodes as u64) as usize, draw_slot(chance)))
        .collect();
    let mut steps = Vec::new();
    if chance.percent(70) {
        for &(node, slot) in &rivals {
            steps.extend(open_anew(node, view, slot, &path));
        }
    }
    for _ in 0..2 + chance.below(6) {
        let mut actions = Vec::new();
        for &(node, slot) in &rivals {
            actions.push(Action::Call { node, view, op: draw_lock(chance, slot, tag) });
        }
        actions.extend(draw_some_trouble(chance, taste));
        steps.push(Step::Together(actions));
    }
    steps
}

/// A ring of waits: one process per node holds a lock of a file and waits for that of the next process, whose node may have failed.
fn draw_ring(chance: &mut Chance, taste: &Taste) -> Vec<Step> {
    let (view, dir) = (*chance.of(&taste.views), *chance.of(&DIRS));
    let nodes = taste.nodes.min(FILES.len());
    let path = |node: usize| crate::model::path::join(dir, FILES[node % nodes]);
    let mut steps = Vec::new();
    for node in 0..nodes {
        steps.extend(open_anew(node, view, HELD, &path(node)));
        steps.extend(open_anew(node, view, WANTED, &path(node + 1)));
    }
    for slot in [HELD, WANTED] {
        if slot == WANTED && taste.trouble > 0 && taste.troubles.contains(&Kind::Kill) && chance.percent(50) {
            let kill = Trouble::Kill { node: chance.below(nodes as u64) as usize, power: false };
            steps.push(Step::Together(vec![Action::Trouble(0, kill)]));
        }
        let range = Some(LockRange { start: 0, last: *chance.of(&[99, u64::MAX]) });
        let op = Op::Lock { slot, range, kind: LockKind::Exclusive, wait: true };
        let mut actions: Vec<_> =
            (0..nodes).map(|node| Action::Call { node, view, op: op.clone() }).collect();
        actions.extend(draw_some_trouble(chance, taste));
        steps.push(Step::Together(actions));
    }
    steps
}

fn draw_lock(chance: &mut Chance, slot: u8, tag: &mut u64) -> Op {
    let start = chance.below(3) * 100;
    let bytes = LockRange { start, last: *chance.of(&[start + 99, start + 99, start + 150, u64::MAX]) };
    let range = chance.percent(60).then_some(bytes);
    match chance.below(20) {
        0..8 => {
            let kind = if chance.percent(60) { LockKind::Exclusive } else { LockKind::Shared };
            Op::Lock { slot, range, kind, wait: chance.percent(60) }
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
