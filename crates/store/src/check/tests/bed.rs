//! A stopped store with files of each kind, and functions to damage it.

use crate::check::{Dirty, Findings, RecordChecks, Report, Severity, check};
use crate::directory::{Options, Store};
use crate::extent::Pieces;
use crate::ledger::kv::{Changes, Kv};
use crate::ledger::redb::RedbKv;
use crate::ledger::{Ledger, RecordKind};
use crate::meta::record::Share;
use crate::meta::{self, LogCommand};
use crate::table::{HomeTable, ReadTable, Table};
use parking_lot::RwLock;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;
use tameike_core::wire::meta::{Command, EntryName, NewInode};
use tameike_core::{FileKind, Generation, HomeId, InodeId, Layout, NodeId, Result, Timestamp, UnitId};
use tameike_io::os::simulated::Simulation;
use tameike_io::{Payload, Slab};

pub(super) const CACHED: InodeId = InodeId(0x8000_0000_0000_0102);
/// The only home.
pub(super) const HOME: HomeId = HomeId(0);
pub(super) const NOW: Timestamp = Timestamp { seconds: 7, nanoseconds: 0 };

/// Taken exclusively while a process starts: until exec, the child inherits all descriptors, with the locks of other
/// tests' stores.
static STARTING: RwLock<()> = RwLock::new(());

/// Above the descriptor numbers that these tests use.
const LAST_DESCRIPTOR: i32 = 1000;

/// Starts a process while no test holds a store's lock.
pub(super) fn start(command: &mut process::Command) -> process::Child {
    let _alone = STARTING.write();
    // The parent continues before the kernel has closed the child's inherited descriptors; waits for the highest,
    // closed last.
    let (mut closed, other_end) = std::io::pipe().unwrap();
    let inherited = rustix::io::fcntl_dupfd_cloexec(&other_end, LAST_DESCRIPTOR).unwrap();
    drop(other_end);
    let child = command.spawn().unwrap();
    drop(inherited);
    assert_eq!(closed.read(&mut [0]).unwrap(), 0);
    child
}

/// Checks no journal: the cache view of these stores consists of units.
pub(super) struct Plain;

impl RecordChecks for Plain {
    fn replay(&self, kind: RecordKind, body: &[u8], table: &mut dyn Table) -> Result<()> {
        assert_eq!(kind, RecordKind::Names);
        meta::replay(table, body)
    }
    fn examine(&self, _: &dyn ReadTable, _: &[Dirty], _: &mut Findings) -> Result<()> {
        Ok(())
    }
    fn path(&self, _: &dyn ReadTable, inode: InodeId) -> Option<String> {
        (inode == CACHED).then(|| "out/result".to_owned())
    }
}

/// Size of the prefix of a file that tests edit; more than they use of the extents file.
const EDITED_BYTES_MAX: u64 = 1 << 20;

pub(super) struct Bed {
    machine: Simulation,
    slab: Arc<Slab>,
    pub(super) home: tempfile::TempDir,
    /// The file `data`, with a unit.
    pub(super) data: InodeId,
    pub(super) note: InodeId,
    pub(super) dir: InodeId,
    pub(super) link: InodeId,
}

pub(super) fn entry(dir: InodeId, name: &str) -> EntryName {
    EntryName { dir, name: name.as_bytes().to_vec() }
}

fn execute(ledger: &Ledger, command: &LogCommand) -> meta::Outcome {
    let body = meta::log_record(HOME, command).unwrap();
    let applied = ledger
        .execute(RecordKind::Names, &body, |table| meta::apply(&mut HomeTable::new(HOME, table), command));
    applied.unwrap().outcome
}

fn wire(ledger: &Ledger, inode_counter: u64, command: Command) -> meta::Outcome {
    execute(
        ledger,
        &LogCommand::Wire { command, inode_counter: 1 << 32 | inode_counter, held: Vec::new(), call: None },
    )
}

fn create(ledger: &Ledger, inode_counter: u64, entry: EntryName, kind: FileKind) -> InodeId {
    let symlink = if kind == FileKind::Symlink { b"target".to_vec() } else { Vec::new() };
    let new = NewInode { kind, mode: 0o644, uid: 1, gid: 1, rdev: 0, layout: Layout::Striped, symlink };
    let command = Command::Create { entry, new, exclusive: true, opener: None, sharded: false, now: NOW };
    match wire(ledger, inode_counter, command) {
        meta::Outcome::Created { target, .. } => target.inode,
        other => panic!("{other:?}"),
    }
}

impl Bed {
    /// A store with all records in the log, or (`moved`) in the table.
    pub(super) fn new(moved: bool) -> Self {
        let none = InodeId(0);
        let home = tempfile::tempdir().unwrap();
        let (machine, slab) = (Simulation::shuffled(1), Slab::new(4).unwrap());
        let mut bed = Self { machine, slab, home, data: none, note: none, dir: none, link: none };
        let store = bed.open().unwrap();
        bed.fill(&store);
        bed.machine.run(store.extents.sync(true)).unwrap();
        if moved {
            bed.machine.run(store.ledger.checkpoint()).unwrap();
        }
        drop(store);
        bed.machine.kill();
        bed
    }

