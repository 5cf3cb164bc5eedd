use super::record::{DirectoryRecord, InodeRecord, PlacedStep, StepRecord};
use super::*;
use crate::table::memory::MemoryTable as Map;
use crate::table::{ReadTable, key_of_home};
use proptest::prelude::*;
use tameike_core::attr::AttrChange;
use tameike_core::limits::{FILE_SIZE_MAX, INLINE_SIZE_MAX};
use tameike_core::wire::call::{CallNumber, NumberedCall};
use tameike_core::wire::meta::{EntryName, NewInode, Step};
use tameike_core::{DirOffset, HomeId, Layout, NodeId};

/// The part of one home of 4096.
fn part_of(home: u16) -> Share {
    Share { home: HomeId(home), count: 4096, pinned: vec![NodeId(0)], founders: 1 }
}

impl Map {
    /// A shard with the root, after its first start.
    fn started() -> Self {
        let mut map = Self::default();
        assert_eq!(map.run(&Self::start(1, 2, 1)).unwrap().outcome, Outcome::Started { incarnation: 1 });
        map
    }

    /// A start of the home of the root's slot.
    fn start(uid: u32, gid: u32, seconds: i64) -> LogCommand {
        let (roots, share) = (vec![InodeId::ROOT], part_of(0));
        LogCommand::Start { roots, share, uid, gid, now: at(seconds) }
    }

    /// Undoes a failed command, as the ledger does.
    fn run(&mut self, command: &LogCommand) -> Result<Applied> {
        let mut changed = self.clone();
        let applied = apply(&mut changed, command)?;
        *self = changed;
        Ok(applied)
    }

    fn wire(&mut self, command: Command) -> Result<Outcome> {
        let inode_counter = 1 << 32 | self.0.len() as u64;
        self.run(&LogCommand::Wire { command, inode_counter, held: Vec::new(), call: None })
            .map(|applied| applied.outcome)
    }

    fn create(&mut self, name: &str) -> InodeId {
        match self.wire(create(name, FileKind::File)).unwrap() {
            Outcome::Created { target, .. } => target.inode,
            other => panic!("{other:?}"),
        }
    }

    fn step(&mut self, sequence: u64, number: u32, finished: u64, step: Step) -> Result<Outcome> {
        let operation = OperationId { home: HomeId(9), sequence };
        self.wire(Command::Step { operation, number, step, by: None, finished, now: at(5) })
    }

    fn record(&self, inode: InodeId) -> InodeRecord {
        query::inode(self, inode).unwrap().expect("the inode exists")
    }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanoseconds: 0 }
}

fn entry(name: &str) -> EntryName {
    EntryName { dir: InodeId::ROOT, name: name.into() }
}

fn create(name: &str, kind: FileKind) -> Command {
    let symlink = if kind == FileKind::Symlink { b"there".to_vec() } else { Vec::new() };
    let new = NewInode { kind, mode: 0o640, uid: 3, gid: 4, rdev: 0, layout: Layout::Striped, symlink };
    Command::Create { entry: entry(name), new, exclusive: true, opener: None, sharded: false, now: at(2) }
}

#[test]
fn each_start_is_counted_and_keeps_existing_roots() {
    let mut map = Map::started();
    let root = map.record(InodeId::ROOT);
    assert_eq!(map.run(&Map::start(8, 9, 9)).unwrap().outcome, Outcome::Started { incarnation: 2 });
    assert_eq!(map.record(InodeId::ROOT), root);
}

#[test]
fn an_inode_is_created_in_the_slot_of_its_entry() {
    let mut map = Map::started();
    let inode = map.create("file");
    assert_eq!(inode.slot(), InodeId::ROOT.children_slot());
    let pinned = InodeId::local_root(NodeId(5), NodeId(3));
    let Command::Create { new, .. } = create("file", FileKind::File) else { unreachable!() };
    let sharded_dir = InodeId::in_slot(tameike_core::Slot(7), 9);
    for (dir, sharded) in [(pinned, false), (sharded_dir, true)] {
        let entry = EntryName { dir, name: b"file".to_vec() };
        let (new, offset) = (new.clone(), entry.offset());
        let create = Command::Create { entry, new, exclusive: true, opener: None, sharded, now: at(2) };
        let made = map.wire(create);
        let Ok(Outcome::Created { target, .. }) = made else { panic!("{made:?}") };
        assert_eq!(target.inode.pinned_node(), dir.pinned_node());
        assert!(dir == pinned || target.inode.slot() == offset.slot());
    }
}

