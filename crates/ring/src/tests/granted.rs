//! Granted frames: read without a request until they are revoked, and not after.

use super::bed::{Bed, PATIENCE};
use super::endings::{client_of_child, kill};
use crate::client::granted::GrantedFrames;
use crate::client::{Answer, Client, OpenFile};
use crate::frames::FrameTable;
use crate::greeting::hello;
use crate::layout::ARENA_SIZE;
use crate::message::FileKey;
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tameike_core::limits::UNIT_SIZE;
use tameike_io::os::arena::Arena;
use tameike_io::os::process::monotonic;
use tameike_io::os::socket::{receive_with_files, send_with_files};
use tameike_io::{Frame, Slab};

const UNIT: u64 = UNIT_SIZE as u64;
const WHOLE: Range<u32> = 0..UNIT_SIZE as u32;

fn open(client: &Client) -> OpenFile {
    super::bed::open(client, b"granted")
}

/// Reads the file `granted` until a read is a request, which returns other bytes.
fn read_until_asked(bed: &Bed, client: &Client, open: &OpenFile) {
    let (begun, answered) = (monotonic(), bed.server.usage().answered);
    let mut found = [0];
    while bed.server.usage().answered == answered {
        assert_eq!(client.read(open.handle, open.key, 0, &mut [&mut found]), Answer::Done(1));
        assert!(monotonic() - begun < PATIENCE, "the grant does not expire");
    }
    assert_eq!(found, [1]);
}

#[test]
fn granted_frames_are_read_without_a_request_until_they_are_revoked() {
    let bed = Bed::new();
    let client = bed.client();
    let file = open(&client);
    // Bytes other than those of the frame, to distinguish the sources.
    assert_eq!(client.write(file.handle, 0, &[&vec![1; UNIT_SIZE + 10]]), Answer::Done(UNIT_SIZE + 10));
    bed.files.granted.grant();
    let before = bed.server.usage().answered;
    let (mut one, mut two) = ([0; 5], vec![0; 4096]);
    for offset in [0, 1, 77_777, UNIT - 4101] {
        assert_eq!(client.read(file.handle, file.key, offset, &mut [&mut one, &mut two]), Answer::Done(4101));
        assert!(one.iter().chain(&two).all(|byte| *byte == 7), "{offset}");
    }
    assert_eq!(bed.server.usage().answered, before, "no request was sent");
    let request = |key, offset: u64| {
        let before = bed.server.usage().answered;
        let mut found = [0; 2];
        assert_eq!(client.read(file.handle, key, offset, &mut [&mut found]), Answer::Done(2));
        assert_eq!((found, bed.server.usage().answered), ([1; 2], before + 1));
    };
    request(file.key, UNIT - 1);
    request(file.key, UNIT);
    request(None, 0);
    request(bed.files.granted.table.open(), 0);
    bed.files.granted.table.grant(bed.files.granted.frame.number(), bed.files.granted.key, 0, &(100..200));
    request(file.key, 99);
    request(file.key, 199);
    let revocations: [fn(&Bed); 2] = [
        |bed| bed.files.granted.table.revoke(bed.files.granted.frame.number()),
        |bed| bed.files.granted.table.revoke_all(bed.files.granted.key),
    ];
    for revoke in revocations {
        bed.files.granted.grant();
        revoke(&bed);
        request(file.key, 0);
    }
    bed.files.granted.grant();
    read_until_asked(&bed, &client, &file);
}

