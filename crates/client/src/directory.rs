//! Page cache of open directories: one page of entries for each handle, so that each entry is fetched once for several small READDIR
//! replies.
//!
//! The source of a view (the homes, or the underlying file system) returns the entries after a cursor. Its cursors stay valid while the
//! directory changes, so a page can be dropped at any time; this keeps all pages of a view within [`PAGES_SIZE_MAX`]. A reader that
//! restarts, or seeks to a cursor outside its page, gets a new page.

use crate::types::{HandleNumber, ListedEntry};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tameike_core::{Errno, FileKind, Result};

/// Largest memory use of the pages of one view, in bytes.
const PAGES_SIZE_MAX: usize = 1 << 20;

/// One entry of a page.
struct Packed {
    next: u64,
    inode: u64,
    kind: FileKind,
    /// End of its name among all names of the page.
    end: u32,
}

/// Consecutive entries of a directory.
#[derive(Default)]
struct Page {
    /// Cursor before the first entry.
    after: u64,
    entries: Vec<Packed>,
    names: Vec<u8>,
}

impl Page {
    fn new(after: u64, listed: Vec<ListedEntry>) -> Self {
        let mut page = Self { after, ..Self::default() };
        page.entries.reserve_exact(listed.len());
        page.names.reserve_exact(listed.iter().map(|entry| entry.name.len()).sum());
        for ListedEntry { next, inode, kind, name } in listed {
            page.names.extend(name);
            page.entries.push(Packed { next, inode, kind, end: page.names.len() as u32 });
        }
        page
    }

    /// Number of entries up to a cursor, if the page has more after it.
    fn position(&self, after: u64) -> Option<usize> {
        if after == self.after {
            return Some(0);
        }
        let position = self.entries.iter().position(|entry| entry.next == after)? + 1;
        (position < self.entries.len()).then_some(position)
    }

    fn size_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Packed>() + self.names.capacity()
    }
}

/// A batch of entries after a cursor.
pub struct Entries {
    page: Arc<Page>,
    start: usize,
}

impl Entries {
    /// The entries: cursor after it, inode number, kind, name.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64, FileKind, &[u8])> {
        let mut name_start = self.start.checked_sub(1).map_or(0, |last| self.page.entries[last].end as usize);
        self.page.entries[self.start..].iter().map(move |entry| {
            let name = &self.page.names[name_start..entry.end as usize];
            name_start = entry.end as usize;
            (entry.next, entry.inode, entry.kind, name)
        })
    }
}

struct Open<S> {
    source: S,
    page: Option<Arc<Page>>,
    /// Position of its page in the LRU order.
    used: u64,
}

struct State<S> {
    open: BTreeMap<HandleNumber, Open<S>>,
    /// Directories with a page by last use.
    order: BTreeMap<u64, HandleNumber>,
    size_bytes: usize,
    uses: u64,
}

/// The open directories of one view; `S` identifies the source of their entries.
pub(crate) struct OpenDirs<S> {
    state: Mutex<State<S>>,
    last: AtomicU64,
}

impl<S> Default for OpenDirs<S> {
    fn default() -> Self {
        let state = State { open: BTreeMap::new(), order: BTreeMap::new(), size_bytes: 0, uses: 0 };
        Self { state: Mutex::new(state), last: AtomicU64::new(0) }
    }
}

impl<S: Clone> OpenDirs<S> {
    pub(crate) fn open(&self, source: S) -> HandleNumber {
        let handle = HandleNumber(self.last.fetch_add(1, Ordering::Relaxed) + 1);
        self.state.lock().open.insert(handle, Open { source, page: None, used: 0 });
        handle
    }

    pub(crate) fn close(&self, handle: HandleNumber) {
        let mut state = self.state.lock();
        state.drop_page(handle);
        state.open.remove(&handle);
    }

    /// Entries after a cursor (0: the first), none at the end. `fetch` queries the source.
    pub(crate) async fn read<F>(
        &self,
        handle: HandleNumber,
        after: u64,
        fetch: impl FnOnce(S) -> F,
    ) -> Result<Entries>
    where
        F: Future<Output = Result<Vec<ListedEntry>>>,
    {
        let source = {
            let mut state = self.state.lock();
            // A reader that restarts wants the current entries.
            if let Some(entries) = state.cached(handle, after).filter(|_| after > 0) {
                return Ok(entries);
            }
            state.open.get(&handle).ok_or(Errno::EBADF)?.source.clone()
        };
        let page = Arc::new(Page::new(after, fetch(source).await?));
        self.state.lock().keep(handle, page.clone());
        Ok(Entries { page, start: 0 })
    }
}

impl<S> State<S> {
    /// The entries after a cursor, from the directory's page.
    fn cached(&mut self, handle: HandleNumber, after: u64) -> Option<Entries> {
        let open = self.open.get_mut(&handle)?;
        let page = open.page.clone()?;
        let start = page.position(after)?;
        self.uses += 1;
        self.order.remove(&std::mem::replace(&mut open.used, self.uses));
        self.order.insert(self.uses, handle);
        Some(Entries { page, start })
    }

    /// Stores a directory's page, and drops the least recently used pages if necessary.
    fn keep(&mut self, handle: HandleNumber, page: Arc<Page>) {
        self.drop_page(handle);
        while self.size_bytes + page.size_bytes() > PAGES_SIZE_MAX
            && let Some((_, &oldest)) = self.order.first_key_value()
        {
            self.drop_page(oldest);
        }
        let Some(open) = self.open.get_mut(&handle) else { return };
        self.uses += 1;
        self.size_bytes += page.size_bytes();
        (open.page, open.used) = (Some(page), self.uses);
        self.order.insert(self.uses, handle);
    }

