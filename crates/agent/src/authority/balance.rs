//! Moves homes between nodes until each has about as many: to nodes that were added, and away from nodes that leave.
//!
//! A home is copied to its new node, as a home is that lacks a replica. The map then names one copy too many. If that is a backup, the next
//! map drops it. If it is the primary, the authority first ends the primary's lease, as two nodes never serve a home at the same time; the next
//! map lets the new copy serve the home. The primary has no lease for as long as one message and its answer take, and the next message gives
//! it a lease again, for the homes that stay.

use super::{Authority, MapChange, Right};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tameike_core::{HomeId, MapEpoch, NodeId, NodeInfo};

/// Homes that are moved at a time.
const MOVES_MAX: usize = 16;
/// Homes of one primary that change hands at a time, at most: less often, programs wait for fewer changes of the map.
const HANDED_OVER_MAX: usize = 8;

/// Time for a primary to give its lease up, while programs wait for its homes, and pause after it has not.
const HANDING_OVER_MAX: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_secs(3);

/// A copy of a home that moves to another node.
#[derive(Clone, Copy)]
struct Move {
    from: NodeId,
    to: NodeId,
}

/// What moves need to know.
#[derive(Default)]
pub(super) struct Balance {
    /// Nodes that leave the job: they get no homes, and theirs move to others.
    leaving: BTreeSet<NodeId>,
    moves: BTreeMap<HomeId, Move>,
    /// A primary whose lease is ended, because others shall serve some of its homes.
    handing_over: Option<NodeId>,
    /// When that began, or when it failed last.
    since: Duration,
    /// No move begins, and no home changes hands.
    is_paused: bool,
}

impl Balance {
    /// Whether messages end the lease of a node, so that others can serve some of its homes.
    pub(super) fn hands_over(&self, node: NodeId) -> bool {
        self.handing_over == Some(node)
    }

    /// The primary whose lease is ended, so that others can serve some of its homes.
    pub(super) fn handing_over(&self) -> Option<NodeId> {
        self.handing_over
    }

    /// Whether a node leaves the job.
    pub(super) fn is_leaving(&self, node: NodeId) -> bool {
        self.leaving.contains(&node)
    }
}

/// The homes of a node when all moves are made.
#[derive(Clone, Copy, Default)]
struct Load {
    copies: usize,
    served: usize,
}

impl Authority {
    /// Adds a node to the job, or takes note that a node without homes was restarted at another address. It is excluded until it answers.
    pub fn add(&mut self, node: NodeInfo) {
        let id = node.id;
        self.map = self.map.adding(node.clone());
        self.members.insert(id, super::Member::new(Some(self.map.epoch)));
        self.balance.leaving.remove(&id);
        self.repair.add_device(node);
    }

    /// Has all homes of a node moved to others, because it leaves the job.
    pub fn leave(&mut self, node: NodeId) {
        self.balance.leaving.insert(node);
    }

    /// Whether the homes of a node move to others, because it leaves the job.
    pub fn is_leaving(&self, node: NodeId) -> bool {
        self.balance.is_leaving(node)
    }

    /// Lets a node stay in the job that was to leave it.
    pub fn stay(&mut self, node: NodeId) {
        self.balance.leaving.remove(&node);
    }

    /// Whether to leave all homes where they are for now.
    pub fn pause_moves(&mut self, is_paused: bool) {
        self.balance.is_paused = is_paused;
    }

    /// Number of copies of homes that a node has or gets.
    pub fn homes_on(&self, node: NodeId) -> usize {
        self.map.homes().filter(|home| self.map.is_on(*home, node)).count()
    }

    /// Number of copies of homes that are still to be made or to move, at least.
    pub fn copies_to_move(&self) -> usize {
        let loads = self.loads();
        let wanted = self.repair.replicas().min(loads.len());
        let lacking: usize = self.map.homes().map(|home| wanted.saturating_sub(self.map.copies(home))).sum();
        let on_leaving: usize = self.balance.leaving.iter().map(|node| self.homes_on(*node)).sum();
        let total: usize = loads.values().map(|load| load.copies).sum();
        let share = total.div_ceil(loads.len().max(1));
        let beyond: usize = loads.values().map(|load| load.copies.saturating_sub(share)).sum();
        let moving = self.balance.moves.len().max(self.map.all_joining().len());
        let next = usize::from(moving == 0 && self.may_move() && self.choose_move(&loads).is_some());
        // Failure domains may leave no way to even shares.
        let beyond = if moving + next > 0 { beyond } else { 0 };
        on_leaving.max(beyond).max(lacking) + moving + next
    }

    /// Ends, makes and begins moves.
    pub(super) fn balance(&mut self, now: Duration, changes: &mut Vec<MapChange>) {
        self.drop_moves_that_failed();
        self.note_superfluous_copies();
        self.drop_backups_that_moved(changes);
        self.hand_over(now, changes);
        if !self.may_move() || !self.is_settled(now) {
            return;
        }
        while self.balance.moves.len() < MOVES_MAX
            && self.map.all_joining().len() < MOVES_MAX
            && let Some((home, next)) = self.choose_move(&self.loads())
        {
            self.balance.moves.insert(home, next);
            self.map = self.map.copying(home, next.to);
            changes.push(MapChange::Copying(home, next.to));
        }
    }

