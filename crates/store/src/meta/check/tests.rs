//! Checks of the names of several homes on one node.

use super::Names;
use crate::check::{Findings, Severity};
use crate::ledger::kv::Changes;
use crate::meta::record::{Decision, InodeRecord, ShardRecord, Share};
use crate::meta::{LogCommand, Outcome, apply, key};
use crate::table::memory::MemoryTable;
use crate::table::{HomeTable, ReadTable, Table, key_of_home};
use tameike_core::wire::codec::{decode, encode};
use tameike_core::wire::meta::{Command, EntryName, NewInode, Step, Target};
use tameike_core::{FileKind, HomeId, InodeId, Layout, OperationId, Timestamp};

const HOMES: u32 = 2;
const NOW: Timestamp = Timestamp { seconds: 7, nanoseconds: 0 };

/// A node that serves all homes.
#[derive(Default)]
struct Node(MemoryTable);

impl Node {
    fn started() -> Self {
        let mut node = Self::default();
        for home in (0..HOMES as u16).map(HomeId) {
            let share = Share { home, count: HOMES, pinned: Vec::new(), founders: 1 };
            let roots = vec![InodeId::ROOT].into_iter().filter(|&root| share.keeps(root)).collect();
            node.run(home, &LogCommand::Start { roots, share, uid: 1, gid: 1, now: NOW });
        }
        node
    }

    fn run(&mut self, home: HomeId, command: &LogCommand) -> Outcome {
        apply(&mut HomeTable::new(home, &mut self.0), command).expect("a valid command").outcome
    }

    /// Creates an entry at the home of its directory's entries, so that its children are at `children`.
    fn create(&mut self, dir: InodeId, name: &str, kind: FileKind, children: HomeId) -> InodeId {
        let new =
            NewInode { kind, mode: 0o644, uid: 1, gid: 1, rdev: 0, layout: Layout::Striped, symlink: vec![] };
        let entry = EntryName { dir, name: name.into() };
        let number = |counter| crate::meta::new_inode_id(&entry, false, 1 << 32 | counter);
        let fits = |counter: &u64| home_of_children(number(*counter)) == children;
        let inode_counter = 1 << 32 | (0..).find(fits).expect("a number for each home");
        let entry = entry.clone();
        let command = Command::Create { entry, new, exclusive: true, opener: None, sharded: false, now: NOW };
        let command = LogCommand::Wire { command, inode_counter, held: Vec::new(), call: None };
        match self.run(home_of_children(dir), &command) {
            Outcome::Created { target, .. } => target.inode,
            other => panic!("{other:?}"),
        }
    }

    /// Gives a file another name, whose home has ended the operation since.
    fn link(&mut self, inode: InodeId, dir: InodeId, name: &str) {
        let (home, target) = (home_of_children(dir), Target { inode, kind: FileKind::File });
        let entry = EntryName { dir, name: name.into() };
        let local = vec![Step::Attach { entry, sharded: false, target, replaces: None }];
        let decision = Decision { local, redo: Vec::new() };
        let operation = OperationId { home, sequence: 1 };
        self.run(home, &LogCommand::Decide { operation, decision, held: Vec::new(), now: NOW, call: None });
        self.change(inode, |record| record.links += 1);
    }

    fn change(&mut self, inode: InodeId, change: impl FnOnce(&mut InodeRecord)) {
        let key = key_of_home(home_of(inode), &key::inode(inode));
        let mut record: InodeRecord =
            decode(&self.0.get(&key).expect("in memory").expect("it exists")).expect("whole");
        change(&mut record);
        self.0.put(key, encode(&record).expect("small"));
    }

    /// The findings of a check, and the changes that repair them.
    fn check(&self) -> (Vec<(Severity, String)>, Changes) {
        let mut findings = Findings::default();
        Names::examine(&self.0, &mut findings).expect("in memory");
        let changes = findings.take_changes();
        (findings.findings.into_iter().map(|finding| (finding.severity, finding.message)).collect(), changes)
    }

    /// Repairs what a check finds, until it finds nothing. Returns the first findings.
    fn repair(&mut self) -> Vec<(Severity, String)> {
        let (first, mut changes) = self.check();
        for _ in 0..4 {
            for (key, value) in changes {
                match value {
                    Some(value) => self.0.put(key, value),
                    None => self.0.delete(key),
                }
            }
            let (found, next) = self.check();
            if found.is_empty() {
                return first;
            }
            changes = next;
        }
        panic!("the repair does not end: {:?}", self.check().0);
    }
}

fn home_of(inode: InodeId) -> HomeId {
    HomeId(inode.slot().0 % HOMES as u16)
}

fn home_of_children(dir: InodeId) -> HomeId {
    HomeId(dir.children_slot().0 % HOMES as u16)
}

