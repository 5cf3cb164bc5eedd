//! Reads of programs on a device, at the location that the agent returns.

use super::bed::{Bed, PATIENCE};
use crate::client::{Answer, Client, OpenFile};
use crate::layout::{ANSWERED, REQUESTED, Slot, pending};
use crate::message::{Accepts, Request};
use parking_lot::Mutex;
use proptest::prelude::*;
use std::fs::File;
use std::os::fd::RawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tameike_core::limits::{BLOCK_SIZE, UNIT_SIZE};
use tameike_core::wire::call::Run;
use tameike_core::wire::unit::UnitLocation;
use tameike_io::BlockSums;
use tameike_io::disk::{DiskMemory, FreeClock, HostDevice};
use tameike_io::os::process::monotonic;

/// A unit on a device.
pub struct LocatedUnit {
    file: File,
    pub device: Mutex<Arc<HostDevice>>,
    pub place: UnitLocation,
    clock: FreeClock,
    content: Vec<u8>,
}

impl LocatedUnit {
    pub fn new() -> Self {
        let file = tempfile::tempfile().expect("written");
        let content: Vec<u8> = (0..UNIT_SIZE).map(|at| (at / 7) as u8 ^ (at / BLOCK_SIZE) as u8).collect();
        let sums = BlockSums::of(&content).as_bytes().to_vec();
        let (mut runs, mut before) = (Vec::new(), 0);
        for (number, blocks) in [1, 2, 50, 16, 3, 184].into_iter().enumerate() {
            let run = Run { at: ((6 - number) << 20) as u64, length: (blocks * BLOCK_SIZE) as u32 };
            file.write_all_at(&content[before..before + run.length as usize], run.at).expect("written");
            before += run.length as usize;
            runs.push(run);
        }
        let clock = FreeClock::create(8 << 20).expect("memory");
        clock.freed(&(0..8 << 20));
        let device = Mutex::new(device_of(&file, &clock));
        Self { file, device, place: UnitLocation { runs, sums, time: clock.now() }, clock, content }
    }

    /// Changes a byte of the unit.
    fn damage(&self, at: usize) {
        let run = self.place.runs_of(&(at as u32..at as u32 + 1)).next().expect("it lies somewhere");
        let byte = self.content[at] ^ 1;
        self.file.write_all_at(&[byte], run.at + (at % BLOCK_SIZE) as u64).expect("written");
    }
}

fn device_of(file: &File, clock: &FreeClock) -> Arc<HostDevice> {
    let bytes = file.try_clone().expect("a descriptor").into();
    Arc::new(HostDevice::new(DiskMemory { bytes, clock: clock.memory().expect("a descriptor") }))
}

/// The file on the device. Requests return other bytes: all 1.
fn open(client: &Client) -> OpenFile {
    let file = super::bed::open(client, b"located");
    assert_eq!(client.write(file.handle, 0, &[&vec![1; UNIT_SIZE]]), Answer::Done(UNIT_SIZE));
    file
}

fn read(client: &Client, file: &OpenFile, start: usize, size: usize) -> Vec<u8> {
    let mut found = vec![0; size];
    let count = client.read(file.handle, None, start as u64, &mut [&mut found]);
    assert_eq!(count, Answer::Done(size));
    found
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn placed_bytes_are_read_on_the_device_while_they_are_valid(
        reads in prop::collection::vec((0..UNIT_SIZE, 0..UNIT_SIZE), 1..20),
        damaged in 0..UNIT_SIZE,
    ) {
        let bed = Bed::new();
        let client = bed.client();
        let file = open(&client);
        let content = &bed.files.located.content;
        bed.files.located.damage(damaged);
        let block = damaged / BLOCK_SIZE * BLOCK_SIZE..(damaged / BLOCK_SIZE + 1) * BLOCK_SIZE;
        for (start, size) in reads {
            let range = start..(start + size).min(UNIT_SIZE);
            let is_there = range.len() >= 32 << 10 && (range.end <= block.start || block.end <= range.start);
            let found = read(&client, &file, start, range.len());
            let expected = if is_there { content[range].to_vec() } else { vec![1; range.len()] };
            prop_assert!(found == expected, "{start}, {size}");
        }
    }
}