    /// Whether moves may begin. The first map is good enough until something changes.
    fn may_move(&self) -> bool {
        let has_changed = self.map.epoch > MapEpoch(1) || !self.balance.leaving.is_empty();
        has_changed && !self.balance.is_paused
    }

    fn drop_moves_that_failed(&mut self) {
        let map = &self.map;
        let is_possible = |home: &HomeId, step: &mut Move| {
            map.is_on(*home, step.to)
                && map.replicas(*home).any(|node| node == step.from)
                && !map.excludes(step.from)
        };
        self.balance.moves.retain(is_possible);
        let is_moved_from = |node: &NodeId| self.balance.moves.values().any(|step| step.from == *node);
        self.balance.handing_over = self.balance.handing_over.filter(is_moved_from);
    }

    /// Homes with a copy too many, of whose moves this authority does not know, lose the copy on the node with the most.
    fn note_superfluous_copies(&mut self) {
        let wanted = self.repair.replicas();
        let is_unknown =
            |home: &HomeId| self.map.copies(*home) > wanted && !self.balance.moves.contains_key(home);
        if wanted == 0 || !self.map.homes().any(|home| is_unknown(&home)) {
            return;
        }
        let loads = self.loads();
        for home in self.map.homes().filter(is_unknown).collect::<Vec<_>>() {
            let load = |node: &NodeId| {
                let copies = loads.get(node).map_or(usize::MAX, |load| load.copies);
                (self.balance.is_leaving(*node), copies)
            };
            let from = self.map.replicas(home).max_by_key(load);
            let to = self.map.replicas(home).find(|node| Some(*node) != from);
            if let (Some(from), Some(to)) = (from, to) {
                self.balance.moves.insert(home, Move { from, to });
            }
        }
    }

    /// Whether the copy of a home on its new node is complete.
    fn is_copied(&self, home: HomeId, step: Move) -> bool {
        self.map.joining(home) != Some(step.to)
    }

    fn drop_backups_that_moved(&mut self, changes: &mut Vec<MapChange>) {
        for (home, step) in self.balance.moves.clone() {
            if self.is_copied(home, step) && self.map.primary(home) != step.from {
                self.map = self.map.without_backup(home, step.from);
                self.balance.moves.remove(&home);
                changes.push(MapChange::Moved(home, step.from, step.to));
            }
        }
    }

    /// The homes of a primary whose new copies are complete, each with the next primary.
    fn handed_over_by(&self, node: NodeId) -> Vec<(HomeId, NodeId)> {
        let moves = self.balance.moves.iter().map(|(home, step)| (*home, *step));
        let ready = moves.filter(|(home, step)| step.from == node && self.is_copied(*home, *step));
        ready.filter(|(home, _)| !self.is_pinned(*home)).map(|(home, step)| (home, step.to)).collect()
    }

    /// Whether the primary of a home must stay.
    fn is_pinned(&self, home: HomeId) -> bool {
        let primary = self.members.get(&self.map.primary(home));
        primary.is_some_and(|member| member.pinned.contains(&home))
    }

    fn hand_over(&mut self, now: Duration, changes: &mut Vec<MapChange>) {
        if let Some(node) = self.balance.handing_over {
            if !self.members.get(&node).is_some_and(|member| member.gave_up) {
                if now >= self.balance.since + HANDING_OVER_MAX {
                    // Programs have waited long enough.
                    (self.balance.handing_over, self.balance.since) = (None, now + PAUSE);
                }
                return;
            }
            for (home, to) in self.handed_over_by(node) {
                self.map = self.map.with_primary(home, to);
                self.balance.moves.remove(&home);
                changes.push(MapChange::Moved(home, node, to));
            }
            self.balance.handing_over = None;
            return;
        }
        if self.balance.is_paused || now < self.balance.since {
            return;
        }
        let is_due = |node: &NodeId| {
            let ready = self.handed_over_by(*node).len();
            let moves = self.balance.moves.iter();
            let all = moves.filter(|(home, step)| step.from == *node && !self.is_pinned(**home)).count();
            ready >= HANDED_OVER_MAX || ready > 0 && ready == all
        };
        self.balance.handing_over = self.map.nodes().iter().copied().find(is_due);
        self.balance.since = now;
    }

    /// The loads of the nodes that may have homes, when all moves are made.
    fn loads(&self) -> BTreeMap<NodeId, Load> {
        let may_have = |info: &&NodeInfo| {
            let is_up = self.members.get(&info.id).is_some_and(super::Member::is_up);
            let has_right = matches!(self.right(info.id), Right::Held) || self.balance.hands_over(info.id);
            is_up && has_right && !self.balance.is_leaving(info.id)
        };
        let nodes = self.repair.devices().iter().filter(may_have);
        let mut loads: BTreeMap<_, _> = nodes.map(|info| (info.id, Load::default())).collect();
        for home in self.map.homes() {
            let (primary, copies) = self.planned(home);
            for node in copies {
                loads.entry(node).and_modify(|load| load.copies += 1);
            }
            loads.entry(primary).and_modify(|load| load.served += 1);
        }
        loads
    }

