//! The record of a volume, which must outlive the driver that changes it: some nodes keep it, and a driver works only with most of them.
//!
//! A volume has one record, with its nodes and its home map. Each driver has a *term*, a number that is higher than those of all drivers
//! before it. Three or five nodes are the *keepers*. This is Paxos for one value, where the value is replaced again and again:
//!
//! 1. A new driver has the keepers promise its term. From then on they refuse earlier drivers. Each returns the last record that it keeps.
//!    When most have promised, the newest of their records is the one from which the driver goes on.
//! 2. A driver uses a record, also that first one, only when most keepers keep it, under its own term.
//!
//! Two majorities share a keeper. So a driver finds each record that an earlier driver has used, and an earlier driver notices that it is
//! none any more: no record of it is kept by most, and its leases end (`Authority::kept_by`).
//!
//! Source of the protocol: L. Lamport, Paxos Made Simple, 2001. That of registers that change: D. Rystsov, CASPaxos, 2018.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use tameike_core::{NodeId, NodeInfo};

/// Most keepers of a volume.
const KEEPERS_MAX: usize = 5;
/// Fewest keepers: with two, one that fails would stop the other.
const KEEPERS_MIN: usize = 3;

/// Number of a driver among all drivers of a volume, from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Term(pub u64);

/// Identifies a record among all records of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RecordVersion {
    /// The term of the driver that has written it.
    pub term: Term,
    /// Number among the records of this driver, from 1.
    pub number: u64,
}

/// A record, as a driver has keepers keep it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptRecord<R> {
    /// Its version.
    pub version: RecordVersion,
    /// The keepers of the record before it.
    pub before: Keepers,
    /// Its keepers.
    pub keepers: Keepers,
    /// The record.
    pub record: R,
}

/// What a keeper knows, durably before it replies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept<R> {
    /// The highest term that the keeper has promised.
    pub promised: Term,
    /// The newest record; `None` if the keeper has a new store.
    pub newest: Option<KeptRecord<R>>,
}

impl<R> Default for Kept<R> {
    fn default() -> Self {
        Self { promised: Term::default(), newest: None }
    }
}

impl<R> Kept<R> {
    /// Promises to refuse drivers of earlier terms. Returns false if the keeper has promised this term or a later one.
    #[must_use]
    pub fn promise(&mut self, term: Term) -> bool {
        let is_new = term > self.promised;
        self.promised = self.promised.max(term);
        is_new
    }

    /// Keeps a record, if it is newer. Returns false if the keeper refuses its driver.
    #[must_use]
    pub fn keep(&mut self, record: KeptRecord<R>) -> bool {
        let version = record.version;
        if version.term < self.promised {
            return false;
        }
        self.promised = version.term;
        if self.newest.as_ref().is_none_or(|newest| version > newest.version) {
            self.newest = Some(record);
        }
        true
    }
}

/// A node that keeps records. With a new store, a node is another keeper, as it has forgotten what it has promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Keeper {
    /// The node.
    pub node: NodeId,
    /// Random number of its store.
    pub store: u64,
}

/// The nodes that keep the record of a volume. Without keepers, the driver alone decides, and the record is in a file of its host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keepers(BTreeSet<Keeper>);

impl Keepers {
    /// Chooses the keepers among the nodes of a volume, of which `stores` has the numbers of known stores: one node with a device on each of
    /// three or five hosts, those that are up first. A volume on two hosts has none, as neither host is the majority. On a single host, whose
    /// nodes fail one by one, they are three of its nodes. The current keepers stay while most of the others are down: any of the current
    /// ones that comes back can keep a record, and the others could be down for good.
    pub fn choose(
        nodes: &[NodeInfo],
        stores: &BTreeMap<NodeId, u64>,
        current: &Self,
        is_up: impl Fn(NodeId) -> bool,
    ) -> Self {
        let with_store = nodes.iter().filter(|node| node.device && stores.contains_key(&node.id));
        let (up, down): (Vec<_>, Vec<_>) = with_store.partition(|node| is_up(node.id));
        let candidates = || up.iter().chain(&down).copied();
        let mut hosts = BTreeSet::new();
        let of_hosts: Vec<_> = candidates().filter(|node| hosts.insert(&node.host)).collect();
        let chosen = match of_hosts.len() {
            1 => candidates().take(KEEPERS_MIN).collect(),
            _ => of_hosts,
        };
        let count = match chosen.len() {
            0..KEEPERS_MIN => 0,
            KEEPERS_MIN..KEEPERS_MAX => KEEPERS_MIN,
            KEEPERS_MAX.. => KEEPERS_MAX,
        };
        let keeper = |node: &NodeInfo| Some(Keeper { node: node.id, store: *stores.get(&node.id)? });
        let others = Self(chosen.into_iter().take(count).filter_map(keeper).collect());
        let are_up = others.is_majority(|keeper| is_up(keeper.node));
        if are_up || current.is_empty() { others } else { current.clone() }
    }