#[test]
fn invalid_new_inodes_are_refused() {
    let mut map = Map::started();
    let with = |change: fn(&mut NewInode)| {
        let mut command = create("file", FileKind::File);
        if let Command::Create { new, .. } = &mut command {
            change(new);
        }
        command
    };
    for (command, errno) in [
        (with(|new| new.kind = FileKind::Symlink), Errno::ENOENT),
        (with(|new| new.symlink = b"x".to_vec()), Errno::EINVAL),
        (with(|new| new.layout = Layout::Local), Errno::EINVAL),
        (with(|new| (new.kind, new.symlink) = (FileKind::Symlink, vec![b'x'; 4097])), Errno::ENAMETOOLONG),
    ] {
        assert_eq!(map.wire(command).unwrap_err().errno, errno);
    }
    let file = map.create("file");
    let mut below = create("below", FileKind::File);
    if let Command::Create { entry, .. } = &mut below {
        entry.dir = file;
    }
    assert_eq!(map.wire(below).unwrap_err().errno, Errno::ENOTDIR);
}

#[test]
fn a_step_is_applied_once_until_its_operation_ends() {
    let mut map = Map::started();
    let inode = map.create("file");
    for _ in 0..3 {
        map.step(10, 0, 0, Step::AddLink { inode }).unwrap();
    }
    assert_eq!(map.record(inode).links, 2);
    assert_eq!(map.step(10, 1, 0, Step::Undo { number: 0 }), Ok(Outcome::UndoOutcome { applied: false }));
    assert_eq!(map.record(inode).links, 1);
    assert_eq!(map.step(10, 0, 0, Step::AddLink { inode }).unwrap_err().errno, Errno::EAGAIN);
    assert_eq!(map.step(10, 1, 0, Step::Undo { number: 0 }), Ok(Outcome::UndoOutcome { applied: false }));
    assert_eq!(map.record(inode).links, 1);
    map.step(11, 0, 11, Step::AddLink { inode }).unwrap();
    assert_eq!(query::added_link(&map, OperationId { home: HomeId(9), sequence: 10 }, 0), Ok(None));
    let late = map.step(10, 0, 0, Step::AddLink { inode });
    assert_eq!(late.unwrap_err().errno, Errno::ESTALE);
    assert_eq!(map.record(inode).links, 2);
    map.step(12, 0, 11, Step::DropLink { inode }).unwrap();
    assert_eq!(map.step(12, 1, 11, Step::Undo { number: 0 }), Ok(Outcome::UndoOutcome { applied: true }));
    assert_eq!(map.record(inode).links, 1);
}

/// A table that counts the removals that its scans pass: a ledger keeps each removal until its next checkpoint.
#[derive(Default)]
struct Removals {
    map: Map,
    removed: std::collections::BTreeSet<Vec<u8>>,
    passed: std::cell::Cell<usize>,
}

impl ReadTable for Removals {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.map.get(key)
    }
    fn scan(&self, start: &[u8], end: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let passed = self.removed.range(start.to_vec()..end.to_vec()).count();
        self.passed.set(self.passed.get() + passed);
        self.map.scan(start, end, limit)
    }
}

impl Table for Removals {
    fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.removed.remove(&key);
        self.map.put(key, value);
    }
    fn delete(&mut self, key: Vec<u8>) {
        self.removed.insert(key.clone());
        self.map.delete(key);
    }
}

/// Regression: each step scanned the removed results of all earlier operations, so that steps became slower.
#[test]
fn the_cost_of_a_step_does_not_grow_with_ended_operations() {
    let mut map = Map::started();
    let inode = map.create("file");
    let mut table = Removals { map, ..Removals::default() };
    for sequence in 1..=1000 {
        let operation = OperationId { home: HomeId(9), sequence };
        let step = if sequence % 2 == 1 { Step::AddLink { inode } } else { Step::DropLink { inode } };
        let command = Command::Step { operation, number: 0, step, by: None, finished: sequence, now: at(1) };
        let command = LogCommand::Wire { command, inode_counter: 0, held: Vec::new(), call: None };
        apply(&mut table, &command).expect("a step");
    }
    assert_eq!((table.removed.len(), table.passed.get()), (999, 0));
    assert_eq!(table.map.record(inode).links, 1);
}

