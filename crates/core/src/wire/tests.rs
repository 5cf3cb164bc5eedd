//! Golden bytes: all variants of all messages. If a test fails, the format has changed. Before you change the bytes
//! here, make sure that agents of the two formats refuse each other (`PROTOCOL_VERSION`), and that neither reads stores
//! of the other.

mod client;
mod pack;
mod region;
mod replica;

use super::admin::{AdminReply, AdminRequest, Counter, FileHeld, FileHolders, NodeStatus, Space, Storm};
use super::cache::{CacheReply, CacheRequest, CacheState, Stamp, Writing};
use super::call::Run;
use super::client::{ClientReply, ClientRequest};
use super::codec::{decode, decode_first, encode};
use super::endpoint::Endpoint;
use super::holders::{Holder, HolderOutcome};
use super::lock::{Blocker, FileLock, LockKind, LockOwner, LockRange, LockReply, LockRequest, WaitEnd};
use super::measure::{Exchange, ExchangeReply};
use super::meta::{
    Closed, Closes, Command, DirEntry, DirStat, EntryName, MetaReply, MetaRequest, NameOperation, NewInode,
    Node, OpenId, Opener, RenameMode, Step, Target,
};
use super::pack::{PackReply, PackRequest};
use super::reclaim::{Reclaim, Reclaimed};
use super::region::{RegionReply, RegionRequest};
use super::replica::{ReplicaReply, ReplicaRequest};
use super::unit::{Backing, FlushEnd, Sought, SpaceChange, UnitDigest, UnitLocation, UnitReply, UnitRequest};
use super::{Reply, Request};
use crate::attr::{Attr, AttrChange, FileKind, SetTime, Timestamp};
use crate::cores::CoreSet;
use crate::errno::{Errno, Fault};
use crate::homes::{HomeMap, NodeInfo};
use crate::ids::{DirOffset, Generation, HomeId, InodeId, NodeId, OperationId, UnitId, View};
use crate::placement::Layout;
use serde::{Serialize, de::DeserializeOwned};
use std::collections::BTreeSet;
use std::fmt::Debug;

const NOW: Timestamp = Timestamp { seconds: -2, nanoseconds: 300 };
const NODE: NodeId = NodeId(200);
const WIDE: Layout = Layout::StripedOver(2);
const OPENER: Opener = Opener { node: NODE, open: OpenId(300) };
const GENERATION: Generation = Generation(9);
const TARGET: Target = Target { inode: INODE, kind: FileKind::Symlink };
/// Has more than seven bits, so that its encoding shows.
const INODE: InodeId = InodeId(0x1_0203);
const UNIT: UnitId = UnitId { inode: INODE, index: 130 };
const OPERATION: OperationId = OperationId { home: HomeId(5), sequence: 129 };
const STAMP: Stamp = Stamp { device: 1, inode: 2, size: 3, mtime: NOW, ctime: NOW };
const STATE: CacheState =
    CacheState { generation: GENERATION, newer: Some((128, NOW)), sparse: true, removing: false };
const HOLDER: Holder = Holder { node: NODE, requested: 300, delivered: 2 };
const HOLDER_OUTCOME: HolderOutcome = HolderOutcome { inode: INODE, holder: HOLDER };
const STAT: DirStat = DirStat { entries: 300, subdirs: 2, changed: NOW, sharded: true };
const SPACE: Space = Space { capacity: 300, used: 200, dirty: 100, inodes: 4 };
const OWNER: LockOwner = LockOwner { node: NODE, number: 130 };
const RANGE: LockRange = LockRange { start: 128, last: 300 };
const LOCK: FileLock = FileLock { owner: OWNER, range: RANGE, kind: LockKind::Exclusive, pid: 200 };
const DIGEST: UnitDigest = UnitDigest { index: 130, length: 129, root: true, value: [0xab; 32] };

fn entry() -> EntryName {
    EntryName { dir: InodeId(1), name: b"ab".to_vec() }
}

