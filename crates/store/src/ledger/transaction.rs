//! The table at one moment, and a change under construction over it.
//!
//! No lock is held while the key-value store is read, since it may wait for a disk. Reads lock the overlays only for
//! steps in memory.

use super::kv::{Changes, Snapshot};
use super::overlay::Overlay;
use crate::table::{ReadTable, Table};
use std::iter::Peekable;
use std::ops::Bound;
use std::sync::Arc;
use tameike_core::Result;

/// The table as it was after record `sequence`.
pub(super) struct ReadView {
    pub(super) active: Arc<Overlay>,
    pub(super) frozen: Option<Arc<Overlay>>,
    pub(super) stored: Arc<dyn Snapshot>,
    pub(super) sequence: u64,
}

impl ReadView {
    /// The overlays, newest first.
    fn overlays(&self) -> impl Iterator<Item = &Overlay> {
        std::iter::once(&*self.active).chain(self.frozen.as_deref())
    }
}

/// Changes over a view of the table.
pub(super) struct Transaction {
    changes: Changes,
    below: ReadView,
}

impl Transaction {
    pub(super) fn new(below: ReadView) -> Self {
        Self { changes: Changes::new(), below }
    }

    /// Returns true if anything was put or deleted.
    pub(super) fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// The changes; drops the view below.
    pub(super) fn into_changes(self) -> Changes {
        self.changes
    }
}

impl ReadTable for Transaction {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        if let Some(change) = self.changes.get(key) {
            return Ok(change.clone());
        }
        for overlay in self.below.overlays() {
            if let Some(change) = overlay.read().get(key, self.below.sequence) {
                return Ok(change.clone());
            }
        }
        self.below.stored.get(key)
    }

    fn scan(&self, start: &[u8], end: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut found = Vec::new();
        let mut start = start.to_vec();
        while found.len() < limit && start.as_slice() < end {
            let wanted = limit - found.len();
            let stored = self.below.stored.scan(&start, end, wanted)?;
            // Keys that the store did not return are at or beyond `bound`.
            let bound = match stored.last() {
                Some((key, _)) if stored.len() == wanted => successor(key),
                _ => end.to_vec(),
            };
            let below: Vec<_> = self.below.overlays().map(Overlay::read).collect();
            let own = (Bound::Included(start.as_slice()), Bound::Excluded(bound.as_slice()));
            let own: Layer<'_> = layer(self.changes.range::<[u8], _>(own));
            let below =
                below.iter().map(|versions| layer(versions.range(&start, &bound, self.below.sequence)));
            Merge {
                layers: std::iter::once(own).chain(below).collect(),
                stored: stored.into_iter().peekable(),
            }
            .take_into(&mut found, limit);
            start = bound;
        }
        Ok(found)
    }
}

impl Table for Transaction {
    fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.changes.insert(key, Some(value));
    }

    fn delete(&mut self, key: Vec<u8>) {
        self.changes.insert(key, None);
    }
}

/// The smallest key greater than `key`.
fn successor(key: &[u8]) -> Vec<u8> {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next
}

type Layer<'a> = Peekable<Box<dyn Iterator<Item = (&'a Vec<u8>, &'a Option<Vec<u8>>)> + 'a>>;

fn layer<'a>(changes: impl Iterator<Item = (&'a Vec<u8>, &'a Option<Vec<u8>>)> + 'a) -> Layer<'a> {
    let changes: Box<dyn Iterator<Item = _> + 'a> = Box::new(changes);
    changes.peekable()
}

/// Merge of the ascending keys of several layers, newest first, and of the key-value store.
struct Merge<'a> {
    layers: Vec<Layer<'a>>,
    stored: Peekable<std::vec::IntoIter<(Vec<u8>, Vec<u8>)>>,
}

impl Merge<'_> {
    fn take_into(&mut self, found: &mut Vec<(Vec<u8>, Vec<u8>)>, limit: usize) {
        while found.len() < limit {
            let changed = self.layers.iter_mut().filter_map(|layer| layer.peek().map(|(key, _)| *key)).min();
            let stored = self.stored.peek().map(|(key, _)| key);
            let from_store = match (changed, stored) {
                (None, None) => return,
                (None, Some(_)) => true,
                (Some(_), None) => false,
                (Some(changed), Some(stored)) => stored < changed,
            };
            if from_store {
                found.extend(self.stored.next());
            } else if let Some(key) = changed {
                self.stored.next_if(|(stored, _)| stored == key);
                let mut newest = None;
                for layer in &mut self.layers {
                    if let Some((_, value)) = layer.next_if(|(other, _)| *other == key) {
                        newest = newest.or(Some(value));
                    }
                }
                if let Some(Some(value)) = newest {
                    found.push((key.clone(), value.clone()));
                }
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::kv::{Kv, MemoryKv};
    use super::super::overlay::Readers;
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    pub(in super::super) fn changes() -> impl Strategy<Value = Changes> {
        let change = prop::option::of(prop::collection::vec(any::<u8>(), 0..3));
        prop::collection::btree_map(prop::collection::vec(0u8..4, 1..4), change, 0..20)
    }

    fn overlay(changes: Changes) -> Arc<Overlay> {
        let overlay = Overlay::default();
        overlay.merge(changes, 0, &Readers::default());
        Arc::new(overlay)
    }

    proptest! {
        #[test]
        fn layers_read_like_one_map(
            bottom in changes(), frozen in changes(), active in changes(), own in changes(),
            start in prop::collection::vec(0u8..4, 0..3), end in prop::collection::vec(0u8..5, 0..3),
            limit in 0usize..12,
        ) {
            let kv = MemoryKv::default();
            kv.commit(&bottom)?;
            let mut model = BTreeMap::new();
            for (key, value) in [&bottom, &frozen, &active, &own].into_iter().flatten() {
                model.insert(key.clone(), value.clone());
            }
            model.retain(|_, value| value.is_some());
            let mut table = Transaction::new(ReadView {
                active: overlay(active),
                frozen: Some(overlay(frozen)),
                stored: kv.snapshot(),
                sequence: 0,
            });
            for (key, value) in own {
                match value {
                    Some(value) => table.put(key, value),
                    None => table.delete(key),
                }
            }
            let expected: Vec<_> = model
                .iter()
                .filter(|(key, _)| **key >= start && **key < end)
                .filter_map(|(key, value)| Some((key.clone(), value.clone()?)))
                .take(limit)
                .collect();
            prop_assert_eq!(table.scan(&start, &end, limit)?, expected);
            for key in bottom.keys() {
                prop_assert_eq!(table.get(key)?, model.get(key).cloned().flatten());
            }
        }
    }
}
