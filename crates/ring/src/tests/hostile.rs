//! Programs that break the rules, beside one that does not.

use super::bed::{Bed, PATIENCE, open};
use crate::client::{Answer, Client};
use crate::greeting::{Welcome, hello};
use crate::layout::{ALL_SLOTS, ARENA_SIZE, LEFT, SLOTS, Slot, core, left, near, pending};
use crate::message::{REQUEST_WORDS, Request};
use proptest::prelude::*;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use tameike_io::os::arena::Arena;
use tameike_io::os::process::monotonic;
use tameike_io::os::socket::send_with_files;

/// Sends `bytes` with descriptors, and returns the welcome.
fn welcome_for(bed: &Bed, bytes: &[u8], files: &[BorrowedFd<'_>]) -> Option<Welcome> {
    let mut socket = UnixStream::connect(&bed.socket).expect("it listens");
    send_with_files(&socket, bytes, files).expect("sent");
    socket.set_read_timeout(Some(PATIENCE)).expect("a limit");
    let mut answer = Vec::new();
    // Ends with the connection, also if it is reset.
    let _ = socket.read_to_end(&mut answer);
    Welcome::decode(&answer)
}

#[test]
fn programs_without_a_valid_hello_are_refused() {
    let bed = Bed::new();
    let (_, memory) = Arena::create("test", ARENA_SIZE).expect("memory");
    let small = memfd_create("test", MemfdFlags::CLOEXEC).expect("memory");
    ftruncate(&small, ARENA_SIZE as u64).expect("resized");
    assert_eq!(welcome_for(&bed, b"GET / HTTP/1.1\r\n", &[]), Some(Welcome::Refused));
    assert_eq!(welcome_for(&bed, &hello(), &[]), Some(Welcome::Refused));
    assert_eq!(welcome_for(&bed, &hello(), &[memory.as_fd(), memory.as_fd()]), Some(Welcome::Refused));
    assert_eq!(welcome_for(&bed, &hello(), &[small.as_fd()]), None, "memory without seals");
    drop(UnixStream::connect(&bed.socket).expect("it listens"));
    assert_eq!(bed.client().close(1), Answer::Failed(9));
    assert_eq!(bed.files.state.lock().begun, 1);
}

/// Overwrites all shared memory of a program during its calls and those of another program.
#[test]
fn garbage_in_an_arena_harms_only_its_program() {
    let bed = Bed::new();
    let (client, evil) = (bed.client(), bed.client());
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 1..3_u64 {
            let (evil, ended) = (&evil, &ended);
            scope.spawn(move || write_garbage(evil, seed, ended));
        }
        let open = open(&client, b"good");
        for round in 0..2000_u64 {
            let bytes = round.to_le_bytes();
            assert_eq!(client.write(open.handle, 0, &[&bytes]), Answer::Done(8));
            let mut found = [0; 8];
            assert_eq!(client.read(open.handle, None, 0, &mut [&mut found]), Answer::Done(8));
            assert_eq!(found, bytes);
        }
        ended.store(true, Ordering::Relaxed);
    });
    drop(evil);
    // Held requests are in flight; others may still be found.
    let begun = monotonic();
    while bed.files.state.lock().ended == 0 {
        assert!(monotonic() - begun < PATIENCE, "it has not ended");
        bed.files.answer_held();
        std::thread::yield_now();
    }
    assert_eq!(client.close(1 << 60), Answer::Failed(9));
}

fn write_garbage(evil: &Client, seed: u64, ended: &AtomicBool) {
    let mut random = seed;
    let mut next = move || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed);
        random >> 20
    };
    while !ended.load(Ordering::Relaxed) {
        let slot = Slot::new(&evil.arena, next() as usize % SLOTS);
        // Sometimes nearly a request; none that grows files without limit.
        let code = next() % 20;
        let words: [u64; REQUEST_WORDS] = std::array::from_fn(|place| match place {
            0 if code == 3 || code == 4 => 2,
            0 => code,
            _ if next() % 3 == 0 => next() << 40 | next(),
            _ => next() % 5000,
        });
        slot.set_request(&words);
        slot.state().store(next() as u32, Ordering::Relaxed);
        evil.arena.copy_in(slot.window(), &next().to_le_bytes());
        // Handles that no program has, as files are shared between all programs here.
        left(&evil.arena).for_each(|place| place.store(next() | 1 << 50, Ordering::Relaxed));
        pending(&evil.arena).fetch_or(next() as u32 & (ALL_SLOTS | LEFT), Ordering::SeqCst);
        core(&evil.arena).store(next() as u32, Ordering::Relaxed);
        near(&evil.arena).store(next() as u32, Ordering::SeqCst);
    }
}

proptest! {
    #[test]
    fn arbitrary_words_are_at_most_a_request(words in any::<[u64; REQUEST_WORDS]>(), code in 0..26_u64) {
        let words = std::array::from_fn(|place| if place == 0 { code } else { words[place] });
        if let Some(request) = Request::decode(&words) {
            prop_assert!(request.names_size() <= 2 * tameike_core::limits::PATH_SIZE_MAX);
            prop_assert_eq!(Request::decode(&request.encode()), Some(request));
        }
    }
}
