//! Writes an index. Entries are sorted in memory, or merged from sorted temporary files if there are too many.

use super::{
    FOOTER_SIZE, FORMAT, INDEX_NAME, Index, IndexEntry, LaneEnd, MAGIC, NEW_PREFIX, PAGE_SIZE, PageRef,
    RUN_PREFIX, encode, part,
};
use crate::format::subfile;
use crate::format::superblock::create_like;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;
use tameike_core::wire::meta::RenameMode;
use tameike_core::{Errno, Result};
use tameike_io::crc32c;
use tameike_io::os::process::random_bytes;
use tameike_io::shared::{Access, SharedFile, SharedFs};

/// Maximum number of entries that are sorted in memory.
const SORTED_MAX: usize = 1 << 20;

/// Collects entries, and writes the newest one of each path.
pub struct IndexBuilder {
    fs: Arc<dyn SharedFs>,
    container: u64,
    /// Unique part of its files' names.
    token: u64,
    entries: Vec<IndexEntry>,
    sorted_max: usize,
    runs: Vec<Vec<u8>>,
}

impl IndexBuilder {
    /// For the container with this number and directory.
    pub fn new(fs: Arc<dyn SharedFs>, container: u64) -> Result<Self> {
        Self::with_memory_for(fs, container, SORTED_MAX)
    }

    /// As [`Self::new`], with a limit on entries in memory.
    pub(in super::super) fn with_memory_for(
        fs: Arc<dyn SharedFs>,
        container: u64,
        sorted_max: usize,
    ) -> Result<Self> {
        let token = u64::from_le_bytes(random_bytes()?);
        Ok(Self { fs, container, token, entries: Vec::new(), sorted_max, runs: Vec::new() })
    }

    /// Adds an entry.
    pub fn add(&mut self, entry: IndexEntry) -> Result<()> {
        self.entries.push(entry);
        if self.entries.len() < self.sorted_max {
            return Ok(());
        }
        let name = format!("{RUN_PREFIX}{:016x}.{}", self.token, self.runs.len()).into_bytes();
        self.runs.push(name.clone());
        let entries = self.take_sorted();
        write(&*self.fs, &name, self.container, entries.into_iter().map(Ok), &[])
    }

    /// Writes the index, which replaces an existing one. `lanes` are the ends of the indexed lanes. Lanes that their writers may not have synced
    /// are synced before. If that fails, there is no new index.
    pub fn finish(self, lanes: &[LaneEnd]) -> Result<()> {
        self.finish_if(lanes, |_| true)
    }

    /// As [`Self::finish`], unless another process has written an index meanwhile that contains all of this and more, or the container was
    /// compacted meanwhile.
    pub fn finish_unless_behind(self, lanes: &[LaneEnd]) -> Result<()> {
        let container = self.container;
        self.finish_if(lanes, |fs| {
            // An index that cannot be read counts as empty.
            let known = Index::of_container(fs, container).ok().flatten();
            let subfiles: BTreeSet<u32> = lanes.iter().map(|end| end.lane.subfile).collect();
            !known.is_some_and(|known| has_more(known.lanes(), lanes))
                && subfiles.into_iter().all(|number| {
                    !fs.stat(&subfile::name(number)).is_err_and(|fault| fault.errno == Errno::ENOENT)
                })
        })
    }