/// A node with a directory whose entries are at another home than its own entry, and a file with a name at each home.
fn linked() -> (Node, InodeId) {
    let mut node = Node::started();
    let root = home_of_children(InodeId::ROOT);
    let other = HomeId(1 - root.0);
    let dir = node.create(InodeId::ROOT, "dir", FileKind::Directory, other);
    let file = node.create(InodeId::ROOT, "file", FileKind::File, root);
    node.link(file, dir, "second");
    (node, file)
}

#[test]
fn names_of_an_inode_are_counted_at_all_homes_of_the_node() {
    let (mut node, file) = linked();
    assert_eq!(node.check().0, []);
    node.change(file, |record| record.links = 3);
    let found = node.repair();
    let [(Severity::Wrong, message)] = &found[..] else { panic!("{found:?}") };
    assert!(message.ends_with("counts 3 links, but has 2 names"), "{message}");
}

/// Regression: the record that refuses entries in a removed directory was reported as damage, and removed.
#[test]
fn a_directory_that_was_removed_at_another_home_is_no_damage() {
    let mut node = Node::started();
    let root = home_of_children(InodeId::ROOT);
    let other = HomeId(1 - root.0);
    let dir = node.create(InodeId::ROOT, "dir", FileKind::Directory, other);
    let operation = OperationId { home: root, sequence: 1 };
    let step = |step, finished| {
        let command = Command::Step { operation, number: 0, step, by: None, finished, now: NOW };
        LogCommand::Wire { command, inode_counter: 0, held: Vec::new(), call: None }
    };
    node.run(other, &step(Step::Seal { dir, sharded: false }, 0));
    let entry = EntryName { dir: InodeId::ROOT, name: b"dir".to_vec() };
    let target = Target { inode: dir, kind: FileKind::Directory };
    let local = vec![Step::Detach { entry, sharded: false, target }, Step::DropLink { inode: dir }];
    let decision = Decision { local, redo: Vec::new() };
    node.run(root, &LogCommand::Decide { operation, decision, held: Vec::new(), now: NOW, call: None });
    assert_eq!(node.check().0, []);
    // The step of the operation, which has ended, does not keep the check from its other rules.
    let file = node.create(InodeId::ROOT, "file", FileKind::File, root);
    node.change(file, |record| record.links = 3);
    assert_eq!(node.check().0.len(), 1);
}

#[test]
fn a_home_without_the_record_of_its_start_is_repaired_ahead_of_its_inodes() {
    let (mut node, file) = linked();
    let key = key_of_home(home_of(file), &key::shard());
    let before: ShardRecord =
        decode(&node.0.get(&key).expect("in memory").expect("it exists")).expect("whole");
    for damage in [None, Some(vec![0xFF; 5])] {
        match damage {
            Some(value) => node.0.put(key.clone(), value),
            None => node.0.delete(key.clone()),
        }
        assert!(!node.repair().is_empty());
        let after: ShardRecord =
            decode(&node.0.get(&key).expect("in memory").expect("it exists")).expect("whole");
        // It is not known which nodes were added to the job.
        assert_eq!(after.share, Share { founders: u32::MAX, ..before.share.clone() });
        assert!(after.incarnation > before.incarnation);
    }
}

#[test]
fn the_content_of_a_file_at_another_home_is_found() {
    let (mut node, file) = linked();
    node.0.put(key_of_home(HomeId(1 - home_of(file).0), &key::content(file)), vec![1]);
    let found = node.repair();
    let [(Severity::Wrong, message)] = &found[..] else { panic!("{found:?}") };
    assert!(message.contains("belong to no inode"), "{message}");
}

#[test]
fn an_inode_at_the_wrong_home_is_found() {
    let (mut node, file) = linked();
    let home = home_of(file);
    let right = key_of_home(home, &key::inode(file));
    let wrong = key_of_home(HomeId(1 - home.0), &key::inode(file));
    let value = node.0.get(&right).expect("in memory").expect("it exists");
    node.0.delete(right);
    node.0.put(wrong, value);
    let found = node.repair();
    assert!(found.iter().any(|(_, message)| message.contains("at the wrong home")), "{found:?}");
    let dangling = found.iter().filter(|(severity, _)| *severity == Severity::Lost);
    assert_eq!(dangling.count(), 2, "{found:?}");
}

#[test]
fn the_directory_of_a_name_may_be_at_another_home() {
    let (mut node, _) = linked();
    let before = node.0.clone();
    let mut damaged = 0;
    // Each record is missing once. The check finds that, and its repair ends.
    for key in before.0.keys() {
        node.0 = before.clone();
        node.0.delete(key.clone());
        damaged += usize::from(!node.repair().is_empty());
    }
    assert!(damaged > before.0.len() / 2, "{damaged} of {}", before.0.len());
}
