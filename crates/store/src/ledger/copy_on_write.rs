//! Copy-on-write file: reads come from a file on disk, writes stay in memory.
//!
//! The key-value store repairs its file when it opens one that was not closed, and when it checks one. A read-only
//! inspection uses this backend instead. Memory: the pages that the store writes.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

const PAGE: u64 = 4096;

/// The file with the written pages. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct CopyOnWrite {
    file: Arc<File>,
    /// Number of bytes of the file that are still valid; truncation reduces it.
    below: Arc<Mutex<u64>>,
    above: Arc<Mutex<Above>>,
}

#[derive(Debug, Default)]
struct Above {
    size: u64,
    pages: BTreeMap<u64, Vec<u8>>,
}

impl CopyOnWrite {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path)?;
        let size = file.metadata()?.len();
        let above = Arc::new(Mutex::new(Above { size, pages: BTreeMap::new() }));
        Ok(Self { file: Arc::new(file), below: Arc::new(Mutex::new(size)), above })
    }

    /// A page of the file, zero-filled beyond its end.
    fn page_below(&self, page: u64) -> Result<Vec<u8>> {
        let (mut bytes, start) = (vec![0; PAGE as usize], page * PAGE);
        let held = self.below.lock().saturating_sub(start).min(PAGE) as usize;
        self.file.read_exact_at(&mut bytes[..held], start)?;
        Ok(bytes)
    }
}

/// Splits `length` bytes at `offset` into pages: page, offset in it, number of bytes.
fn parts(offset: u64, length: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset + length as u64;
    (offset / PAGE..end.div_ceil(PAGE)).map(move |page| {
        let (start, stop) = (offset.max(page * PAGE), end.min((page + 1) * PAGE));
        (page, (start - page * PAGE) as usize, (stop - start) as usize)
    })
}

impl redb::StorageBackend for CopyOnWrite {
    fn len(&self) -> Result<u64> {
        Ok(self.above.lock().size)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let above = self.above.lock();
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > above.size) {
            return Err(Error::from(ErrorKind::UnexpectedEof));
        }
        let mut done = 0;
        for (page, place, count) in parts(offset, out.len()) {
            let target = &mut out[done..done + count];
            match above.pages.get(&page) {
                Some(bytes) => target.copy_from_slice(&bytes[place..place + count]),
                None => target.copy_from_slice(&self.page_below(page)?[place..place + count]),
            }
            done += count;
        }
        Ok(())
    }

    fn set_len(&self, size: u64) -> Result<()> {
        let above = &mut *self.above.lock();
        // Bytes that a truncation removes must read as zero if the file grows again.
        if size < above.size {
            let mut below = self.below.lock();
            *below = size.min(*below);
            above.pages.retain(|page, _| page * PAGE < size);
            if let Some(last) = above.pages.get_mut(&(size / PAGE)) {
                last[(size % PAGE) as usize..].fill(0);
            }
        }
        above.size = size;
        Ok(())
    }

    fn sync_data(&self) -> Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        let mut done = 0;
        for (page, place, count) in parts(offset, data.len()) {
            let above = &mut *self.above.lock();
            let bytes = match above.pages.entry(page) {
                std::collections::btree_map::Entry::Occupied(held) => held.into_mut(),
                std::collections::btree_map::Entry::Vacant(free) => free.insert(self.page_below(page)?),
            };
            bytes[place..place + count].copy_from_slice(&data[done..done + count]);
            done += count;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use redb::StorageBackend;

    proptest! {
        #[test]
        fn reads_match_a_model_and_the_file_stays_unchanged(
            size in 0usize..12_000,
            steps in prop::collection::vec((any::<bool>(), 0usize..14_000, 0usize..6000, any::<u8>()), 0..12),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("file");
            let before: Vec<u8> = (0..size).map(|place| (place % 251) as u8).collect();
            std::fs::write(&path, &before).unwrap();
            let (file, mut model) = (CopyOnWrite::open(&path).unwrap(), before.clone());
            for (truncate, offset, length, byte) in steps {
                if truncate {
                    file.set_len(offset as u64).unwrap();
                    model.resize(offset, 0);
                } else if offset + length <= model.len() {
                    file.write(offset as u64, &vec![byte; length]).unwrap();
                    model[offset..offset + length].fill(byte);
                }
                let mut found = vec![1; model.len()];
                file.read(0, &mut found).unwrap();
                prop_assert_eq!(&found, &model);
                prop_assert_eq!(file.len().unwrap(), model.len() as u64);
                prop_assert!(file.read(1, &mut found).is_err());
            }
            prop_assert_eq!(std::fs::read(&path).unwrap(), before);
        }
    }
}
