//! Nodes that stop, end, hang up, lose each other and lose their stores at random, with late messages and a stopped authority: no two of them ever serve a home at
//! the same time, and all that are left get their leases back.

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

const NODES: u32 = 4;
const STEP: Duration = Duration::from_millis(10);
/// Time in which faults begin; then time without faults.
const FAULTS_TIME: Duration = Duration::from_secs(12);
const CALM_TIME: Duration = Duration::from_secs(8);

#[derive(Clone, Copy, Debug)]
enum Fault {
    /// A node does nothing for a time.
    Stop(NodeId),
    /// A node ends; the authority learns it after a time.
    End(NodeId),
    /// The connection of the authority to a node ends; the authority learns it after a time.
    HangUp(NodeId),
    /// Two nodes do not reach each other for a time.
    Cut(NodeId, NodeId),
    /// Messages from and to a node take this time.
    Slow(NodeId),
    /// The store of a node accepts no changes for a time.
    FailStore(NodeId),
    /// The authority does nothing for a time.
    StopAuthority,
}

/// A node as `tameike_fabric::MapLease` and `Node::renew_lease` make it.
#[derive(Default)]
struct Agent {
    map: Option<HomeMap>,
    /// Difference of its clock from that of the world.
    clock: Duration,
    until: Duration,
    answers: BTreeMap<u64, Duration>,
    stopped_until: Duration,
    slow_until: Duration,
    store_failed_until: Duration,
    has_ended: bool,
    has_hung_up: bool,
    unread: VecDeque<(Duration, LeaseMessage)>,
    answered: VecDeque<(Duration, LeaseAnswer)>,
}

impl Agent {
    fn take(&mut self, now: Duration, message: LeaseMessage, unreachable: Vec<NodeId>) -> LeaseAnswer {
        let LeaseMessage { number, acknowledged, revoked, map } = message;
        if let Some(map) = map
            && self.map.as_ref().is_none_or(|known| known.epoch < map.epoch)
        {
            self.map = Some(map);
        }
        if let Some(sent) = acknowledged.and_then(|number| self.answers.get(&number)) {
            self.until = self.until.max(*sent + MAP_LEASE);
        }
        if revoked {
            self.until = Duration::ZERO;
            self.answers.clear();
        }
        self.answers.insert(number, now + self.clock);
        let epoch = self.map.as_ref().expect("the first message has one").epoch;
        let store_failed = now < self.store_failed_until;
        LeaseAnswer { number, epoch, unreachable, store_failed, ..LeaseAnswer::default() }
    }

    fn serves(&self, now: Duration, node: NodeId, home: HomeId) -> bool {
        let map = self.map.as_ref().filter(|_| !self.has_ended && now + self.clock < self.until);
        map.is_some_and(|map| map.primary(home) == node)
    }
}

struct World {
    now: Duration,
    authority: Authority,
    agents: Vec<Agent>,
    cuts: Vec<(NodeId, NodeId, Duration)>,
    /// Ends of agents and connections that the authority does not know yet.
    ends: Vec<(Duration, NodeId)>,
    authority_stopped_until: Duration,
    next_round: Duration,
    delays: std::iter::Cycle<std::vec::IntoIter<Duration>>,
}

impl World {
    fn new(delays: Vec<Duration>) -> Self {
        let now = ms(5000);
        let clock = |node: u32| ms(u64::from(node) * 1234);
        Self {
            now,
            authority: Authority::new(first_map(NODES), (0..NODES).map(NodeId), now),
            agents: (0..NODES).map(|node| Agent { clock: clock(node), ..Agent::default() }).collect(),
            cuts: Vec::new(),
            ends: Vec::new(),
            authority_stopped_until: now,
            next_round: now,
            delays: delays.into_iter().cycle(),
        }
    }

    fn begin(&mut self, fault: Fault, time: Duration) {
        let until = self.now + time;
        match fault {
            Fault::Stop(NodeId(node)) => self.agents[node as usize].stopped_until = until,
            Fault::FailStore(NodeId(node)) => self.agents[node as usize].store_failed_until = until,
            Fault::Slow(NodeId(node)) => self.agents[node as usize].slow_until = until,
            Fault::Cut(one, other) => self.cuts.push((one, other, until)),
            Fault::StopAuthority => self.authority_stopped_until = until,
            Fault::End(node) => {
                self.agents[node.0 as usize].has_ended = true;
                self.ends.push((until, node));
            }
            Fault::HangUp(node) => {
                self.agents[node.0 as usize].has_hung_up = true;
                self.ends.push((until, node));
            }
        }
    }

    fn delay(&mut self, node: NodeId, last: Option<Duration>) -> Duration {
        let slow = self.agents[node.0 as usize].slow_until.saturating_sub(self.now);
        let arrival = self.now + slow + self.delays.next().unwrap_or_default();
        // A pipe keeps the order.
        arrival.max(last.unwrap_or_default())
    }

