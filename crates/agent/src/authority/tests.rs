use super::*;
use tameike_core::{MapEpoch, NodeInfo};

mod balance;
mod random;
mod repair;

fn ms(time: u64) -> Duration {
    Duration::from_millis(time)
}

/// The first map of nodes that all have a device, with two replicas.
fn first_map(count: u32) -> HomeMap {
    let node = |id| {
        let (host, address) = (format!("host{id}"), String::new());
        NodeInfo { id: NodeId(id), host, address, group: id, device: true }
    };
    HomeMap::initial(&(0..count).map(node).collect::<Vec<_>>(), 2).expect("enough nodes")
}

/// An authority whose nodes answer at once, with the newest map, unless they are stopped. Its owner works in whole intervals.
struct Bed {
    authority: Authority,
    now: Duration,
    stopped: BTreeSet<NodeId>,
    /// What the nodes report.
    unreachable: BTreeMap<NodeId, Vec<NodeId>>,
    failed: BTreeSet<NodeId>,
    /// Time of the last change of the map.
    changed_at: Duration,
    /// The epochs of their maps, and the messages that a stopped node has not read.
    epochs: BTreeMap<NodeId, MapEpoch>,
    unread: BTreeMap<NodeId, Vec<LeaseMessage>>,
}

impl Bed {
    /// All nodes have their first leases.
    fn new(count: u32) -> Self {
        let now = ms(10_000);
        let authority = Authority::new(first_map(count), (0..count).map(NodeId), now);
        let (stopped, unreachable, failed, epochs, unread) = Default::default();
        let mut bed = Self { authority, now, stopped, unreachable, failed, changed_at: now, epochs, unread };
        (0..count).for_each(|node| bed.send(NodeId(node)));
        bed
    }

    /// Sends a message, and each urgent one after it.
    fn send(&mut self, node: NodeId) {
        while let Some(message) = self.authority.message(node, self.now) {
            self.unread.entry(node).or_default().push(message);
            if self.stopped.contains(&node) || !self.read(node) {
                return;
            }
        }
    }

    /// The node reads and answers what it has not read. Returns true if its next message is urgent.
    fn read(&mut self, node: NodeId) -> bool {
        let mut urgent = false;
        for LeaseMessage { number, map, .. } in self.unread.remove(&node).unwrap_or_default() {
            if let Some(map) = map {
                self.epochs.insert(node, map.epoch);
            }
            let epoch = self.epochs[&node];
            let unreachable = self.unreachable.get(&node).cloned().unwrap_or_default();
            let store_failed = self.failed.contains(&node);
            let answer = LeaseAnswer { number, epoch, unreachable, store_failed, ..LeaseAnswer::default() };
            urgent = self.authority.answered(node, answer, self.now);
        }
        urgent
    }

    fn resume(&mut self, node: NodeId) {
        self.stopped.remove(&node);
        if self.read(node) {
            self.send(node);
        }
    }

    /// Decides, and sends messages to all.
    fn tick(&mut self) -> Vec<MapChange> {
        let changes = self.authority.tick(self.now);
        if !changes.is_empty() {
            self.changed_at = self.now;
        }
        self.send_all();
        changes
    }

    /// Waits an interval, then as [`Self::tick`]. Decisions may be due before.
    fn wait(&mut self) -> Vec<MapChange> {
        let (end, mut changes) = (self.now + MAP_LEASE_INTERVAL, Vec::new());
        while let Some(due) = self.authority.decision_due().filter(|due| *due < end) {
            self.now = due.max(self.now);
            let new = self.authority.tick(self.now);
            if !new.is_empty() {
                self.changed_at = self.now;
            }
            changes.extend(new);
            if self.authority.is_round_due() {
                self.send_all();
            }
        }
        self.now = end;
        changes.extend(self.tick());
        changes
    }

    fn send_all(&mut self) {
        let nodes: Vec<_> = self.authority.members.keys().copied().collect();
        nodes.into_iter().for_each(|node| self.send(node));
    }