#[test]
fn a_step_undone_before_its_arrival_is_refused() {
    let mut map = Map::started();
    let inode = map.create("file");
    assert_eq!(map.step(10, 1, 0, Step::Undo { number: 0 }), Ok(Outcome::UndoOutcome { applied: false }));
    assert_eq!(map.step(10, 0, 0, Step::AddLink { inode }).unwrap_err().errno, Errno::EAGAIN);
    assert_eq!(map.record(inode).links, 1);
    assert_eq!(
        record::get(&map, &key::step(OperationId { home: HomeId(9), sequence: 10 }, 0)),
        Ok(Some(StepRecord::Undone))
    );
}

#[test]
fn sizes_are_limited() {
    let mut map = Map::started();
    let inode = map.create("file");
    let size = |size| AttrChange { size: Some(size), ..AttrChange::default() };
    let mut resize = |to| map.wire(Command::SetAttr { inode, change: size(to), now: at(3) });
    assert_eq!(resize(FILE_SIZE_MAX + 1).unwrap_err().errno, Errno::EFBIG);
    resize(5).unwrap();
    assert_eq!(resize(INLINE_SIZE_MAX as u64 + 1).unwrap_err().errno, Errno::EFBIG);
    resize(0).unwrap();
    resize(FILE_SIZE_MAX).unwrap();
    let reserve = map.wire(Command::Reserve { inode, length: 1, now: at(3) });
    assert_eq!(reserve.unwrap_err().errno, Errno::EFBIG);
    assert!(!map.record(inode).inline);
}

#[test]
fn a_pending_smaller_truncation_survives_a_larger_one() {
    let mut map = Map::started();
    let inode = map.create("file");
    let mut set = |command| {
        map.run(&LogCommand::Wire { command, inode_counter: 0, held: Vec::new(), call: None }).unwrap()
    };
    let size = |size| {
        let change = AttrChange { size: Some(size), ..AttrChange::default() };
        Command::SetAttr { inode, change, now: at(3) }
    };
    let commit = Command::Commit { inode, end: 9 << 20, sparse: false, now: at(3) };
    set(commit.clone());
    let first = set(size(10)).truncations;
    set(commit);
    let second = set(size(20)).truncations;
    let due = |size| vec![(inode, Truncation { layout: Layout::Striped, size })];
    assert_eq!((&first, &second), (&due(10), &due(20)));
    map.run(&LogCommand::Truncated { inode, truncation: second[0].1 }).unwrap();
    assert_eq!(query::truncations(&map), Ok(due(10)));
    map.run(&LogCommand::Truncated { inode, truncation: first[0].1 }).unwrap();
    assert_eq!(query::truncations(&map), Ok(Vec::new()));
}

/// Regression: if the disk failed between the write of the unit and the record `Spilled`, removal of the inline file
/// leaked the unit; a file truncated to 0 and extended would have shown its old bytes.
#[test]
fn removal_of_a_file_truncates_the_unit_of_a_failed_spill() {
    let mut map = Map::started();
    let inode = map.create("file");
    let size = |size| AttrChange { size: Some(size), ..AttrChange::default() };
    let data = b"old".to_vec();
    map.wire(Command::WriteInline { inode, offset: 0, data, now: at(2) }).unwrap();
    map.run(&LogCommand::Spilling { inode }).unwrap();
    assert_eq!(query::truncations(&map), Ok(Vec::new()), "truncated with the file, or spilled again");
    let before = map.clone();
    let truncation = Truncation { layout: Layout::Striped, size: 0 };
    map.step(10, 0, 0, Step::DropLink { inode }).unwrap();
    assert_eq!(query::truncations(&map), Ok(vec![(inode, truncation)]));
    map = before;
    map.wire(Command::SetAttr { inode, change: size(0), now: at(3) }).unwrap();
    let grown = map.wire(Command::SetAttr { inode, change: size(9000), now: at(3) });
    assert_eq!(grown.unwrap_err().errno, Errno::EFBIG, "the unit must be written first");
    let generation = map.record(inode).generation;
    map.run(&LogCommand::Spilled { inode, generation }).unwrap();
    assert_eq!(query::truncation(&map, inode), Ok(None));
}

