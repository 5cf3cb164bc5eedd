//! Two data engines over a small test double of the homes, with random message delays.

mod dropped;
mod flushes;
mod gathered;
mod grants;
mod holders;
mod locations;
mod overtaken;
mod replacement;
mod sparse;
mod waiting;

use super::*;
use crate::fixtures;
use crate::types::FrameBytes;
use futures_util::future::Either;
use parking_lot::Mutex;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::Range;
use tameike_core::attr::AttrChange;
use tameike_core::limits::INLINE_SIZE_MAX;
use tameike_core::wire::meta::{Command, MetaReply, MetaRequest, Node};
use tameike_core::wire::unit::{UnitReply, UnitRequest};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Attr, Errno, Generation, MapEpoch, NodeId, Slot, Timestamp, UnitId};
use tameike_fabric::{Answer, Destination};
use tameike_io::disk::HostDevice;
use tameike_io::os::simulated::Simulation;
use tameike_io::{Frame, Payload, Slab};

const INODE: InodeId = InodeId(7);

struct Inode {
    attr: Attr,
    content: Option<Vec<u8>>,
}

/// The homes of all objects of one file.
#[derive(Default)]
struct Homes {
    inode: Option<Inode>,
    units: BTreeMap<UnitId, Vec<u8>>,
    failing: bool,
    /// True if the inode's home is unreachable.
    is_down: bool,
    /// Written ranges, by unit.
    held: BTreeMap<u64, tameike_core::ranges::RangeSet>,
    /// Number of write messages.
    writes: u32,
    /// True after a commit that reports holes.
    sparse: bool,
    /// Requests in flight: current and peak.
    in_flight: (usize, usize),
    device: locations::Device,
    peers: holders::Peers,
}

struct HomesRpc {
    node: NodeId,
    runtime: Runtime,
    pool: Pool,
    homes: Arc<Mutex<Homes>>,
}

impl Homes {
    fn serve(
        &mut self,
        node: NodeId,
        request: Request,
        payload: Option<Payload>,
    ) -> Result<(Reply, Vec<u8>)> {
        match request {
            Request::Unit(UnitRequest::Write { .. }) if self.failing => Err(Errno::ENOSPC.into()),
            Request::Unit(UnitRequest::Write { unit, ranges, .. }) => {
                let bytes = self.units.entry(unit).or_insert_with(|| vec![0; UNIT_SIZE]);
                let mut payload = &*payload.expect("a write carries a payload");
                for range in ranges.iter() {
                    let (piece, rest) = payload.split_at(range.len());
                    bytes[range.start as usize..range.end as usize].copy_from_slice(piece);
                    self.held.entry(unit.index).or_default().insert(range);
                    payload = rest;
                }
                assert!(payload.is_empty(), "the payload is as long as the ranges");
                self.writes += 1;
                Ok((Reply::Unit(UnitReply::Done), Vec::new()))
            }
            Request::Unit(UnitRequest::Read { unit, offset, length, .. }) => {
                let zeros = vec![0; UNIT_SIZE];
                let bytes = self.units.get(&unit).unwrap_or(&zeros);
                let range = offset as usize..(offset + length) as usize;
                Ok((Reply::Unit(UnitReply::Read), bytes[range].to_vec()))
            }
            Request::Unit(UnitRequest::Locations { units, .. }) => {
                Ok((Reply::Unit(locations::serve(self, units)), Vec::new()))
            }
            Request::Unit(request) => Ok((Reply::Unit(sparse::serve(self, node, request)), Vec::new())),
            Request::Meta(_) if self.is_down => Err(Errno::EHOSTDOWN.into()),
            Request::Meta(request) => Ok((Reply::Meta(self.serve_meta(request)?), Vec::new())),
            other => panic!("{other:?}"),
        }
    }

