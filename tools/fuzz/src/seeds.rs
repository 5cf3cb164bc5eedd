//! The seeds of the corpus: real encodings, from the golden bytes of the messages, the documents, and the encoders.

use serde::Serialize;
use std::path::PathBuf;
use tameike::driver::protocol::{ClientRequest, DriverReply, Launch};
use tameike::place::record::{DeviceOwner, JobRecord, JobState, NodeState};
use tameike::settings::JobPlan;
use tameike::settings::capacity::Capacity;
use tameike::settings::hostfile::HostSpec;
use tameike_agent::control::{
    AgentAnswer, AgentCommand, AgentMode, AgentReply, AgentRequest, AgentStart, Aggregate, AggregateChoice,
    CONTROL_VERSION, DeviceStart, FabricChoice, Isolation, NodeRecord, Progress, Secret, Undrained,
};
use tameike_agent::keepers::{Keeper, Keepers, Keeping, KeptRecord, Term};
use tameike_core::changes::{Change, Changes, Content, NumberedChange};
use tameike_core::patch::{Difference, PAGE_SIZE, PatchWriter, RECORD_SIZE_MAX};
use tameike_core::receipt::{FileOutcome, FileReceipt, Receipt};
use tameike_core::wire::call::{
    CallId, CallNumber, Carriage, ExtentLocation, ReplyHeader, RequestHeader, Run, Scope,
};
use tameike_core::wire::codec;
use tameike_core::wire::endpoint::{Endpoint, TOKEN_SIZE};
use tameike_core::wire::meta::{Command, EntryName, NewInode};
use tameike_core::{
    CoreSet, FileKind, Generation, HomeId, InodeId, JobId, Layout, MapEpoch, NodeId, NodeInfo, Timestamp,
    View,
};
use tameike_store::fuzz::MemoryTable;
use tameike_store::meta::record::Share;
use tameike_store::meta::{self, LogCommand};
use tameike_store::table::HomeTable;

