//! Sample requests for tests.

use super::request::{HEADER_SIZE, opcode};
#[cfg(feature = "fuzz")]
use super::{Header, Operation, Request};

/// A request of user 1000, group 100 and thread 77, about file 5.
pub(super) fn message(code: u32, arguments: &[&[u8]]) -> Vec<u8> {
    let size: usize = arguments.iter().map(|part| part.len()).sum();
    let mut bytes = ((HEADER_SIZE + size) as u32).to_ne_bytes().to_vec();
    bytes.extend(code.to_ne_bytes());
    for number in [42_u64, 5] {
        bytes.extend(number.to_ne_bytes());
    }
    for number in [1000_u32, 100, 77, 0] {
        bytes.extend(number.to_ne_bytes());
    }
    bytes.extend(arguments.concat());
    bytes
}

/// Encodes numbers of four bytes.
pub(super) fn words(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

/// Samples of all request shapes, with names.
pub(super) fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let write = |flags| words(&[7, 0, 4096, 0, 3, flags, 0, 0, 0o2001, 0]);
    let mut attributes = words(&[1 | 1 << 3 | 1 << 4 | 1 << 8, 0, 0, 0, 9, 0, 0, 0]);
    attributes.extend((-3600_i64).to_ne_bytes());
    attributes.extend(words(&[0, 0, 0, 0, 500_000_000, 0, 0, 0o100_640, 0, 0, 0, 0]));
    let lock = words(&[7, 0, 3, 0, 5, 0, 9, 0, 1, 77, 0, 0]);
    vec![
        ("lookup", message(opcode::LOOKUP, &[b"name\0"])),
        ("forgets", message(opcode::BATCH_FORGET, &[&words(&[2, 0]), &words(&[5, 0, 1, 0, 6, 0, 2, 0])])),
        ("setattr", message(opcode::SETATTR, &[&attributes])),
        ("rename", message(opcode::RENAME2, &[&words(&[9, 0, 1, 0]), b"from\0to\0"])),
        ("write", message(opcode::WRITE, &[&write(1 << 2), b"abc"])),
        ("write back", message(opcode::WRITE, &[&write(1), b"abc"])),
        ("setxattr", message(opcode::SETXATTR, &[&words(&[3, 1]), b"user.a\0", b"xyz"])),
        ("lock", message(opcode::SETLKW, &[&lock])),
        ("create", message(opcode::CREATE, &[&words(&[0o301, 0o644, 0o22, 0]), b"new\0"])),
    ]
}

/// A decoded request must borrow from its bytes, and be the same when it is decoded from parts.
#[cfg(feature = "fuzz")]
pub(crate) fn fuzz(bytes: &[u8]) {
    let Ok(request) = Request::decode(bytes) else { return };
    if let Operation::Write { data, .. } = request.operation {
        assert!(
            bytes.as_ptr_range().contains(&data.as_ptr()) || data.is_empty(),
            "data outside of the request"
        );
    }
    let (header, rest) = Header::decode(bytes).expect("a decoded request");
    let (fixed, variable) = rest.split_at(super::request::fixed_size(header.opcode));
    assert_eq!(Request::from_parts(header, fixed, variable).as_ref(), Ok(&request));
}

#[cfg(feature = "fuzz")]
pub(crate) fn fuzz_seeds() -> Vec<(&'static str, Vec<u8>)> {
    samples()
}