    fn serve_meta(&mut self, request: MetaRequest) -> Result<MetaReply> {
        let inode = self.inode.as_mut().expect("the inode exists");
        let attr = &mut inode.attr;
        match request {
            MetaRequest::Execute(Command::Commit { end, sparse, .. }) => {
                attr.size = attr.size.max(end);
                self.sparse |= sparse;
            }
            MetaRequest::Execute(Command::WriteInline { offset, data, .. }) => {
                let Some(content) = &mut inode.content else { return Err(Errno::EFBIG.into()) };
                let end = offset as usize + data.len();
                assert!(end <= INLINE_SIZE_MAX);
                content.resize(content.len().max(end), 0);
                content[offset as usize..end].copy_from_slice(&data);
                attr.size = attr.size.max(end as u64);
            }
            MetaRequest::Execute(Command::SetAttr { change, .. }) => {
                let size = change.size.expect("the tests set only sizes");
                let before = std::mem::replace(&mut attr.size, size);
                if let Some(content) = &mut inode.content {
                    content.resize(attr.size as usize, 0);
                }
                // Like the real home, growing a file leaves its units unchanged.
                for (unit, bytes) in self.units.iter_mut().filter(|_| attr.size < before) {
                    let keep = attr.size.saturating_sub(unit.start()).min(UNIT_SIZE as u64) as usize;
                    bytes[keep..].fill(0);
                }
            }
            MetaRequest::Spill { .. } => {
                if let Some(content) = inode.content.take() {
                    let unit = UnitId { inode: INODE, index: 0 };
                    let bytes = self.units.entry(unit).or_insert_with(|| vec![0; UNIT_SIZE]);
                    bytes[..content.len()].copy_from_slice(&content);
                }
                attr.inline = false;
                return Ok(MetaReply::Done);
            }
            MetaRequest::GetContent { .. } | MetaRequest::GetAttr { .. } => return Ok(inode.reply()),
            MetaRequest::Sync { .. } => return Ok(MetaReply::Done),
            other => panic!("{other:?}"),
        }
        attr.generation = attr.generation.next();
        Ok(inode.reply())
    }
}

impl Inode {
    fn reply(&self) -> MetaReply {
        let content = self.content.clone().map(serde_bytes::ByteBuf::from);
        MetaReply::Node(Node { content, ..Node::of(self.attr.clone()) })
    }
}

impl Rpc for HomesRpc {
    fn local(&self) -> NodeId {
        self.node
    }

    fn device_of(&self, _: NodeId) -> Option<Arc<HostDevice>> {
        let homes = self.homes.lock();
        (!homes.peers.are_far).then(|| homes.device.device.clone())
    }

    fn call(
        &self,
        to: Destination,
        request: Request,
        payload: Option<Payload>,
        into: Option<Frame>,
    ) -> futures_util::future::BoxFuture<'static, Result<Answer>> {
        let (runtime, homes, pool) = (self.runtime.clone(), self.homes.clone(), self.pool.clone());
        Box::pin(async move {
            let wait = homes.lock().peers.delay(&request, runtime.random_u64() % 1000);
            let frame = async move {
                match into {
                    Some(frame) => frame,
                    None => pool.take().await,
                }
            };
            {
                let (now, most) = &mut homes.lock().in_flight;
                *now += 1;
                *most = (*most).max(*now);
            }
            runtime.sleep(std::time::Duration::from_micros(wait)).await;
            if let Request::Client(request) = request {
                runtime.sleep(std::time::Duration::from_micros(wait)).await;
                homes.lock().in_flight.0 -= 1;
                return holders::serve(&homes, to.node(&fixtures::cluster(2)), request, frame.await);
            }
            // The network reads the payload at this point.
            payload.as_ref().map(Payload::sums);
            let served = homes.lock().serve(to.node(&fixtures::cluster(2)), request, payload);
            runtime.sleep(std::time::Duration::from_micros(wait)).await;
            homes.lock().in_flight.0 -= 1;
            let (reply, bytes) = served?;
            let mut frame = frame.await;
            frame[..bytes.len()].copy_from_slice(&bytes);
            let length = bytes.len() as u32;
            Ok(Answer { reply, payload: (length > 0).then(|| Payload::new(Arc::new(frame), 0..length)) })
        })
    }
}

struct Bench {
    simulation: Simulation,
    homes: Arc<Mutex<Homes>>,
    engines: Vec<Arc<DataEngine>>,
    tables: Vec<Arc<grants::RecordingTable>>,
    /// A frame for the tests themselves.
    spare: Pool,
}

