//! Listings of directories: read whole, told in parts, with cursors that follow from the names.

use crate::vfs::{FileNumber, ListedEntry};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use tameike_core::{DirOffset, InodeId};
use tameike_io::shared::NamedFile;

/// Listings kept for readers that are in the middle of them.
const LISTINGS_MAX: usize = 16;

#[derive(Default)]
pub(super) struct Listings(Mutex<VecDeque<(FileNumber, Arc<Vec<ListedEntry>>)>>);

impl Listings {
    /// The part after a cursor of a listing that is being read; a read from the start wants a new one.
    pub(super) fn part(&self, dir: FileNumber, after: u64, limit: u32) -> Option<Vec<ListedEntry>> {
        if after == 0 {
            return None;
        }
        let listing = self.0.lock().iter().find(|(of, _)| *of == dir)?.1.clone();
        Some(cut(&listing, after, limit))
    }

    /// Keeps a new listing in place of an old one, and tells the part after a cursor.
    pub(super) fn keep(
        &self,
        dir: FileNumber,
        names: Vec<NamedFile>,
        after: u64,
        limit: u32,
    ) -> Vec<ListedEntry> {
        let mut listing: Vec<_> = names.into_iter().map(|named| entry(dir, named)).collect();
        listing.sort_by(|a, b| (a.next, &a.name).cmp(&(b.next, &b.name)));
        let mut last = 0;
        for entry in &mut listing {
            entry.next = entry.next.max(last + 1);
            last = entry.next;
        }
        let part = cut(&listing, after, limit);
        let mut kept = self.0.lock();
        kept.retain(|(of, _)| *of != dir);
        kept.push_back((dir, Arc::new(listing)));
        if kept.len() > LISTINGS_MAX {
            kept.pop_front();
        }
        part
    }

    pub(super) fn drop(&self, dir: FileNumber) {
        self.0.lock().retain(|(of, _)| *of != dir);
    }
}

fn entry(dir: FileNumber, named: NamedFile) -> ListedEntry {
    let next = DirOffset::of(InodeId(dir.0), &named.name).0;
    ListedEntry { next, inode: named.inode.0, kind: named.kind, name: named.name }
}

fn cut(listing: &[ListedEntry], after: u64, limit: u32) -> Vec<ListedEntry> {
    let start = listing.partition_point(|entry| entry.next <= after);
    listing[start..].iter().take(limit as usize).cloned().collect()
}
