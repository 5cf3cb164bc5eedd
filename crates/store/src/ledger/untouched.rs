//! A file that is read and never written: what is written over it stays in memory.
//!
//! The key-value store mends its file when it opens one that was not closed, and when it checks one. Who only wants
//! to look gives it this instead. Memory: what the store writes, in pages.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

const PAGE: u64 = 4096;

/// The file, and what was written over it. Clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Untouched {
    file: Arc<File>,
    /// Bytes of the file that still count: cut off is cut off.
    below: Arc<Mutex<u64>>,
    above: Arc<Mutex<Above>>,
}

#[derive(Debug, Default)]
struct Above {
    size: u64,
    pages: BTreeMap<u64, Vec<u8>>,
}

impl Untouched {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path)?;
        let size = file.metadata()?.len();
        let above = Arc::new(Mutex::new(Above { size, pages: BTreeMap::new() }));
        Ok(Self { file: Arc::new(file), below: Arc::new(Mutex::new(size)), above })
    }

    /// A page of the file, with zeros where it has none.
    fn page_below(&self, page: u64) -> Result<Vec<u8>> {
        let (mut bytes, start) = (vec![0; PAGE as usize], page * PAGE);
        let held = self.below.lock().saturating_sub(start).min(PAGE) as usize;
        self.file.read_exact_at(&mut bytes[..held], start)?;
        Ok(bytes)
    }
}

/// The parts of `length` bytes at `offset` in pages: page, place in it, number of bytes.
fn parts(offset: u64, length: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset + length as u64;
    (offset / PAGE..end.div_ceil(PAGE)).map(move |page| {
        let (start, stop) = (offset.max(page * PAGE), end.min((page + 1) * PAGE));
        (page, (start - page * PAGE) as usize, (stop - start) as usize)
    })
}

impl redb::StorageBackend for Untouched {
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
        // What is cut off and comes back is zero.
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
        fn it_answers_as_a_file_and_leaves_the_file_alone(
            size in 0usize..12_000,
            steps in prop::collection::vec((any::<bool>(), 0usize..14_000, 0usize..6000, any::<u8>()), 0..12),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("file");
            let before: Vec<u8> = (0..size).map(|place| (place % 251) as u8).collect();
            std::fs::write(&path, &before).unwrap();
            let (file, mut model) = (Untouched::open(&path).unwrap(), before.clone());
            for (cut, offset, length, byte) in steps {
                if cut {
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