    fn fill(&mut self, store: &Store) {
        let ledger = &store.ledger;
        let share = Share { home: HOME, count: 1, pinned: vec![NodeId(0)], founders: 1 };
        execute(ledger, &LogCommand::Start { roots: vec![InodeId::ROOT], share, uid: 1, gid: 1, now: NOW });
        self.note = create(ledger, 1, entry(InodeId::ROOT, "note"), FileKind::File);
        let data = b"hello".to_vec();
        wire(ledger, 0, Command::WriteInline { inode: self.note, offset: 0, data, now: NOW });
        self.data = create(ledger, 2, entry(InodeId::ROOT, "data"), FileKind::File);
        self.write(store, UnitId { inode: self.data, index: 1 }, 7, false);
        let end = (1 << 20) + 10_000;
        wire(ledger, 0, Command::Commit { inode: self.data, end, now: NOW, sparse: false });
        self.dir = create(ledger, 3, entry(InodeId::ROOT, "dir"), FileKind::Directory);
        self.link = create(ledger, 4, entry(self.dir, "link"), FileKind::Symlink);
        self.write(store, UnitId { inode: CACHED, index: 0 }, 9, true);
        self.write(store, UnitId { inode: CACHED, index: 2 }, 5, false);
    }

    /// Writes 10000 equal bytes to the start of a unit.
    fn write(&self, store: &Store, unit: UnitId, byte: u8, dirty: bool) {
        let mut frame = self.slab.pool(1).try_take().unwrap();
        frame[..10_000].fill(byte);
        let payload = Payload::new(Arc::new(frame), 0..10_000);
        self.machine
            .run(store.extents.write(HomeId(0), unit, Pieces::at(0, payload).unwrap(), dirty, Generation(1)))
            .unwrap();
    }

    pub(super) fn open(&self) -> Result<Store> {
        let options = Options {
            runtime: self.machine.runtime(),
            direct: None,
            scratch: self.slab.pool(1),
            capacity: [1 << 20, 4 << 20, 4 << 20],
            checkpoint_bytes: 1 << 20,
            table_cache_bytes: 1 << 20,
        };
        let _nothing_starts = STARTING.read();
        let opened = Store::open(self.home.path(), options, |_, body, table| meta::replay(table, body));
        self.machine.run(opened)
    }

    /// Opens the store as the next agent would, and calls `inspect`.
    pub(super) fn reopen<T>(&self, inspect: impl FnOnce(&Store) -> T) -> T {
        let store = self.open().unwrap();
        let seen = inspect(&store);
        drop(store);
        self.machine.kill();
        seen
    }

    /// The first 10000 bytes of a unit; `None` for bytes that it lacks.
    pub(super) fn read(&self, store: &Store, unit: UnitId) -> Vec<Option<u8>> {
        let frame = self.slab.pool(1).try_take().unwrap();
        let (frame, held) = self.machine.run(store.extents.read(unit, 0..10_000, frame, Generation(1)));
        let held = held.unwrap().ranges;
        (0..10_000u32).map(|at| held.contains(&(at..at + 1)).then(|| frame[at as usize])).collect()
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Edits a file of the store, or its prefix.
    pub(super) fn edit(&self, name: &str, edit: impl FnOnce(&mut Vec<u8>)) {
        let mut file = std::fs::File::options().read(true).write(true).open(self.path(name)).unwrap();
        let mut bytes = Vec::new();
        (&mut file).take(EDITED_BYTES_MAX).read_to_end(&mut bytes).unwrap();
        let before = bytes.len();
        edit(&mut bytes);
        file.write_all_at(&bytes, 0).unwrap();
        if bytes.len() < before {
            file.set_len(bytes.len() as u64).unwrap();
        }
    }

    /// Changes records of a store whose log is empty.
    pub(super) fn tamper(&self, changes: impl FnOnce(&dyn Fn(&[u8]) -> Vec<u8>) -> Changes) {
        let _nothing_starts = STARTING.read();
        let kv = RedbKv::open(&self.path("table"), 1 << 20, 0).unwrap();
        let changes = changes(&|key| kv.snapshot().get(key).unwrap().expect("a value"));
        kv.commit(&changes).unwrap();
    }

    pub(super) fn try_check(&self, repair: bool) -> Result<Report> {
        let _nothing_starts = STARTING.read();
        check(self.home.path(), &Plain, repair, &mut |_, _| {})
    }

    pub(super) fn check(&self, repair: bool) -> Report {
        self.try_check(repair).unwrap()
    }

    /// Findings of a check, without notes. Verifies that a check changes no file, and that a repair finds the same.
    pub(super) fn found(&self) -> Vec<String> {
        let before = files(self.home.path());
        let report = self.check(false);
        assert_eq!(files(self.home.path()), before, "a check without repair changed a file");
        let repaired = self.check(true);
        assert_eq!(repaired.findings, report.findings);
        let mut found = Vec::new();
        for finding in report.findings.iter().filter(|finding| finding.severity > Severity::Note) {
            assert_eq!(finding.lost.is_empty(), finding.severity == Severity::Wrong, "{finding:?}");
            found.push(format!("{} {}", finding.severity.as_str(), finding.message));
        }
        assert_eq!(repaired.repaired, !found.is_empty());
        let again = self.check(true);
        assert!(again.worst().is_none_or(|worst| worst == Severity::Note), "{:#?}", again.findings);
        found
    }
}

/// All files of a store, or their prefixes.
fn files(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = dir.read_dir().unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries
        .filter(|path| path.is_file())
        .map(|path| (path.clone(), std::fs::read(&path).unwrap()))
        .collect();
    files.sort();
    files
}
