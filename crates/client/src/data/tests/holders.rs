//! Bytes that another node has in memory.

use super::*;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Weak;
use tameike_core::wire::client::ClientRequest;
use tameike_core::wire::holders::Holder;

const UNIT: u64 = UNIT_SIZE as u64;
const UNITS: u64 = 12;
const LENGTH: u32 = UNIT_SIZE as u32 / 2;

/// The nodes as they ask each other.
#[derive(Default)]
pub struct Peers {
    pub engines: Vec<Weak<DataEngine>>,
    /// Whether they are on other hosts than the homes, which take long to read.
    pub are_far: bool,
    /// Whether they answer too late.
    is_stuck: bool,
    /// What they were asked for, and whether they had it.
    asked: Vec<(UnitId, bool)>,
}

impl Peers {
    /// The units of which they had the bytes that they were asked for.
    pub fn delivered(&self) -> Vec<u64> {
        self.asked.iter().filter(|(_, had)| *had).map(|(unit, _)| unit.index).collect()
    }

    /// How long each way of a request takes, in microseconds.
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
    let engine = homes.lock().peers.engines[to.0 as usize].upgrade().expect("the node is there");
    let (reply, payload) = engine.serve_peer(unit, &(offset..offset + length), generation);
    homes.lock().peers.asked.push((unit, payload.is_some()));
    // It arrives in another node's memory.
    let payload = payload.map(|bytes| {
        frame[..bytes.len()].copy_from_slice(&bytes);
        Payload::new(Arc::new(frame), 0..bytes.len() as u32)
    });
    Ok(Answer { reply: Reply::Client(reply), payload })
}

/// All nodes but one.
pub fn others(node: usize) -> Vec<Holder> {
    vec![Holder { node: NodeId(1 - node as u32), requested: 0, delivered: 0 }]
}

/// A file of twelve units that node 0 has written, and has in memory.
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

/// What node 1 reads at the start of each unit, the last one first, so that none is read ahead.
fn read_all(bench: &Bench, file: &Arc<FileData>) {
    for unit in (0..UNITS).rev() {
        assert!(bench.read(1, file, unit * UNIT, LENGTH) == vec![unit as u8 + 1; LENGTH as usize], "{unit}");
    }
}

/// Node 1 finds out how long the homes take.
fn read_two(bench: &Bench, file: &Arc<FileData>) {
    for unit in [UNITS - 1, UNITS - 2] {
        bench.read(1, file, unit * UNIT, LENGTH);
    }
}

/// Of the questions to holders, those that were answered with bytes, and all.
fn asked(bench: &Bench) -> (usize, usize) {
    let asked = std::mem::take(&mut bench.homes.lock().peers.asked);
    (asked.iter().filter(|(_, had)| *had).count(), asked.len())
}

fn told(bench: &Bench) -> Vec<(u32, u32, u32)> {
    let homes = [NodeId(0), NodeId(1)].map(|home| bench.engines[1].reports().take(home));
    homes
        .iter()
        .flatten()
        .map(|asked| asked.holder)
        .map(|one| (one.node.0, one.requested, one.delivered))
        .collect()
}

#[test]
fn what_another_node_has_in_memory_is_read_there() {
    let (bench, _writer) = written();
    let file = bench.open(1);
    read_all(&bench, &file);
    let (had, all) = asked(&bench);
    assert!(had >= 2 && had == all, "once it is known how long the homes take: {had} of {all}");
    assert_eq!(told(&bench), [(0, all as u32, had as u32)]);
    assert_eq!(told(&bench), [], "once");
}

#[test]
fn a_holder_that_holds_it_no_more_is_passed_by() {
    let (bench, writer) = written();
    let file = bench.open(1);
    bench.engines[0].close(&writer);
    bench.engines[0].forget(INODE);
    read_all(&bench, &file);
    let (had, all) = asked(&bench);
    assert_eq!(had, 0);
    assert!(all >= 1, "the first one had to find out");
    assert_eq!(told(&bench), [(0, all as u32, 0)]);
    assert_eq!(bench.read(1, &file, UNIT, 5), [2; 5]);
}

/// A holder has the version that was opened, or says no; and nobody asks who has changed the file by himself.
#[test]
fn another_version_is_not_read() {
    let (bench, writer) = written();
    let before = bench.open(1);
    bench.write(0, &writer, UNIT, vec![9; UNIT_SIZE]);
    bench.flush(0, &writer).expect("the flush");
    for unit in (2..UNITS).rev() {
        bench.read(1, &before, unit * UNIT, LENGTH);
    }
    assert_eq!(asked(&bench).0, 0, "an older one");
    let file = bench.open(1);
    bench.write(1, &file, 5, vec![8; 10]);
    for unit in (2..UNITS).rev() {
        bench.read(1, &file, unit * UNIT, LENGTH);
    }
    assert_eq!(asked(&bench), (0, 0), "a file with bytes that only this node has written");
    assert_eq!(bench.read(1, &file, 0, 20)[..16], [[1; 5].as_slice(), &[8; 10], &[1]].concat());
}

/// Bytes that changed by themselves in a holder's memory were sent to whoever asked, with checksums made of them on the way.
///
/// S32b.
#[test]
fn damaged_memory_is_found_and_the_bytes_read_elsewhere() {
    let (bench, writer) = written();
    let file = bench.open(1);
    read_two(&bench, &file);
    asked(&bench);
    for unit in 0..UNITS {
        let bytes = writer.unit_bytes(unit, 77..78);
        let memory = File::options().write(true).open("/proc/self/mem").expect("this process");
        memory.write_all_at(&[0xee], bytes.as_ptr() as u64).expect("the frame is there");
    }
    assert_eq!(bench.read(0, &writer, 76, 3), [1, 0xee, 1]);
    read_all(&bench, &file);
    let (had, all) = asked(&bench);
    assert!(had == 0 && all >= 1, "{had} of {all}");
    assert!(writer.unit_count() < UNITS as usize, "what is damaged is dropped");
}

#[test]
fn a_holder_that_does_not_answer_is_not_waited_for() {
    let (bench, _writer) = written();
    let file = bench.open(1);
    bench.homes.lock().peers.is_stuck = true;
    let before = bench.simulation.runtime().clock.monotonic();
    read_all(&bench, &file);
    let took = bench.simulation.runtime().clock.monotonic() - before;
    assert!(took < std::time::Duration::from_secs(1), "{took:?}: one time limit and no more");
}

/// Nothing bounded what was on its way to other nodes, over all units.
#[test]
fn one_frame_in_four_may_be_on_its_way_to_others() {
    let (bench, _writer) = written();
    let generation = bench.engines[0].find(INODE).expect("it is open").generation();
    let ask = |index| bench.engines[0].serve_peer(UnitId { inode: INODE, index }, &(0..LENGTH), generation).1;
    let sent: Vec<_> = (0..UNITS).map(ask).collect();
    assert_eq!(sent.iter().flatten().count(), 20 / 4);
    drop(sent);
    assert!(ask(UNITS - 1).is_some(), "what has arrived counts no more");
}

/// It was asked again for each file, half a second each.
#[test]
fn a_holder_that_hangs_is_remembered_beyond_the_file() {
    let (bench, _writer) = written();
    let file = bench.open(1);
    read_two(&bench, &file);
    asked(&bench);
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
    assert_eq!(asked(&bench).1, 0, "no question has arrived");
    assert!(took < std::time::Duration::from_millis(1100), "{took:?}");
}
