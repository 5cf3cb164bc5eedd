//! Multi-version overlay: changes in memory, with the old versions that active readers still need.

use super::kv::Changes;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

/// Bytes of memory per change beside its key and value: nodes of the map and headers of the vectors.
const ENTRY_OVERHEAD: usize = 64;

type Change = Option<Vec<u8>>;

fn weight(key: &[u8], change: Option<&Change>) -> usize {
    key.len() + change.and_then(Option::as_ref).map_or(0, Vec::len) + ENTRY_OVERHEAD
}

/// Active readers: by sequence number of the last record that they see, their count.
#[derive(Default)]
pub(super) struct Readers(Mutex<BTreeMap<u64, usize>>);

/// Registration of a reader, until dropped.
pub(super) struct Reader<'a> {
    readers: &'a Readers,
    sequence: u64,
}

impl Readers {
    pub(super) fn begin(&self, sequence: u64) -> Reader<'_> {
        *self.0.lock().entry(sequence).or_default() += 1;
        Reader { readers: self, sequence }
    }

    fn earliest(&self) -> Option<u64> {
        self.0.lock().first_key_value().map(|(&sequence, _)| sequence)
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        let readers = &mut *self.readers.0.lock();
        if let Some(count) = readers.get_mut(&self.sequence) {
            *count -= 1;
            if *count == 0 {
                readers.remove(&self.sequence);
            }
        }
    }
}

/// Changes, with the versions they replaced while a reader must not see them yet.
#[derive(Default)]
pub(super) struct Overlay(RwLock<Versions>);

#[derive(Default)]
pub(super) struct Versions {
    changes: Changes,
    /// By key, ascending: number of a record, and the change before that record (`None`: none).
    replaced: BTreeMap<Vec<u8>, VecDeque<(u64, Option<Change>)>>,
    /// The keys of `replaced` in order of records.
    order: VecDeque<(u64, Vec<u8>)>,
    /// Memory of both, in bytes.
    bytes: usize,
}

impl Overlay {
    /// Merges the changes of record `sequence` over these.
    pub(super) fn merge(&self, newer: Changes, sequence: u64, readers: &Readers) {
        let versions = &mut *self.0.write();
        let earliest = readers.earliest();
        versions.forget(earliest.unwrap_or(u64::MAX));
        for (key, change) in newer {
            versions.bytes += weight(&key, Some(&change));
            let noted = earliest.map(|_| key.clone());
            let size = key.len();
            let old = versions.changes.insert(key, change);
            if let Some(old) = &old {
                versions.bytes -= size + old.as_ref().map_or(0, Vec::len) + ENTRY_OVERHEAD;
            }
            if let Some(key) = noted {
                versions.bytes += weight(&key, old.as_ref());
                versions.replaced.entry(key.clone()).or_default().push_back((sequence, old));
                versions.order.push_back((sequence, key));
            }
        }
    }

    pub(super) fn read(&self) -> RwLockReadGuard<'_, Versions> {
        self.0.read()
    }
}

impl Versions {
    /// Drops versions that only readers before `earliest` need.
    fn forget(&mut self, earliest: u64) {
        while self.order.front().is_some_and(|(sequence, _)| *sequence <= earliest) {
            let Some((_, key)) = self.order.pop_front() else { return };
            if let Some(history) = self.replaced.get_mut(&key) {
                if let Some((_, old)) = history.pop_front() {
                    self.bytes -= weight(&key, old.as_ref());
                }
                if history.is_empty() {
                    self.replaced.remove(&key);
                }
            }
        }
    }

    /// The change of the key as of record `sequence`; `now` is the latest one.
    fn as_of<'a>(&'a self, key: &[u8], now: Option<&'a Change>, sequence: u64) -> Option<&'a Change> {
        let later = |history: &'a VecDeque<(u64, Option<Change>)>| {
            history.get(history.partition_point(|(record, _)| *record <= sequence))
        };
        match self.replaced.get(key).and_then(later) {
            Some((_, old)) => old.as_ref(),
            None => now,
        }
    }

    /// The change of the key as of record `sequence`, if any.
    pub(super) fn get(&self, key: &[u8], sequence: u64) -> Option<&Change> {
        self.as_of(key, self.changes.get(key), sequence)
    }

    /// Changes as of record `sequence` of the keys from `start` (included) to `end` (excluded).
    pub(super) fn range<'a>(
        &'a self,
        start: &'a [u8],
        end: &'a [u8],
        sequence: u64,
    ) -> impl Iterator<Item = (&'a Vec<u8>, &'a Change)> {
        let bounds = (Bound::Included(start), Bound::Excluded(end));
        let seen = move |(key, now): (&'a Vec<u8>, _)| Some((key, self.as_of(key, Some(now), sequence)?));
        self.changes.range::<[u8], _>(bounds).filter_map(seen)
    }

    pub(super) fn changes(&self) -> &Changes {
        &self.changes
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::super::transaction::tests::changes;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_overlay_keeps_the_versions_of_active_readers(
            steps in prop::collection::vec((changes(), prop::option::of(0usize..6), any::<bool>()), 0..24),
        ) {
            let (overlay, readers) = (Overlay::default(), Readers::default());
            let mut reading: Vec<(u64, Changes, Reader<'_>)> = Vec::new();
            for (sequence, (step, ends, begins)) in (1..).zip(steps) {
                overlay.merge(step, sequence, &readers);
                if let Some(place) = ends && place < reading.len() {
                    reading.swap_remove(place);
                }
                let now = overlay.read().changes().clone();
                if begins {
                    reading.push((sequence, now, readers.begin(sequence)));
                }
                let versions = overlay.read();
                for (sequence, then, _) in &reading {
                    let seen: Changes = versions
                        .range(&[], &[9], *sequence)
                        .map(|(key, change)| (key.clone(), change.clone()))
                        .collect();
                    prop_assert_eq!(&seen, then);
                    for key in versions.changes().keys() {
                        prop_assert_eq!(versions.get(key, *sequence), then.get(key));
                    }
                }
                let now = versions.changes.iter().map(|(key, change)| weight(key, Some(change)));
                let old = versions.replaced.iter().flat_map(|(key, history)| {
                    history.iter().map(move |(_, old)| weight(key, old.as_ref()))
                });
                prop_assert_eq!(versions.bytes(), now.chain(old).sum::<usize>());
            }
            drop(reading);
            overlay.merge(Changes::from([(vec![1], None)]), u64::MAX, &readers);
            prop_assert!(overlay.read().replaced.is_empty() && overlay.read().order.is_empty());
        }
    }
}
