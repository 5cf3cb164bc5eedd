//! Nodes with memory, each the home of a part of the units, in front of a shared file system.

use super::policies::{Kind, Policy, Unit};
use super::trace::{Access, Trace};
use super::{Knowledge, Last, Setting, Uses};
use crate::chance::Chance;
use std::collections::{BTreeMap, BTreeSet};
use tameike_core::limits::{BLOCK_SIZE, UNIT_SIZE};
use tameike_core::{Cluster as Members, InodeId, JobId, Layout, NodeId, NodeInfo, Slot, UnitId};

/// Larger reads of what lies on the node's own device are served from there, without a copy in memory.
const STEP_KEPT_MAX: u32 = UNIT_SIZE as u32 / 16;
/// Seconds that a message and its answer take between nodes, that a device takes, that the shared file system takes; and bytes a second.
const NETWORK: (f64, f64) = (50e-6, 10e9);
const DEVICE: (f64, f64) = (100e-6, 2e9);
const SHARED: (f64, f64) = (5e-3, 150e6);

/// How often units were looked for, and where they were.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Programs went through units so often; to go back in one is to go through it again.
    pub passes: u64,
    /// Units that came from other nodes' memory.
    pub other: u64,
    /// From the device of the node, and those of other nodes.
    pub own_device: u64,
    /// See `own_device`.
    pub devices: u64,
    /// From the shared file system.
    pub shared: u64,
    /// Units that were sent to another node, to stay in its memory.
    pub moved: u64,
    /// What all of it takes, one after another.
    pub seconds: f64,
}

impl Outcome {
    /// Passes that found their unit in the node's own memory.
    pub fn own(&self) -> u64 {
        self.passes.saturating_sub(self.other + self.own_device + self.devices + self.shared)
    }

    fn count(&mut self, found: Found) -> &mut u64 {
        match found {
            Found::OwnDevice => &mut self.own_device,
            Found::Memory => &mut self.other,
            Found::Device => &mut self.devices,
            Found::Shared => &mut self.shared,
        }
    }

    fn takes(&mut self, (seconds, rate): (f64, f64), bytes: u64) {
        self.seconds += seconds + bytes as f64 / rate;
    }
}

/// Where a unit was that was not in the node's own memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    OwnDevice,
    Memory,
    Device,
    Shared,
}

/// A unit in a node's memory.
struct Held {
    /// Another node is known to have had it.
    is_elsewhere: bool,
    /// How often it may stay or move yet.
    rounds: u8,
}

/// How far programs of a node have come in a unit: the farthest end of a step, and sixteenths of the unit in which steps were.
#[derive(Default)]
struct Pass {
    end: u32,
    parts: u16,
}

impl Pass {
    /// A step; whether a pass begins with it.
    fn step(&mut self, start: u32, end: u32) -> bool {
        let part = |place: u32| place / (UNIT_SIZE as u32 / u16::BITS);
        let begins = self.parts == 0 || (start < self.end && self.parts & (1 << part(start)) != 0);
        if begins {
            *self = Self::default();
        }
        self.end = self.end.max(end);
        self.parts |= (part(start)..=part(end - 1)).fold(0, |parts, part| parts | 1 << part);
        begins
    }
}

struct Node {
    policy: Box<dyn Policy>,
    held: BTreeMap<Unit, Held>,
    /// How far it has come in each unit.
    passes: BTreeMap<Unit, Pass>,
    /// Where the last read of each file has ended.
    ends: BTreeMap<u32, u64>,
    area: BTreeSet<Unit>,
    area_policy: Box<dyn Policy>,
}

/// The nodes while a trace is replayed.
pub struct Cluster<'a> {
    trace: &'a Trace,
    setting: Setting,
    members: Members,
    nodes: Vec<Node>,
    chance: Chance,
    /// What was found so far.
    pub outcome: Outcome,
}

impl<'a> Cluster<'a> {
    /// Nothing is in memory nor on devices.
    ///
    /// # Errors
    /// That there are no nodes, or too many.
    pub fn new(trace: &'a Trace, setting: Setting) -> Result<Self, String> {
        let info = |id| NodeInfo {
            id: NodeId(id),
            host: String::new(),
            address: String::new(),
            group: 0,
            device: true,
        };
        let infos = (0..setting.nodes as u32).map(info).collect();
        let members = Members::new(JobId::new("replay")?, infos)?;
        let node = || Node {
            policy: setting.policy.policy(setting.frames),
            held: BTreeMap::new(),
            passes: BTreeMap::new(),
            ends: BTreeMap::new(),
            area: BTreeSet::new(),
            area_policy: setting.area_policy.policy(setting.area),
        };
        let nodes = (0..setting.nodes).map(|_| node()).collect();
        Ok(Self { trace, setting, members, nodes, chance: Chance::new(1), outcome: Outcome::default() })
    }

