use super::*;
use std::collections::BTreeMap;

fn node(id: u32, host: &str, device: bool) -> NodeInfo {
    NodeInfo { id: NodeId(id), host: host.to_owned(), address: String::new(), group: 0, device }
}

fn chosen(hosts: &[&str]) -> Vec<u32> {
    let nodes: Vec<_> = (0..).zip(hosts).map(|(id, host)| node(id, host, *host != "client")).collect();
    let stores = nodes.iter().filter(|node| node.host != "lost").map(|node| (node.id, 7)).collect();
    let is_up = |node: NodeId| !nodes[node.0 as usize].host.starts_with("down");
    Keepers::choose(&nodes, &stores, &Keepers::default(), is_up).iter().map(|keeper| keeper.node.0).collect()
}

/// Regression: a driver waited for nodes that stayed down, when a keeper had come back.
#[test]
fn keepers_stay_while_most_of_the_others_are_down() {
    let (nodes, stores) = (
        [0, 1, 2, 3].map(|id| node(id, &format!("host{id}"), true)),
        (0..4).map(|id| (NodeId(id), 0)).collect(),
    );
    let choose = |current: &Keepers, up: &[u32]| {
        Keepers::choose(&nodes, &stores, current, |node| up.contains(&node.0))
    };
    let numbers = |keepers: &Keepers| keepers.iter().map(|keeper| keeper.node.0).collect::<Vec<_>>();
    let first = choose(&Keepers::default(), &[0, 3]);
    assert_eq!(numbers(&first), [0, 1, 3]);
    assert_eq!(choose(&first, &[0]), first);
    assert_eq!(numbers(&choose(&first, &[0, 2])), [0, 1, 2]);
}

#[test]
fn keepers_are_on_an_odd_number_of_hosts() {
    for too_few in [&["a"][..], &["a", "b", "client"], &["a", "a", "b", "b"]] {
        assert!(chosen(too_few).is_empty(), "{too_few:?}");
    }
    assert_eq!(chosen(&["client", "a", "a", "b", "c"]), [1, 3, 4]);
    assert_eq!(chosen(&["a", "lost", "b", "c"]), [0, 2, 3]);
    assert_eq!(chosen(&["a", "b", "c", "d"]), [0, 1, 2]);
    assert_eq!(chosen(&["a", "down", "c", "d"]), [0, 2, 3]);
    assert_eq!(chosen(&["down a", "down b", "c", "d"]), [0, 2, 3], "two are no majority of two");
    assert_eq!(chosen(&["a", "b", "c", "d", "e", "f"]), [0, 1, 2, 3, 4]);
    assert_eq!(chosen(&["a", "a", "a", "a", "a", "a"]), [0, 1, 2]);
}

#[test]
fn a_keeper_refuses_drivers_of_earlier_terms() {
    let record = |term, number, record| KeptRecord {
        version: RecordVersion { term: Term(term), number },
        before: Keepers::default(),
        keepers: Keepers::default(),
        record,
    };
    let mut kept = Kept::default();
    assert!(kept.promise(Term(2)));
    assert!(!kept.promise(Term(2)), "another driver chose the same term");
    assert!(!kept.promise(Term(1)));
    assert!(!kept.keep(record(1, 9, "old")));
    assert!(kept.keep(record(2, 2, "new")));
    assert!(kept.keep(record(2, 1, "late")), "it is acknowledged again");
    assert_eq!(kept.newest.map(|newest| newest.record), Some("new"));
}

/// A rule that a variant of the protocol lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lacking {
    Nothing,
    /// A driver first has the keepers keep the record that it has found, under its own term.
    WriteBack,
    /// A node with a new store is another keeper.
    Identity,
    /// The keepers of the last record must keep the next one, too.
    OldKeepers,
    /// A driver that goes on from a record needs promises of the keepers before it, too.
    OldPromises,
}

/// A record: which drivers have made its changes.
type Record = Vec<u64>;

struct Driver {
    term: Term,
    promises: BTreeMap<Keeper, Kept<Record>>,
    current: Option<(Keeping, Record)>,
}

/// Some drivers, whose requests and replies are lost or late, and nodes with new stores.
struct Run {
    draws: u64,
    lacking: Lacking,
    /// The nodes, with the numbers of their stores.
    nodes: Vec<(u64, Kept<Record>)>,
    drivers: Vec<Driver>,
    used: Vec<Record>,
}

const NODES: u32 = 4;

fn keepers(nodes: impl IntoIterator<Item = u32>) -> Keepers {
    Keepers(nodes.into_iter().map(|node| Keeper { node: NodeId(node), store: 0 }).collect())
}

impl Run {
    fn new(seed: u64, lacking: Lacking) -> Self {
        let first = Keeping::after(Term(0), keepers([0, 1, 2]));
        let first = KeptRecord { keepers: keepers([0, 1, 2]), ..first.record(Vec::new()) };
        let kept = Kept { promised: Term(0), newest: Some(first) };
        let draws = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        Self {
            draws,
            lacking,
            nodes: vec![(0, kept); NODES as usize],
            drivers: Vec::new(),
            used: vec![Vec::new()],
        }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.draws ^= self.draws << 13;
        self.draws ^= self.draws >> 7;
        self.draws ^= self.draws << 17;
        (self.draws >> 11) % below
    }