    /// Waits until something changes, ten seconds at most.
    fn change(&mut self) -> Vec<MapChange> {
        (0..25).map(|_| self.wait()).find(|changes| !changes.is_empty()).unwrap_or_default()
    }

    fn excluded(&self) -> Vec<u32> {
        self.authority.map().excluded().iter().map(|node| node.0).collect()
    }
}

#[test]
fn the_second_message_grants_the_first_lease_and_confirms_the_map() {
    let map = first_map(2);
    let mut authority = Authority::new(map.clone(), [NodeId(0), NodeId(1)], ms(0));
    let message = authority.message(NodeId(0), ms(5)).expect("due");
    assert_eq!(
        message,
        LeaseMessage { number: 1, acknowledged: None, revoked: false, map: Some(map.clone()) }
    );
    let answer = |number| LeaseAnswer { number, epoch: map.epoch, ..LeaseAnswer::default() };
    assert!(authority.answered(NodeId(0), answer(1), ms(7)), "it has no lease");
    let message = authority.message(NodeId(0), ms(8)).expect("due");
    assert_eq!(message, LeaseMessage { number: 2, acknowledged: Some(1), revoked: false, map: None });
    assert!(authority.members[&NodeId(0)].has_lease(ms(7) + MAP_LEASE - ms(1)));
    assert!(!authority.members[&NodeId(0)].has_lease(ms(7) + MAP_LEASE));
    assert!(!authority.answered(NodeId(0), answer(2), ms(9)));
    // An answer to nothing is ignored.
    authority.answered(NodeId(0), answer(7), ms(10));
    assert_eq!(authority.message(NodeId(0), ms(11)).expect("due").acknowledged, Some(2));
}

#[test]
fn a_silent_node_is_excluded_when_its_lease_is_over_and_readmitted_when_it_answers() {
    let mut bed = Bed::new(3);
    assert_eq!(bed.wait(), []);
    let (node, begin) = (NodeId(1), bed.now);
    bed.stopped.insert(node);
    assert_eq!(bed.change(), [MapChange::Excluded(node, Cause::Silent)]);
    // It was sent a message without an answer one interval after it stopped.
    assert_eq!(bed.now - begin, ms(2000));
    assert_eq!(bed.unread[&node].len(), 3, "a stopped node gets no more messages");
    assert_eq!(bed.authority.map().served_by(node).count(), 0);
    assert_eq!(bed.change(), []);
    bed.resume(node);
    let map = bed.authority.map().epoch;
    assert_eq!(bed.tick(), [MapChange::Readmitted(node)]);
    assert!(bed.authority.map().epoch > map && bed.authority.map().served_by(node).count() == 0);
    assert!(bed.authority.members[&node].has_lease(bed.now));
    assert_eq!(bed.change(), []);
}

#[test]
fn a_node_is_excluded_at_the_end_of_its_lease_and_of_the_time_to_answer() {
    let nodes = [NodeId(0), NodeId(1)];
    let mut authority = Authority::new(first_map(2), nodes, ms(0));
    let epoch = authority.map().epoch;
    let answer = |number| LeaseAnswer { number, epoch, ..LeaseAnswer::default() };
    let mut silent = |until: u64| {
        (0..=until / 100).map(|step| authority.tick(ms(100 * step))).all(|changes| changes.is_empty())
    };
    assert!(silent(1000));
    authority.message(NodeId(1), ms(1000)).expect("due");
    authority.answered(NodeId(1), answer(1), ms(1300));
    authority.message(NodeId(1), ms(1400)).expect("due");
    for time in (1000..2900).step_by(100) {
        assert_eq!(authority.tick(ms(time)), [], "it may have a lease until 2800, and answer until 2900");
    }
    assert_eq!(authority.tick(ms(2900)), [MapChange::Excluded(NodeId(1), Cause::Silent)]);
}