impl Bench {
    fn new(seed: u64, frames: u32) -> Self {
        let simulation = Simulation::new(seed);
        let cluster = fixtures::cluster(2);
        let homes = Arc::new(Mutex::new(Homes::default()));
        let attr = fixtures::attr(InodeId::in_slot(Slot(0), 7));
        homes.lock().inode = Some(Inode { attr, content: Some(Vec::new()) });
        let slabs = [(); 2].map(|()| Slab::new(frames + 9).expect("a small slab"));
        let tables: Vec<_> = slabs.iter().map(grants::RecordingTable::new).collect();
        let engine = |id: u32| {
            let slab = &slabs[id as usize];
            let table: Arc<dyn FrameGranter> = tables[id as usize].clone();
            let runtime = simulation.runtime();
            let rpc = Arc::new(HomesRpc {
                node: NodeId(id),
                runtime: runtime.clone(),
                pool: slab.pool(8),
                homes: homes.clone(),
            });
            DataEngine::new(runtime, cluster.clone(), rpc, slab.pool(frames), Some(table))
        };
        let spare = slabs[0].pool(1);
        let engines = vec![engine(0), engine(1)];
        homes.lock().peers.engines = engines.iter().map(Arc::downgrade).collect();
        Self { engines, simulation, homes, tables, spare }
    }

    fn open(&self, node: usize) -> Arc<FileData> {
        let reply = self.homes.lock().inode.as_ref().expect("the inode exists").reply();
        let MetaReply::Node(found) = reply else { unreachable!() };
        let holders = holders::others(node);
        let version = FileVersion { holders, ..FileVersion::of_node(&found) };
        self.engines[node].open(INODE, Layout::Striped, Home::Inode, version, OpenMode::default()).0
    }

    /// Writes as a frontend does: a whole unit in a frame if one is free, else as much as possible without waiting, then the rest.
    fn write(&self, node: usize, file: &Arc<FileData>, offset: u64, data: Vec<u8>) {
        let engine = &self.engines[node];
        let frame = if data.len() == UNIT_SIZE { engine.frame_now() } else { None };
        let written = match frame {
            Some(mut frame) => {
                frame.copy_from_slice(&data);
                engine.write_now(file, offset, &FrameBytes::new(frame))
            }
            None => engine.write_now(file, offset, &data),
        };
        let written = written.expect("the write");
        let rest = engine.write(file, offset + written as u64, &data[written..]);
        self.simulation.run(rest).expect("the write");
    }

    fn read(&self, node: usize, file: &Arc<FileData>, offset: u64, length: u32) -> Vec<u8> {
        let read = self.engines[node].read(file, offset, length);
        self.simulation.run(read).expect("the read").to_vec()
    }

    fn flush(&self, node: usize, file: &Arc<FileData>) -> Result<()> {
        self.simulation.run(self.engines[node].flush(file, false))
    }

    fn truncate(&self, node: usize, file: &Arc<FileData>, size: u64) {
        let change = AttrChange { size: Some(size), ..AttrChange::default() };
        let command = Command::SetAttr { inode: INODE, change, now: Timestamp::default() };
        let resize = async { self.homes.lock().serve_meta(MetaRequest::Execute(command)) };
        self.simulation.run(self.engines[node].resize(file, size, resize)).expect("the truncation");
    }
}

#[derive(Clone, Debug)]
enum Operation {
    Write { node: usize, start: usize, length: usize },
    Read { node: usize, start: usize, length: usize },
    Flush { node: usize },
    Reopen { node: usize },
}

/// Offsets near limits: inline files, unit borders, several units.
fn place() -> impl Strategy<Value = usize> {
    let unit = (0..3usize).prop_map(|unit| unit * UNIT_SIZE);
    prop_oneof![0..6000usize, UNIT_SIZE - 3000..UNIT_SIZE + 3000, 0..3 * UNIT_SIZE, unit]
}

fn operation() -> impl Strategy<Value = Operation> {
    let length = prop_oneof![4 => 1..5000usize, 1 => Just(UNIT_SIZE)];
    let node = 0..2usize;
    prop_oneof![
        4 => (node.clone(), place(), length.clone()).prop_map(|(node, start, length)| Operation::Write { node, start, length }),
        4 => (node.clone(), place(), length).prop_map(|(node, start, length)| Operation::Read { node, start, length }),
        1 => node.clone().prop_map(|node| Operation::Flush { node }),
        1 => node.prop_map(|node| Operation::Reopen { node }),
    ]
}

/// Each byte has a version: the number of the last step that wrote it. Each node writes only alternate stripes of 1000 bytes, so that each
/// byte has one writer.
#[derive(Default)]
struct Model {
    /// Versions that the owner wrote.
    written: Vec<u8>,
    /// Versions that a flush has committed.
    flushed: Vec<u8>,
    /// Flushed versions at the node's last open.
    opened: [Vec<u8>; 2],
}

