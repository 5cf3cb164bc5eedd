//! Tests of dentry leases.

use super::*;
use crate::fixtures;
use crate::types::{FileNumber, Found};
use crate::vfs::SharedNames;
use tameike_core::limits::MAP_LEASE;
use tameike_core::{Generation, Timestamp};
use tameike_io::os::simulated::Simulation;

const NOW: Duration = Duration::from_secs(50);

fn leases() -> NameLeases {
    NameLeases::new(MapLease::unlimited(Simulation::new(1).runtime().clock))
}

fn entry(number: u64) -> EntryName {
    EntryName { dir: InodeId(1), name: number.to_string().into_bytes() }
}

fn attr(number: u64) -> Attr {
    fixtures::attr(InodeId(number))
}

#[test]
fn a_lease_ends_on_a_change_or_at_its_expiry() {
    let names = leases();
    for number in 2..6 {
        names.add(entry(number), attr(number), names.start_request(NOW));
    }
    assert_eq!(names.find(&entry(2), NOW), Some(attr(2)));
    assert_eq!(names.attr(InodeId(3), NOW), Some(attr(3)));
    names.renamed(&entry(2));
    names.changed(InodeId(3));
    for number in [2, 3] {
        assert_eq!(names.find(&entry(number), NOW), None);
        assert_eq!(names.attr(InodeId(number), NOW), None);
    }
    assert_eq!(names.find(&entry(4), NOW + NAME_LEASE), None);
    assert!(names.find(&entry(4), NOW + NAME_LEASE - Duration::from_nanos(1)).is_some());
}

#[test]
fn a_reply_older_than_a_change_is_not_cached() {
    let names = leases();
    let start = names.start_request(NOW);
    names.changed(InodeId(9));
    names.add(entry(9), attr(9), start);
    assert_eq!(names.find(&entry(9), NOW), None);
    names.add(entry(2), attr(2), start);
    assert_eq!(names.find(&entry(2), NOW), Some(attr(2)), "a change of another inode does not matter");
    names.renamed(&entry(7));
    names.add(entry(3), attr(3), start);
    assert_eq!(names.find(&entry(3), NOW), None, "a rename may concern any inode");
}

#[test]
fn a_name_with_a_new_inode_drops_the_old_inode() {
    let names = leases();
    names.add(entry(2), attr(2), names.start_request(NOW));
    names.add(entry(2), attr(3), names.start_request(NOW));
    names.add(entry(4), attr(3), names.start_request(NOW));
    assert_eq!(names.attr(InodeId(2), NOW), None);
    assert_eq!(names.find(&entry(2), NOW), None);
    assert_eq!(names.find(&entry(4), NOW), Some(attr(3)));
}

/// Published sizes by name.
#[derive(Default)]
struct Board(Mutex<BTreeMap<Vec<u8>, u64>>);

impl SharedNames for Board {
    fn is_used(&self) -> bool {
        true
    }

    fn show(&self, _dir: FileNumber, name: &[u8], found: &Found, _until: Duration) -> bool {
        self.0.lock().insert(name.to_vec(), found.attr.size);
        true
    }

    fn hide(&self, _dir: FileNumber, name: &[u8]) {
        self.0.lock().remove(name);
    }

    fn limit(&self, _until: Duration) {}
}

#[test]
fn a_name_is_hidden_when_its_lease_ends() {
    let (names, board) = (leases(), Arc::new(Board::default()));
    names.show_in(Shown::new(board.clone(), InodeId(1)));
    let all: Vec<u64> = (2..10).collect();
    for &number in &all {
        names.add(entry(number), attr(number), names.start_request(NOW));
        names.show(InodeId(number), |_| true);
    }
    assert_eq!(board.0.lock().len(), all.len());
    let is_shown = |number: u64| board.0.lock().contains_key(&entry(number).name);
    names.changed(InodeId(2));
    names.renamed(&entry(3));
    names.hide(InodeId(4));
    // A new inode under a leased name, and a new name of a leased inode.
    names.add(entry(5), attr(20), names.start_request(NOW));
    names.add(entry(30), attr(6), names.start_request(NOW));
    names.wrote(Attr { generation: Generation(2), size: 9, ..attr(7) });
    assert!((2..8).all(|number| !is_shown(number)) && is_shown(8) && is_shown(9));
    for number in 100..100 + DENTRY_LEASES_MAX as u64 {
        names.add(entry(number), attr(number), names.start_request(NOW));
    }
    assert!(board.0.lock().is_empty(), "all were evicted");
}

