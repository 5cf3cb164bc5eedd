//! Negotiation of sessions, with a socket in place of the kernel.

use super::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use tameike_core::limits::UNIT_SIZE;
use tameike_io::slab::Slab;

/// Feature flags: io_uring (in the second word), and the presence of the second word.
const RINGS: u32 = 1 << 9;
const MORE: u32 = 1 << 30;
/// Offset of the second word in the reply to INIT.
const SECOND_WORD: usize = abi::OUT_HEADER_SIZE + 32;

/// INIT of a kernel with version 7.`minor` that offers `more`.
fn offer(minor: u32, more: u32) -> Vec<u8> {
    let words = [56 + 48, abi::opcode::INIT, 1, 0, 0, 0, 0, 0, 0, 0, abi::MAJOR, minor, 1 << 20, MORE, more];
    let bytes: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_ne_bytes()).collect();
    [bytes, vec![0; 44]].concat()
}

/// The negotiated session, and the reply to the kernel.
fn negotiate(offer: &[u8], rings: Option<Pool>) -> (Result<Session>, Vec<u8>) {
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let (kernel, device) = pair.expect("sockets");
    rustix::io::write(&kernel, offer).expect("a write");
    let init = Init { request_size: UNIT_SIZE as u32, keeps_locks: true, checks_permissions: false };
    let session = Session::start(device, Settings { init, threads: 1, rings });
    let mut answer = vec![0; 256];
    let size = rustix::io::read(&kernel, &mut answer[..]).expect("an answer");
    answer.truncate(size);
    (session, answer)
}

fn second_word(answer: &[u8]) -> u32 {
    u32::from_ne_bytes(*answer[SECOND_WORD..].first_chunk().expect("a whole answer"))
}

/// If queues are announced, the kernel waits for all of them.
#[test]
fn rings_are_negotiated_only_if_all_of_them_exist() {
    let few = || Some(Slab::new(1).expect("memory").pool(1));
    for (offered, frames) in [(RINGS, few()), (RINGS, None), (0, few())] {
        let (session, answer) = negotiate(&offer(45, offered), frames);
        assert!(session.expect("a session").rings.is_none());
        assert_eq!(second_word(&answer) & RINGS, 0);
    }
    let slab = Slab::new(8192).expect("memory");
    let (session, answer) = negotiate(&offer(45, RINGS), Some(slab.pool(8192)));
    // A kernel without io_uring, or one that forbids it, has no rings.
    let has_rings = session.expect("a session").rings.is_some();
    assert_eq!(second_word(&answer) & RINGS != 0, has_rings);
}

#[test]
fn a_kernel_that_is_too_old_gets_an_error() {
    let (session, answer) = negotiate(&offer(abi::FIRST_MINOR - 1, 0), None);
    assert_eq!(session.err().map(|fault| fault.errno), Some(Errno::EPROTO));
    assert_eq!(answer[4..8], (-Errno::EPROTO.0).to_ne_bytes());
}

/// Regression: the kernel rejects a reply with such a number, and the caller waited forever.
#[test]
fn error_numbers_are_limited_to_those_that_the_kernel_accepts() {
    let sent = [1, 511, 0, -5, 512, i32::MIN, i32::MAX].map(|number| libc_errno(Errno(number)));
    let eio = -Errno::EIO.0;
    assert_eq!(sent, [-1, -511, eio, eio, eio, eio, eio]);
}
