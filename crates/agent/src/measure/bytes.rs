//! Data of a measurement. It is derived from the session's number, so that each side can verify what it receives.

use std::ops::Range;
use std::sync::Arc;
use tameike_core::{Errno, Fault, Result};
use tameike_io::{Frame, Payload};

const WORD: usize = 8;

/// Eight bytes of a session at a position (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
fn word(session: u64, index: usize) -> [u8; WORD] {
    let mut word = session.wrapping_add((index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (word ^ (word >> 31)).to_le_bytes()
}

/// Fills a frame with the first `size` bytes of a session.
pub(super) fn made(mut frame: Frame, session: u64, size: u32) -> Payload {
    for (index, bytes) in frame[..size as usize].chunks_mut(WORD).enumerate() {
        bytes.copy_from_slice(&word(session, index)[..bytes.len()]);
    }
    Payload::new(Arc::new(frame), 0..size)
}

fn are_right(bytes: &[u8], session: u64, words: Range<usize>) -> bool {
    words.clone().all(|index| {
        let part = &bytes[index * WORD..bytes.len().min((index + 1) * WORD)];
        *part == word(session, index)[..part.len()]
    })
}

/// Compares received data with sent data: the length, and either every byte or four words including the first and the last.
pub(super) fn check(bytes: &[u8], size: usize, session: u64, whole: bool) -> Result<()> {
    let words = bytes.len().div_ceil(WORD);
    let is_right = if whole {
        are_right(bytes, session, 0..words)
    } else {
        let last = words.saturating_sub(1);
        [0, last / 3, 2 * last / 3, last].iter().all(|&at| are_right(bytes, session, at..words.min(at + 1)))
    };
    if bytes.len() == size && is_right {
        return Ok(());
    }
    let what =
        format!("received {} bytes that differ from the {size} sent: the measurement is void", bytes.len());
    Err(Fault::new(Errno::EBADMSG, what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tameike_io::Slab;

    #[test]
    fn truncated_foreign_and_damaged_messages_are_detected() {
        let slab = Slab::new(1).expect("memory");
        let pool = slab.pool(1);
        for size in [1, 7, 8, 9, 4096, 100_001] {
            let sent = made(pool.try_take().expect("a frame"), 5, size);
            for whole in [false, true] {
                assert_eq!(check(&sent, size as usize, 5, whole), Ok(()));
                assert!(check(&sent[..size as usize - 1], size as usize, 5, whole).is_err(), "truncated");
                assert!(check(&sent, size as usize, 6, whole).is_err(), "of another session");
            }
            for index in [0, size as usize / 2, size as usize - 1] {
                let mut damaged = sent.to_vec();
                damaged[index] ^= 1;
                assert!(check(&damaged, size as usize, 5, true).is_err(), "{index} of {size}");
            }
        }
    }
}