#[test]
fn leases_of_homes_that_have_moved_end() {
    let (names, board) = (leases(), Arc::new(Board::default()));
    names.show_in(Shown::new(board.clone(), InodeId(1)));
    for number in 2..6 {
        names.add(entry(number), attr(number), names.start_request(NOW));
        names.show(InodeId(number), |_| true);
    }
    let start = names.start_request(NOW);
    names.homes_moved(|inode| inode.0 < 4);
    for number in 2..6 {
        assert_eq!(names.find(&entry(number), NOW).is_some(), number >= 4);
        assert_eq!(board.0.lock().contains_key(&entry(number).name), number >= 4);
    }
    names.add(entry(2), attr(2), start);
    assert_eq!(names.find(&entry(2), NOW), None, "the earlier primary may have sent the reply");
    names.add(entry(2), attr(2), names.start_request(NOW));
    assert_eq!(names.find(&entry(2), NOW), Some(attr(2)));
}

/// Times until which names are published, and the limit for all.
#[derive(Default)]
struct Times(Mutex<Vec<Duration>>, Mutex<Duration>);

impl SharedNames for Times {
    fn is_used(&self) -> bool {
        true
    }

    fn show(&self, _dir: FileNumber, _name: &[u8], _found: &Found, until: Duration) -> bool {
        self.0.lock().push(until);
        true
    }

    fn hide(&self, _dir: FileNumber, _name: &[u8]) {
        self.0.lock().pop();
    }

    fn limit(&self, until: Duration) {
        *self.1.lock() = until;
    }
}

#[test]
fn leases_count_only_during_one_lease_of_the_home_map() {
    let simulation = Simulation::new(1);
    let (runtime, times) = (simulation.runtime(), Arc::new(Times::default()));
    let map = MapLease::new(runtime.clock.clone());
    let names = NameLeases::new(map.clone());
    names.show_in(Shown::new(times.clone(), InodeId(1)));
    let now = || runtime.clock.monotonic();
    let is_found = |number| {
        let (found, attributes) = (names.find(&entry(number), now()), names.attr(InodeId(number), now()));
        assert_eq!(found, attributes);
        names.show(InodeId(number), |_| true);
        found.is_some()
    };
    names.add(entry(2), attr(2), names.start_request(now()));
    assert!(!is_found(2) && times.0.lock().is_empty(), "there is no lease of the map");
    assert!(*times.1.lock() <= now());
    names.map_renewed(map.renew(1, None));
    names.map_renewed(map.renew(2, Some(1)));
    names.add(entry(2), attr(2), names.start_request(now()));
    assert!(is_found(2));
    assert_eq!((&**times.0.lock(), *times.1.lock()), (&[now() + NAME_LEASE][..], now() + MAP_LEASE));
    simulation.run(runtime.sleep(MAP_LEASE / 2));
    names.map_renewed(map.renew(3, Some(2)));
    names.map_renewed(map.renew(4, Some(3)));
    assert_eq!(*times.1.lock(), now() + MAP_LEASE, "programs see that it was renewed");
    assert_eq!(times.0.lock().len(), 1, "the name stays published");
    simulation.run(runtime.sleep(MAP_LEASE / 2));
    assert!(is_found(2), "the lease of the map was renewed");
    simulation.run(runtime.sleep(MAP_LEASE));
    assert!(!is_found(2), "the lease of the map has ended");
    assert!(*times.1.lock() <= now());
    times.0.lock().truncate(1);
    names.map_renewed(map.renew(5, Some(4)));
    assert!(times.0.lock().is_empty(), "names are hidden before programs may use others");
    names.map_renewed(map.renew(6, Some(5)));
    assert!(map.is_valid() && !is_found(2), "the home may have granted the name to another node meanwhile");
    assert!(times.0.lock().is_empty());
    names.add(entry(2), attr(2), names.start_request(now()));
    assert!(is_found(2));
}