    /// One event: a driver begins, or a request of one reaches a node.
    fn step(&mut self) {
        if self.drivers.is_empty() || self.drivers.len() < 4 && self.draw(40) == 0 {
            let highest = self.nodes.iter().map(|(_, kept)| kept.promised.0).max().unwrap_or(0);
            // It may not reach the keeper that has promised the highest term.
            let term = Term(highest.saturating_sub(self.draw(2)) + 1);
            self.drivers.push(Driver { term, promises: BTreeMap::new(), current: None });
            return;
        }
        let index = self.draw(self.drivers.len() as u64) as usize;
        let node = self.draw(NODES.into()) as u32;
        let (is_lost, may_change) = (self.draw(8) == 0, self.draw(6) == 0);
        let mut driver = self.drivers.swap_remove(index);
        match &mut driver.current {
            None => self.promise(&mut driver, node, is_lost),
            Some((keeping, record)) if may_change && keeping.is_kept() => self.change(keeping, record, node),
            Some((keeping, record)) => {
                let sent = keeping.record(record.clone());
                let version = sent.version;
                let (store, kept) = &mut self.nodes[node as usize];
                let keeper = Keeper { node: NodeId(node), store: *store };
                if kept.keep(sent) && !is_lost && keeping.kept(keeper, version) {
                    self.used.push(record.clone());
                }
            }
        }
        self.drivers.push(driver);
    }

    fn promise(&mut self, driver: &mut Driver, node: u32, is_lost: bool) {
        let (store, kept) = &mut self.nodes[node as usize];
        if !kept.promise(driver.term) || is_lost {
            return;
        }
        driver.promises.insert(Keeper { node: NodeId(node), store: *store }, kept.clone());
        let found = match find(&driver.promises) {
            Found::Newest(found) => found,
            Found::TooFew(found)
                if self.lacking == Lacking::OldPromises
                    && found.keepers.is_majority(|keeper| driver.promises.contains_key(&keeper)) =>
            {
                found
            }
            _ => return,
        };
        let mut keeping = Keeping::from_found(driver.term, found);
        // That it goes on from this record, and no other one, is a part of the history.
        let record = [&found.record[..], &[driver.term.0]].concat();
        if self.lacking == Lacking::WriteBack {
            keeping.is_kept = true;
            self.used.push(record.clone());
        }
        driver.current = Some((keeping, record));
    }

    /// The driver changes the record: a node replaces a keeper, or has lost its store and gets a new one, unless another one lacks records.
    fn change(&mut self, keeping: &mut Keeping, record: &mut Record, node: u32) {
        let mut next: BTreeSet<_> = keeping.keepers().iter().collect();
        let is_keeper = next.iter().any(|keeper| keeper.node.0 == node);
        let lacks_store = is_keeper && self.nodes.iter().all(|(_, kept)| kept.newest.is_some());
        let place = next.iter().position(|keeper| keeper.node.0 == node).unwrap_or(self.draw(3) as usize);
        let leaving = next.iter().nth(place).copied().expect("three keepers");
        let (store, kept) = &mut self.nodes[node as usize];
        if lacks_store {
            *kept = Kept::default();
            *store += u64::from(self.lacking != Lacking::Identity);
        }
        next.remove(&leaving);
        next.insert(Keeper { node: NodeId(node), store: *store });
        let next = Keepers(next);
        if self.lacking == Lacking::OldKeepers {
            keeping.before = next.clone();
        }
        record.push(keeping.term().0);
        keeping.begin(next);
    }

    /// Whether of any two records that were used one continues the other.
    fn is_one_history(&self) -> bool {
        let longest = self.used.iter().max_by_key(|record| record.len()).expect("the first one");
        self.used.iter().all(|record| longest.starts_with(record))
    }
}

/// Number of runs in which drivers used records that contradict each other, and of records that were used.
fn contradictions(lacking: Lacking, seeds: u64) -> (usize, usize) {
    let (mut contradictions, mut used) = (0, 0);
    for seed in 0..seeds {
        let mut run = Run::new(seed, lacking);
        (0..300).for_each(|_| run.step());
        contradictions += usize::from(!run.is_one_history());
        used += run.used.len();
    }
    (contradictions, used)
}

#[test]
fn drivers_agree_on_one_history_of_the_record() {
    let (contradictions, used) = contradictions(Lacking::Nothing, 20_000);
    assert_eq!(contradictions, 0);
    assert!(used > 20_000 * 4, "{used}");
}

#[test]
fn each_rule_is_needed() {
    for lacking in [Lacking::WriteBack, Lacking::Identity, Lacking::OldKeepers, Lacking::OldPromises] {
        assert!(contradictions(lacking, 20_000).0 > 0, "{lacking:?}");
    }
}