/// Hash collisions of offsets are too rare to create: the test puts such entries into the table.
#[test]
fn entries_of_one_offset_are_listed_together() {
    let mut map = Map::started();
    let target = Target { inode: InodeId::ROOT, kind: FileKind::File };
    for (offset, names) in [(20, 1), (30, 3), (40, 2)] {
        for name in 0..names {
            let mut key = key::entries_from(InodeId::ROOT, DirOffset(offset));
            key.push(b'a' + name);
            record::put(&mut map, key, &target).unwrap();
        }
    }
    for limit in 1..8 {
        let (mut after, mut offsets, mut end) = (DirOffset::START, Vec::new(), false);
        while !end {
            let (entries, is_end) = query::entries(&map, InodeId::ROOT, after, limit).unwrap();
            assert!(is_end || !entries.is_empty(), "every page makes progress");
            after = entries.last().map_or(after, |entry| entry.offset);
            offsets.extend(entries.into_iter().map(|entry| entry.offset.0));
            end = is_end;
        }
        assert_eq!(offsets, [20, 30, 30, 30, 40, 40], "limit {limit}");
    }
}

fn any_inode() -> impl Strategy<Value = InodeId> {
    prop_oneof![
        2 => Just(InodeId::ROOT),
        4 => (0..12_u64).prop_map(|inode_counter| InodeId::in_slot(InodeId::ROOT.children_slot(), inode_counter)),
        1 => any::<u64>().prop_map(InodeId),
    ]
}

fn any_entry() -> impl Strategy<Value = EntryName> {
    (any_inode(), "[a-c/.]{0,2}").prop_map(|(dir, name)| EntryName { dir, name: name.into_bytes() })
}

fn any_target() -> impl Strategy<Value = Target> {
    (any_inode(), prop_oneof![Just(FileKind::File), Just(FileKind::Directory)])
        .prop_map(|(inode, kind)| Target { inode, kind })
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        any_inode().prop_map(|inode| Step::AddLink { inode }),
        any_inode().prop_map(|inode| Step::DropLink { inode }),
        (any_inode(), any::<bool>()).prop_map(|(dir, sharded)| Step::Seal { dir, sharded }),
        (any_entry(), any::<bool>(), any_target(), prop::option::of(any_target()))
            .prop_map(|(entry, sharded, target, replaces)| Step::Attach { entry, sharded, target, replaces }),
        (any_entry(), any::<bool>(), any_target()).prop_map(|(entry, sharded, target)| Step::Detach {
            entry,
            sharded,
            target
        }),
        (any_inode(), any_inode()).prop_map(|(dir, parent)| Step::SetParent { dir, parent }),
        any_target().prop_map(|target| Step::Touch { target }),
        Just(Step::LockTree),
        Just(Step::UnlockTree),
        (any_inode(), prop::collection::vec(("[a-c]{1,2}", any_target()), 0..3)).prop_map(
            |(dir, entries)| {
                let entries = entries.into_iter().map(|(name, target)| (name.into_bytes().into(), target));
                Step::Receive { dir, entries: entries.collect() }
            }
        ),
        (0..4_u32).prop_map(|number| Step::Undo { number }),
    ]
}