    /// The keepers, in the order of their nodes.
    pub fn iter(&self) -> impl Iterator<Item = Keeper> {
        self.0.iter().copied()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `counts` is true for most keepers. It is if there are none.
    pub fn is_majority(&self, counts: impl Fn(Keeper) -> bool) -> bool {
        self.0.is_empty() || 2 * self.iter().filter(|keeper| counts(*keeper)).count() > self.0.len()
    }
}

/// What a new driver finds at the nodes that have promised its term.
#[derive(Debug, PartialEq, Eq)]
pub enum Found<'a, R> {
    /// No node keeps a record: the volume is new.
    Nothing,
    /// Others may keep a newer record than this one: too few of its keepers have promised.
    TooFew(&'a KeptRecord<R>),
    /// The record from which the driver goes on.
    Newest(&'a KeptRecord<R>),
}

/// Finds the record from which a driver goes on, in what nodes knew when they promised its term.
pub fn find<R>(promises: &BTreeMap<Keeper, Kept<R>>) -> Found<'_, R> {
    let records = promises.values().filter_map(|kept| kept.newest.as_ref());
    let Some(newest) = records.max_by_key(|record| record.version) else { return Found::Nothing };
    let counts = |keeper| promises.contains_key(&keeper);
    match newest.keepers.is_majority(counts) && newest.before.is_majority(counts) {
        true => Found::Newest(newest),
        false => Found::TooFew(newest),
    }
}

/// What a driver knows about the keepers of its records.
#[derive(Debug)]
pub struct Keeping {
    version: RecordVersion,
    /// The keepers of the last record that most have kept.
    before: Keepers,
    /// The keepers of the current record.
    keepers: Keepers,
    /// Those that keep the current record.
    kept: BTreeSet<Keeper>,
    is_kept: bool,
}

impl Keeping {
    /// The driver of a new volume.
    pub fn new(term: Term) -> Self {
        Self::after(term, Keepers::default())
    }

    /// A driver that goes on from a record that it has found, as [`find`] does. It begins with the same one.
    pub fn from_found<R>(term: Term, found: &KeptRecord<R>) -> Self {
        let mut keeping = Self::after(term, found.before.clone());
        keeping.begin(found.keepers.clone());
        keeping
    }

    fn after(term: Term, before: Keepers) -> Self {
        let (keepers, kept) = Default::default();
        Self { version: RecordVersion { term, number: 0 }, before, keepers, kept, is_kept: false }
    }

    /// The term of the driver.
    pub fn term(&self) -> Term {
        self.version.term
    }

    /// The keepers of the current record.
    pub fn keepers(&self) -> &Keepers {
        &self.keepers
    }

    /// Begins a record, which these nodes shall keep. Most of the keepers of the last record must keep it too.
    pub fn begin(&mut self, keepers: Keepers) {
        self.version.number += 1;
        self.keepers = keepers;
        self.kept.clear();
        self.note_kept();
    }

    /// The current record, for keepers.
    pub fn record<R>(&self, record: R) -> KeptRecord<R> {
        let Self { version, before, keepers, .. } = self;
        KeptRecord { version: *version, before: before.clone(), keepers: keepers.clone(), record }
    }

    /// Notes that a node keeps a record. Returns true if most keep the current one from now on.
    pub fn kept(&mut self, keeper: Keeper, version: RecordVersion) -> bool {
        if version != self.version || self.is_kept {
            return false;
        }
        self.kept.insert(keeper);
        self.note_kept();
        self.is_kept
    }

    /// Whether most keepers keep the current record, so that it may be used.
    pub fn is_kept(&self) -> bool {
        self.is_kept
    }

    fn note_kept(&mut self) {
        let counts = |keeper| self.kept.contains(&keeper);
        self.is_kept = self.keepers.is_majority(counts) && self.before.is_majority(counts);
        if self.is_kept {
            self.before = self.keepers.clone();
        }
    }
}

#[cfg(test)]
mod tests;
