//! The table as changes over changes over the key-value store.

use super::kv::{Changes, Kv};
use crate::table::Table;
use std::collections::btree_map;
use std::iter::Peekable;
use std::ops::Bound;
use tameike_core::Result;

/// What a change weighs beside its key and value: nodes of the map and headers of the vectors, in bytes.
const ENTRY_OVERHEAD: usize = 64;

fn weight(key: &[u8], value: Option<&Vec<u8>>) -> usize {
    key.len() + value.map_or(0, Vec::len) + ENTRY_OVERHEAD
}

/// Changes with their weight in memory.
#[derive(Default)]
pub(super) struct Overlay {
    pub(super) changes: Changes,
    pub(super) bytes: usize,
}

impl Overlay {
    /// Puts `newer` over these changes.
    pub(super) fn merge(&mut self, newer: Changes) {
        for (key, value) in newer {
            self.bytes += weight(&key, value.as_ref());
            let size = key.len();
            if let Some(old) = self.changes.insert(key, value) {
                self.bytes -= size + old.map_or(0, |old| old.len()) + ENTRY_OVERHEAD;
            }
        }
    }
}

/// One change in the making: its own changes over those of the layers, newest first, over the store.
pub(super) struct Transaction<'a> {
    pub(super) changes: Changes,
    layers: [Option<&'a Changes>; 2],
    kv: &'a dyn Kv,
}

impl<'a> Transaction<'a> {
    pub(super) fn new(active: &'a Changes, frozen: Option<&'a Changes>, kv: &'a dyn Kv) -> Self {
        Self { changes: Changes::new(), layers: [Some(active), frozen], kv }
    }

    fn layers(&self) -> impl Iterator<Item = &Changes> {
        std::iter::once(&self.changes).chain(self.layers.iter().flatten().copied())
    }
}

impl Table for Transaction<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.layers().find_map(|changes| changes.get(key)) {
            Some(change) => Ok(change.clone()),
            None => self.kv.get(key),
        }
    }

    fn scan(&self, start: &[u8], end: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut found = Vec::new();
        let mut start = start.to_vec();
        while found.len() < limit && start.as_slice() < end {
            let wanted = limit - found.len();
            let stored = self.kv.scan(&start, end, wanted)?;
            // What the store did not give lies at or beyond `bound`.
            let bound = match stored.last() {
                Some((key, _)) if stored.len() == wanted => successor(key),
                _ => end.to_vec(),
            };
            let layers = self.layers().map(|changes| {
                changes
                    .range::<[u8], _>((Bound::Included(start.as_slice()), Bound::Excluded(bound.as_slice())))
            });
            Merge { layers: layers.map(Iterator::peekable).collect(), stored: stored.into_iter().peekable() }
                .take_into(&mut found, limit);
            start = bound;
        }
        Ok(found)
    }

    fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.changes.insert(key, Some(value));
    }

    fn delete(&mut self, key: Vec<u8>) {
        self.changes.insert(key, None);
    }
}

/// The smallest key after `key`.
fn successor(key: &[u8]) -> Vec<u8> {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next
}

type Layer<'a> = Peekable<btree_map::Range<'a, Vec<u8>, Option<Vec<u8>>>>;

/// Ascending keys of several layers, newest first, and of the store.
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
mod tests {
    use super::super::kv::MemoryKv;
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn changes() -> impl Strategy<Value = Changes> {
        let change = prop::option::of(prop::collection::vec(any::<u8>(), 0..3));
        prop::collection::btree_map(prop::collection::vec(0u8..4, 1..4), change, 0..20)
    }

    proptest! {
        #[test]
        fn layers_look_like_one_map(
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
            let mut table = Transaction::new(&active, Some(&frozen), &kv);
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

        #[test]
        fn an_overlay_knows_its_weight(steps in prop::collection::vec(changes(), 0..5)) {
            let mut overlay = Overlay::default();
            steps.into_iter().for_each(|step| overlay.merge(step));
            let expected: usize = overlay.changes.iter().map(|(key, value)| weight(key, value.as_ref())).sum();
            prop_assert_eq!(overlay.bytes, expected);
        }
    }
}
