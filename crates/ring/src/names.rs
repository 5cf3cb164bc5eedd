//! Names that programs look up without a request: layout of the table in the agent's notice.
//!
//! ```text
//! names      0  clock of the agent at its last welcome, CLOCK_MONOTONIC                u64, ns
//!           64  for each view: number of changes of its directories                    8 x u64
//!          128  for each view: end of validity of all files                            8 x u64, ns
//!         4096  slots: 8192 sets of 4, of 192 bytes each
//!
//! slot       0  version: odd while the agent writes                                    u64
//!            8  hash of the key                                                        u64
//!           16  key: view, size of the name, kind; directory; end of validity          3 x u64
//!           40  value, of a file: its attributes; of a directory: number, changes      11 x u64
//!          128  key: the name, and zeros                                               8 x u64
//! ```
//!
//! A slot describes a name in a directory: a file, valid until a time; or a directory, valid until a time and while the view's number of
//! directory changes equals that in the slot. A reader reads the version before and after: the slot is consistent if both are equal and
//! even. A reader reads the end of validity of all files before. Keys are compared whole; longer names are not in the table. If a set is full, the agent replaces the file whose validity ends
//! first, or a directory if there is no file.

use crate::message::{STATUS_WORDS, StatusWords};
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

/// Size of the table, in bytes.
pub(crate) const NAMES_SIZE: usize = SLOTS + SETS * SET_SLOTS * SLOT_SIZE;
/// Offset of the clock.
pub(crate) const CLOCK: usize = 0;
/// Maximum number of views in the table.
pub(crate) const VIEWS_MAX: usize = 8;
/// Slots of a set.
pub(crate) const SET_SLOTS: usize = 4;

const CHANGES: usize = 64;
const FILES_UNTIL: usize = CHANGES + 8 * VIEWS_MAX;
const SLOTS: usize = 4096;
const SETS: usize = 1 << 13;
const SLOT_SIZE: usize = 192;
const NAME_WORDS: usize = 8;
const NAME_SIZE_MAX: usize = NAME_WORDS * 8;

/// Offsets in a slot.
pub(crate) const VERSION: usize = 0;
pub(crate) const HASH: usize = 8;
pub(crate) const HEAD: usize = 16;
const DIRECTORY: usize = 24;
pub(crate) const UNTIL: usize = 32;
const VALUE: usize = 40;
/// Position of the kind in the first word of a key.
const KIND_SHIFT: u32 = 16;
const NAME: usize = VALUE + 8 * STATUS_WORDS;

const _: () = assert!(NAME + NAME_SIZE_MAX == SLOT_SIZE && SLOT_SIZE.is_multiple_of(64));
const _: () = assert!(FILES_UNTIL + 8 * VIEWS_MAX <= SLOTS && SETS.is_power_of_two());
const _: () = assert!(NAMES_SIZE.is_multiple_of(4096));

/// Offset of a view's number of directory changes.
pub(crate) fn changes(view: usize) -> usize {
    CHANGES + 8 * view
}

/// Offset of the end of validity of all files of a view, on the agent's clock.
pub(crate) fn files_until(view: usize) -> usize {
    FILES_UNTIL + 8 * view
}

/// A time of the clock, in nanoseconds.
pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Kind of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File = 1,
    Directory = 2,
}

impl Kind {
    /// The kind in the first word of a key.
    pub fn of_head(head: u64) -> Option<Self> {
        [Self::File, Self::Directory].into_iter().find(|kind| *kind as u64 == head >> KIND_SHIFT)
    }
}

/// Key of a slot.
#[derive(Debug)]
pub(crate) struct Key {
    hash: u64,
    head: u64,
    directory: u64,
    name: [u64; NAME_WORDS],
    name_words: usize,
}

impl Key {
    /// The key of a name in a directory, or of the directory itself if the name is empty; `None` if the name is too long.
    pub fn new(kind: Kind, view: usize, directory: u64, name: &[u8]) -> Option<Self> {
        if view >= VIEWS_MAX || name.len() > NAME_SIZE_MAX {
            return None;
        }
        let head = view as u64 | (name.len() as u64) << 8 | (kind as u64) << KIND_SHIFT;
        let (mut words, mut hash) = ([0; NAME_WORDS], mix(mix(0, head), directory));
        for (word, bytes) in words.iter_mut().zip(name.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(whole);
            hash = mix(hash, *word);
        }
        // Never 0, the hash of an empty slot.
        let (hash, name_words) = (hash | 1 << 63, name.len().div_ceil(8));
        Some(Self { hash, head, directory, name: words, name_words })
    }

