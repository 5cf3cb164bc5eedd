//! Reads from the memory of other nodes (peer cache).

use super::*;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Weak;
use tameike_core::wire::client::ClientRequest;
use tameike_core::wire::holders::Holder;

const UNIT: u64 = UNIT_SIZE as u64;
const UNITS: u64 = 12;
const LENGTH: u32 = UNIT_SIZE as u32 / 2;

/// State of the simulated peer requests.
#[derive(Default)]
pub struct Peers {
    pub engines: Vec<Weak<DataEngine>>,
    /// True if the homes are on other hosts, with slow reads.
    pub are_far: bool,
    /// True if replies come after the time limit.
    is_stuck: bool,
    /// Requested units, and true if the peer had the bytes.
    requests: Vec<(UnitId, bool)>,
}

impl Peers {
    /// The units that peers delivered.
    pub fn delivered(&self) -> Vec<u64> {
        self.requests.iter().filter(|(_, had)| *had).map(|(unit, _)| unit.index).collect()
    }

    /// One-way latency of a request, in microseconds.
    pub fn delay(&self, request: &Request, drawn: u64) -> u64 {
        match request {
            Request::Unit(UnitRequest::Read { .. }) if self.are_far => 5000 + drawn,
            Request::Client(_) if self.is_stuck => 3_000_000,
            _ => drawn,
        }
    }
}

pub fn serve(homes: &Mutex<Homes>, to: NodeId, request: ClientRequest, mut frame: Frame) -> Result<Answer> {
    let ClientRequest::ReadHeld { unit, offset, length, generation } = request else { panic!("{request:?}") };
    let engine = homes.lock().peers.engines[to.0 as usize].upgrade().expect("the engine exists");
    let (reply, payload) = engine.serve_peer(unit, &(offset..offset + length), generation);
    homes.lock().peers.requests.push((unit, payload.is_some()));
    // The payload crosses into the requesting node's memory.
    let payload = payload.map(|bytes| {
        frame[..bytes.len()].copy_from_slice(&bytes);
        Payload::new(Arc::new(frame), 0..bytes.len() as u32)
    });
    Ok(Answer { reply: Reply::Client(reply), payload })
}

/// The other node, as a cache holder.
pub fn others(node: usize) -> Vec<Holder> {
    vec![Holder { node: NodeId(1 - node as u32), requested: 0, delivered: 0 }]
}

/// Creates a file of 12 units that node 0 has written and has in memory.
fn written() -> (Bench, Arc<FileData>) {
    let bench = Bench::new(9, 20);
    bench.homes.lock().peers.are_far = true;
    let file = bench.open(0);
    for unit in 0..UNITS {
        bench.write(0, &file, unit * UNIT, vec![unit as u8 + 1; UNIT_SIZE]);
    }
    bench.flush(0, &file).expect("the flush");
    (bench, file)
}

/// Node 1 reads the start of each unit, in descending order, so that readahead does not start.
fn read_all(bench: &Bench, file: &Arc<FileData>) {
    for unit in (0..UNITS).rev() {
        assert!(bench.read(1, file, unit * UNIT, LENGTH) == vec![unit as u8 + 1; LENGTH as usize], "{unit}");
    }
}

/// Lets node 1 measure the latency of the homes.
fn read_two(bench: &Bench, file: &Arc<FileData>) {
    for unit in [UNITS - 1, UNITS - 2] {
        bench.read(1, file, unit * UNIT, LENGTH);
    }
}

/// Takes the recorded requests to holders: the number answered with bytes, and all.
fn take_requests(bench: &Bench) -> (usize, usize) {
    let requests = std::mem::take(&mut bench.homes.lock().peers.requests);
    (requests.iter().filter(|(_, had)| *had).count(), requests.len())
}

fn take_reports(bench: &Bench) -> Vec<(u32, u32, u32)> {
    let nodes = [NodeId(0), NodeId(1)].map(|node| bench.engines[1].reports().take(node));
    let holders = nodes.iter().flatten().map(|outcome| outcome.holder);
    holders.map(|one| (one.node.0, one.requested, one.delivered)).collect()
}

#[test]
fn units_in_another_nodes_memory_are_read_from_it() {
    let (bench, _writer) = written();
    let file = bench.open(1);
    read_all(&bench, &file);
    let (had, all) = take_requests(&bench);
    assert!(had >= 2 && had == all, "after the latency of the homes is known: {had} of {all}");
    assert_eq!(take_reports(&bench), [(0, all as u32, had as u32)]);
    assert_eq!(take_reports(&bench), [], "reported once");
}

