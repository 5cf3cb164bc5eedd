//! What the authority of the home map knows of one node.

use crate::control::{LeaseAnswer, LeaseMessage};
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;
use tameike_core::limits::MAP_LEASE;
use tameike_core::{HomeId, HomeMap, MapEpoch, NodeId};

/// Messages to a node without an answer, beyond which it gets no more until it answers.
const UNANSWERED_MAX: usize = 3;
/// Bits of the number of a message below those of the term.
const TERM_SHIFT: u32 = 32;

/// The connection between the authority and an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contact {
    /// Messages arrive, though maybe late.
    Open,
    /// No more messages arrive, but the agent may run.
    HungUp,
    /// The agent has ended.
    Ended,
}

/// What the authority permits a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Right {
    /// Messages grant it a lease.
    Held,
    /// Messages grant it no lease as long as the authority hears too few keepers of its record.
    Waiting,
    /// Messages end its lease, so that it can be excluded.
    Revoked,
    /// It is excluded: it has no lease.
    Lost,
}

/// A message without an answer.
struct Unanswered {
    number: u64,
    sent: Duration,
    /// The node has had time to answer since.
    since: Duration,
}

/// What the authority knows of one node.
pub(super) struct Member {
    pub(super) contact: Contact,
    /// The epoch in which the node was excluded last.
    pub(super) excluded_in: Option<MapEpoch>,
    /// The nodes that the agent did not reach at its last answer.
    pub(super) unreachable: BTreeSet<NodeId>,
    /// The backups with useless copies, which it has reported since the last tick.
    pub(super) failed_copies: Vec<(HomeId, NodeId)>,
    /// The homes that it has copied to other nodes, as of its last answer.
    pub(super) copied: Vec<(HomeId, NodeId)>,
    /// The homes that must not move, as of its last answer.
    pub(super) pinned: Vec<HomeId>,
    /// Its store accepted no more changes at its last answer.
    pub(super) store_failed: bool,
    /// Number of the last message.
    sent: u64,
    unanswered: VecDeque<Unanswered>,
    /// When the last message was sent that the node has answered.
    heard: Option<Duration>,
    /// Number and time of the last answer.
    answer: Option<(u64, Duration)>,
    /// The epoch of its map at its last answer.
    confirmed: Option<MapEpoch>,
    /// The newest epoch that messages have brought.
    offered: Option<MapEpoch>,
    /// The end of the lease that messages have granted.
    pub(super) promised_until: Duration,
    /// The first message that revoked the lease, if none has granted one since.
    revoked_by: Option<u64>,
    /// Its last answer says that it has given the lease up, and that no change of the shared file system runs.
    pub(super) gave_up: bool,
}

impl Member {
    /// A node to which no message has been sent.
    pub(super) fn new(excluded_in: Option<MapEpoch>) -> Self {
        let (unreachable, failed_copies, copied, pinned, unanswered) = Default::default();
        Self {
            contact: Contact::Open,
            excluded_in,
            unreachable,
            failed_copies,
            copied,
            pinned,
            store_failed: false,
            sent: 0,
            unanswered,
            heard: None,
            answer: None,
            confirmed: None,
            offered: None,
            promised_until: Duration::ZERO,
            revoked_by: None,
            gave_up: false,
        }
    }

    /// A member of a volume that another driver has served: its lease may last until then. The node has promised the term of the driver in
    /// answer to a message of this time. Numbers of messages are higher than those of drivers before.
    pub(super) fn take_over(&mut self, term: u64, heard: Option<Duration>, until: Duration) {
        self.sent = term << TERM_SHIFT;
        (self.heard, self.promised_until) = (heard, until);
    }

