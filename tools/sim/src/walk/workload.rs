//! The fixed programs for countdowns: all kinds of calls, in both views at once.

use crate::op::{Flags, Op};
use crate::program::{Action, Injection, Program, Step};
use crate::world::{Canary, WorldConfig};
use tameike_core::View;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::lock::LockKind;
use tameike_core::wire::meta::RenameMode;
use tameike_core::wire::unit::SpaceChange;

const UNIT: u64 = UNIT_SIZE as u64;
/// Seed of the simulated time and of the order of concurrent events.
const SEED: u64 = 1;

/// A fixed program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Workload {
    /// Programs make calls, all agents fail and restart, programs make more calls, and the job is drained.
    Serve,
    /// Programs make calls, all agents fail, and the job is recovered.
    Recover,
    /// Programs make calls on homes with two replicas, and the job is drained.
    Replicas,
}

impl Workload {
    /// All workloads.
    pub const ALL: [Self; 3] = [Self::Serve, Self::Recover, Self::Replicas];

    /// Returns the name, as in the number of a countdown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Serve => "serve",
            Self::Recover => "recover",
            Self::Replicas => "replicas",
        }
    }

    /// Returns the program.
    pub fn program(self, canary: Option<Canary>) -> Program {
        // Covers a node without a device, one-sided transfers of payloads above one page, and checkpoints.
        let mut world = WorldConfig::plain(SEED, 3);
        (world.devices[2], world.inline_max, world.canary) = (false, 4096, canary);
        world.checkpoint_bytes = 6000;
        if self == Self::Replicas {
            (world.devices[2], world.replicas) = (true, 2);
        }
        let mut script = Script::default();
        script.fill();
        match self {
            Self::Serve => {
                script.change_names();
                script.steps.extend([Step::Rest(400), Step::Drain]);
                script.share();
                script.end_agents();
                script.work_on();
            }
            Self::Recover => script.share(),
            Self::Replicas => {
                script.change_names();
                script.steps.extend([Step::Rest(400), Step::Drain]);
                script.share();
                script.work_on();
            }
        }
        Program { world, steps: script.steps, crashes: self == Self::Recover }
    }
}

#[derive(Default)]
struct Script {
    steps: Vec<Step>,
    tag: u64,
}

const READ: Flags = Flags { write: false, append: false, truncate: false, create: false, exclusive: false };
const WRITE: Flags = Flags { write: true, ..READ };
const CREATE: Flags = Flags { create: true, ..WRITE };

fn open(slot: u8, path: &str, flags: Flags) -> Op {
    Op::Open { slot, path: path.to_owned(), flags }
}

fn rename(from: &str, to: &str, mode: RenameMode) -> Op {
    Op::Rename { from: from.to_owned(), to: to.to_owned(), mode }
}

impl Script {
    /// Adds a step of concurrent calls, each in both views.
    fn together(&mut self, calls: &[(usize, Op)]) {
        let both = calls.iter().flat_map(|(node, op)| {
            [View::JobShared, View::Cache].map(|view| Action::Call { node: *node, view, op: op.clone() })
        });
        self.steps.push(Step::Together(both.collect()));
    }

    fn one(&mut self, node: usize, op: Op) {
        self.together(&[(node, op)]);
    }

    /// Adds one step for each call of a node.
    fn all(&mut self, node: usize, ops: impl IntoIterator<Item = Op>) {
        ops.into_iter().for_each(|op| self.one(node, op));
    }

    fn write(&mut self, slot: u8, offset: u64, length: u32) -> Op {
        self.tag += 1;
        Op::Write { slot, offset, length, tag: self.tag }
    }

    /// Writes files of all sizes on all nodes.
    fn fill(&mut self) {
        self.one(0, open(0, "a/x", CREATE));
        let sizes = [(0, 5000), (20_000, 70_000), (UNIT - 40, 100)];
        let writes = sizes.map(|(offset, length)| self.write(0, offset, length));
        self.all(0, writes);
        self.one(0, Op::Fsync { slot: 0 });
        self.one(1, open(0, "a/y", Flags { append: true, ..CREATE }));
        let appends = [3000, 30].map(|length| self.write(0, 0, length));
        self.all(1, appends);
        self.one(1, Op::Close { slot: 0 });
        self.one(2, open(0, "b/z", CREATE));
        let whole = self.write(0, 0, UNIT as u32 + 5000);
        self.all(2, [whole, Op::Close { slot: 0 }]);
        self.together(&[
            (0, Op::Read { slot: 0, offset: 0, length: 70_000 }),
            (1, Op::Stat { path: "b/z".to_owned() }),
            (2, Op::List { path: "a".to_owned() }),
        ]);
        self.all(1, [open(1, "a/y", Flags { append: true, ..WRITE })]);
        let more = self.write(1, 0, 5000);
        self.all(1, [more, Op::Fsync { slot: 1 }, Op::Close { slot: 1 }]);
    }