#[test]
fn the_end_of_a_file_needs_no_request_while_it_is_published() {
    let bed = Bed::new();
    let client = bed.client();
    let file = open(&client);
    let granted = &bed.files.granted;
    let read = |offset: u64, count| {
        let (before, mut found) = (bed.server.usage().answered, vec![0; 20]);
        assert_eq!(
            client.read(file.handle, file.key, offset, &mut [&mut found]),
            Answer::Done(count),
            "{offset}"
        );
        assert!(found[..count].iter().all(|byte| *byte == 7) && found[count..].iter().all(|byte| *byte == 0));
        bed.server.usage().answered - before
    };
    let publish = || {
        granted.grant();
        granted.table.publish_end(granted.key, 100);
    };
    publish();
    assert_eq!([read(70, 20), read(90, 10), read(100, 0), read(3 * UNIT - 5, 0)], [0; 4]);
    granted.table.withdraw_end(granted.key);
    assert_eq!([read(90, 20), read(100, 20), read(3 * UNIT, 0)], [0, 0, 1]);
    publish();
    granted.table.revoke_all(granted.key);
    assert_eq!(read(100, 0), 1);
    // The end of another file with the same table entry.
    let others: Vec<_> = std::iter::from_fn(|| granted.table.open()).collect();
    let begun = monotonic();
    granted.table.publish_end(granted.key, 0);
    while read(100, 0) == 0 {
        assert!(monotonic() - begun < PATIENCE, "the published end does not expire");
    }
    granted.table.close(others[0]);
    let again = granted.table.open().expect("one is free");
    granted.table.publish_end(again, 0);
    let before = bed.server.usage().answered;
    assert_eq!(client.read(file.handle, Some(others[0]), 0, &mut [&mut [0]]), Answer::Done(0));
    assert_eq!(bed.server.usage().answered, before + 1, "the end belongs to another file");
    assert_eq!(client.read(file.handle, Some(again), 0, &mut [&mut [0]]), Answer::Done(0));
    assert_eq!(bed.server.usage().answered, before + 1);
}

/// The reply refers to a grant that has been revoked meanwhile.
#[test]
fn a_read_after_a_revocation_sends_another_request() {
    let bed = Bed::new();
    let client = bed.client();
    let file = open(&client);
    assert_eq!(client.write(file.handle, 0, &[&vec![1; 100_000]]), Answer::Done(100_000));
    bed.files.granted.table.revoke_all(bed.files.granted.key);
    let before = bed.server.usage().answered;
    let mut found = vec![0; 200_000];
    assert_eq!(client.read(file.handle, file.key, 0, &mut [&mut found]), Answer::Done(100_000));
    assert!(found[..100_000].iter().all(|byte| *byte == 1));
    assert_eq!(bed.server.usage().answered, before + 2);
}

/// A program must not read frames of a failed agent forever.
#[test]
fn grants_of_a_failed_agent_expire() {
    let (_socket, client, agent) = client_of_child();
    let file = open(&client);
    kill(agent);
    let begun = monotonic();
    while client.read(file.handle, file.key, 0, &mut [&mut [0]]) != Answer::Broken {
        assert!(monotonic() - begun < PATIENCE, "the grant does not expire");
    }
    assert_eq!(client.read(file.handle, file.key, 0, &mut [&mut [0]]), Answer::Broken);
}

/// The descriptors that a program gets in its welcome.
fn shared_memory(bed: &Bed) -> Vec<OwnedFd> {
    let (_, memory) = Arena::create("test", ARENA_SIZE).expect("memory");
    let socket = UnixStream::connect(&bed.socket).expect("it listens");
    send_with_files(&socket, &hello(), &[memory.as_fd()]).expect("sent");
    receive_with_files(&socket).expect("a welcome").1
}

/// Programs share the frames: a writable mapping would give access to all files.
#[test]
fn programs_cannot_write_to_the_agents_memory() {
    let bed = Bed::new();
    let shared_memory = shared_memory(&bed);
    assert_eq!(shared_memory.len(), 3, "notice, table and slab");
    for memory in &shared_memory {
        let size = rustix::fs::fstat(memory).expect("memory").st_size;
        // By its descriptor, and by one opened for writing.
        let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
        let again = rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let holes = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        for memory in again.iter().chain([memory]) {
            assert!(Arena::map(memory, size as usize).is_err(), "a writable mapping must fail");
            assert!(rustix::io::pwrite(memory, b"x", 0).is_err());
            assert!(fallocate(memory, holes, 0, 4096).is_err());
            assert!(rustix::fs::ftruncate(memory, 0).is_err());
        }
    }
    let mut found = [0];
    rustix::io::pread(&shared_memory[2], &mut found, 0).expect("it can be read");
    assert_eq!(found, [7]);
}