#[test]
fn a_read_into_several_buffers_takes_a_request() {
    let bed = Bed::new();
    let client = bed.client();
    let file = open(&client);
    let (mut one, mut other) = (vec![0; 40_000], vec![0; 40_000]);
    let count = client.read(file.handle, None, 0, &mut [&mut one, &mut other]);
    assert_eq!((count, one, other), (Answer::Done(80_000), vec![1; 40_000], vec![1; 40_000]));
    let mut whole = vec![0; 80_000];
    let count = client.read(file.handle, None, 0, &mut [&mut [], &mut whole, &mut []]);
    assert_eq!(count, Answer::Done(80_000));
    assert!(whole == bed.files.located.content[..80_000]);
}

/// Each device is sent once, up to a maximum number, and is kept away from the program's own descriptors.
#[test]
fn programs_keep_the_devices_they_receive() {
    static KEPT: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());
    let bed = Bed::new();
    let client = Client::connect(&bed.socket, |number| KEPT.lock().push(number)).expect("it listens");
    let file = open(&client);
    assert_eq!(client.descriptors().collect::<Vec<_>>(), *KEPT.lock());
    let located = &bed.files.located;
    for devices in 1..20 {
        for start in [0, 5000, 300_000] {
            let found = read(&client, &file, start, 40_000);
            // The maximum number of devices was sent: the agent sends bytes.
            let is_located = devices <= 16;
            let expected =
                if is_located { located.content[start..start + 40_000].to_vec() } else { vec![1; 40_000] };
            assert!(found == expected, "{devices}, {start}");
        }
        let kept = client.descriptors().collect::<Vec<_>>();
        assert_eq!(kept.len(), 1 + 2 * devices.min(16));
        assert_eq!(kept, *KEPT.lock());
        assert!(kept.iter().all(|number| *number >= 900), "{kept:?}");
        // A new device, as of a restarted agent.
        *located.device.lock() = device_of(&located.file, &located.clock);
    }
}

/// Blocks that were freed after the reply may hold other bytes, whatever their checksums.
#[test]
fn bytes_that_may_have_moved_take_a_request() {
    let bed = Bed::new();
    let client = bed.client();
    let file = open(&client);
    let located = &bed.files.located;
    let parts = |size: usize| located.place.runs_of(&(0..size as u32)).collect::<Vec<_>>();
    assert!(read(&client, &file, 0, 40_000) == located.content[..40_000]);
    let other = parts(UNIT_SIZE)
        .into_iter()
        .find(|run| !parts(40_000).iter().any(|part| part.at >> 20 == run.at >> 20));
    let other = other.expect("the unit is in several regions").at;
    located.clock.freed(&(other..other + 4096));
    assert!(read(&client, &file, 0, 40_000) == located.content[..40_000], "it has moved");
    assert_eq!(read(&client, &file, 0, UNIT_SIZE), vec![1; UNIT_SIZE]);
    let own = parts(40_000)[1].at;
    located.clock.freed(&(own..own + 4096));
    assert_eq!(read(&client, &file, 0, 40_000), vec![1; 40_000]);
}

/// A thread that reads while another one receives the device sends a request, and reads on the device later.
#[test]
fn threads_receive_a_device_concurrently() {
    for _ in 0..100 {
        let bed = Bed::new();
        let client = bed.client();
        let file = open(&client);
        let content = &bed.files.located.content[..40_000];
        let start = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    start.wait();
                    let found = read(&client, &file, 0, 40_000);
                    assert!(found == content || found == [1; 40_000]);
                });
            }
        });
        assert!(read(&client, &file, 0, 40_000) == content);
    }
}

/// A device that was sent and not received must not hide the end of the connection.
#[test]
fn the_end_of_an_agent_is_detected_behind_an_unread_device() {
    let bed = Bed::new();
    let client = bed.client();
    let file = super::bed::open(&client, b"located");
    // Requested, but not received.
    let accepts = Accepts { located: true, ..Accepts::default() };
    let slot = Slot::new(&client.arena, 9);
    slot.set_request(&Request::Read { handle: file.handle, offset: 0, size: 40_000, accepts }.encode());
    slot.state().store(REQUESTED, Ordering::Relaxed);
    pending(&client.arena).fetch_or(slot.bit(), Ordering::SeqCst);
    let begun = monotonic();
    while slot.state().load(Ordering::Acquire) & ANSWERED == 0 {
        assert!(matches!(client.status(file.handle), Answer::Done(_)), "the agent serves it");
        assert!(monotonic() - begun < PATIENCE, "it is never answered");
    }
    bed.server.stop();
    assert_eq!(client.status(file.handle), Answer::Broken);
}