    fn change_names(&mut self) {
        let path = |path: &str| path.to_owned();
        self.all(1, [Op::Mkdir { path: path("d") }, Op::SyncDir { path: path("") }]);
        self.all(
            2,
            [Op::Chmod { path: path("a/y"), mode: 0o640 }, rename("a/y", "d/y", RenameMode::Replace)],
        );
        self.one(0, Op::Link { from: path("d/y"), to: path("a/l") });
        self.all(1, [Op::Symlink { path: path("s"), target: path("d/y") }, Op::Readlink { path: path("s") }]);
        self.all(
            0,
            [rename("b/z", "a/x", RenameMode::Exchange), rename("a/x", "a/z", RenameMode::NoReplace)],
        );
        self.all(2, [Op::SetXattr { path: path("a/z"), value: 7 }, Op::GetXattr { path: path("a/z") }]);
        self.all(1, [Op::Truncate { path: path("a/z"), size: UNIT - 7 }, open(2, "a/l", READ)]);
        self.all(0, [Op::Unlink { path: path("d/y") }, Op::Unlink { path: path("a/l") }]);
        self.one(1, Op::Read { slot: 2, offset: 0, length: 5000 });
        self.all(1, [Op::Close { slot: 2 }, Op::Rmdir { path: path("d") }]);
        self.one(2, rename("a/c", "b/c", RenameMode::Replace));
    }

    fn share(&mut self) {
        self.together(&[(1, open(0, "b/s", CREATE))]);
        self.together(&[(0, open(1, "b/s", WRITE)), (2, open(1, "b/s", WRITE))]);
        let writes = [(0, 1, 100, 3000), (1, 0, 4000, 70_000), (2, 1, UNIT - 100, 5000)];
        let writes = writes.map(|(node, slot, offset, length)| (node, self.write(slot, offset, length)));
        self.together(&writes);
        let space = |change, offset| Op::Space { slot: 1, change, offset, length: 30_000 };
        self.one(0, space(SpaceChange::Punch, 10_000));
        self.lock();
        self.one(2, space(SpaceChange::Allocate, 2 * UNIT));
        self.one(0, space(SpaceChange::Zero, 50_001));
        self.together(&[(0, Op::Close { slot: 1 }), (2, Op::Fsync { slot: 1 })]);
        self.one(1, Op::Truncate { path: "b/s".to_owned(), size: 60_000 });
        self.together(&[(1, Op::Close { slot: 0 }), (2, Op::Close { slot: 1 })]);
        self.one(2, open(2, "b/s", READ));
        self.one(2, Op::Read { slot: 2, offset: 0, length: UNIT as u32 });
        self.one(2, Op::Close { slot: 2 });
    }

    /// Refuses, waits for and releases locks; then two owners wait for each other.
    fn lock(&mut self) {
        let lock = |slot, kind, wait| Op::Lock { slot, range: None, kind, wait };
        self.one(0, lock(1, LockKind::Exclusive, false));
        self.one(1, lock(0, LockKind::Shared, false));
        self.together(&[
            (1, lock(0, LockKind::Shared, true)),
            (2, lock(1, LockKind::Shared, true)),
            (0, Op::Unlock { slot: 1, range: None }),
        ]);
        self.together(&[(1, lock(0, LockKind::Exclusive, true)), (2, lock(1, LockKind::Exclusive, true))]);
        self.together(&[(1, Op::Unlock { slot: 0, range: None }), (2, Op::Unlock { slot: 1, range: None })]);
    }

    /// Fails all agents, and restarts them on their disks.
    fn end_agents(&mut self) {
        let kill = |node| Action::Injection(0, Injection::Kill { node, power: false });
        self.steps.extend([Step::Together((0..3).map(kill).collect()), Step::Check]);
    }

    /// Uses files that the earlier agents left.
    fn work_on(&mut self) {
        self.together(&[(1, open(0, "b/s", WRITE)), (2, open(0, "b/z", READ))]);
        let write = self.write(0, 30, 5000);
        self.together(&[(1, write), (2, Op::Read { slot: 0, offset: 0, length: 70_000 })]);
        self.together(&[(1, Op::Close { slot: 0 }), (2, Op::Close { slot: 0 })]);
        self.one(0, Op::Unlink { path: "a/z".to_owned() });
        self.steps.push(Step::Rest(400));
    }
}