#[test]
fn only_leased_and_settled_names_are_published() {
    let (names, board) = (leases(), Arc::new(Board::default()));
    names.add(entry(2), attr(2), names.start_request(NOW));
    names.show(InodeId(2), |_| true);
    names.show_in(Shown::new(board.clone(), InodeId(1)));
    names.show(InodeId(3), |_| true);
    names.show(InodeId(2), |_| false);
    assert!(board.0.lock().is_empty());
    names.show(InodeId(2), |attr| {
        attr.size = 5;
        true
    });
    assert_eq!(board.0.lock().get(&entry(2).name), Some(&5));
    assert_eq!(names.attr(InodeId(2), NOW).map(|attr| attr.size), Some(0), "as the home sent it");
}

/// Regression: each lookup after a write sent a request to the home.
#[test]
fn a_lease_outlives_writes_of_this_node() {
    let names = leases();
    let written = Attr { generation: Generation(2), size: 9, ..attr(2) };
    names.wrote(written.clone());
    assert_eq!(names.attr(InodeId(2), NOW), None, "there is no lease");
    let start = names.start_request(NOW);
    names.add(entry(2), attr(2), names.start_request(NOW));
    names.wrote(written.clone());
    assert_eq!(names.find(&entry(2), NOW), Some(written.clone()));
    assert_eq!(names.find(&entry(2), NOW + NAME_LEASE), None, "the lease is not extended");
    names.add(entry(2), attr(2), start);
    assert_eq!(names.find(&entry(2), NOW), Some(written.clone()), "the reply predates the write");
    let later = Attr { mode: 0o644, ..written.clone() };
    names.add(entry(2), later.clone(), names.start_request(NOW));
    names.wrote(written);
    assert_eq!(names.find(&entry(2), NOW), Some(later), "the reply is newer than the write");
}

/// Regression: the first read after a write ended the lease, so all later lookups sent requests.
#[test]
fn a_lease_outlives_a_read_if_the_home_accepts_the_access() {
    let at = |seconds| Timestamp { seconds, nanoseconds: 0 };
    let access = Access { time: at(7), before: at(5) };
    let leased = |access_time, change| {
        let (names, board) = (leases(), Arc::new(Board::default()));
        names.show_in(Shown::new(board.clone(), InodeId(1)));
        let start = names.start_request(NOW);
        names.add(
            entry(2),
            Attr { atime: at(access_time), ctime: at(change), ..attr(2) },
            names.start_request(NOW),
        );
        names.show(InodeId(2), |_| true);
        names.accessed(InodeId(2), Some(access));
        assert!(board.0.lock().is_empty(), "the outdated name is hidden");
        let atime = names.attr(InodeId(2), NOW).map(|attr| attr.atime);
        names.accessed(InodeId(3), Some(access));
        names.add(entry(3), attr(3), start);
        assert_eq!(names.attr(InodeId(3), NOW), None, "the reply predates the access");
        atime
    };
    assert_eq!(leased(5, 6), Some(at(7)));
    assert_eq!(leased(4, 6), None, "the access time was set");
    assert_eq!(leased(5, 7), None, "the inode changed later");
    assert_eq!(leased(7, 6), None, "the attributes include it");
    assert_eq!(leased(5, 4), None, "relatime ignores it");
}

#[test]
fn the_oldest_leases_are_evicted() {
    let names = leases();
    for number in 0..DENTRY_LEASES_MAX as u64 + 10 {
        names.add(entry(number), attr(number), names.start_request(NOW));
    }
    assert_eq!(names.find(&entry(9), NOW), None);
    assert!(names.find(&entry(DENTRY_LEASES_MAX as u64 + 9), NOW).is_some());
    assert!(names.names.lock().leases.len() <= DENTRY_LEASES_MAX);
}