fn any_command() -> impl Strategy<Value = Command> {
    let kind = prop_oneof![Just(FileKind::File), Just(FileKind::Directory), Just(FileKind::Symlink)];
    prop_oneof![
        3 => (any_entry(), kind, any::<bool>(), any::<bool>()).prop_map(|(name, kind, exclusive, sharded)| {
            let mut command = create("", kind);
            if let Command::Create { entry, exclusive: is_exclusive, sharded: is_sharded, .. } = &mut command {
                (*entry, *is_exclusive, *is_sharded) = (name, exclusive, sharded);
            }
            command
        }),
        1 => (any_inode(), prop_oneof![0..9000_u64, any::<u64>()]).prop_map(|(inode, size)| {
            let change = AttrChange { size: Some(size), uid: Some(1), ..AttrChange::default() };
            Command::SetAttr { inode, change, now: at(3) }
        }),
        1 => (any_inode(), any::<u64>(), any::<bool>())
            .prop_map(|(inode, end, sparse)| Command::Commit { inode, end, sparse, now: at(3) }),
        1 => (any_inode(), any::<u32>(), prop::collection::vec(any::<u8>(), 0..9)).prop_map(
            |(inode, offset, data)| Command::WriteInline { inode, offset, data, now: at(3) }
        ),
        1 => (any_inode(), any::<u64>())
            .prop_map(|(inode, length)| Command::Reserve { inode, length, now: at(3) }),
        1 => (any_inode(), any::<bool>()).prop_map(|(inode, create)| Command::SetXattr {
            inode, name: b"user.x".to_vec(), value: vec![1], create, replace: !create, now: at(3)
        }),
        4 => (0..6_u64, 0..4_u32, 0..6_u64, any_step()).prop_map(|(sequence, number, finished, step)| {
            let operation = OperationId { home: HomeId(9), sequence };
            Command::Step { operation, number, step, by: None, finished, now: at(4) }
        }),
        1 => (any_inode(), any::<bool>())
            .prop_map(|(dir, sharded)| Command::SetDirTime { dir, sharded, changed: at(7) }),
    ]
}