fn owned(node: usize, range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let stripes = range.start / 1000..range.end.div_ceil(1000);
    stripes
        .filter(move |stripe| stripe % 2 == node)
        .map(move |stripe| (stripe * 1000).max(range.start)..((stripe + 1) * 1000).min(range.end))
}

impl Model {
    fn write(&mut self, range: Range<usize>, version: u8) {
        self.written.resize(self.written.len().max(range.end), 0);
        self.written[range].fill(version);
    }

    fn flush(&mut self, node: usize) {
        self.flushed.resize(self.flushed.len().max(self.written.len()), 0);
        for range in owned(node, 0..self.written.len()) {
            self.flushed[range.clone()].copy_from_slice(&self.written[range]);
        }
    }

    /// A node's own bytes are exact; those of the other node are no older than at the open and no newer than written.
    fn check(&self, node: usize, start: usize, bytes: &[u8]) {
        for (place, &byte) in (start..).zip(bytes) {
            let of = |versions: &[u8]| versions.get(place).copied().unwrap_or(0);
            if (place / 1000) % 2 == node {
                assert_eq!(byte, of(&self.written), "own byte {place}");
            } else {
                assert!(byte >= of(&self.opened[node]), "byte {place} is stale");
                assert!(byte <= of(&self.written), "byte {place} was never written");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// S2a, S3a.
    #[test]
    fn two_nodes_agree(seed: u64, are_far: bool, operations in prop::collection::vec(operation(), 1..60)) {
        let bench = Bench::new(seed, 4);
        bench.homes.lock().peers.are_far = are_far;
        let mut files = [bench.open(0), bench.open(1)];
        let mut model = Model::default();
        for (step, operation) in operations.into_iter().enumerate() {
            let version = step as u8 + 1;
            match operation {
                Operation::Write { node, start, length } => {
                    for range in owned(node, start..start + length) {
                        bench.write(node, &files[node], range.start as u64, vec![version; range.len()]);
                        model.write(range, version);
                    }
                }
                Operation::Read { node, start, length } => {
                    let bytes = bench.read(node, &files[node], start as u64, length as u32);
                    model.check(node, start, &bytes);
                }
                Operation::Flush { node } => {
                    bench.flush(node, &files[node]).expect("the flush");
                    model.flush(node);
                }
                Operation::Reopen { node } => {
                    bench.flush(node, &files[node]).expect("the flush");
                    model.flush(node);
                    bench.engines[node].close(&files[node]);
                    files[node] = bench.open(node);
                    model.opened[node] = model.flushed.clone();
                }
            }
        }
    }
}

/// S4a, S4b.
#[test]
fn a_lost_write_is_reported_once_per_handle_and_not_readable() {
    let bench = Bench::new(1, 4);
    let file = bench.open(0);
    bench.write(0, &file, 0, vec![1; 10_000]);
    bench.flush(0, &file).expect("a good flush");
    let (writer, other) = (file.reported_faults(), file.reported_faults());
    bench.homes.lock().failing = true;
    bench.write(0, &file, 0, vec![2; 10_000]);
    assert_eq!(bench.flush(0, &file), Ok(()));
    bench.homes.lock().failing = false;
    let late = file.reported_faults();
    assert_eq!(file.check_full(&late), Ok(()));
    assert_eq!(file.report_faults(&late).expect_err("a full device").errno, Errno::ENOSPC);
    for handle in [&writer, &other] {
        assert_eq!(file.check_full(handle).expect_err("a full device").errno, Errno::ENOSPC);
        assert_eq!(file.report_faults(handle).expect_err("a full device").errno, Errno::ENOSPC);
        assert_eq!((file.report_faults(handle), file.check_full(handle)), (Ok(()), Ok(())));
    }
    assert_eq!(file.report_faults(&file.reported_faults()), Ok(()));
    assert_eq!(bench.flush(0, &file), Ok(()));
    assert_eq!(bench.read(0, &file, 0, 10_000), vec![1; 10_000]);
}

/// A node kept a size that a close had failed to commit, and finally reported it for another file that had been given the inode number.
#[test]
fn a_size_that_the_last_close_cannot_commit_is_dropped() {
    let bench = Bench::new(1, 4);
    let file = bench.open(0);
    bench.write(0, &file, 0, vec![1; 6000]);
    bench.flush(0, &file).expect("the flush");
    bench.write(0, &file, 6000, vec![2; 4000]);
    bench.homes.lock().is_down = true;
    assert_eq!(bench.flush(0, &file).expect_err("the home is down").errno, Errno::EHOSTDOWN);
    bench.homes.lock().is_down = false;
    assert_eq!(file.size(), 10_000, "an open file may still commit it");
    bench.engines[0].close(&file);
    let next = bench.open(0);
    assert_eq!((next.size(), next.is_flushed()), (6000, true));
}

/// A late reply from before the writes said that the content is in the inode record, after it had left the record. The close then committed
/// no size, and the file was empty for all other nodes.
#[test]
fn late_attributes_do_not_suppress_the_commit() {
    for size in [UNIT_SIZE, 3 * UNIT_SIZE, UNIT_SIZE + 5, 5000] {
        let bench = Bench::new(1, 20);
        let file = bench.open(0);
        let created = FileVersion { generation: file.generation(), inline: true, ..FileVersion::default() };
        bench.write(0, &file, 0, vec![7; size]);
        bench.simulation.rest(std::time::Duration::from_secs(1));
        file.refresh(created);
        bench.flush(0, &file).expect("a flush");
        let other = bench.open(1);
        assert_eq!(bench.read(1, &other, 0, size as u32), vec![7; size]);
    }
}

#[test]
fn truncated_bytes_read_as_zeros_after_the_file_grows() {
    let bench = Bench::new(1, 4);
    let file = bench.open(0);
    bench.write(0, &file, 0, vec![9; UNIT_SIZE + 5000]);
    bench.truncate(0, &file, 100);
    assert_eq!(bench.read(0, &file, 0, 1000), vec![9; 100]);
    bench.truncate(0, &file, 2000);
    let mut expected = vec![9; 100];
    expected.resize(2000, 0);
    assert_eq!(bench.read(0, &file, 0, 4000), expected);
}

/// A truncation to less than the written size, but more than the home's size, left the bytes between the two in the units: they came back
/// when the file grew.
#[test]
fn a_truncation_drops_bytes_past_the_size_at_the_home() {
    let bench = Bench::new(1, 4);
    let file = bench.open(0);
    bench.write(0, &file, 0, vec![8; 90_000]);
    bench.flush(0, &file).expect("the flush");
    bench.write(0, &file, 0, vec![9; UNIT_SIZE]);
    bench.truncate(0, &file, 300_000);
    bench.truncate(0, &file, 400_000);
    let expected = [vec![9; 300_000], vec![0; 100_000]].concat();
    assert!(bench.read(0, &file, 0, UNIT_SIZE as u32) == expected);
}

#[test]
fn more_dirty_units_than_frames_are_written_and_read_back() {
    let bench = Bench::new(3, 2);
    let file = bench.open(0);
    let data: Vec<u8> = (0..7 * UNIT_SIZE + 77).map(|place| (place / 997) as u8).collect();
    for (number, part) in data.chunks(100_000).enumerate() {
        bench.write(0, &file, number as u64 * 100_000, part.to_vec());
    }
    bench.flush(0, &file).expect("the flush");
    let other = bench.open(1);
    for offset in (0..data.len()).step_by(UNIT_SIZE / 2) {
        let bytes = bench.read(1, &other, offset as u64, UNIT_SIZE as u32 / 2);
        assert!(bytes == data[offset..data.len().min(offset + UNIT_SIZE / 2)], "bytes from {offset}");
    }
}

/// A small file with inline content was written to far past its end. Until that write was sent, the second unit showed the first one's
/// bytes.
#[test]
fn inline_content_is_in_the_first_unit_only() {
    let bench = Bench::new(1, 4);
    let file = bench.open(1);
    bench.write(1, &file, 0, vec![1; 1001]);
    bench.flush(1, &file).expect("the flush");
    bench.write(1, &file, UNIT_SIZE as u64 + 2000, vec![2]);
    assert_eq!(bench.read(1, &file, UNIT_SIZE as u64, 2001), [vec![0; 2000], vec![2]].concat());
}

/// One program closes a file while another reads its size: a reply sent before the commit must not hide the written bytes.
#[test]
fn a_late_reply_does_not_hide_written_bytes() {
    let bench = Bench::new(2, 4);
    let file = bench.open(0);
    let old = FileVersion { size: 0, generation: Generation(1), inline: true, ..FileVersion::default() };
    bench.write(0, &file, 0, vec![1; 10_000]);
    file.refresh(old.clone());
    assert_eq!(bench.read(0, &file, 0, 20_000), vec![1; 10_000]);
    bench.flush(0, &file).expect("the flush");
    file.refresh(old);
    assert_eq!(bench.read(0, &file, 0, 20_000), vec![1; 10_000]);
    let engine = &bench.engines[0];
    let before =
        FileVersion { size: 10_000, generation: file.generation(), inline: false, ..FileVersion::default() };
    bench.write(0, &file, 10_000, vec![2; 5000]);
    let reads = async {
        for _ in 0..200 {
            engine.homes.runtime.sleep(std::time::Duration::from_micros(20)).await;
            file.refresh(before.clone());
            let bytes = engine.read(&file, 14_999, 10).await.expect("the read");
            assert_eq!(&bytes[..], [2], "an acknowledged byte is lost");
        }
    };
    let flush = engine.flush(&file, false);
    bench.simulation.run(futures_util::future::join(flush, reads)).0.expect("the flush");
}

/// A reader that came while all frames were being sent to the homes waited for ever: frames that became clean before the reader was on the
/// wait list never reached it.
#[test]
fn frames_that_become_clean_reach_waiting_tasks() {
    for seed in 0..40 {
        let bench = Bench::new(seed, 3);
        let file = bench.open(0);
        let (engine, file) = (&bench.engines[0], &file);
        let tasks = (0..6u64).map(|task| async move {
            let data = vec![task as u8 + 1; UNIT_SIZE];
            for step in 0..4u64 {
                let offset = (task * 4 + step) * UNIT_SIZE as u64;
                engine.write(file, offset, &data).await.expect("the write");
                let bytes = engine.read(file, offset, 5000).await.expect("the read");
                assert_eq!(&bytes[..], &data[..5000]);
            }
        });
        bench.simulation.run(futures_util::future::join_all(tasks));
    }
}

/// The reader requested a second frame while another reader held the first, and looped for ever if there was none.
#[test]
fn a_fetch_reuses_the_frame_that_it_fills() {
    let bench = Bench::new(5, 2);
    let file = bench.open(0);
    bench.write(0, &file, 0, vec![1; 100]);
    bench.write(0, &file, 3000, vec![2; 100]);
    let held = bench.simulation.run(bench.engines[0].read(&file, 0, 100)).expect("the read");
    let found = bench.read(0, &file, 0, 3100);
    assert_eq!(found, [vec![1; 100], vec![0; 2900], vec![2; 100]].concat());
    assert_eq!(held.to_vec(), [1; 100]);
}

/// A program that had just taken a lock read stale pages, which the kernel was to drop at an open whose reply was in flight.
#[test]
fn stale_pages_are_reported_until_they_are_dropped() {
    let file = FileData::new(InodeId(1), Layout::Striped, Home::Inode, MapEpoch(1));
    let version = |number| FileVersion { generation: Generation(number), ..FileVersion::default() };
    file.opened(Home::Inode, version(5), false);
    for _ in 0..2 {
        assert_eq!(file.revalidate(version(5)), Some(Generation(5)));
    }
    file.pages_dropped(Generation(5));
    assert_eq!(file.revalidate(version(5)), None);
    file.own_change(Generation(6), false);
    assert_eq!(file.revalidate(version(6)), None, "written by this node");
    file.opened(Home::Inode, version(7), false);
    assert_eq!(file.revalidate(version(7)), Some(Generation(7)), "written by another node");
    file.pages_dropped(Generation(7));
    file.own_change(Generation(9), false);
    assert_eq!(file.revalidate(version(9)), Some(Generation(9)), "another node wrote in between");
}

/// A program opened a file through the ring after another node had changed it. The kernel, which did not see this open, was then allowed to
/// keep its stale pages.
#[test]
fn an_open_beside_the_kernel_leaves_its_pages_stale() {
    let file = FileData::new(InodeId(1), Layout::Striped, Home::Inode, MapEpoch(1));
    let version = |number| FileVersion { generation: Generation(number), ..FileVersion::default() };
    assert!(!file.opened(Home::Inode, version(5), false));
    assert!(!file.opened(Home::Inode, version(6), true));
    assert!(!file.opened(Home::Inode, version(6), false), "this open drops them");
    assert!(file.opened(Home::Inode, version(6), false));
}