/// A table, and a program's mapping of it.
fn table(frames: u32) -> (Arc<FrameTable>, GrantedFrames, Vec<Frame>) {
    let slab = Slab::new(frames).expect("a small slab");
    let table = Arc::new(FrameTable::new(&slab).expect("a table"));
    let [memory, slab_memory] = table.memory();
    let sight = GrantedFrames::map(frames, memory, slab_memory).expect("sealed memory");
    let pool = slab.pool(frames);
    (table, sight, (0..frames).map_while(|_| pool.try_take()).collect())
}

fn found(sight: &GrantedFrames, key: FileKey, offset: u64, into: &mut [u8]) -> bool {
    let size = into.len() as u32;
    sight.read(key, offset, size, (&mut [into], 0)) == Some(size)
}

#[test]
fn most_granted_frames_are_found_each_by_its_key() {
    let (table, sight, mut frames) = table(64);
    let keys: Vec<_> = (0..16).map_while(|_| table.open()).collect();
    for (number, frame) in frames.iter_mut().enumerate() {
        frame[..8].copy_from_slice(&(number as u64).to_ne_bytes());
        table.grant(frame.number(), keys[number % 16], 1000 + number as u64 / 16, &WHOLE);
    }
    let count = (0..64_u64).filter(|number| {
        let mut bytes = [0; 8];
        let offset = (1000 + number / 16) * UNIT;
        let is_found = found(&sight, keys[*number as usize % 16], offset, &mut bytes);
        assert!(!is_found || u64::from_ne_bytes(bytes) == *number);
        is_found
    });
    assert!(count.count() > 56);
    for key in &keys {
        table.close(*key);
    }
    let reused = table.open().expect("a key");
    assert!(!keys.contains(&reused));
    assert!((0..64).all(|unit| !found(&sight, reused, (1000 + unit) * UNIT, &mut [0])));
}

/// Two frames are granted and revoked as fast as possible, with different bytes for each grant. A reader of stale or mixed
/// bytes would notice.
#[test]
fn readers_see_only_granted_bytes() {
    const ROUNDS: u64 = 30_000;
    let (table, sight, mut frames) = table(2);
    let keys = [table.open().expect("a key"), table.open().expect("a key")];
    let (ended, hits) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for reader in 0..2_u64 {
            let (sight, ended, hits) = (&sight, &ended, &hits);
            scope.spawn(move || {
                let mut bytes = vec![0; 6000];
                let mut round = reader;
                while !ended.load(Ordering::Relaxed) {
                    round += 1;
                    let (key, unit) = (round % 2, round / 2 % 8);
                    if found(sight, keys[key as usize], unit * UNIT + round % 1000, &mut bytes) {
                        let expected = bytes[0];
                        assert_eq!(u64::from(expected) % 16, key * 8 + unit, "bytes of another grant");
                        assert!(bytes.iter().all(|byte| *byte == expected), "bytes of two grants");
                        hits.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let mut use_number = 0_u64;
        while use_number < ROUNDS || hits.load(Ordering::Relaxed) < 1000 {
            for frame in &mut frames {
                use_number += 1;
                let (key, unit) = (use_number * 7 % 2, use_number / 3 % 8);
                match use_number % 5 {
                    0 => keys.iter().for_each(|key| table.revoke_all(*key)),
                    _ => table.revoke(frame.number()),
                }
                let value = (use_number % 16 * 16 + key * 8 + unit) as u8;
                frame[..8000].fill(value);
                table.grant(frame.number(), keys[key as usize], unit, &(0..8000));
            }
            std::thread::yield_now();
        }
        ended.store(true, Ordering::Relaxed);
    });
    assert!(hits.into_inner() >= 1000);
}