    /// The next access of the trace.
    pub fn access(&mut self, access: &Access) {
        let Access { node, unit, start, length, .. } = *access;
        let end = start + length;
        let is_new_pass = self.nodes[node].passes.entry(unit).or_default().step(start, end);
        let place = u64::from(unit.index) * UNIT_SIZE as u64;
        let before = self.nodes[node].ends.insert(unit.file, place + u64::from(end)).unwrap_or(0);
        let is_sequence = before == place + u64::from(start);
        // What the bound goes by is not what was used, but what will be.
        let counts = is_new_pass || self.setting.uses == Uses::Each || self.setting.policy == Kind::Bound;
        if access.is_write {
            return self.write(access, counts);
        }
        self.outcome.passes += u64::from(is_new_pass);
        let rounds = self.setting.rounds;
        let own = &mut self.nodes[node];
        if let Some(held) = own.held.get_mut(&unit) {
            if counts {
                held.rounds = rounds;
                own.policy.hit(unit, access.next);
            }
            return;
        }
        let is_home = self.home(unit) == node;
        let is_kept = !is_home || (is_sequence && length <= STEP_KEPT_MAX);
        let is_whole = is_kept && (is_sequence || length >= STEP_KEPT_MAX);
        let bytes = if is_whole {
            self.trace.bytes_of(unit)
        } else {
            u64::from(length.next_multiple_of(BLOCK_SIZE as u32))
        };
        let found = self.find(node, unit, bytes);
        if is_kept || is_new_pass {
            *self.outcome.count(found) += 1;
        }
        if is_kept {
            self.keep(node, unit, access.next, Held { is_elsewhere: found == Found::Memory, rounds });
        }
    }

    fn home(&self, unit: Unit) -> usize {
        let inode = InodeId::in_slot(Slot(0), u64::from(unit.file) + 1);
        self.members.unit_home(Layout::Striped, UnitId { inode, index: u64::from(unit.index) }).0 as usize
    }

    /// Where else a unit is in memory.
    fn holder(&self, node: usize, unit: Unit) -> Option<usize> {
        (0..self.nodes.len()).find(|&other| other != node && self.nodes[other].held.contains_key(&unit))
    }

    /// Finds a unit that is not in the node's memory.
    fn find(&mut self, node: usize, unit: Unit, bytes: u64) -> Found {
        let home = self.home(unit);
        if home == node && self.nodes[home].area.contains(&unit) {
            self.nodes[home].area_policy.hit(unit, 0);
            self.outcome.takes(DEVICE, bytes);
            return Found::OwnDevice;
        }
        if let Some(other) = self.holder(node, unit) {
            self.outcome.takes(NETWORK, bytes);
            if let Some(held) = self.nodes[other].held.get_mut(&unit) {
                held.is_elsewhere = true;
            }
            return Found::Memory;
        }
        if home != node {
            self.outcome.takes(NETWORK, bytes);
        }
        if self.nodes[home].area.contains(&unit) {
            self.nodes[home].area_policy.hit(unit, 0);
            self.outcome.takes(DEVICE, bytes);
            return Found::Device;
        }
        self.outcome.takes(SHARED, bytes);
        self.store(home, unit);
        Found::Shared
    }

    /// A unit is on its home's device.
    fn store(&mut self, home: usize, unit: Unit) {
        let (node, room) = (&mut self.nodes[home], self.setting.area);
        if room == 0 || !node.area.insert(unit) {
            return;
        }
        if node.area.len() > room
            && let Some(gone) = node.area_policy.evict()
        {
            node.area.remove(&gone);
        }
        node.area_policy.insert(unit, 0);
    }

    fn write(&mut self, access: &Access, counts: bool) {
        let Access { node, unit, next, .. } = *access;
        for other in (0..self.nodes.len()).filter(|&other| other != node) {
            if self.nodes[other].held.remove(&unit).is_some() {
                self.nodes[other].policy.remove(unit);
            }
        }
        self.store(self.home(unit), unit);
        let rounds = self.setting.rounds;
        let own = &mut self.nodes[node];
        match own.held.get_mut(&unit) {
            Some(held) => {
                held.is_elsewhere = false;
                if counts {
                    held.rounds = rounds;
                    own.policy.hit(unit, next);
                }
            }
            None => self.keep(node, unit, next, Held { is_elsewhere: false, rounds }),
        }
    }

    fn keep(&mut self, node: usize, unit: Unit, next: usize, held: Held) {
        if self.nodes[node].held.len() >= self.setting.frames {
            self.make_room(node);
        }
        self.nodes[node].held.insert(unit, held);
        self.nodes[node].policy.insert(unit, next);
    }

    /// Lets a unit go: of those that come first one that is elsewhere, too, if there is one before each of the others had its rounds.
    fn make_room(&mut self, node: usize) {
        loop {
            let Some(unit) = self.nodes[node].policy.evict() else { return };
            let Some(held) = self.nodes[node].held.get(&unit) else { continue };
            let is_elsewhere = match self.setting.knowledge {
                Knowledge::None => true,
                Knowledge::Learned => held.is_elsewhere,
                Knowledge::Exact => self.holder(node, unit).is_some(),
            };
            let rounds = held.rounds;
            if is_elsewhere || rounds == 0 || self.setting.last == Last::Moves {
                self.nodes[node].held.remove(&unit);
                if !is_elsewhere && rounds > 0 {
                    self.forward(node, unit, rounds - 1);
                }
                return;
            }
            if let Some(held) = self.nodes[node].held.get_mut(&unit) {
                held.rounds -= 1;
            }
            self.nodes[node].policy.spare(unit);
        }
    }

    /// Sends a last copy to another node, which lets go of what is next there for it, and sends that nowhere.
    fn forward(&mut self, node: usize, unit: Unit, rounds: u8) {
        if self.nodes.len() < 2 {
            return;
        }
        let drawn = self.chance.below(self.nodes.len() as u64 - 1) as usize;
        let peer = &mut self.nodes[drawn + usize::from(drawn >= node)];
        if peer.held.len() >= self.setting.frames
            && let Some(gone) = peer.policy.evict()
        {
            peer.held.remove(&gone);
        }
        peer.held.insert(unit, Held { is_elsewhere: false, rounds });
        peer.policy.insert(unit, usize::MAX);
        self.outcome.moved += 1;
        self.outcome.takes(NETWORK, self.trace.bytes_of(unit));
    }
}

#[cfg(test)]
mod tests;
