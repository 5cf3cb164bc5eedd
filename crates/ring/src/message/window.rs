//! Encoding of accesses to remote memory windows.

use super::WINDOW_SIZE;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::window::{Access, Atomic, Elements, Signal, WordChange};

/// Words of an access: its kind, which is less than 2^32, and its numbers.
pub(super) type AccessWords = [u64; 6];

const PUT: u64 = 1;
const PUT_AND_SET: u64 = 2;
const PUT_AND_ADD: u64 = 3;
const GET: u64 = 4;
const FETCH: u64 = 5;
const ADD: u64 = 6;
const SWAP: u64 = 7;
const COMPARE_SWAP: u64 = 8;
const SEND: u64 = 9;

const _: () = assert!(UNIT_SIZE <= WINDOW_SIZE, "all elements of a message fit a slot's window");

fn of_elements(kind: u64, elements: &Elements, (offset, value): (u64, u64)) -> AccessWords {
    let sizes = u64::from(elements.size) << 32 | u64::from(elements.count);
    [kind, elements.offset, sizes, elements.stride, offset, value]
}

/// Encodes an access, and the size of a message of [`Access::Send`].
pub(super) fn encode(access: &Access, size: u32) -> AccessWords {
    match access {
        Access::Put { to, signal } => match signal {
            None => of_elements(PUT, to, (0, 0)),
            Some(Signal { offset, change: WordChange::Set(value) }) => {
                of_elements(PUT_AND_SET, to, (*offset, *value))
            }
            Some(Signal { offset, change: WordChange::Add(addend) }) => {
                of_elements(PUT_AND_ADD, to, (*offset, *addend))
            }
        },
        Access::Get { from } => of_elements(GET, from, (0, 0)),
        Access::Atomic { offset, operation } => match operation {
            Atomic::Fetch => [FETCH, *offset, 0, 0, 0, 0],
            Atomic::Add(addend) => [ADD, *offset, *addend, 0, 0, 0],
            Atomic::Swap(value) => [SWAP, *offset, *value, 0, 0, 0],
            Atomic::CompareSwap { expected, value } => [COMPARE_SWAP, *offset, *value, *expected, 0, 0],
        },
        Access::Send { queue } => [SEND, *queue, size.into(), 0, 0, 0],
    }
}

/// Decodes an access, and the number of its bytes in the slot's window; `None` for invalid words.
pub(super) fn decode(words: AccessWords) -> Option<(Access, u32)> {
    let [kind, a, b, c, d, e] = words;
    let elements = || {
        let elements = Elements { offset: a, size: (b >> 32) as u32, stride: c, count: b as u32 };
        Some((elements, elements.total()?))
    };
    let put = |signal| {
        let (to, size) = elements()?;
        Some((Access::Put { to, signal }, size))
    };
    let atomic = |operation| Some((Access::Atomic { offset: a, operation }, 0));
    match kind {
        PUT => put(None),
        PUT_AND_SET => put(Some(Signal { offset: d, change: WordChange::Set(e) })),
        PUT_AND_ADD => put(Some(Signal { offset: d, change: WordChange::Add(e) })),
        GET => elements().map(|(from, _)| (Access::Get { from }, 0)),
        FETCH => atomic(Atomic::Fetch),
        ADD => atomic(Atomic::Add(b)),
        SWAP => atomic(Atomic::Swap(b)),
        COMPARE_SWAP => atomic(Atomic::CompareSwap { expected: c, value: b }),
        SEND => Some((Access::Send { queue: a }, super::window_size(b)?)),
        _ => None,
    }
}