#[test]
fn a_node_whose_agent_has_ended_is_excluded_at_once_for_good() {
    let mut bed = Bed::new(3);
    bed.authority.ended(NodeId(2));
    assert_eq!(bed.tick(), [MapChange::Excluded(NodeId(2), Cause::Failed)]);
    assert_eq!(bed.authority.message(NodeId(2), bed.now), None);
    assert_eq!(bed.change(), []);
    assert_eq!(bed.excluded(), [2]);
}

#[test]
fn a_node_that_has_hung_up_may_have_its_lease() {
    let mut bed = Bed::new(3);
    let begin = bed.now;
    bed.authority.hung_up(NodeId(2));
    assert_eq!(bed.tick(), []);
    assert_eq!(bed.change(), [MapChange::Excluded(NodeId(2), Cause::Failed)]);
    assert_eq!(bed.now - begin, ms(1600), "the first tick after the end of its lease");
    assert_eq!(bed.change(), []);
    // If the end of the process is certain, the lease is over.
    let mut bed = Bed::new(3);
    bed.authority.hung_up(NodeId(2));
    bed.authority.ended(NodeId(2));
    assert_eq!(bed.tick(), [MapChange::Excluded(NodeId(2), Cause::Failed)]);
}

#[test]
fn a_stopped_authority_gives_the_nodes_time_to_answer() {
    let mut bed = Bed::new(3);
    bed.wait();
    bed.stopped.extend([NodeId(0), NodeId(1), NodeId(2)]);
    bed.wait();
    // Answers may wait in pipes.
    bed.now += 10 * MAP_LEASE;
    let begin = bed.now;
    assert_eq!(bed.tick(), []);
    bed.resume(NodeId(0));
    bed.resume(NodeId(2));
    assert_eq!(bed.change(), [MapChange::Excluded(NodeId(1), Cause::Silent)]);
    assert_eq!(bed.now - begin, ms(1600));
}

#[test]
fn the_node_that_most_others_do_not_reach_gives_its_lease_up_and_is_excluded() {
    let mut bed = Bed::new(4);
    bed.wait();
    bed.unreachable.insert(NodeId(0), vec![NodeId(1)]);
    bed.unreachable.insert(NodeId(1), vec![NodeId(2)]);
    assert_eq!(bed.wait(), []);
    // Its peers have reported it in their last answers, and it answers that it has no lease.
    let begin = bed.now;
    assert_eq!(bed.change(), [MapChange::Excluded(NodeId(1), Cause::Unreachable)]);
    assert!(bed.changed_at - begin <= SETTLE_TIME + 3 * DECISION_PAUSE);
    assert_eq!(bed.change(), [], "it answers, but is still cut off");
    bed.unreachable.clear();
    assert_eq!(bed.change(), [MapChange::Readmitted(NodeId(1))]);
}

#[test]
fn of_two_nodes_that_do_not_reach_each_other_the_higher_one_is_excluded() {
    let mut bed = Bed::new(2);
    bed.unreachable.insert(NodeId(1), vec![NodeId(0)]);
    assert_eq!(bed.change(), [MapChange::Excluded(NodeId(1), Cause::Unreachable)]);
    // A partition into halves.
    let mut bed = Bed::new(4);
    for (node, others) in [(0, [2, 3]), (1, [2, 3]), (2, [0, 1]), (3, [0, 1])] {
        bed.unreachable.insert(NodeId(node), others.map(NodeId).to_vec());
    }
    let both = [3, 2].map(|node| MapChange::Excluded(NodeId(node), Cause::Unreachable));
    assert_eq!(bed.change(), both);
}

/// Regression: the node that reported it first was condemned, too, and homes with copies on both had none.
#[test]
fn a_node_that_no_other_one_reaches_is_excluded_alone_whoever_reports_it_first() {
    let mut bed = Bed::new(4);
    bed.wait();
    for node in [3, 2] {
        bed.unreachable.insert(NodeId(node), vec![NodeId(0)]);
        for _ in 0..3 {
            bed.now += DECISION_PAUSE;
            assert_eq!(bed.tick(), []);
            assert!(bed.authority.condemned.is_empty(), "others may report it as well");
        }
    }
    bed.unreachable.insert(NodeId(1), vec![NodeId(0)]);
    assert_eq!(bed.change(), [MapChange::Excluded(NodeId(0), Cause::Unreachable)]);
    assert_eq!(bed.change(), []);
    assert_eq!(bed.excluded(), [0]);
}