#[test]
fn a_holder_that_has_dropped_the_file_is_skipped() {
    let (bench, writer) = written();
    let file = bench.open(1);
    bench.engines[0].close(&writer);
    bench.engines[0].forget(INODE);
    read_all(&bench, &file);
    let (had, all) = take_requests(&bench);
    assert_eq!(had, 0);
    assert!(all >= 1, "the first read asks the holder");
    assert_eq!(take_reports(&bench), [(0, all as u32, 0)]);
    assert_eq!(bench.read(1, &file, UNIT, 5), [2; 5]);
}

/// A holder delivers only the generation of the reader's open. A node that has changed the file itself does not ask holders.
#[test]
fn other_generations_are_not_read_from_holders() {
    let (bench, writer) = written();
    let before = bench.open(1);
    bench.write(0, &writer, UNIT, vec![9; UNIT_SIZE]);
    bench.flush(0, &writer).expect("the flush");
    for unit in (2..UNITS).rev() {
        bench.read(1, &before, unit * UNIT, LENGTH);
    }
    assert_eq!(take_requests(&bench).0, 0, "an older generation");
    let file = bench.open(1);
    bench.write(1, &file, 5, vec![8; 10]);
    for unit in (2..UNITS).rev() {
        bench.read(1, &file, unit * UNIT, LENGTH);
    }
    assert_eq!(take_requests(&bench), (0, 0), "this node has unsent writes");
    assert_eq!(bench.read(1, &file, 0, 20)[..16], [[1; 5].as_slice(), &[8; 10], &[1]].concat());
}

/// A holder sent bytes that were corrupted in its memory, with checksums computed only at sending.
///
/// S32b.
#[test]
fn corrupted_memory_is_detected_and_read_from_the_home() {
    let (bench, writer) = written();
    let file = bench.open(1);
    read_two(&bench, &file);
    take_requests(&bench);
    for unit in 0..UNITS {
        let bytes = writer.unit_bytes(unit, 77..78);
        let memory = File::options().write(true).open("/proc/self/mem").expect("this process");
        memory.write_all_at(&[0xee], bytes.as_ptr() as u64).expect("the frame is mapped");
    }
    assert_eq!(bench.read(0, &writer, 76, 3), [1, 0xee, 1]);
    read_all(&bench, &file);
    let (had, all) = take_requests(&bench);
    assert!(had == 0 && all >= 1, "{had} of {all}");
    assert!(writer.unit_count() < UNITS as usize, "the corrupted units are dropped");
}

#[test]
fn a_hanging_holder_costs_one_time_limit() {
    let (bench, _writer) = written();
    let file = bench.open(1);
    bench.homes.lock().peers.is_stuck = true;
    let before = bench.simulation.runtime().clock.monotonic();
    read_all(&bench, &file);
    let took = bench.simulation.runtime().clock.monotonic() - before;
    assert!(took < std::time::Duration::from_secs(1), "one time limit at most: {took:?}");
}

/// The frames in flight to other nodes had no limit.
#[test]
fn at_most_a_quarter_of_the_frames_is_in_flight_to_peers() {
    let (bench, _writer) = written();
    let generation = bench.engines[0].find(INODE).expect("the file is open").generation();
    let ask = |index| bench.engines[0].serve_peer(UnitId { inode: INODE, index }, &(0..LENGTH), generation).1;
    let sent: Vec<_> = (0..UNITS).map(ask).collect();
    assert_eq!(sent.iter().flatten().count(), 20 / 4);
    drop(sent);
    assert!(ask(UNITS - 1).is_some(), "delivered frames do not count");
}

/// Each file sent a new request to the holder, half a second each.
#[test]
fn a_hanging_holder_is_remembered_across_files() {
    let (bench, _writer) = written();
    let file = bench.open(1);
    read_two(&bench, &file);
    take_requests(&bench);
    bench.homes.lock().peers.is_stuck = true;
    let before = bench.simulation.runtime().clock.monotonic();
    bench.engines[1].close(&file);
    for _ in 0..3 {
        bench.engines[1].forget(INODE);
        let file = bench.open(1);
        read_all(&bench, &file);
        bench.engines[1].close(&file);
    }
    let took = bench.simulation.runtime().clock.monotonic() - before;
    assert_eq!(take_requests(&bench).1, 0, "no request has arrived");
    assert!(took < std::time::Duration::from_millis(1100), "{took:?}");
}
