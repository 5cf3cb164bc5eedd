//! Sparse content of a file in memory: only written pages take space.

use std::collections::BTreeMap;
use std::sync::Arc;

const PAGE: usize = 4096;
type Page = [u8; PAGE];

/// Bytes of a file. Clones share their pages.
#[derive(Clone, Default)]
pub(crate) struct Content {
    pages: BTreeMap<u64, Arc<Page>>,
    pub(crate) size: u64,
}

impl Content {
    /// Reads at `offset` until `buffer` is full or the file ends. Returns the number of bytes.
    pub(crate) fn read(&self, buffer: &mut [u8], offset: u64) -> usize {
        let count = self.size.saturating_sub(offset).min(buffer.len() as u64) as usize;
        let mut done = 0;
        while done < count {
            let (page, start) = locate(offset + done as u64);
            let part = (PAGE - start).min(count - done);
            let target = &mut buffer[done..done + part];
            match self.pages.get(&page) {
                Some(page) => target.copy_from_slice(&page[start..start + part]),
                None => target.fill(0),
            }
            done += part;
        }
        count
    }

    pub(crate) fn write(&mut self, bytes: &[u8], offset: u64) {
        let mut done = 0;
        while done < bytes.len() {
            let (page, start) = locate(offset + done as u64);
            let part = (PAGE - start).min(bytes.len() - done);
            let page = self.pages.entry(page).or_insert_with(|| Arc::new([0; PAGE]));
            Arc::make_mut(page)[start..start + part].copy_from_slice(&bytes[done..done + part]);
            done += part;
        }
        self.size = self.size.max(offset + bytes.len() as u64);
    }

    pub(crate) fn truncate(&mut self, size: u64) {
        let (page, start) = locate(size);
        self.pages.split_off(&(page + 1));
        if let Some(last) = self.pages.get_mut(&page) {
            Arc::make_mut(last)[start..].fill(0);
        }
        self.size = size;
    }

    pub(crate) fn punch(&mut self, offset: u64, length: u64) {
        for (&number, page) in self.pages.range_mut(offset / PAGE as u64..=(offset + length) / PAGE as u64) {
            let first = number * PAGE as u64;
            let start = offset.max(first) - first;
            let end = (offset + length).min(first + PAGE as u64).saturating_sub(first);
            if start < end {
                Arc::make_mut(page)[start as usize..end as usize].fill(0);
            }
        }
        let whole =
            |number: u64| number * PAGE as u64 >= offset && (number + 1) * PAGE as u64 <= offset + length;
        self.pages.retain(|&number, _| !whole(number));
    }

    /// Returns the first offset at or after `offset` with (`data`) or without data; `None` beyond the end.
    pub(crate) fn seek(&self, data: bool, offset: u64) -> Option<u64> {
        let mut at = offset;
        while at < self.size {
            if self.pages.contains_key(&locate(at).0) == data {
                return Some(at);
            }
            at = (at / PAGE as u64 + 1) * PAGE as u64;
        }
        (!data && offset < self.size).then_some(self.size)
    }

    /// Returns the allocated space in units of 512 bytes.
    pub(crate) fn blocks(&self) -> u64 {
        self.pages.len() as u64 * (PAGE as u64 / 512)
    }
}

fn locate(offset: u64) -> (u64, usize) {
    (offset / PAGE as u64, (offset % PAGE as u64) as usize)
}