#[test]
fn a_node_that_all_others_have_reported_is_excluded_at_once() {
    let mut bed = Bed::new(3);
    bed.wait();
    bed.unreachable.insert(NodeId(0), vec![NodeId(1), NodeId(2)]);
    assert_eq!(bed.wait(), []);
    let begin = bed.now;
    assert_eq!(bed.change(), [MapChange::Excluded(NodeId(0), Cause::Unreachable)]);
    assert!(bed.changed_at - begin <= 3 * DECISION_PAUSE);
}

#[test]
fn a_condemned_node_that_does_not_answer_has_its_lease_until_the_end() {
    let mut bed = Bed::new(3);
    bed.wait();
    bed.unreachable.insert(NodeId(2), vec![NodeId(0), NodeId(1)]);
    bed.wait();
    // It has answered since the report, but does not read that its lease is revoked.
    assert_eq!(bed.authority.tick(bed.now), []);
    bed.send_all();
    bed.stopped.insert(NodeId(2));
    assert_eq!(bed.authority.tick(bed.now), []);
    assert!(bed.authority.condemned.contains(&NodeId(2)));
    let until = bed.authority.members[&NodeId(2)].promised_until;
    assert_eq!(bed.change(), [MapChange::Excluded(NodeId(2), Cause::Silent)]);
    assert!(bed.changed_at >= until);
}

#[test]
fn a_node_that_is_reached_again_gets_its_lease_back() {
    let mut bed = Bed::new(3);
    bed.wait();
    let node = NodeId(2);
    let others = [0, 1].map(NodeId);
    others.iter().for_each(|other| drop(bed.unreachable.insert(*other, vec![node])));
    bed.wait();
    assert_eq!(bed.authority.tick(bed.now), []);
    bed.send_all();
    assert_eq!(bed.authority.tick(bed.now), []);
    assert!(bed.authority.condemned.contains(&node));
    let revoking = bed.authority.message(node, bed.now).expect("due");
    assert!(revoking.revoked && revoking.acknowledged.is_none());
    bed.unread.entry(node).or_default().push(revoking);
    // It is reached again before it has answered, and gets a lease: the answer does not end that one.
    bed.unreachable.clear();
    others.iter().for_each(|other| bed.send(*other));
    assert_eq!(bed.authority.tick(bed.now), []);
    assert!(bed.authority.condemned.is_empty());
    let granting = bed.authority.message(node, bed.now).expect("due");
    assert!(!granting.revoked && granting.acknowledged.is_some());
    bed.unread.entry(node).or_default().push(granting);
    bed.read(node);
    assert!(bed.authority.members[&node].has_lease(bed.now));
    for _ in 0..10 {
        assert_eq!(bed.wait(), []);
        assert!(bed.authority.members[&node].has_lease(bed.now));
    }
}

#[test]
fn a_node_whose_store_has_failed_is_excluded_at_once_until_it_is_replaced() {
    let mut bed = Bed::new(3);
    bed.failed.insert(NodeId(1));
    assert_eq!(bed.wait(), []);
    let begin = bed.now;
    assert_eq!(bed.change(), [MapChange::Excluded(NodeId(1), Cause::StoreFailed)]);
    assert!(bed.changed_at - begin <= 2 * DECISION_PAUSE);
    assert_eq!(bed.change(), []);
    // It does not count in a cut: the other one is not excluded.
    bed.unreachable.insert(NodeId(2), vec![NodeId(0)]);
    bed.failed.insert(NodeId(2));
    assert_eq!(bed.change(), [MapChange::Excluded(NodeId(2), Cause::StoreFailed)]);
    bed.failed.insert(NodeId(0));
    assert_eq!(bed.change(), [], "the last node");
    assert!(bed.authority.members[&NodeId(0)].has_lease(bed.now));
    (bed.unreachable, bed.failed) = Default::default();
    let both = [1, 2].map(|node| MapChange::Readmitted(NodeId(node)));
    assert_eq!(bed.change(), both);
}