    fn send(&mut self, node: NodeId) {
        let Some(message) = self.authority.message(node, self.now) else { return };
        let last = self.agents[node.0 as usize].unread.back().map(|(at, _)| *at);
        let arrival = self.delay(node, last);
        let agent = &mut self.agents[node.0 as usize];
        if !agent.has_ended && !agent.has_hung_up {
            agent.unread.push_back((arrival, message));
        }
    }

    fn unreachable(&self, node: NodeId) -> Vec<NodeId> {
        let of = |&(one, other, until): &(NodeId, NodeId, Duration)| {
            let peer = if one == node { other } else { one };
            (self.now < until && (one == node || other == node) && peer != node).then_some(peer)
        };
        self.cuts.iter().filter_map(of).collect()
    }

    fn run_agent(&mut self, node: NodeId) {
        let (now, unreachable) = (self.now, self.unreachable(node));
        loop {
            let agent = &mut self.agents[node.0 as usize];
            if agent.has_ended || now < agent.stopped_until {
                return;
            }
            let Some((_, message)) = agent.unread.pop_front_if(|(arrival, _)| *arrival <= now) else {
                return;
            };
            let answer = agent.take(now, message, unreachable.clone());
            let last = agent.answered.back().map(|(at, _)| *at);
            let arrival = self.delay(node, last);
            self.agents[node.0 as usize].answered.push_back((arrival, answer));
        }
    }

    fn run_authority(&mut self) {
        if self.now < self.authority_stopped_until {
            return;
        }
        let now = self.now;
        let mut urgent = Vec::new();
        for (node, agent) in (0_u32..).map(NodeId).zip(&mut self.agents) {
            while let Some((_, answer)) = agent.answered.pop_front_if(|(arrival, _)| *arrival <= now) {
                if !agent.has_hung_up && self.authority.answered(node, answer, now) {
                    urgent.push(node);
                }
            }
        }
        for (_, node) in self.ends.extract_if(.., |(at, _)| *at <= now) {
            let has_ended = self.agents[node.0 as usize].has_ended;
            let note = if has_ended { Authority::ended } else { Authority::hung_up };
            note(&mut self.authority, node);
        }
        let is_round = now >= self.next_round;
        if is_round || self.authority.decision_due().is_some_and(|due| due <= now) {
            _ = self.authority.tick(now);
            if is_round || self.authority.is_round_due() {
                self.next_round = now + MAP_LEASE_INTERVAL;
                urgent = (0..NODES).map(NodeId).collect();
            }
        }
        urgent.into_iter().for_each(|node| self.send(node));
    }

    fn step(&mut self) {
        self.run_authority();
        (0..NODES).for_each(|node| self.run_agent(NodeId(node)));
        for home in self.authority.map().homes() {
            let serving: Vec<_> = (0_u32..)
                .map(NodeId)
                .zip(&self.agents)
                .filter(|(node, agent)| agent.serves(self.now, *node, home))
                .map(|(node, _)| node)
                .collect();
            assert!(serving.len() <= 1, "{serving:?} serve {home} at {:?}", self.now);
        }
        self.now += STEP;
    }

    fn assert_settled(&self) {
        let map = self.authority.map();
        for (node, agent) in (0_u32..).map(NodeId).zip(&self.agents) {
            if !agent.has_ended && !agent.has_hung_up {
                assert!(!map.excludes(node), "{node} is excluded");
                assert!(self.now + agent.clock < agent.until, "{node} has no lease");
                assert_eq!(agent.map.as_ref().map(|map| map.epoch), Some(map.epoch));
            }
        }
    }
}

fn fault() -> impl Strategy<Value = Fault> {
    let node = || (0..NODES).prop_map(NodeId);
    prop_oneof![
        4 => node().prop_map(Fault::Stop),
        1 => node().prop_map(Fault::End),
        1 => node().prop_map(Fault::HangUp),
        3 => (node(), node()).prop_map(|(one, other)| Fault::Cut(one, other)),
        2 => node().prop_map(Fault::Slow),
        1 => node().prop_map(Fault::FailStore),
        2 => Just(Fault::StopAuthority),
    ]
}

fn times(most: u64) -> impl Strategy<Value = Duration> {
    (0..most).prop_map(ms)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_two_nodes_serve_a_home(
        faults in proptest::collection::vec((times(FAULTS_TIME.as_millis() as u64), fault(), times(5000)), 1..10),
        delays in proptest::collection::vec(prop_oneof![9 => times(30), 1 => times(900)], 1..50),
    ) {
        let mut world = World::new(delays);
        let begin = world.now;
        let mut faults = faults;
        faults.sort_by_key(|(at, ..)| std::cmp::Reverse(*at));
        while world.now < begin + FAULTS_TIME {
            while let Some((_, fault, time)) = faults.pop_if(|(at, ..)| begin + *at <= world.now) {
                world.begin(fault, time);
            }
            world.step();
        }
        // No fault lasts longer, and messages are fast.
        let end = world.now + CALM_TIME + ms(5000);
        world.delays = vec![ms(1)].into_iter().cycle();
        while world.now < end {
            world.step();
        }
        world.assert_settled();
    }
}
