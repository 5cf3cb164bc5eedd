//! What a session agrees on, with a socket in the place of the kernel.

use super::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use tameike_core::limits::UNIT_SIZE;
use tameike_io::slab::Slab;

/// What the kernel can: rings (the bit of the second word), and that there is a second word.
const RINGS: u32 = 1 << 9;
const MORE: u32 = 1 << 30;
/// Place of the second word in the answer to INIT.
const SECOND_WORD: usize = abi::OUT_HEADER_SIZE + 32;

/// INIT of a kernel that speaks 7.`minor` and offers `more`.
fn offer(minor: u32, more: u32) -> Vec<u8> {
    let words = [56 + 48, abi::opcode::INIT, 1, 0, 0, 0, 0, 0, 0, 0, abi::MAJOR, minor, 1 << 20, MORE, more];
    let bytes: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_ne_bytes()).collect();
    [bytes, vec![0; 44]].concat()
}

/// The session that is agreed on, and the answer to the kernel.
fn agree(offer: &[u8], rings: Option<Pool>) -> (Result<Session>, Vec<u8>) {
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let (kernel, device) = pair.expect("sockets");
    rustix::io::write(&kernel, offer).expect("room for it");
    let init = Init { request_size: UNIT_SIZE as u32, keeps_locks: true };
    let session = Session::start(device, Settings { init, threads: 1, rings });
    let mut answer = vec![0; 256];
    let size = rustix::io::read(&kernel, &mut answer[..]).expect("an answer");
    answer.truncate(size);
    (session, answer)
}

fn second_word(answer: &[u8]) -> u32 {
    u32::from_ne_bytes(*answer[SECOND_WORD..].first_chunk().expect("a whole answer"))
}

/// Told that rings are wanted, the kernel would wait for them.
#[test]
fn rings_are_agreed_on_only_where_all_of_them_are_there() {
    let few = || Some(Slab::new(1).expect("memory").pool(1));
    for (offered, frames) in [(RINGS, few()), (RINGS, None), (0, few())] {
        let (session, answer) = agree(&offer(45, offered), frames);
        assert!(session.expect("a session").rings.is_none());
        assert_eq!(second_word(&answer) & RINGS, 0);
    }
    let slab = Slab::new(8192).expect("memory");
    let (session, answer) = agree(&offer(45, RINGS), Some(slab.pool(8192)));
    // A kernel without io_uring, or one that forbids it, has none.
    let has_rings = session.expect("a session").rings.is_some();
    assert_eq!(second_word(&answer) & RINGS != 0, has_rings);
}

#[test]
fn a_kernel_that_is_too_old_is_told() {
    let (session, answer) = agree(&offer(abi::FIRST_MINOR - 1, 0), None);
    assert_eq!(session.err().map(|fault| fault.errno), Some(Errno::EPROTO));
    assert_eq!(answer[4..8], (-Errno::EPROTO.0).to_ne_bytes());
}

/// The kernel takes no answer with such a number, and who asked waited for ever.
#[test]
fn errors_are_told_by_numbers_that_the_kernel_takes() {
    let told = [1, 511, 0, -5, 512, i32::MIN, i32::MAX].map(|number| libc_errno(Errno(number)));
    let eio = -Errno::EIO.0;
    assert_eq!(told, [-1, -511, eio, eio, eio, eio, eio]);
}
