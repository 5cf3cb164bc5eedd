//! Storms: many files created in one directory within seconds.
//!
//! A node counts its own creations. The number of counted directories is bounded: the one that was quiet for longest is dropped, unless it
//! had a storm.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use tameike_core::Timestamp;
use tameike_core::wire::admin::Storm;

/// Creations in one directory ...
pub const STORM_FILES: u64 = 128;
/// ... within so many seconds are a storm.
pub const STORM_SECONDS: u64 = 10;
/// Directories that are counted.
const DIRECTORIES_MAX: usize = 1024;

#[derive(Default)]
struct Directory {
    /// When the present count began, in nanoseconds.
    began: u64,
    count: u64,
    is_storm: bool,
    /// Files created outside of the container, and the time that this took.
    plain: u64,
    plain_ns: u64,
    packed: u64,
    last: u64,
}

/// Counts of creations by directory.
pub struct Storms {
    packs: bool,
    directories: Mutex<BTreeMap<Vec<u8>, Directory>>,
}

fn nanoseconds(time: Timestamp) -> u64 {
    u64::try_from(time.seconds).unwrap_or(0) * 1_000_000_000 + u64::from(time.nanoseconds)
}

impl Storms {
    /// No counts. `packs`: whether directories with storms pack their files.
    pub fn new(packs: bool) -> Self {
        Self { packs, directories: Mutex::default() }
    }

    /// Counts a creation. Returns whether the directory begins to pack its files.
    pub fn count(&self, dir: &[u8], began: Timestamp, now: Timestamp, is_packed: bool) -> bool {
        let (began, now) = (nanoseconds(began), nanoseconds(now));
        let mut all = self.directories.lock();
        if !all.contains_key(dir) && all.len() >= DIRECTORIES_MAX {
            let quiet = all.iter().filter(|(_, known)| !known.is_storm).min_by_key(|(_, known)| known.last);
            match quiet.map(|(path, _)| path.clone()) {
                Some(quiet) => drop(all.remove(&quiet)),
                None => return false,
            }
        }
        let known = all.entry(dir.to_vec()).or_default();
        known.last = now;
        if is_packed {
            known.packed += 1;
        } else {
            known.plain += 1;
            known.plain_ns += now.saturating_sub(began);
        }
        if now.saturating_sub(known.began) > STORM_SECONDS * 1_000_000_000 {
            (known.began, known.count) = (now, 0);
        }
        known.count += 1;
        let is_new = known.count >= STORM_FILES && !known.is_storm;
        known.is_storm |= is_new;
        is_new && self.packs && !is_packed
    }

    /// Directories with a storm.
    pub fn list(&self) -> Vec<Storm> {
        let all = self.directories.lock();
        let (files, spent) =
            all.values().fold((0, 0), |(files, spent), known| (files + known.plain, spent + known.plain_ns));
        let storms = all.iter().filter(|(_, known)| known.is_storm);
        let report = |(path, known): (&Vec<u8>, &Directory)| Storm {
            dir: String::from_utf8_lossy(path).into_owned(),
            plain: known.plain,
            packed: known.packed,
            // Without a creation outside of the container here: the mean of the whole tree.
            create_ns: known
                .plain_ns
                .checked_div(known.plain)
                .or(u64::checked_div(spent, files))
                .unwrap_or(0),
        };
        storms.map(report).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Timestamp {
        Timestamp { seconds: (ms / 1000) as i64, nanoseconds: (ms % 1000 * 1_000_000) as u32 }
    }

    #[test]
    fn fast_creations_are_one_storm() {
        let storms = Storms::new(true);
        let begun =
            (0..200).filter(|&file| storms.count(b"d", at(file * 10), at(file * 10 + 2), false)).count();
        assert_eq!(begun, 1);
        let listed = storms.list();
        assert_eq!(listed.len(), 1);
        let Storm { dir, plain, packed, create_ns } = &listed[0];
        assert_eq!((dir.as_str(), *plain, *packed, *create_ns), ("d", 200, 0, 2_000_000));
    }

    #[test]
    fn slow_creations_are_no_storm() {
        let storms = Storms::new(true);
        assert!(!(0..1000).any(|file| storms.count(b"d", at(file * 100), at(file * 100), false)));
        assert!(storms.list().is_empty());
    }

    #[test]
    fn the_directory_that_was_quiet_for_longest_is_dropped() {
        let storms = Storms::new(false);
        assert_eq!(
            (0..STORM_FILES).filter(|&file| storms.count(b"storm", at(file), at(file), false)).count(),
            0
        );
        for dir in 0..2 * DIRECTORIES_MAX {
            storms.count(dir.to_string().as_bytes(), at(1000), at(1000), false);
        }
        assert_eq!(storms.directories.lock().len(), DIRECTORIES_MAX);
        assert_eq!(storms.list().len(), 1);
    }
}
