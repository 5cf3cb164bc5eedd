use super::samples::{message, samples, words};
use super::*;
use std::time::Duration;
use tameike_core::attr::{AttrChange, SetTime};
use tameike_core::{FileKind, Timestamp};

fn operation(bytes: &[u8]) -> Operation<'_> {
    Request::decode(bytes).expect("a request").operation
}

#[test]
fn requests_are_decoded() {
    let samples = samples();
    let header = Header { opcode: opcode::LOOKUP, unique: 42, node: 5, uid: 1000, gid: 100, pid: 77 };
    assert_eq!(Request::decode(&samples[0].1).map(|request| request.header), Ok(header));
    let operations: Vec<_> = samples.iter().map(|(_, bytes)| operation(bytes)).collect();
    assert_eq!(operations[0], Operation::Lookup { name: b"name" });
    let Operation::BatchForget(forgets) = operations[1] else { unreachable!("forgets") };
    assert_eq!(forgets.iter().collect::<Vec<_>>(), [(5, 1), (6, 2)]);
    let change = AttrChange {
        mode: Some(0o640),
        size: Some(9),
        // Before 1970: the nanoseconds count forward from the second.
        atime: Some(SetTime::To(Timestamp { seconds: -3600, nanoseconds: 500_000_000 })),
        ..AttrChange::default()
    };
    assert_eq!(operations[2], Operation::SetAttr(change));
    let rename = Operation::Rename { name: b"from", new_parent: 9, new_name: b"to", flags: 1 };
    assert_eq!(operations[3], rename);
    let write = |flags| Operation::Write { handle: 7, offset: 4096, flags, data: b"abc" };
    assert_eq!(operations[4], write(WriteFlags { writes_back: false, appends: true, takes_rights: true }));
    // Written-back pages have an offset, even if the file is open with `O_APPEND`.
    assert_eq!(operations[5], write(WriteFlags { writes_back: true, appends: false, takes_rights: false }));
    assert_eq!(operations[6], Operation::SetXattr { name: b"user.a", value: b"xyz", flags: 1 });
    let lock = LockRequest { handle: 7, owner: 3, start: 5, end: 9, kind: 1, pid: 77 };
    assert_eq!(operations[7], Operation::SetLock { lock, sleep: true });
    let create = Operation::Create { name: b"new", flags: 0o301, mode: 0o644, umask: 0o22 };
    assert_eq!(operations[8], create);
}

/// A name without its end, or a size beyond the data, would read past the request.
#[test]
fn truncated_requests_are_malformed() {
    for (name, bytes) in samples() {
        for size in 0..bytes.len() {
            assert_eq!(Request::decode(&bytes[..size]), Err(Malformed), "{name}, {size} bytes of it");
        }
    }
    let count = words(&[u32::MAX, 0]);
    assert_eq!(Request::decode(&message(opcode::BATCH_FORGET, &[&count])), Err(Malformed));
    assert_eq!(operation(&message(9999, &[])), Operation::Unknown);
}

#[test]
fn a_listing_is_limited_by_its_buffer() {
    let mut listing = Directory::new(64);
    assert!(listing.add(7, 1, FileKind::Directory, b"nine byte"));
    assert!(!listing.add(8, 2, FileKind::File, b"another one"), "40 bytes are taken, and 40 more needed");
    assert!(listing.add(8, 2, FileKind::File, b""), "24 bytes are left");
    assert_eq!(listing.len(), 64);
    assert_eq!(listing[20..33], *b"\x04\0\0\0nine byte");
}

#[test]
fn only_offered_features_are_requested() {
    let offer = [words(&[MAJOR, 45, 1 << 16, 1 | 1 << 1 | 1 << 22 | 1 << 30, 1 << 9]), vec![0; 44]].concat();
    let offer = InitRequest::decode(&offer).expect("an offer");
    assert!(offer.offers_rings());
    let init = Init { request_size: 1 << 20, keeps_locks: false, checks_permissions: false };
    let answer = offer.negotiate(init, false).encode();
    assert_eq!(answer.len(), 64);
    // The kernel limits the readahead on its own.
    assert_eq!(answer[8..16], words(&[1 << 20, 1 | 1 << 22 | 1 << 30])[..]);
    assert_eq!(answer[20..28], words(&[1 << 20, 1])[..]);
    let pages = ((1 << 20) / rustix::param::page_size()) as u16;
    assert_eq!(answer[28..36], [&pages.to_ne_bytes()[..], &[0; 6]].concat()[..], "no rings");
    assert!(!offer.negotiate(init, true).maps_direct());
    assert_eq!(offer.negotiate(init, true).encode()[32..36], (1_u32 << 9).to_ne_bytes());
    let locks = offer.negotiate(Init { keeps_locks: true, ..init }, false).encode();
    assert_eq!(locks[12..16], words(&[1 | 1 << 1 | 1 << 22 | 1 << 30])[..]);
}

#[test]
fn headers_and_small_replies_have_the_right_size() {
    assert_eq!(
        out_header(24, -2, 9)[..],
        [words(&[24]), words(&[-2_i32 as u32]), words(&[9, 0])].concat()[..]
    );
    let space =
        Space { blocks: 9, blocks_free: 3, files: 5, files_free: 2, block_size: 4096, name_size: 255 };
    assert_eq!(Body::default().space(space).len(), 80);
    let lock = LockState { start: 1, end: 2, kind: 2, pid: 0 };
    assert_eq!(Body::default().lock(lock).len(), 24);
    assert_eq!(Body::default().opened(1, open_flag::DIRECT_IO).len(), 16);
    let lifetimes = Lifetimes { name: Duration::ZERO, attr: Duration::new(1, 5) };
    assert_eq!(lifetimes.attr.subsec_nanos(), 5);
    assert!(Body::of(&[0; 144]).is_some() && Body::of(&[0; 145]).is_none());
}
