//! Reads an index, page by page. The list of pages, by first path, is kept in memory.

use super::{
    FOOTER_SIZE, FORMAT, INDEX_NAME, IndexEntry, LaneEnd, MAGIC, PART_HEAD_SIZE, PART_SIZE_MAX, PageRef,
    compare_paths, damaged, decode,
};
use parking_lot::Mutex;
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::sync::Arc;
use tameike_core::wire::cache::Stamp;
use tameike_core::{Errno, Result};
use tameike_io::shared::{Access, SharedFile, SharedFs};
use tameike_io::{Crc32c, crc32c};

/// Number of cached pages: lookups of a path are often followed by lookups of its neighbours.
const PAGES_CACHED: usize = 8;

/// Maximum size of an index, in bytes, that is sent whole to other processes.
const SENT_SIZE_MAX: u64 = 1 << 20;

/// An open index, with its list of pages and a few cached pages. Reads fail with `EIO` where it is damaged.
pub struct Index {
    source: Source,
    stamp: Stamp,
    /// End of its parts, which is the offset of the footer.
    end: u64,
    pages: Vec<PageRef>,
    lanes: Vec<LaneEnd>,
    sum: u32,
    /// Cached pages by number, the last used one at the end. They never become stale, as an index never changes.
    cache: Mutex<VecDeque<(usize, Arc<Vec<IndexEntry>>)>>,
}

/// Location of the bytes of an index.
enum Source {
    File(Arc<dyn SharedFile>),
    /// Received from another process.
    Memory(Vec<u8>),
}

impl Source {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        match self {
            Self::File(file) => file.read_at(buffer, offset),
            Self::Memory(bytes) => {
                let from = usize::try_from(offset).ok().and_then(|at| bytes.get(at..)).unwrap_or_default();
                let count = from.len().min(buffer.len());
                buffer[..count].copy_from_slice(&from[..count]);
                Ok(count)
            }
        }
    }
}

impl Index {
    /// The index of a container; `None` if it has none.
    pub fn of_container(fs: &dyn SharedFs, container: u64) -> Result<Option<Self>> {
        match Self::open(fs, INDEX_NAME, container) {
            Err(fault) if fault.errno == Errno::ENOENT => Ok(None),
            index => index.map(Some),
        }
    }

    /// The index in the file `name`. Fails with `ENOENT` if there is none, and with `EIO` if it is damaged or of another container.
    pub fn open(fs: &dyn SharedFs, name: &[u8], container: u64) -> Result<Self> {
        let file = fs.open(name, Access::Read)?;
        let stamp = file.stat()?.stamp();
        Self::read(Source::File(file), stamp, container)
    }

    /// An index from the [bytes](Self::whole_bytes) and the stamp that another process has sent.
    pub fn from_bytes(bytes: Vec<u8>, stamp: Stamp, container: u64) -> Result<Self> {
        Self::read(Source::Memory(bytes), stamp, container)
    }

    fn read(source: Source, stamp: Stamp, container: u64) -> Result<Self> {
        let mut footer = [0; FOOTER_SIZE];
        let Some(end) = stamp.size.checked_sub(FOOTER_SIZE as u64) else {
            return Err(damaged("it is too short"));
        };
        source.read_at(&mut footer, end)?;
        let sum = u32::from_le_bytes([footer[44], footer[45], footer[46], footer[47]]);
        if footer[..4] != MAGIC || crc32c(&footer[..44]) != sum {
            return Err(damaged("its footer is invalid"));
        }
        if footer[4..6] != FORMAT.to_le_bytes() {
            return Err(damaged("its format is unknown to this version"));
        }
        let number = |at: usize| footer[at..].first_chunk().copied().map_or(0, u64::from_le_bytes);
        if number(8) != container {
            return Err(damaged("it belongs to another container"));
        }
        let lanes = read_part(&source, number(24), end)?;
        let mut sum = Crc32c::new();
        sum.update(&footer);
        sum.update(&lanes);
        let lanes = decode(&lanes, "its list of lanes cannot be decoded")?;
        let pages = decode(&read_part(&source, number(32), end)?, "its list of pages cannot be decoded")?;
        Ok(Self { source, stamp, end, pages, lanes, sum: sum.take(), cache: Mutex::default() })
    }

    /// All bytes, for other processes; `None` if it is too large or cannot be read.
    pub fn whole_bytes(&self) -> Option<Vec<u8>> {
        if self.stamp.size > SENT_SIZE_MAX {
            return None;
        }
        let mut bytes = vec![0; self.stamp.size as usize];
        self.source.read_at(&mut bytes, 0).is_ok_and(|count| count == bytes.len()).then_some(bytes)
    }

    /// Stamp of its file at the open.
    pub fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// Ends of the indexed lanes.
    pub fn lanes(&self) -> &[LaneEnd] {
        &self.lanes
    }