    /// Offsets of the slots in which the key may be.
    pub fn slots(&self) -> impl Iterator<Item = usize> {
        let first = self.hash as usize % SETS * SET_SLOTS;
        (first..first + SET_SLOTS).map(|slot| SLOTS + slot * SLOT_SIZE)
    }

    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The words of the key in a slot, except the hash, with their offsets.
    pub fn words(&self) -> impl Iterator<Item = (usize, u64)> {
        let name = self.name.iter().take(self.name_words).enumerate();
        let name = name.map(|(place, word)| (NAME + 8 * place, *word));
        [(HEAD, self.head), (DIRECTORY, self.directory)].into_iter().chain(name)
    }
}

/// Multiplies high bits into low ones and back.
fn mix(hash: u64, word: u64) -> u64 {
    let product = u128::from(hash ^ word ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
    (product >> 64) as u64 ^ product as u64
}

/// Offsets of the words of a value in a slot.
pub(crate) fn value_places() -> impl Iterator<Item = usize> {
    (0..STATUS_WORDS).map(|place| VALUE + 8 * place)
}

/// Content of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NameEntry {
    /// End of validity, on the agent's clock.
    pub until: u64,
    pub value: StatusWords,
}

/// The content of a key's slot, if there is one; `load` reads words of the table.
pub(crate) fn find(load: impl Fn(usize) -> u64, key: &Key) -> Option<NameEntry> {
    key.slots().find_map(|slot| read(|place| load(slot + place), key))
}

fn read(load: impl Fn(usize) -> u64, key: &Key) -> Option<NameEntry> {
    let version = load(VERSION);
    // The common miss; a matching slot is compared whole.
    if !version.is_multiple_of(2) || load(HASH) != key.hash {
        return None;
    }
    fence(Ordering::Acquire);
    let is_it = key.words().all(|(place, word)| load(place) == word);
    let entry = NameEntry { until: load(UNTIL), value: std::array::from_fn(|place| load(VALUE + 8 * place)) };
    fence(Ordering::Acquire);
    (is_it && load(VERSION) == version).then_some(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_in_each_part() {
        let key =
            |kind, view, directory, name: &[u8]| Key::new(kind, view, directory, name).expect("it fits");
        let all = [
            key(Kind::File, 0, 7, b"name"),
            key(Kind::Directory, 0, 7, b"name"),
            key(Kind::File, 1, 7, b"name"),
            key(Kind::File, 0, 8, b"name"),
            key(Kind::File, 0, 7, b"name\0"),
            key(Kind::File, 0, 7, b"nam"),
            key(Kind::File, 0, 7, b""),
            key(Kind::File, 0, 7, &[b'n'; NAME_SIZE_MAX]),
        ];
        for (place, one) in all.iter().enumerate() {
            for other in &all[..place] {
                assert!(!one.words().eq(other.words()) && one.hash != other.hash, "{one:?} {other:?}");
            }
        }
        assert!(Key::new(Kind::File, 0, 7, &[b'n'; NAME_SIZE_MAX + 1]).is_none());
        assert!(Key::new(Kind::File, VIEWS_MAX, 7, b"name").is_none());
    }

    #[test]
    fn numbered_names_are_spread_evenly() {
        let mut sets = vec![0_u32; SETS];
        for number in 0..2 * SETS {
            let name = format!("file-{}-{number}", number % 2);
            let key = Key::new(Kind::File, 0, 99, name.as_bytes()).expect("it fits");
            let slot = key.slots().next().expect("a set has slots");
            sets[(slot - SLOTS) / SLOT_SIZE / SET_SLOTS] += 1;
        }
        let lost: u32 = sets.iter().map(|count| count.saturating_sub(SET_SLOTS as u32)).sum();
        assert!(lost < SETS as u32 / 10, "{lost} of {} do not fit", 2 * SETS);
    }
}