    fn finish_if(mut self, lanes: &[LaneEnd], replaces: impl Fn(&dyn SharedFs) -> bool) -> Result<()> {
        let not_durable = lanes.iter().filter(|end| !end.is_durable());
        let subfiles: BTreeSet<u32> = not_durable.map(|end| end.lane.subfile).collect();
        for number in subfiles {
            self.fs.open(&subfile::name(number), Access::Write)?.sync()?;
        }
        let open = |name: &Vec<u8>| Index::open(&*self.fs, name, self.container);
        let runs = self.runs.iter().map(open).collect::<Result<Vec<_>>>()?;
        let mut sources: Vec<_> = runs.iter().map(|run| -> Sorted<'_> { Box::new(run.iter()) }).collect();
        sources.push(Box::new(self.take_sorted().into_iter().map(Ok)));
        let name = format!("{NEW_PREFIX}{:016x}", self.token).into_bytes();
        // A complete index needs no removals.
        let merged = Merge::new(sources)?.filter(|entry| !matches!(entry, Ok(entry) if entry.node.is_none()));
        let written = write(&*self.fs, &name, self.container, merged, lanes).and_then(|()| {
            if !replaces(&*self.fs) {
                return self.fs.unlink(&name);
            }
            self.fs.rename(&name, INDEX_NAME, RenameMode::Replace)?;
            self.fs.sync_dir(b"")
        });
        if written.is_err() {
            let _ = self.fs.unlink(&name);
        }
        written
    }

    fn take_sorted(&mut self) -> Vec<IndexEntry> {
        let mut entries = std::mem::take(&mut self.entries);
        entries.sort_unstable_by(IndexEntry::newest_first);
        entries.dedup_by(|later, earlier| later.path == earlier.path);
        entries
    }
}

impl Drop for IndexBuilder {
    fn drop(&mut self) {
        for name in &self.runs {
            let _ = self.fs.unlink(name);
        }
    }
}

/// Returns true if an index with lane ends `known` contains everything of one with lane ends `new`, and more.
fn has_more(known: &[LaneEnd], new: &[LaneEnd]) -> bool {
    let known: BTreeMap<_, _> = known.iter().map(|end| (end.lane, (end.sequence, end.is_finished))).collect();
    let new: BTreeMap<_, _> = new.iter().map(|end| (end.lane, (end.sequence, end.is_finished))).collect();
    known != new && new.iter().all(|(lane, end)| known.get(lane).is_some_and(|known| known >= end))
}

/// The first entry of a source, with the source's number.
struct First(IndexEntry, usize);

impl PartialEq for First {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for First {}

impl PartialOrd for First {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for First {
    /// `BinaryHeap` pops the greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        other.0.newest_first(&self.0).then(other.1.cmp(&self.1))
    }
}

/// Entries in index order.
pub type Sorted<'a> = Box<dyn Iterator<Item = Result<IndexEntry>> + 'a>;

/// Merges sorted sources; yields the newest entry of each path.
pub struct Merge<'a> {
    sources: Vec<Sorted<'a>>,
    firsts: BinaryHeap<First>,
}

impl<'a> Merge<'a> {
    /// Merges `sources`.
    pub fn new(sources: Vec<Sorted<'a>>) -> Result<Self> {
        let mut merge = Self { sources, firsts: BinaryHeap::new() };
        (0..merge.sources.len()).try_for_each(|source| merge.refill(source))?;
        Ok(merge)
    }

    fn refill(&mut self, source: usize) -> Result<()> {
        if let Some(entry) = self.sources[source].next() {
            self.firsts.push(First(entry?, source));
        }
        Ok(())
    }

    fn pop(&mut self) -> Result<Option<IndexEntry>> {
        let Some(First(entry, source)) = self.firsts.pop() else { return Ok(None) };
        self.refill(source)?;
        while let Some(First(_, source)) = self.firsts.peek().filter(|first| first.0.path == entry.path) {
            let source = *source;
            self.firsts.pop();
            self.refill(source)?;
        }
        Ok(Some(entry))
    }
}

impl Iterator for Merge<'_> {
    type Item = Result<IndexEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        self.pop().transpose()
    }
}

/// Writes sorted entries to a new file.
fn write(
    fs: &dyn SharedFs,
    name: &[u8],
    container: u64,
    entries: impl Iterator<Item = Result<IndexEntry>>,
    lanes: &[LaneEnd],
) -> Result<()> {
    let mut out = Appender { file: create_like(fs, name)?, written: 0, pending: Vec::new() };
    let (mut pages, mut page, mut first, mut paths) = (Vec::new(), Vec::new(), None, 0_u64);
    for entry in entries {
        let entry = entry?;
        paths += 1;
        page.extend(entry.encode());
        first.get_or_insert(entry.path);
        if page.len() >= PAGE_SIZE {
            pages.extend(first.take().map(|first| PageRef { first, offset: out.end() }));
            out.append(&part(&page))?;
            page.clear();
        }
    }
    if let Some(first) = first {
        pages.push(PageRef { first, offset: out.end() });
        out.append(&part(&page))?;
    }
    let lanes_at = out.end();
    out.append(&part(&encode(&lanes)))?;
    let top_at = out.end();
    out.append(&part(&encode(&pages)))?;
    let mut footer = Vec::with_capacity(FOOTER_SIZE);
    footer.extend(MAGIC);
    footer.extend(FORMAT.to_le_bytes());
    footer.extend([0; 2]);
    for number in [container, paths, lanes_at, top_at] {
        footer.extend(number.to_le_bytes());
    }
    footer.extend([0; 4]);
    footer.extend(crc32c(&footer).to_le_bytes());
    out.append(&footer)?;
    out.write()?;
    out.file.sync()
}

/// Buffered appends to a new file.
struct Appender {
    file: Arc<dyn SharedFile>,
    written: u64,
    pending: Vec<u8>,
}

impl Appender {
    const PENDING_MAX: usize = 4 << 20;

    fn end(&self) -> u64 {
        self.written + self.pending.len() as u64
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.pending.extend(bytes);
        if self.pending.len() >= Self::PENDING_MAX { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<()> {
        self.file.write_at(&self.pending, self.written)?;
        self.written += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }
}