    /// Checksum of the footer and the lane ends; it identifies the index among all that the container has had.
    pub fn sum(&self) -> u32 {
        self.sum
    }

    /// The entry of a path.
    pub fn find(&self, path: &[u8]) -> Result<Option<IndexEntry>> {
        let Some(page) = self.page_of(path) else { return Ok(None) };
        let entries = self.cached_page(page)?;
        let at = entries.partition_point(|entry| compare_paths(&entry.path, path) == Ordering::Less);
        Ok(entries.get(at).filter(|entry| entry.path == path).cloned())
    }

    /// All entries, in order.
    pub fn iter(&self) -> IndexIter<'_> {
        IndexIter { index: self, page: 0, entries: Vec::new().into_iter() }
    }

    /// All entries from `path` on, in order. `path` need not exist.
    pub fn iter_from(&self, path: &[u8]) -> Result<IndexIter<'_>> {
        let page = self.page_of(path).unwrap_or(0);
        let mut iter = IndexIter { index: self, page, entries: Vec::new().into_iter() };
        if page < self.pages.len() {
            let mut entries = self.page(page)?;
            entries.retain(|entry| compare_paths(&entry.path, path) != Ordering::Less);
            iter = IndexIter { index: self, page: page + 1, entries: entries.into_iter() };
        }
        Ok(iter)
    }

    /// The only page that can contain a path.
    fn page_of(&self, path: &[u8]) -> Option<usize> {
        let after = self.pages.partition_point(|page| compare_paths(&page.first, path) != Ordering::Greater);
        after.checked_sub(1)
    }

    fn page(&self, page: usize) -> Result<Vec<IndexEntry>> {
        let bytes = read_part(&self.source, self.pages[page].offset, self.end)?;
        entries_of(&bytes)
    }

    /// A page, cached.
    fn cached_page(&self, page: usize) -> Result<Arc<Vec<IndexEntry>>> {
        let mut cache = self.cache.lock();
        let found = cache.iter().position(|(number, _)| *number == page).and_then(|at| cache.remove(at));
        if let Some(found) = found {
            let entries = found.1.clone();
            cache.push_back(found);
            return Ok(entries);
        }
        drop(cache);
        let entries = Arc::new(self.page(page)?);
        let mut cache = self.cache.lock();
        if cache.len() == PAGES_CACHED {
            cache.pop_front();
        }
        cache.push_back((page, entries.clone()));
        Ok(entries)
    }
}

/// Decodes the entries of a page. Fails with `EIO` if they are invalid.
pub fn entries_of(page: &[u8]) -> Result<Vec<IndexEntry>> {
    let (mut entries, mut rest) = (Vec::new(), page);
    while !rest.is_empty() {
        let (entry, after) =
            postcard::take_from_bytes(rest).map_err(|_| damaged("an entry cannot be decoded"))?;
        entries.push(entry);
        rest = after;
    }
    Ok(entries)
}

/// Reads the content of a part; parts end at `end`.
fn read_part(source: &Source, offset: u64, end: u64) -> Result<Vec<u8>> {
    // Most parts fit in the first read. It stays within the file, as reads beyond the end cost a request on some file systems.
    let mut bytes = vec![0; end.saturating_sub(offset).min(48 << 10) as usize];
    let count = source.read_at(&mut bytes, offset)?;
    bytes.truncate(count);
    let Some(head) = bytes.first_chunk::<PART_HEAD_SIZE>() else {
        return Err(damaged("a part is missing"));
    };
    let [size, sum] =
        [0, 4].map(|at| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]));
    let end = PART_HEAD_SIZE + size as usize;
    // A part of zeros, which some file systems leave after a power failure, would have a valid checksum.
    if size == 0 || size as usize > PART_SIZE_MAX {
        return Err(damaged("a part has an impossible size"));
    }
    if bytes.len() < end {
        let had = bytes.len();
        bytes.resize(end, 0);
        let count = source.read_at(&mut bytes[had..], offset + had as u64)?;
        bytes.truncate(had + count);
    }
    bytes.truncate(end);
    bytes.drain(..PART_HEAD_SIZE);
    if bytes.len() != size as usize || crc32c(&bytes) != sum {
        return Err(damaged("a checksum is wrong"));
    }
    Ok(bytes)
}

/// Iterates over the entries of an index, in order.
pub struct IndexIter<'a> {
    index: &'a Index,
    /// Number of the next page.
    page: usize,
    entries: std::vec::IntoIter<IndexEntry>,
}

impl Iterator for IndexIter<'_> {
    type Item = Result<IndexEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.entries.next() {
                return Some(Ok(entry));
            }
            if self.page >= self.index.pages.len() {
                return None;
            }
            match self.index.page(self.page) {
                Ok(entries) => self.entries = entries.into_iter(),
                Err(fault) => {
                    // The iteration ends with the error.
                    self.page = self.index.pages.len();
                    return Some(Err(fault));
                }
            }
            self.page += 1;
        }
    }
}