/// Target, name of the seed, bytes.
pub type Seed = (&'static str, String, Vec<u8>);

/// Tests of messages: name, kind of message (0 request, 1 reply), bytes that stand before.
const GOLDEN: [(&str, usize, &str); 18] = [
    ("the_kinds_of_message", 0, ""),
    ("the_kinds_of_reply", 1, ""),
    ("requests_to_the_metadata_service", 0, "00"),
    ("replies_of_the_metadata_service", 1, "00"),
    ("commands_of_the_metadata_service", 0, "000d"),
    ("operations_on_names", 0, "000e"),
    ("requests_to_the_unit_service", 0, "01"),
    ("replies_of_the_unit_service", 1, "01"),
    ("requests_to_coordinators", 0, "02"),
    ("replies_of_coordinators", 1, "02"),
    ("requests_to_agents", 0, "03"),
    ("replies_of_agents", 1, "03"),
    ("requests_to_views", 0, "04"),
    ("requests_for_locks", 0, "05"),
    ("replies_of_lock_services", 1, "06"),
    ("replies_of_views", 1, "05"),
    ("requests_to_coordinators_of_regions", 0, "07"),
    ("replies_of_coordinators_of_regions", 1, "08"),
];
const GOLDEN_TESTS: &str = concat!(
    include_str!("../../../crates/core/src/wire/tests.rs"),
    include_str!("../../../crates/core/src/wire/tests/client.rs"),
    include_str!("../../../crates/core/src/wire/tests/region.rs"),
);
/// A container: header, subfile with two lanes in blocks of 4 KiB behind a header of the same size, index.
const CONTAINER: [&[u8]; 3] = [
    include_bytes!("../../../crates/container/tests/golden/container-1-zstd/container"),
    include_bytes!("../../../crates/container/tests/golden/container-1-zstd/00000000.data"),
    include_bytes!("../../../crates/container/tests/golden/container-1-zstd/index"),
];
const CONFIGURATION: &str = include_str!("../../../docs/configuration.md");
const NOW: Timestamp = Timestamp { seconds: 7, nanoseconds: 0 };

fn bytes_of(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks(2);
    digits.filter_map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

/// The hexadecimal strings of a test.
fn golden_of(test: &str) -> Vec<&'static str> {
    let start = GOLDEN_TESTS.find(&format!("fn {test}()")).map_or(GOLDEN_TESTS, |at| &GOLDEN_TESTS[at..]);
    let body = start.split("\n}\n").next().unwrap_or_default();
    let strings = body.split('"').skip(1).step_by(2);
    strings.filter(|text| text.len() >= 2 && text.bytes().all(|byte| byte.is_ascii_hexdigit())).collect()
}

fn encoded<T: Serialize>(value: &T) -> Vec<u8> {
    codec::encode(value).expect("small")
}

fn messages() -> Vec<Seed> {
    let id = CallId { epoch: 300, slot: 2, sequence: 5 };
    let request = encoded(&RequestHeader {
        id,
        source: Some((7, 128)),
        target: None,
        places: true,
        scope: Scope::Home(HomeId(130), MapEpoch(129)),
        number: Some(CallNumber { number: 131, finished: 4 }),
    });
    let place = ExtentLocation { runs: vec![Run { at: 4096, length: 8192 }], digest: 129, time: 130 };
    let reply = encoded(&ReplyHeader { id, carriage: Carriage::Placed(place) });
    let mut seeds = Vec::new();
    for (test, kind, before) in GOLDEN {
        let (target, header) = [("request", &request), ("reply", &reply)][kind];
        for (number, golden) in golden_of(test).into_iter().enumerate() {
            let bytes = [header.as_slice(), &bytes_of(before), &bytes_of(golden)].concat();
            seeds.push((target, format!("{test}-{number:02}"), bytes));
        }
    }
    seeds
}

fn created(dir: InodeId, name: &str, kind: FileKind, inode_counter: u64) -> LogCommand {
    let symlink = if kind == FileKind::Symlink { b"to".to_vec() } else { Vec::new() };
    let new = NewInode { kind, mode: 0o644, uid: 1, gid: 1, rdev: 0, layout: Layout::Striped, symlink };
    let entry = EntryName { dir, name: name.as_bytes().to_vec() };
    let command = Command::Create { entry, new, exclusive: true, opener: None, sharded: false, now: NOW };
    LogCommand::Wire { command, inode_counter: 1 << 32 | inode_counter, held: Vec::new(), call: None }
}

/// A short history of the metadata state machine.
fn commands() -> Vec<LogCommand> {
    let share = Share { home: HomeId(0), count: 1, pinned: vec![NodeId(0)], founders: 1 };
    vec![
        LogCommand::Start { roots: vec![InodeId::ROOT], share, uid: 1, gid: 1, now: NOW },
        created(InodeId::ROOT, "file", FileKind::File, 1),
        created(InodeId::ROOT, "dir", FileKind::Directory, 2),
        created(InodeId::ROOT, "link", FileKind::Symlink, 3),
        LogCommand::Forget { inode: InodeId::ROOT },
        LogCommand::End { sequence: 5 },
        LogCommand::Spilled { inode: InodeId::ROOT, generation: Generation(1) },
        LogCommand::Spilling { inode: InodeId::ROOT },
    ]
}

fn pairs(table: &MemoryTable) -> Vec<u8> {
    let pair =
        |(key, value): (&Vec<u8>, &Vec<u8>)| [&[key.len() as u8, value.len() as u8][..], key, value].concat();
    table.0.iter().flat_map(pair).collect()
}

fn store() -> Vec<Seed> {
    let commands = commands();
    let mut table = MemoryTable::default();
    for command in &commands {
        // Some of them have nothing to do here.
        let mut changed = table.clone();
        if meta::apply(&mut HomeTable::new(HomeId(0), &mut changed), command).is_ok() {
            table = changed;
        }
    }
    let one = |command: &LogCommand| {
        let bytes = encoded(command);
        [&[bytes.len() as u8][..], &bytes].concat()
    };
    let unit = bytes_of("010902008827804088400164ac020200ac0207088941f9988941f9980282018001047f6b1842");
    let key = bytes_of("7580000000000001020000000000000003");
    let mut units = MemoryTable(std::iter::once((key.clone(), unit.clone())).collect());
    units.0.insert(bytes_of("7980000000000001020000000000000003"), Vec::new());
    let log = bytes_of(
        "0400000064e0e564070000000000000001626f647900000000fe6b3b7b0700000000000000000000000087a47817080000000000000003",
    );
    vec![
        ("log", "records".to_owned(), log),
        ("log", "torn".to_owned(), b"\x60\x03\x80some bodies of records, nine bytes each".to_vec()),
        ("log_command", "life".to_owned(), commands.iter().flat_map(one).collect()),
        ("table_values", "life".to_owned(), pairs(&table)),
        ("table_values", "unit".to_owned(), pairs(&units)),
        ("unit_record", "value".to_owned(), unit.clone()),
        ("unit_record", "logged".to_owned(), [key, unit].concat()),
        (
            "store_format",
            "ours".to_owned(),
            b"tameike-store 2 8d5ab4b2-5b6b-4ad9-9a2f-8b5b8d1cf0a1\n".to_vec(),
        ),
        ("store_format", "newer".to_owned(), b"tameike-store 2 x\n".to_vec()),
    ]
}

fn journal() -> Vec<Seed> {
    let records = tameike_server::fuzz::seeds();
    let named = |(target, name, bytes): (&'static str, &str, Vec<u8>)| (target, name.to_owned(), bytes);
    records.into_iter().map(named).collect()
}

fn machine() -> Vec<Seed> {
    let hello = tameike_fabric::fuzz::hello_seed();
    let endpoint = Endpoint {
        provider: "tcp".to_owned(),
        address: vec![2, 0, 0x1f, 0x90, 192, 0, 2, 1],
        token: [0xab; TOKEN_SIZE],
        memory_key: 1 << 40,
        memory_address: 1 << 20,
    };
    let endpoint = encoded(&endpoint);
    let mut seeds = vec![("hello", "ours".to_owned(), hello), ("endpoint", "ours".to_owned(), endpoint)];
    let headers = tameike_fabric::fuzz::header_seeds().into_iter();
    seeds.extend(headers.map(|(name, bytes)| ("frame_header", name.to_owned(), bytes)));
    let requests = tameike_fuse::fuzz::fuse_request_seeds();
    seeds.extend(requests.into_iter().map(|(name, bytes)| ("fuse_request", name.to_owned(), bytes)));
    seeds
}

fn ring() -> Vec<Seed> {
    let (requests, replies) = (tameike_ring::fuzz::request_seeds(), tameike_ring::fuzz::reply_seeds());
    let all = [
        ("ring_request", requests),
        ("ring_reply", replies),
        ("ring_greeting", tameike_ring::fuzz::greeting_seeds()),
        ("ring_extent_location", tameike_ring::fuzz::extent_location_seeds()),
    ];
    let seeds = |(target, seeds): (&'static str, Vec<(&str, Vec<u8>)>)| {
        seeds.into_iter().map(move |(name, bytes)| (target, name.to_owned(), bytes)).collect::<Vec<_>>()
    };
    all.into_iter().flat_map(seeds).collect()
}

fn settings() -> Vec<Seed> {
    let blocks = CONFIGURATION.split("```toml\n").skip(1);
    let examples = blocks.filter_map(|rest| rest.split("```").next());
    let config =
        examples.enumerate().map(|(number, text)| ("config", format!("example-{number}"), text.into()));
    let hosts = "alpha address=10.0.0.1 slots=4 # first\nbeta device=no group=2\n\ngamma\n";
    let short = "local = 4\ncapacity = \"1.5TB\"\nmemory = 1000000\n";
    config
        .chain([
            ("config", "short".to_owned(), short.into()),
            ("hostfile", "three".to_owned(), hosts.into()),
            ("hostfile", "list".to_owned(), "alpha,beta,[::1]".into()),
        ])
        .collect()
}

fn line<T: Serialize>(target: &'static str, name: &str, value: &T) -> Seed {
    (target, name.to_owned(), serde_json::to_vec(value).expect("plain data"))
}

fn node() -> NodeRecord {
    NodeRecord {
        node: NodeId(1),
        pid: 2,
        pid_start: 3,
        isolation: Isolation::UserNamespace,
        mounts: vec![(View::Cache, PathBuf::from("/mnt"))],
        volume: None,
    }
}

const LEFT: Undrained = Undrained { files: 1, bytes: 2, named: 3, names: 4, open: 5 };

fn job_record(job: JobId) -> JobRecord {
    JobRecord {
        plan: JobPlan {
            job,
            nodes: vec![HostSpec::new("localhost")],
            shared_dir: Some(PathBuf::from("/shared")),
            mirror: Some("site:/mirror".parse().expect("a target")),
            mirror_receipt: Some(PathBuf::from("/receipt")),
            volume: None,
            attached: None,
            aggregate: Aggregate::default(),
            capacity: Capacity::default(),
            device_root: PathBuf::from("/dev/shm"),
            memory: 4,
            region_memory: Some(5),
            fabric: FabricChoice::Auto,
            connections: None,
            no_peer_reads: false,
            coherent_mmap: true,
            cores: None,
            replicas: 2,
            no_ring: false,
            verify: true,
            keep_going: false,
            grace_s: 20,
            start_limit_s: 60,
            ssh: vec!["ssh".to_owned()],
            remote_program: PathBuf::from("/usr/bin/tameike"),
            base_dir: PathBuf::from("/tmp/tameike-0"),
        },
        state: JobState::Interrupted,
        started: 1,
        driver_pid: 2,
        driver_start: 3,
        driver_namespace: "user:[4]".to_owned(),
        nodes: vec![node()],
        founders: Some(1),
        gone: vec![2],
        map: None,
        unknown: vec!["u".to_owned()],
    }
}

fn device_owner(job: JobId) -> DeviceOwner {
    DeviceOwner {
        record: job_record(job.clone()),
        driver_is_here: true,
        job,
        node_dir: PathBuf::from("/tmp/tameike-0/job-1/node-1"),
        place: PathBuf::from("/tmp"),
        place_id: (1, 2),
        pid: 2,
        pid_start: 3,
    }
}

fn lines() -> Vec<Seed> {
    let job = JobId::new("job-1").expect("a name");
    let start = AgentStart {
        version: CONTROL_VERSION,
        job: job.clone(),
        node: NodeId(1),
        mode: AgentMode::Recover,
        volume: Some("data".to_owned()),
        secret: Secret([7; 32]),
        base_dir: PathBuf::from("/tmp/tameike-0"),
        listen: "127.0.0.1:0".to_owned(),
        fabric: FabricChoice::Tcp,
        connections: Some(9),
        no_peer_reads: true,
        coherent_mmap: true,
        cores: CoreSet::new([0, 2, 3]),
        replicas: 2,
        device: Some(DeviceStart { dir: PathBuf::from("/dev/shm/x"), ram: true }),
        capacity: [1, 2, 3],
        memory: 4,
        region_memory: 5,
        shared_dir: Some(PathBuf::from("/shared")),
        records_changes: true,
        aggregate: Aggregate { choice: AggregateChoice::Auto, size_max: 1 << 20, by_others: true },
        damage: vec!["lost".to_owned()],
    };
    let file = FileReceipt {
        path: "p".to_owned(),
        size: 300,
        written: 200,
        checksum: "c".to_owned(),
        note: String::new(),
        outcome: FileOutcome::Missing("why".to_owned()),
    };
    let receipt = Receipt { files: vec![file], faults: vec!["f".to_owned()], ..Receipt::default() };
    let answer = |reply| AgentAnswer { id: 7, reply };
    let launch = Launch {
        node: 1,
        cwd: PathBuf::from("/"),
        command: vec![std::ffi::OsString::from("true").into()],
        variables: Vec::new(),
        preload: true,
        environment: Vec::new(),
    };
    let state = NodeState {
        record: node(),
        node_count: 2,
        device_dir: Some(PathBuf::from("/dev/shm/x")),
        device_used: true,
        boot_id: "b".to_owned(),
    };
    let owner = device_owner(job);
    vec![
        line("control", "start", &start),
        line("control", "drain", &AgentCommand { id: 7, request: AgentRequest::Drain { verify: true } }),
        line("control", "stop", &stop()),
        line("control", "ready", &answer(ready())),
        line(
            "control",
            "keep",
            &AgentCommand { id: 9, request: AgentRequest::Keep(Box::new(kept_record())) },
        ),
        line("control", "receipt", &answer(AgentReply::Receipt(receipt.clone()))),
        line("control", "changes", &answer(AgentReply::Changes(changes()))),
        line("control", "stopped", &answer(AgentReply::Stopped(LEFT))),
        line("control", "launch", &ClientRequest::Launch(launch)),
        line("control", "progress", &DriverReply::Progress(Progress::default())),
        line("control", "answer", &DriverReply::Receipt(receipt)),
        line("records", "node", &state),
        line("records", "owner", &owner),
    ]
}

fn stop() -> AgentCommand {
    AgentCommand {
        id: 8,
        request: AgentRequest::Stop { grace_ms: 9, keep: true, discard: false, packer: Some(NodeId(1)) },
    }
}

fn ready() -> AgentReply {
    let keeper = Some(Keeper { node: NodeId(1), store: u64::MAX });
    AgentReply::Ready { node: node(), address: "a:1".to_owned(), keeper, running: Some(Secret([7; 32])) }
}

fn kept_record() -> KeptRecord<String> {
    let info = |id: u32| {
        let (host, address) = (format!("host{id}"), String::new());
        NodeInfo { id: NodeId(id), host, address, group: 0, device: true }
    };
    let stores = (0..3).map(|id| (NodeId(id), u64::from(id))).collect();
    let mut keeping = Keeping::new(Term(7));
    keeping.begin(Keepers::choose(&[0, 1, 2].map(info), &stores, &Keepers::default(), |_| true));
    keeping.record("{}".to_owned())
}

/// One change of each kind.
fn changes() -> Changes {
    let path =
        Change::Path { path: b"a\xff".to_vec(), inode: Some(InodeId(7)), content: Content::range(1..9) };
    let renamed = Change::Renamed { from: b"a".to_vec(), to: b"b".to_vec() };
    let numbered = |(number, change)| NumberedChange { number, age_ms: 5, change };
    let changes = (1..).zip([path, renamed, Change::Everything]).map(numbered).collect();
    Changes { changes, has_more: true }
}

/// Parts of a container.
fn containers() -> Vec<Seed> {
    let [header, subfile, index] = CONTAINER;
    let mut seeds = vec![("container_header", "golden".to_string(), header.to_vec())];
    for (number, block) in subfile[4096..].chunks(4096).enumerate() {
        seeds.push(("container_lane", format!("block-{number}"), block.to_vec()));
        seeds.push(("container_record", format!("block-{number}"), block.to_vec()));
    }
    let size = index.first_chunk().copied().map_or(0, u32::from_le_bytes) as usize;
    seeds.push(("container_page", "golden".to_string(), index[8..8 + size].to_vec()));
    seeds
}

/// Patches with one record of each form.
fn patches() -> Vec<Seed> {
    let before = [0; PAGE_SIZE];
    let changed: [fn(usize) -> bool; 3] = [|_| true, |byte| byte % 1000 < 3, |byte| byte % 2 == 0];
    let pages = changed.map(|changed| std::array::from_fn(|byte| u8::from(changed(byte))));
    let mut buffer = [0; 3 * RECORD_SIZE_MAX];
    let mut writer = PatchWriter::new(&mut buffer);
    for (number, after) in pages.iter().enumerate() {
        writer.push(300 * number as u32, &Difference::between(&before, after), after);
    }
    let length = writer.len();
    let short = [7, 0, 0, 0, 1, 0, 2, 0, 3, 0, 2, 0, 44, 1, 1, 0, 1, 2, 3];
    vec![
        ("patch", "forms".to_owned(), buffer[..length].to_vec()),
        ("patch", "runs".to_owned(), short.to_vec()),
    ]
}

/// Frames of a mirror.
fn mirror() -> Vec<Seed> {
    let [orders, replies] = tameike::mirror::fuzz::seeds();
    vec![("mirror", "orders".to_owned(), orders), ("mirror", "replies".to_owned(), replies)]
}

/// All seeds.
pub fn all() -> Vec<Seed> {
    let others =
        [patches(), store(), journal(), machine(), ring(), settings(), lines(), containers(), mirror()];
    [messages(), others.concat()].concat()
}