    /// As `Authority::message`. `right`: what the message does to the lease.
    pub(super) fn message(&mut self, map: &HomeMap, right: Right, now: Duration) -> Option<LeaseMessage> {
        if !self.is_up() || self.unanswered.len() >= UNANSWERED_MAX {
            return None;
        }
        self.sent += 1;
        self.unanswered.push_back(Unanswered { number: self.sent, sent: now, since: now });
        let acknowledged = self.answer.filter(|_| right == Right::Held);
        if let Some((_, arrived)) = acknowledged {
            self.promised_until = self.promised_until.max(arrived + MAP_LEASE);
            self.revoked_by = None;
            self.gave_up = false;
        }
        if right == Right::Revoked {
            self.revoked_by.get_or_insert(self.sent);
        }
        let is_needed = self.confirmed != Some(map.epoch);
        if is_needed {
            self.offered = Some(map.epoch);
        }
        Some(LeaseMessage {
            number: self.sent,
            acknowledged: acknowledged.map(|(number, _)| number),
            revoked: right == Right::Revoked,
            map: is_needed.then(|| map.clone()),
        })
    }

    /// Takes an answer, unless it was not asked for. Returns true if it changes what the authority may decide about the node.
    pub(super) fn answered(&mut self, answer: LeaseAnswer, now: Duration) -> bool {
        let LeaseAnswer {
            number,
            epoch,
            unreachable,
            failed_copies,
            copied,
            pinned,
            is_changing,
            store_failed,
        } = answer;
        let Some(asked) = self.unanswered.iter().find(|asked| asked.number == number) else { return false };
        self.heard = Some(asked.sent);
        self.unanswered.retain(|asked| asked.number > number);
        self.answer = Some((number, now));
        self.confirmed = Some(epoch);
        let unreachable = unreachable.into_iter().collect();
        let is_news =
            store_failed != self.store_failed || unreachable != self.unreachable || !copied.is_empty();
        (self.unreachable, self.copied, self.store_failed) = (unreachable, copied, store_failed);
        self.pinned = pinned;
        self.failed_copies.extend(failed_copies);
        let is_revoked = self.revoked_by.is_some_and(|revoked_by| number >= revoked_by);
        self.gave_up = is_revoked && !is_changing;
        let gives_up = self.gave_up && self.has_lease(now);
        if gives_up {
            self.promised_until = now;
        }
        is_news || gives_up
    }

    /// Whether a message would change what the node may do: it has no lease yet, or another map than `epoch`.
    pub(super) fn is_urgent(&self, epoch: MapEpoch, right: Right, now: Duration) -> bool {
        let needs_map = self.confirmed != Some(epoch) && self.offered < Some(epoch);
        let gets_lease = right == Right::Held
            && !self.has_lease(now)
            && self.answer.is_some_and(|(_, at)| now < at + MAP_LEASE);
        self.is_up() && (needs_map || gets_lease)
    }

    /// Whether the agent may have a lease.
    pub(super) fn has_lease(&self, now: Duration) -> bool {
        self.contact != Contact::Ended && now < self.promised_until
    }

    /// Number of the last message.
    pub(super) fn asked(&self) -> u64 {
        self.sent
    }

    /// Whether it has answered a message after this one.
    pub(super) fn has_answered_after(&self, number: u64) -> bool {
        self.answer.is_some_and(|(answered, _)| answered > number)
    }

    /// Whether the node has answered a message that was sent at this time or later.
    pub(super) fn has_heard_since(&self, time: Duration) -> bool {
        self.heard.is_some_and(|heard| heard >= time)
    }

    /// Sends messages over a new connection. Those before get no answer.
    pub(super) fn reconnect(&mut self) {
        self.contact = Contact::Open;
        self.unanswered.clear();
    }

    /// Whether messages reach the agent.
    pub(super) fn is_up(&self) -> bool {
        self.contact == Contact::Open
    }

    /// Whether a message has been without an answer for this time.
    pub(super) fn is_silent(&self, time: Duration, now: Duration) -> bool {
        self.unanswered.front().is_some_and(|asked| now >= asked.since + time)
    }

    /// Gives the node time to answer again.
    pub(super) fn wait_again(&mut self, now: Duration) {
        self.unanswered.iter_mut().for_each(|asked| asked.since = now);
    }

    /// Whether the node answers, with the map in which it was excluded or a later one.
    pub(super) fn has_returned(&self) -> bool {
        self.is_up() && self.excluded_in.is_some_and(|epoch| self.confirmed >= Some(epoch))
    }
}