    fn drop_page(&mut self, handle: HandleNumber) {
        let Some(open) = self.open.get_mut(&handle) else { return };
        if let Some(page) = open.page.take() {
            self.size_bytes -= page.size_bytes();
            self.order.remove(&open.used);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::collections::BTreeSet;

    /// A directory: names by cursor, and the number of fetched names.
    #[derive(Default)]
    struct Source {
        names: Mutex<BTreeSet<u64>>,
        fetched: Mutex<usize>,
    }

    /// Number of names that one fetch returns, and that the kernel takes at once.
    const FETCH: usize = 500;
    const KERNEL: usize = 90;

    fn name(cursor: u64) -> Vec<u8> {
        format!("{:0width$}", cursor, width = 6 + (cursor % 20) as usize).into_bytes()
    }

    impl Source {
        fn of(names: std::ops::Range<u64>) -> Arc<Self> {
            Arc::new(Self { names: Mutex::new(names.map(|name| name * 3 + 1).collect()), ..Self::default() })
        }

        fn fetch(&self, after: u64) -> Vec<ListedEntry> {
            let names = self.names.lock();
            let next = names.range(after + 1..).take(FETCH);
            let entry = |&next| ListedEntry { next, inode: next + 7, kind: FileKind::File, name: name(next) };
            let listed: Vec<_> = next.map(entry).collect();
            *self.fetched.lock() += listed.len();
            listed
        }
    }

    type Dirs = OpenDirs<Arc<Source>>;

    /// One READDIR reply: its cursors.
    fn portion(dirs: &Dirs, handle: HandleNumber, after: u64) -> Vec<u64> {
        let read = dirs.read(handle, after, |source| async move { Ok(source.fetch(after)) });
        let entries = futures_util::FutureExt::now_or_never(read).expect("nothing waits").expect("entries");
        let cursors = entries.iter().take(KERNEL).map(|(next, inode, kind, found)| {
            assert_eq!((inode, kind, found), (next + 7, FileKind::File, &name(next)[..]));
            next
        });
        cursors.collect()
    }

    fn rest(dirs: &Dirs, handle: HandleNumber, mut after: u64) -> Vec<u64> {
        let mut all = Vec::new();
        loop {
            let part = portion(dirs, handle, after);
            let Some(&last) = part.last() else { return all };
            (after, all) = (last, [all, part].concat());
        }
    }

    /// Each READDIR reply fetched 512 entries, of which the kernel took about 90.
    #[test]
    fn each_entry_is_fetched_once() {
        let (dirs, source) = (Dirs::default(), Source::of(0..100_000));
        let handle = dirs.open(source.clone());
        assert_eq!(rest(&dirs, handle, 0).len(), 100_000);
        assert_eq!(*source.fetched.lock(), 100_000);
    }

    #[test]
    fn cursors_can_be_resumed_and_a_restart_shows_changes() {
        let (dirs, source) = (Dirs::default(), Source::of(0..2000));
        let handle = dirs.open(source.clone());
        let all = rest(&dirs, handle, 0);
        for place in [0, 1, 89, 90, 499, 500, 1234, 1998] {
            assert_eq!(rest(&dirs, handle, all[place]), all[place + 1..], "from position {place}");
            assert_eq!(portion(&dirs, handle, all[place]), all[place + 1..all.len().min(place + 1 + KERNEL)]);
        }
        assert_eq!(portion(&dirs, handle, 0)[0], 1);
        source.names.lock().remove(&1);
        source.names.lock().insert(2);
        assert_eq!(portion(&dirs, handle, 0)[0], 2);
    }

    #[test]
    fn permanent_entries_are_listed_once_while_the_directory_changes() {
        let (dirs, source) = (Dirs::default(), Source::of(0..5000));
        let handle = dirs.open(source.clone());
        let (mut listed, mut after, mut step) = (Vec::new(), 0, 0);
        loop {
            let part = portion(&dirs, handle, after);
            let Some(&last) = part.last() else { break };
            (after, listed) = (last, [listed, part].concat());
            // Names not divisible by 4 come and go, before and after the cursor.
            for place in [after.saturating_sub(30), after + 3, after + 3000] {
                let name = (place.min(14_000)) / 4 * 4 + 1 + step % 3;
                let mut names = source.names.lock();
                if !names.remove(&name) {
                    names.insert(name);
                }
            }
            step += 1;
        }
        let stable: Vec<_> = (0..5000).map(|name| name * 3 + 1).filter(|name| name % 4 == 0).collect();
        listed.retain(|name| name % 4 == 0);
        assert!(listed == stable, "{} listed, {} present", listed.len(), stable.len());
    }

    /// The cache kept 16 whole listings of any size.
    #[test]
    fn pages_of_many_readers_stay_within_the_memory_limit() {
        let (dirs, source) = (Dirs::default(), Source::of(0..1000));
        let handles: Vec<_> = (0..200).map(|_| dirs.open(source.clone())).collect();
        let mut after = vec![0; handles.len()];
        for _ in 0..1000_usize.div_ceil(KERNEL) {
            for (handle, after) in handles.iter().zip(&mut after) {
                let part = portion(&dirs, *handle, *after);
                assert_eq!(part[0], *after + if *after == 0 { 1 } else { 3 });
                *after = *part.last().expect("not the end");
                assert!(dirs.state.lock().size_bytes <= PAGES_SIZE_MAX);
            }
        }
        assert!(after.iter().all(|&last| last == 999 * 3 + 1));
        assert!(dirs.state.lock().size_bytes > PAGES_SIZE_MAX / 2, "the limit was not reached");
        handles.into_iter().for_each(|handle| dirs.close(handle));
        let state = dirs.state.lock();
        assert_eq!((state.size_bytes, state.order.len(), state.open.len()), (0, 0, 0));
    }
}