fn node(content: Option<&[u8]>) -> Node {
    let attr = Attr {
        inode: INODE,
        kind: FileKind::File,
        mode: 0o644,
        nlink: 1,
        uid: 1000,
        gid: 100,
        rdev: 0,
        size: 300,
        blocks: 8,
        atime: NOW,
        mtime: NOW,
        ctime: NOW,
        generation: GENERATION,
        layout: Layout::On(NODE),
        inline: true,
        sparse: true,
    };
    let holders = if content.is_some() { vec![HOLDER] } else { Vec::new() };
    Node { attr, content: content.map(|bytes| bytes.to_vec().into()), holders }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn check<T: Serialize + DeserializeOwned + PartialEq + Debug>(cases: &[(T, &str)]) {
    for (message, golden) in cases {
        let bytes = encode(message).expect("small");
        assert_eq!(hex(&bytes), *golden, "{message:?}");
        assert_eq!(decode::<T>(&bytes).as_ref(), Ok(message));
        let mut cut = bytes.clone();
        cut.pop();
        assert!(decode::<T>(&cut).is_err(), "{message:?} truncated by one byte");
        assert!(decode::<T>(&[&bytes[..], &[0]].concat()).is_err(), "{message:?} with a byte too many");
    }
    // A variant number followed by zeros always decodes, so unknown numbers are those without golden bytes.
    let known: BTreeSet<_> = cases.iter().map(|(_, golden)| golden[..2].to_owned()).collect();
    for variant in 0..128 {
        let mut bytes = [0; 256];
        bytes[0] = variant;
        let exists = decode_first::<T>(&bytes).is_ok();
        assert_eq!(exists, known.contains(&hex(&[variant])), "golden bytes of variant {variant}");
    }
}

fn storm() -> Storm {
    Storm { dir: "d".to_owned(), plain: 1, packed: 2, create_ns: 300 }
}

fn status() -> NodeStatus {
    NodeStatus {
        node: NODE,
        pid: 300,
        space: [SPACE, Space::default(), SPACE],
        resident_bytes: 400,
        cores: CoreSet::new([0, 2, 3]),
        frames: (1, 256),
        unreachable: vec![NODE],
        counters: vec![Counter { name: "n_bytes".to_owned(), value: 5 }],
        storms: vec![storm()],
    }
}

/// The first map of a job with one node.
fn map() -> HomeMap {
    let (host, address) = Default::default();
    let node = NodeInfo { id: NODE, host, address, group: 0, device: true };
    HomeMap::initial(&[node], 1).expect("a node")
}

#[test]
fn the_kinds_of_message() {
    check(&[
        (Request::Meta(MetaRequest::GetAttr { inode: INODE }), "0001838404"),
        (Request::Unit(UnitRequest::Sync { inode: INODE, durable: true }), "010283840401"),
        (Request::Cache(CacheRequest::Progress), "020b"),
        (Request::Admin(AdminRequest::Status), "0301"),
        (Request::Client(ClientRequest::Revoke { inodes: vec![INODE] }), "040001838404"),
        (Request::Lock(LockRequest::Blockers { inode: INODE, owner: OWNER }), "0505838404c8018201"),
        (Request::Pack(PackRequest::Forget), "060c"),
        (Request::Region(RegionRequest::Changes { region: INODE, after: 300 }), "0703838404ac02"),
        (Request::Replica(ReplicaRequest::Sync), "0807"),
        (Request::Reclaim(Reclaim::default()), "0900000000"),
    ]);
}

#[test]
fn the_kinds_of_reply() {
    check(&[
        (Reply::Meta(MetaReply::Done), "0000"),
        (Reply::Unit(UnitReply::Done), "0100"),
        (Reply::Cache(CacheReply::Done), "0200"),
        (Reply::Admin(AdminReply::Space(SPACE)), "0300ac02c8016404"),
        (Reply::Fault(Fault::new(Errno::ENOENT, "gone")), "040404676f6e65"),
        (Reply::Client(ClientReply::Done), "0500"),
        (Reply::Lock(LockReply::Done), "0600"),
        (Reply::Pack(PackReply::Done), "0700"),
        (Reply::Region(RegionReply::Done), "0800"),
        (
            Reply::OtherMap(map()),
            "090110c801c801c801c801c801c801c801c801c801c801c801c801c801c801c801c801100101010101010101010101010101010100000000",
        ),
        (Reply::Replica(ReplicaReply::Done), "0a00"),
        (Reply::Reclaimed(Reclaimed::default()), "0b00"),
    ]);
}

#[test]
fn requests_to_the_metadata_service() {
    check(&[
        (MetaRequest::Lookup { entry: entry(), sharded: true, view: true }, "00010261620101"),
        (MetaRequest::GetAttr { inode: INODE }, "01838404"),
        (MetaRequest::DirStat { dir: INODE }, "02838404"),
        (
            MetaRequest::ReadDir { dir: INODE, after: DirOffset(300), limit: 200, sharded: false },
            "03838404ac02c80100",
        ),
        (MetaRequest::GetContent { inode: INODE }, "04838404"),
        (MetaRequest::Parent { inode: INODE }, "05838404"),
        (MetaRequest::ReadLink { inode: INODE }, "06838404"),
        (MetaRequest::Open { inode: INODE, opener: OPENER }, "07838404c801ac02"),
        (
            MetaRequest::Close {
                node: NODE,
                homes: vec![Closes {
                    home: HomeId(5),
                    opens: vec![
                        Closed { open: OPENER.open, read: None },
                        Closed { open: OpenId(5), read: Some(NOW) },
                    ],
                    undone: vec![OpenId(7)],
                }],
                holder_outcomes: vec![HOLDER_OUTCOME],
            },
            "08c801010502ac0200050103ac02010701838404c801ac0202",
        ),
        (MetaRequest::Spill { inode: INODE }, "09838404"),
        (MetaRequest::Sync { durable: true }, "0a01"),
        (MetaRequest::GetXattr { inode: INODE, name: b"user.a".to_vec() }, "0b83840406757365722e61"),
        (MetaRequest::ListXattr { inode: INODE }, "0c838404"),
        (
            MetaRequest::Execute(Command::Commit { inode: INODE, end: 300, sparse: true, now: NOW }),
            "0d02838404ac020103ac02",
        ),
        (
            MetaRequest::Names {
                operation: NameOperation::Unlink { entry: entry() },
                sharded: true,
                now: NOW,
            },
            "0e00010261620103ac02",
        ),
    ]);
}

#[test]
fn replies_of_the_metadata_service() {
    check(&[
        (MetaReply::Done, "00"),
        (
            MetaReply::Entry { target: TARGET, node: None, created: true, dir: None, lease: true },
            "018384040200010001",
        ),
        (
            MetaReply::Entry { target: TARGET, node: None, created: false, dir: Some(STAT), lease: false },
            "0183840402000001ac020203ac020100",
        ),
        (
            MetaReply::Node(node(Some(b"xyz"))),
            "0283840400a40301e8076400ac020803ac0203ac0203ac020903c8010101010378797a01c801ac0202",
        ),
        (MetaReply::DirStat(STAT), "03ac020203ac0201"),
        (
            MetaReply::Entries {
                entries: vec![DirEntry { offset: DirOffset(300), name: b"n".to_vec(), target: TARGET }],
                end: true,
            },
            "0401ac02016e8384040201",
        ),
        (MetaReply::Bytes(b"bytes".to_vec().into()), "05056279746573"),
        (MetaReply::Names(vec![b"a".to_vec().into(), b"bc".to_vec().into()]), "06020161026263"),
        (
            MetaReply::Reserved { offset: 300, attr: node(None).attr },
            "07ac0283840400a40301e8076400ac020803ac0203ac0203ac020903c8010101",
        ),
        (MetaReply::Parent(INODE), "08838404"),
        (MetaReply::UndoOutcome { applied: true }, "0901"),
        (MetaReply::Sharding { sharded: true }, "0a01"),
        (MetaReply::DirChanged(STAT), "0bac020203ac0201"),
    ]);
}

fn new_symlink() -> NewInode {
    NewInode {
        kind: FileKind::Symlink,
        mode: 0o777,
        uid: 1000,
        gid: 100,
        rdev: 0,
        layout: Layout::StripedOver(3),
        symlink: b"to".to_vec(),
    }
}

#[test]
fn commands_of_the_metadata_service() {
    check(&[
        (
            Command::Create {
                entry: entry(),
                new: new_symlink(),
                exclusive: true,
                opener: Some(OPENER),
                sharded: false,
                now: NOW,
            },
            "000102616202ff03e8076400010302746f0101c801ac020003ac02",
        ),
        (
            Command::SetAttr {
                inode: INODE,
                change: AttrChange {
                    mode: Some(0o600),
                    uid: Some(1),
                    gid: Some(2),
                    size: Some(300),
                    atime: Some(SetTime::Now),
                    mtime: Some(SetTime::To(NOW)),
                    layout: Some(Layout::Local),
                },
                now: NOW,
            },
            "018384040180030101010201ac020100010103ac02010203ac02",
        ),
        (
            Command::SetAttr { inode: INODE, change: AttrChange::default(), now: NOW },
            "018384040000000000000003ac02",
        ),
        (Command::Commit { inode: INODE, end: 300, sparse: true, now: NOW }, "02838404ac020103ac02"),
        (
            Command::WriteInline { inode: INODE, offset: 200, data: b"data".to_vec(), now: NOW },
            "03838404c801046461746103ac02",
        ),
        (Command::Reserve { inode: INODE, length: 300, now: NOW }, "04838404ac0203ac02"),
        (
            Command::SetXattr {
                inode: INODE,
                name: b"n".to_vec(),
                value: b"vw".to_vec(),
                create: true,
                replace: false,
                now: NOW,
            },
            "05838404016e027677010003ac02",
        ),
        (Command::RemoveXattr { inode: INODE, name: b"n".to_vec(), now: NOW }, "06838404016e03ac02"),
        (
            Command::Step {
                operation: OPERATION,
                number: 3,
                step: Step::LockTree,
                by: Some(NODE),
                finished: 128,
                now: NOW,
            },
            "07058101030701c801800103ac02",
        ),
        (Command::SetDirTime { dir: INODE, sharded: true, changed: NOW }, "088384040103ac02"),
    ]);
}

#[test]
fn steps_of_operations() {
    check(&[
        (Step::AddLink { inode: INODE }, "00838404"),
        (Step::DropLink { inode: INODE }, "01838404"),
        (Step::Seal { dir: INODE, sharded: true }, "0283840401"),
        (
            Step::Attach { entry: entry(), sharded: true, target: TARGET, replaces: Some(TARGET) },
            "030102616201838404020183840402",
        ),
        (Step::Detach { entry: entry(), sharded: false, target: TARGET }, "04010261620083840402"),
        (Step::SetParent { dir: INODE, parent: InodeId(1) }, "0583840401"),
        (Step::NotBelow { dir: INODE, ancestor: InodeId(1) }, "0683840401"),
        (Step::LockTree, "07"),
        (Step::UnlockTree, "08"),
        (
            Step::Receive { dir: INODE, entries: vec![(b"n".to_vec().into(), TARGET)] },
            "0983840401016e83840402",
        ),
        (Step::Undo { number: 200 }, "0ac801"),
        (Step::Touch { target: TARGET }, "0b83840402"),
    ]);
}

#[test]
fn operations_on_names() {
    check(&[
        (NameOperation::Unlink { entry: entry() }, "0001026162"),
        (NameOperation::Rmdir { entry: entry() }, "0101026162"),
        (NameOperation::Link { entry: entry(), target: TARGET }, "020102616283840402"),
        (
            NameOperation::Rename { from: entry(), to: entry(), mode: RenameMode::Replace },
            "03010261620102616200",
        ),
        (
            NameOperation::Rename { from: entry(), to: entry(), mode: RenameMode::NoReplace },
            "03010261620102616201",
        ),
        (
            NameOperation::Rename { from: entry(), to: entry(), mode: RenameMode::Exchange },
            "03010261620102616202",
        ),
    ]);
}

#[test]
#[expect(clippy::too_many_lines, reason = "one line and its bytes for each request")]
fn requests_to_the_unit_service() {
    let flush = |ending| UnitRequest::Flush {
        inode: INODE,
        path: b"p/q".to_vec(),
        size: 300,
        generation: GENERATION,
        patient: true,
        distrust: false,
        round: 300,
        ending,
    };
    let (units, ranges) = (vec![0, 130], [300..500, 600..700].into_iter().collect());
    check(&[
        (
            UnitRequest::Write { unit: UNIT, ranges, generation: GENERATION },
            "00838404820102ac02f403d804bc0509",
        ),
        (
            UnitRequest::Read {
                unit: UNIT,
                offset: 300,
                length: 200,
                generation: GENERATION,
                backing: Backing::Zeros,
            },
            "018384048201ac02c8010900",
        ),
        (
            UnitRequest::Read {
                unit: UNIT,
                offset: 0,
                length: 1,
                generation: GENERATION,
                backing: Backing::Shared { path: b"p".to_vec(), holders: vec![NODE] },
            },
            "01838404820100010901017001c801",
        ),
        (UnitRequest::Sync { inode: INODE, durable: false }, "0283840400"),
        (UnitRequest::Truncate { inode: INODE, size: 300 }, "03838404ac02"),
        (flush(None), "0483840403702f71ac02090100ac0200"),
        (flush(Some(FlushEnd { mtime: Some(NOW) })), "0483840403702f71ac02090100ac02010103ac02"),
        (UnitRequest::DirtyInodes { coordinator: NODE, after: INODE, limit: 300 }, "05c801838404ac02"),
        (
            UnitRequest::Digest { inode: INODE, path: b"p".to_vec(), size: 300, units: vec![0, 130] },
            "068384040170ac0202008201",
        ),
        (UnitRequest::MarkClean { inode: INODE, round: 300 }, "07838404ac02"),
        (
            UnitRequest::Space { inode: INODE, change: SpaceChange::Zero, start: 1, end: 300, layout: WIDE },
            "088384040201ac020102",
        ),
        (
            UnitRequest::Seek { inode: INODE, sought: Sought::Hole, start: 300, layout: WIDE },
            "0983840401ac020102",
        ),
        (UnitRequest::Usage { inode: INODE }, "0a838404"),
        (
            UnitRequest::Locations { inode: INODE, units: units.clone(), generation: GENERATION },
            "0b8384040200820109",
        ),
        (
            UnitRequest::Load {
                inode: INODE,
                units,
                size: 300,
                generation: GENERATION,
                path: b"a".to_vec(),
                loading: 300,
            },
            "0c83840402008201ac02090161ac02",
        ),
        (UnitRequest::WaitForSpace { attempt: 300 }, "0dac02"),
        (
            UnitRequest::Save {
                inode: INODE,
                dir: b"d".to_vec(),
                path: b"p".to_vec(),
                generation: GENERATION,
            },
            "0e8384040164017009",
        ),
        (UnitRequest::Patch { inode: INODE, layout: WIDE }, "0f8384040102"),
        (UnitRequest::FetchAdd { unit: UNIT, offset: 300, addend: 200 }, "108384048201ac02c801"),
    ]);
}

#[test]
fn replies_of_the_unit_service() {
    check(&[
        (UnitReply::Done, "00"),
        (UnitReply::Read, "01"),
        (
            UnitReply::Flushed { written: 300, end: 400, digests: vec![DIGEST], rest: true, left: None },
            "02ac029003018201810101abababababababababababababababababababababababababababababababab0100",
        ),
        (
            UnitReply::Flushed { written: 0, end: 0, digests: Vec::new(), rest: false, left: Some(STAMP) },
            "02000000000101020303ac0203ac02",
        ),
        (UnitReply::DirtyInodes(vec![INODE]), "0301838404"),
        (
            UnitReply::Digests(vec![DIGEST]),
            "04018201810101abababababababababababababababababababababababababababababababab",
        ),
        (UnitReply::Found { at: 300, found: true }, "05ac0201"),
        (UnitReply::Usage(300), "06ac02"),
        (
            UnitReply::Locations(vec![
                None,
                Some(UnitLocation {
                    runs: vec![Run { at: 4096, length: 8192 }],
                    sums: vec![1, 2, 3, 4],
                    time: 300,
                }),
            ]),
            "0702000101802080400401020304ac02",
        ),
        (UnitReply::Loaded { held: 300, left_out: 5 }, "08ac0205"),
        (UnitReply::Previous(300), "09ac02"),
    ]);
}

#[test]
fn requests_to_coordinators() {
    check(&[
        (CacheRequest::State { inode: INODE, size: 300, mtime: NOW }, "00838404ac0203ac02"),
        (
            CacheRequest::Open {
                inode: INODE,
                path: b"p".to_vec(),
                stamp: STAMP,
                holder_outcomes: vec![HOLDER_OUTCOME],
                holds: true,
                made: true,
            },
            "01838404017001020303ac0203ac0201838404c801ac02020101",
        ),
        (
            CacheRequest::Dirty { inode: INODE, path: b"p".to_vec(), stamp: STAMP, writes: true, reach: 300 },
            "02838404017001020303ac0203ac0201ac02",
        ),
        (CacheRequest::Commit { inode: INODE, end: 300, sparse: false, now: NOW }, "03838404ac020003ac02"),
        (CacheRequest::Reserve { inode: INODE, length: 300, now: NOW }, "04838404ac0203ac02"),
        (CacheRequest::Truncate { inode: INODE, size: 300, now: NOW }, "05838404ac0203ac02"),
        (CacheRequest::SetMtime { inode: INODE, mtime: NOW }, "0683840403ac02"),
        (CacheRequest::Renamed { inode: None, from: b"a".to_vec(), to: b"b".to_vec() }, "070001610162"),
        (CacheRequest::Removed { inode: INODE }, "08838404"),
        (CacheRequest::Flush { inode: INODE }, "09838404"),
        (CacheRequest::Writeback { inode: INODE }, "0a838404"),
        (CacheRequest::Progress, "0b"),
        (CacheRequest::Removing { inode: INODE }, "0c838404"),
        (CacheRequest::Kept { inode: INODE }, "0e838404"),
        (
            CacheRequest::Space {
                inode: INODE,
                change: SpaceChange::Punch,
                start: 1,
                end: 300,
                grows: true,
                now: NOW,
            },
            "0d8384040101ac020103ac02",
        ),
        (CacheRequest::Locate { inode: INODE }, "0f838404"),
        (CacheRequest::Writing { inode: INODE, what: Writing::Begins { reach: 300 } }, "1083840400ac02"),
        (CacheRequest::Writing { inode: INODE, what: Writing::Ends }, "1083840401"),
        (CacheRequest::Writing { inode: INODE, what: Writing::Interrupted }, "1083840402"),
        (
            CacheRequest::RenameEnded {
                inode: Some(INODE),
                from: b"a".to_vec(),
                to: b"b".to_vec(),
                is_renamed: true,
            },
            "11018384040161016201",
        ),
    ]);
}

#[test]
fn replies_of_coordinators() {
    check(&[
        (CacheReply::Done, "00"),
        (CacheReply::State(STATE), "010901800103ac020100"),
        (CacheReply::Reserved { offset: 300, state: STATE }, "02ac020901800103ac020100"),
        (CacheReply::Progress { files: 1, bytes: 300, flushed: 200 }, "0301ac02c801"),
        (CacheReply::Located { path: b"p".to_vec() }, "040170"),
        (CacheReply::Opened { state: STATE, holders: vec![HOLDER] }, "050901800103ac02010001c801ac0202"),
    ]);
}

#[test]
fn requests_to_agents() {
    check(&[
        (AdminRequest::Space { view: View::NodeLocal }, "0000"),
        (AdminRequest::Space { view: View::JobShared }, "0001"),
        (AdminRequest::Space { view: View::Cache }, "0002"),
        (AdminRequest::Status, "01"),
        (AdminRequest::Failed { node: NODE }, "02c801"),
        (AdminRequest::Exchange(Exchange::Begin { session: 300, size: 5 }), "0300ac0205"),
        (AdminRequest::Exchange(Exchange::Take { session: 300, size: 5, whole: true }), "0301ac020501"),
        (AdminRequest::Exchange(Exchange::Echo { session: 300, size: 5, whole: false }), "0302ac020500"),
        (AdminRequest::Exchange(Exchange::Give { session: 300 }), "0303ac02"),
        (AdminRequest::Exchange(Exchange::Send { session: 300, windows: 2, window: 64 }), "0304ac020240"),
        (AdminRequest::Exchange(Exchange::End), "0305"),
        (AdminRequest::Files(vec![INODE]), "0401838404"),
        (AdminRequest::MostRequested { count: 300 }, "05ac02"),
        (
            AdminRequest::Map(map()),
            "060110c801c801c801c801c801c801c801c801c801c801c801c801c801c801c801c801100101010101010101010101010101010100000000",
        ),
    ]);
}

#[test]
fn replies_of_agents() {
    check(&[
        (AdminReply::Space(SPACE), "00ac02c8016404"),
        (
            AdminReply::Status(Box::new(status())),
            "01c801ac02ac02c801640400000000ac02c801640490030105302c322d3301800201c80101076e5f6279746573050101640102ac02",
        ),
        (AdminReply::Done, "02"),
        (AdminReply::Exchange(ExchangeReply::Begun { grant: 300 }), "0300ac02"),
        (AdminReply::Exchange(ExchangeReply::Done), "0301"),
        (
            AdminReply::Files(vec![FileHeld {
                memory_bytes: 300,
                device_bytes: 5,
                is_partial: true,
                table: Some(FileHolders {
                    generation: GENERATION,
                    holders: vec![Holder { node: NodeId(2), requested: 300, delivered: 4 }],
                }),
                path: b"a".to_vec(),
            }]),
            "0401ac02050101090102ac02040161",
        ),
        (AdminReply::MostRequested(vec![(INODE, 300)]), "0501838404ac02"),
    ]);
}

#[test]
fn requests_for_locks() {
    let shared = FileLock { kind: LockKind::Shared, ..LOCK };
    let end = |end| LockRequest::EndWait { inode: INODE, ticket: 129, end };
    check(&[
        (LockRequest::Test { inode: INODE, lock: shared }, "00838404c80182018001ac0200c801"),
        (
            LockRequest::Lock { inode: INODE, lock: LOCK, ticket: 129, wait: true },
            "01838404c80182018001ac0201c801810101",
        ),
        (LockRequest::Unlock { inode: INODE, owner: OWNER, range: RANGE }, "02838404c80182018001ac02"),
        (end(WaitEnd::Interrupted), "03838404810100"),
        (end(WaitEnd::Deadlock), "03838404810101"),
        (end(WaitEnd::Overtake), "03838404810102"),
        (
            LockRequest::Withdraw { inode: INODE, owner: OWNER, range: RANGE, ticket: 129 },
            "04838404c80182018001ac028101",
        ),
        (LockRequest::Blockers { inode: INODE, owner: OWNER }, "05838404c8018201"),
    ]);
}

#[test]
fn replies_of_lock_services() {
    let blocker = Blocker { ticket: 129, owner: OWNER, holds: true };
    check(&[
        (LockReply::Done, "00"),
        (LockReply::Conflict(None), "0100"),
        (LockReply::Conflict(Some(LOCK)), "0101c80182018001ac0201c801"),
        (LockReply::Blockers(vec![blocker]), "02018101c801820101"),
    ]);
}

#[test]
fn kinds_of_file() {
    check(&[
        (FileKind::File, "00"),
        (FileKind::Directory, "01"),
        (FileKind::Symlink, "02"),
        (FileKind::Fifo, "03"),
        (FileKind::Socket, "04"),
        (FileKind::CharacterDevice, "05"),
        (FileKind::BlockDevice, "06"),
    ]);
}

#[test]
fn layouts() {
    check(&[
        (Layout::Striped, "00"),
        (Layout::StripedOver(300), "01ac02"),
        (Layout::Local, "02"),
        (Layout::On(NODE), "03c801"),
    ]);
}

#[test]
fn endpoints() {
    let (provider, address, token) = ("tcp".to_owned(), b"ab".to_vec(), [0xab; 16]);
    let endpoint = Endpoint { provider, address, token, memory_key: 300, memory_address: 5 };
    let bytes = encode(&endpoint).expect("small");
    assert_eq!(hex(&bytes), "03746370026162ababababababababababababababababac0205");
    assert_eq!(decode::<Endpoint>(&bytes), Ok(endpoint));
}