fn any_log() -> impl Strategy<Value = Vec<LogCommand>> {
    let command = prop_oneof![
        8 => (any_command(), prop::collection::vec(any_inode(), 0..3))
            .prop_map(|(command, held)| LogCommand::Wire { command, inode_counter: 0, held, call: None }),
        1 => (0..6_u64, prop::collection::vec(any_step(), 0..4)).prop_map(|(sequence, local)| {
            let operation = OperationId { home: HomeId(0), sequence };
            let decision = Decision { local, redo: Vec::new() };
            LogCommand::Decide { operation, decision, held: Vec::new(), now: at(6), call: None }
        }),
        1 => any_inode().prop_map(|inode| LogCommand::Forget { inode }),
        1 => prop::collection::vec((any_inode(), (0..9_i64).prop_map(at)), 0..3)
            .prop_map(|files| LogCommand::Accessed { files }),
        1 => any_inode().prop_map(|dir| LogCommand::Sharded { sequence: 1, dir }),
    ];
    prop::collection::vec(command, 0..60).prop_map(|mut log| {
        for (number, command) in log.iter_mut().enumerate() {
            if let LogCommand::Wire { inode_counter, .. } = command {
                *inode_counter = number as u64;
            }
        }
        log
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// No command panics, and replay of the logged commands gives the same table.
    #[test]
    fn replay_gives_the_same_table(log in any_log()) {
        let (mut map, mut replayed, home) = (Map::default(), Map::default(), HomeId(300));
        for command in [Map::start(1, 2, 1)].iter().chain(&log) {
            let record = log_record(home, command).unwrap();
            if map.run(command).is_ok() {
                replay(&mut replayed, &record).unwrap();
            }
        }
        let of_home = map.0.into_iter().map(|(key, value)| (key_of_home(home, &key), value));
        prop_assert_eq!(of_home.collect::<std::collections::BTreeMap<_, _>>(), replayed.0);
    }

    #[test]
    fn damaged_records_are_errors(log in any_log(), place: usize, flip in 1..255_u8) {
        let mut map = Map::started();
        for command in &log {
            let _ = map.run(command);
        }
        let place = place % map.0.len();
        let value = map.0.values_mut().nth(place).unwrap();
        if let Some(byte) = value.first_mut() {
            *byte ^= flip;
        }
        for command in &log {
            let _ = map.run(command);
        }
    }
}

/// Golden bytes of log records and of table values.
#[test]
fn the_format_of_log_commands_is_stable() {
    let now = Timestamp { seconds: -2, nanoseconds: 300 };
    let (inode, operation) = (InodeId(0x1_0203), OperationId { home: HomeId(200), sequence: 129 });
    let name = EntryName { dir: InodeId(1), name: b"ab".to_vec() };
    let placed = PlacedStep { home: HomeId(3), number: 2, step: Step::DropLink { inode } };
    let decision = Decision { local: vec![Step::LockTree], redo: vec![placed.clone()] };
    let truncation = Truncation { layout: Layout::On(NodeId(3)), size: 300 };
    let number = CallNumber { number: 131, finished: 4 };
    let call = Some(NumberedCall { node: NodeId(3), incarnation: 300, number });
    let open = Intent::Open {
        prepared: vec![(HomeId(3), 0)],
        commit: Some((HomeId(4), 1)),
        decision: decision.clone(),
        busy: Some(name),
        call,
    };
    let wire = Command::Commit { inode, end: 300, sparse: true, now };
    let share = Share { home: HomeId(129), count: 300, pinned: vec![NodeId(3)], founders: 4 };
    let commands = [
        (
            LogCommand::Start { roots: vec![InodeId(1)], share, uid: 1000, gid: 100, now },
            "0001018101ac02010304e8076403ac02",
        ),
        (
            LogCommand::Wire { command: wire, inode_counter: 300, held: vec![inode], call },
            "0102838404ac020103ac02ac02018384040103ac02830104",
        ),
        (
            LogCommand::Begin { sequence: 129, intent: open },
            "0281010001030001040101070103020183840401010261620103ac02830104",
        ),
        (
            LogCommand::Begin { sequence: 129, intent: Intent::Decided { redo: vec![placed] } },
            "0281010101030201838404",
        ),
        (LogCommand::Begin { sequence: 129, intent: Intent::Shard { dir: inode } }, "02810102838404"),
        (
            LogCommand::Decide { operation, decision, held: vec![inode], now, call: None },
            "03c80181010107010302018384040183840403ac0200",
        ),
        (LogCommand::End { sequence: 129 }, "048101"),
        (LogCommand::Sharded { sequence: 129, dir: inode }, "058101838404"),
        (LogCommand::Spilled { inode, generation: Generation(300) }, "06838404ac02"),
        (LogCommand::Truncated { inode, truncation }, "078384040303ac02"),
        (LogCommand::Forget { inode }, "08838404"),
        (LogCommand::Spilling { inode }, "09838404"),
        (LogCommand::Accessed { files: vec![(inode, now)] }, "0a0183840403ac02"),
    ];
    for (command, golden) in commands {
        assert_eq!(hex(&command), golden, "{command:?}");
    }
}

#[test]
fn the_format_of_records_is_stable() {
    let now = Timestamp { seconds: -2, nanoseconds: 300 };
    let (inode, operation) = (InodeId(0x1_0203), OperationId { home: HomeId(200), sequence: 129 });
    let steps = [
        (StepRecord::Applied, "00"),
        (StepRecord::LinkAdded(inode), "01838404"),
        (StepRecord::Sealed(inode), "02838404"),
        (StepRecord::TreeLocked, "03"),
        (StepRecord::Undone, "04"),
    ];
    for (step, golden) in steps {
        assert_eq!(hex(&step), golden, "{step:?}");
    }
    assert_eq!(
        hex(&root_record(InodeId(1), (1000, 100), now)),
        "01ed0301e80764000003ac0203ac0203ac020000000001"
    );
    let sealed = Some(operation);
    let children = DirectoryRecord { entries: 300, subdirs: 1, changed: now, sharded: true, sealed };
    assert_eq!(hex(&children), "ac020103ac020101c8018101");
    assert_eq!(hex(&ShardRecord { incarnation: 300, share: part_of(0) }), "ac02008020010001");
    let truncation = Truncation { layout: Layout::On(NodeId(3)), size: 300 };
    assert_eq!(hex(&truncation), "0303ac02");
}

fn hex(record: &impl Serialize) -> String {
    codec::encode(record).unwrap().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Regression: every home kept the record of a removed directory for the whole job.
#[test]
fn the_sealed_record_of_a_directory_is_removed_with_its_inode() {
    let mut map = Map::started();
    // As the only home, this one keeps not only the entries of the directory, but also its inode.
    let share = Share { count: 1, ..part_of(0) };
    map.run(&LogCommand::Start { roots: vec![InodeId::ROOT], share, uid: 1, gid: 2, now: at(1) }).unwrap();
    let Ok(Outcome::Created { target, .. }) = map.wire(create("dir", FileKind::Directory)) else {
        panic!("expected a new directory")
    };
    let dir = target.inode;
    let below = EntryName { dir, name: b"file".to_vec() };
    let attach = |target| Step::Attach { entry: below.clone(), sharded: false, target, replaces: None };
    let file = Target { inode: map.create("file"), kind: FileKind::File };
    map.step(1, 0, 0, attach(file)).unwrap();
    map.step(1, 1, 0, Step::Detach { entry: below.clone(), sharded: false, target: file }).unwrap();
    map.step(2, 0, 0, Step::Seal { dir, sharded: false }).unwrap();
    assert!(query::is_removed(&map, dir).unwrap(), "it is being removed");
    map.step(2, 1, 0, Step::Detach { entry: entry("dir"), sharded: false, target }).unwrap();
    // A process has it open: the inode stays for a while.
    let step = Step::DropLink { inode: dir };
    let operation = OperationId { home: HomeId(9), sequence: 2 };
    let command = Command::Step { operation, number: 2, step, by: None, finished: 0, now: at(5) };
    map.run(&LogCommand::Wire { command, inode_counter: 0, held: vec![dir], call: None }).unwrap();
    for forgotten in [false, true] {
        if forgotten {
            map.run(&LogCommand::Forget { inode: dir }).unwrap();
        }
        assert_eq!(query::directory(&map, dir).unwrap(), None);
        assert!(query::is_removed(&map, dir).unwrap());
        let late = [attach(file), Step::Seal { dir, sharded: false }];
        for (step, number) in late.into_iter().zip(0..) {
            let refused = map.step(3, number, 0, step).unwrap_err();
            assert_eq!(refused.errno, Errno::ENOENT);
        }
        let mut create = create("", FileKind::File);
        if let Command::Create { entry, .. } = &mut create {
            *entry = below.clone();
        }
        assert_eq!(map.wire(create).unwrap_err().errno, Errno::ENOENT);
    }
}

/// Homes other than the inode's keep the record; the test bounds its size.
#[test]
fn the_record_of_a_removed_directory_at_other_homes_is_small() {
    let mut map = Map::started();
    let dir = InodeId::in_slot(tameike_core::Slot(7), 1 << 40);
    let operation = OperationId { home: HomeId(4095), sequence: 1 << 40 };
    let (step, now) = (Step::Seal { dir, sharded: false }, at(1 << 33));
    map.wire(Command::Step { operation, number: 0, step, by: None, finished: 0, now }).unwrap();
    map.step(1, 0, u64::MAX, Step::DropLink { inode: dir }).unwrap();
    let seal_record = query::directory(&map, dir).unwrap().expect("the record stays at other homes");
    assert_eq!(seal_record.sealed, Some(operation));
    let key = key::directory(dir);
    assert!(key.len() + map.0[&key].len() <= 48, "{} bytes", key.len() + map.0[&key].len());
}

/// A repeated call finds its result until the caller has ended it.
#[test]
fn results_of_calls_are_kept_until_their_caller_has_ended_them() {
    let mut map = Map::started();
    let call = |number, finished| {
        let number = CallNumber { number, finished };
        NumberedCall { node: NodeId(3), incarnation: 9, number }
    };
    let make = |map: &mut Map, name, call: NumberedCall| {
        let (command, inode_counter) = (create(name, FileKind::File), call.number.number);
        map.run(&LogCommand::Wire { command, inode_counter, held: Vec::new(), call: Some(call) })
    };
    let first = make(&mut map, "a", call(1, 1)).unwrap().outcome;
    make(&mut map, "b", call(2, 1)).unwrap();
    let found = |map: &Map, call| query::call(map, &call).unwrap();
    assert_eq!(found(&map, call(1, 1)), Some(CallRecord::Outcome(first)));
    assert_eq!(found(&map, call(3, 1)), None);
    make(&mut map, "c", call(3, 2)).unwrap();
    assert_eq!(make(&mut map, "d", call(1, 1)).unwrap_err().errno, Errno::ESTALE);
    assert_eq!(found(&map, call(1, 1)), None);
    assert!(found(&map, call(2, 2)).is_some() && found(&map, call(3, 2)).is_some());
    let operation = OperationId { home: HomeId(0), sequence: 5 };
    let (held, decision, now) = (Vec::new(), Decision::default(), at(3));
    map.run(&LogCommand::Decide { operation, decision, held, now, call: Some(call(4, 4)) }).unwrap();
    assert_eq!(found(&map, call(4, 4)), Some(CallRecord::Decided { sequence: 5 }));
    assert_eq!(found(&map, call(3, 4)), None);
}