    /// The primary of a home, and all nodes with a copy, when all moves are made.
    fn planned(&self, home: HomeId) -> (NodeId, Vec<NodeId>) {
        let step = self.balance.moves.get(&home);
        let copies = self.map.replicas(home).chain(self.map.joining(home));
        let copies = copies.filter(|node| step.is_none_or(|step| step.from != *node)).collect();
        let primary = self.map.primary(home);
        (step.filter(|step| step.from == primary).map_or(primary, |step| step.to), copies)
    }

    /// The next move, if nodes have uneven shares of the homes, or a node that leaves has some.
    fn choose_move(&self, loads: &BTreeMap<NodeId, Load>) -> Option<(HomeId, Move)> {
        let stays = |home: &HomeId| {
            let primary = self.map.primary(*home);
            self.map.excludes(primary) || self.is_pinned(*home) && self.balance.is_leaving(primary)
        };
        let moves =
            |home: &HomeId| self.balance.moves.contains_key(home) || self.map.joining(*home).is_some();
        let homes: Vec<_> = self.map.homes().filter(|home| !stays(home) && !moves(home)).collect();
        let of_leaving = self.balance.leaving.iter().find_map(|&from| {
            let mut of_node = homes.iter().filter(|home| self.map.replicas(**home).any(|node| node == from));
            of_node.find_map(|&home| Some((home, Move { from, to: self.best_node(home, from, loads)? })))
        });
        of_leaving.or_else(|| self.even_copies(&homes, loads)).or_else(|| self.even_served(&homes, loads))
    }

    /// The node with the fewest copies that may get one from `from`.
    fn best_node(&self, home: HomeId, from: NodeId, loads: &BTreeMap<NodeId, Load>) -> Option<NodeId> {
        let may_get = |node: &NodeId| self.may_get(home, *node);
        let rank = |node: &NodeId| (self.conflicts(home, from, *node), loads[node].copies, *node);
        loads.keys().copied().filter(may_get).min_by_key(rank)
    }

    fn may_get(&self, home: HomeId, node: NodeId) -> bool {
        !self.map.is_on(home, node) && !self.repair.has_failed(home, node)
    }

    /// Whether other copies than that on `from` are on the host of a node, and whether in its group.
    fn conflicts(&self, home: HomeId, from: NodeId, node: NodeId) -> (bool, bool) {
        let info = |node: NodeId| self.repair.devices().iter().find(|info| info.id == node);
        let others = self.map.replicas(home).filter(|other| *other != from).filter_map(info);
        let own = info(node);
        let (mut host, mut group) = (false, false);
        for other in others {
            host |= own.is_some_and(|own| own.host == other.host);
            group |= own.is_some_and(|own| own.group == other.group);
        }
        (host, group)
    }

    /// A home that can move from one node to another without more copies on a host, or in a group: of those that the first one serves if
    /// `serves`, else of the others.
    fn movable(&self, homes: &[HomeId], step: Move, serves: bool) -> Option<(HomeId, Move)> {
        let Move { from, to } = step;
        let is_movable = |home: &HomeId| {
            (self.map.primary(*home) == from) == serves
                && !(serves && self.is_pinned(*home))
                && self.map.replicas(*home).any(|node| node == from)
                && self.may_get(*home, to)
                && self.conflicts(*home, from, to) <= self.conflicts(*home, from, from)
        };
        homes.iter().copied().find(is_movable).map(|home| (home, step))
    }

    /// All pairs of nodes whose loads differ by two or more, the largest difference first.
    fn uneven(loads: &BTreeMap<NodeId, Load>, load: impl Fn(&Load) -> usize) -> Vec<Move> {
        let mut pairs = Vec::new();
        for (&from, high) in loads {
            let lower = loads.iter().filter(|(_, low)| load(high) >= load(low) + 2);
            pairs.extend(lower.map(|(&to, low)| (load(high) - load(low), Move { from, to })));
        }
        pairs.sort_by_key(|(difference, step)| (std::cmp::Reverse(*difference), step.from, step.to));
        pairs.into_iter().map(|(_, step)| step).collect()
    }

    fn even_copies(&self, homes: &[HomeId], loads: &BTreeMap<NodeId, Load>) -> Option<(HomeId, Move)> {
        Self::uneven(loads, |load| load.copies).into_iter().find_map(|step| {
            let serves_more = loads[&step.from].served > loads[&step.to].served;
            let served = serves_more.then(|| self.movable(homes, step, true)).flatten();
            served.or_else(|| self.movable(homes, step, false))
        })
    }

    fn even_served(&self, homes: &[HomeId], loads: &BTreeMap<NodeId, Load>) -> Option<(HomeId, Move)> {
        let mut uneven = Self::uneven(loads, |load| load.served).into_iter();
        uneven.find_map(|step| self.movable(homes, step, true))
    }
}