#[test]
fn of_nodes_whose_stores_have_all_failed_one_stays() {
    let mut bed = Bed::new(2);
    bed.failed.extend([NodeId(0), NodeId(1)]);
    assert_eq!(bed.change(), [MapChange::Excluded(NodeId(1), Cause::StoreFailed)]);
    assert_eq!(bed.change(), []);
    assert!(bed.authority.members[&NodeId(0)].has_lease(bed.now));
}

#[test]
fn a_node_that_reports_a_silent_one_is_not_excluded() {
    let mut bed = Bed::new(2);
    bed.wait();
    // The failed node has the lower number, so that the other would be condemned.
    bed.stopped.insert(NodeId(0));
    bed.unreachable.insert(NodeId(1), vec![NodeId(0)]);
    for _ in 0..5 {
        assert!(bed.authority.condemned.is_empty());
        assert!(bed.authority.members[&NodeId(1)].has_lease(bed.now));
        bed.wait();
    }
    assert_eq!(bed.excluded(), [0]);
}

#[test]
fn a_backup_with_a_useless_copy_is_dropped() {
    let map = first_map(3);
    let mut authority = Authority::new(map.clone(), (0..3).map(NodeId), ms(0));
    let home = map.served_by(NodeId(1)).next().expect("it serves homes");
    let backup = map.backups(home)[0];
    let mut report = |node, number| {
        authority.message(node, ms(number)).expect("due");
        let (epoch, failed_copies) = (map.epoch, vec![(home, backup), (HomeId(u16::MAX), backup)]);
        let answer = LeaseAnswer { number, epoch, failed_copies, ..LeaseAnswer::default() };
        authority.answered(node, answer, ms(number));
        authority.tick(ms(number))
    };
    assert_eq!(report(NodeId(0), 1), [], "it does not serve the home");
    assert_eq!(report(NodeId(1), 1), [MapChange::Dropped(home, backup)]);
    assert_eq!(report(NodeId(1), 2), [], "it is dropped");
    assert!(authority.map().backups(home).is_empty());
}

#[test]
fn the_last_node_is_never_excluded() {
    let mut bed = Bed::new(2);
    bed.wait();
    bed.stopped.extend([NodeId(0), NodeId(1)]);
    assert_eq!(bed.change(), [MapChange::Excluded(NodeId(1), Cause::Silent)]);
    bed.authority.ended(NodeId(0));
    assert_eq!(bed.change(), []);
    // The node that comes back reports the other one, but that has ended.
    bed.unreachable.insert(NodeId(1), vec![NodeId(0)]);
    bed.resume(NodeId(1));
    let both = [MapChange::Readmitted(NodeId(1)), MapChange::Excluded(NodeId(0), Cause::Failed)];
    assert_eq!(bed.change(), both);
    assert_eq!(bed.authority.map().homes_without_node().count() as u64, bed.authority.map().count());
}

#[test]
fn nodes_that_a_first_map_excludes_return_with_their_answers() {
    let map = first_map(3).excluding(NodeId(2));
    let mut authority = Authority::new(map.clone(), (0..3).map(NodeId), ms(0));
    let message = authority.message(NodeId(2), ms(1)).expect("due");
    assert_eq!(message.acknowledged, None);
    let (epoch, number) = (map.epoch, message.number);
    let answer = LeaseAnswer { number, epoch, ..LeaseAnswer::default() };
    assert!(!authority.answered(NodeId(2), answer, ms(2)));
    assert_eq!(authority.tick(ms(2)), [MapChange::Readmitted(NodeId(2))]);
    assert_eq!(authority.message(NodeId(2), ms(3)).expect("due").acknowledged, Some(1));
}
