//! The kernel's inode, attribute and page cache for one mount, keyed by the view's node numbers.
//!
//! It follows Linux (`fs/fuse/inode.c`, `file.c`):
//! - A reply sets the size of an inode unless another change came after its request.
//! - A cached read ends at that size; the kernel requests it again only after its lifetime.
//! - An open drops the pages unless the reply allows it to keep them.
//! - Unused inodes stay for a while.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;
use tameike_client::reported_sizes::ReportedSizes;
use tameike_client::vfs::{FileNumber, Found, HandleNumber, OpenMode, Opened, Vfs, WriteAt};
use tameike_core::limits::{BLOCK_SIZE, DIRECTORY_LIFETIME};
use tameike_core::{Attr, FileKind, Generation, Result};
use tameike_io::Runtime;
use tameike_io::os::simulated::Simulation;

/// On a busy machine, the thread that waits for a reply runs up to 2^`LATE_BITS` microseconds after it.
const LATE_BITS: u64 = 17;
/// One of this many replies is late.
const LATE_ONE_OF: u64 = 4;
/// One of this many calls makes the kernel drop unused inodes.
const SHRINK_ONE_OF: u64 = 4;
const PAGE: u64 = BLOCK_SIZE as u64;

/// Counts changes of the mount: a reply is stale if its inode changed after the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(u64);

#[derive(Default)]
struct Inode {
    /// Lookups for which the kernel has not sent FORGET.
    lookups: u64,
    /// Calls and open files that use it.
    users: u64,
    size: u64,
    /// End of the lifetime of the size.
    valid: Duration,
    version: Version,
    pages: BTreeMap<u64, Vec<u8>>,
    /// Counts invalidations: pages whose read began before one are not kept.
    drops: u64,
}

impl Inode {
    fn drop_pages(&mut self, pages: Range<u64>) {
        self.drops += 1;
        self.pages.retain(|page, _| !pages.contains(page));
    }

    fn set_size(&mut self, size: u64) {
        if size != self.size {
            self.drop_pages(0..u64::MAX);
            self.size = size;
        }
    }
}

#[derive(Clone, Copy)]
struct OpenFile {
    file: FileNumber,
    /// Direct I/O: reads and writes bypass the page cache.
    direct: bool,
    append: bool,
}

#[derive(Default)]
struct State {
    inodes: BTreeMap<FileNumber, Inode>,
    opens: BTreeMap<HandleNumber, OpenFile>,
    version: Version,
    /// By inode number of the shared file system: the last two different sizes that lookups returned.
    returned_sizes: BTreeMap<u64, (u64, u64)>,
}

impl State {
    fn change(&mut self, file: FileNumber, change: impl FnOnce(&mut Inode)) {
        self.version.0 += 1;
        let version = self.version;
        if let Some(inode) = self.inodes.get_mut(&file) {
            inode.version = version;
            change(inode);
        }
    }

    /// Applies the attributes of a reply to a request that was sent at version `requested`.
    fn apply(&mut self, file: FileNumber, attr: &Attr, (requested, now): (Version, Duration)) {
        if self.inodes.get(&file).is_some_and(|inode| inode.version > requested) {
            return;
        }
        self.change(file, |inode| {
            inode.valid = now + DIRECTORY_LIFETIME;
            inode.set_size(attr.size);
        });
    }
}

/// The kernel's caches of one mount.
pub struct Kernel {
    simulation: Simulation,
    runtime: Runtime,
    /// An injected bug: some opens use an older size than the file's.
    shows_old: bool,
    reported_sizes: ReportedSizes,
    state: Mutex<State>,
}

impl Kernel {
    /// Creates a mount with empty caches.
    pub fn new(simulation: Simulation, runtime: Runtime, shows_old: bool) -> Self {
        let (reported_sizes, state) = Default::default();
        Self { simulation, runtime, shows_old, reported_sizes, state }
    }

    fn now(&self) -> Duration {
        self.runtime.clock.monotonic()
    }

    /// Returns the version to pass to the functions that apply the reply. Call it before the request.
    pub(super) fn version(&self) -> Version {
        self.state.lock().version
    }

    /// Delays the thread that waits for a reply, as a busy machine does.
    pub(super) async fn wake(&self) {
        if self.simulation.draw(LATE_ONE_OF) == 0 {
            let time = 1 << self.simulation.draw(LATE_BITS + 1);
            self.runtime.sleep(Duration::from_micros(time)).await;
        }
    }

    /// Counts a lookup, as the agent does, and a use of the inode until [`Self::put`].
    pub(super) fn found(&self, file: FileNumber) {
        let mut state = self.state.lock();
        let inode = state.inodes.entry(file).or_default();
        (inode.lookups, inode.users) = (inode.lookups + 1, inode.users + 1);
    }

    pub(super) async fn apply_attr(&self, file: FileNumber, attr: &Attr, requested: Version) {
        let since = self.now();
        if attr.kind == FileKind::File {
            self.reported_sizes.record(file, attr.size, since);
        }
        self.wake().await;
        self.state.lock().apply(file, attr, (requested, since));
    }

    /// Returns the attributes with which an open continues. With `shows_old`, some have the size of an earlier file with the same inode
    /// number.
    pub(super) fn opens_with(&self, mut found: Found) -> Found {
        if found.attr.kind != FileKind::File {
            return found;
        }
        let mut state = self.state.lock();
        let size = found.attr.size;
        let (last, before) = state.returned_sizes.get(&found.attr.inode.0).copied().unwrap_or((size, size));
        let sizes = if last == size { (last, before) } else { (size, last) };
        state.returned_sizes.insert(found.attr.inode.0, sizes);
        if self.shows_old && self.simulation.draw(8) == 0 {
            found.attr.size = sizes.1;
        }
        found
    }

    pub(super) fn put(&self, file: FileNumber) {
        if let Some(inode) = self.state.lock().inodes.get_mut(&file) {
            inode.users -= 1;
        }
    }

    /// At random, drops the unused inodes.
    pub(super) fn shrink<V: Vfs>(&self, vfs: &V) {
        if self.simulation.draw(SHRINK_ONE_OF) > 0 {
            return;
        }
        let mut state = self.state.lock();
        let unused = state.inodes.iter().filter(|(_, inode)| inode.users == 0);
        let unused: Vec<_> = unused.map(|(&file, inode)| (file, inode.lookups)).collect();
        for (file, lookups) in unused {
            state.inodes.remove(&file);
            vfs.forget(file, lookups);
        }
    }

    /// Registers an open file, which uses the inode until [`Self::closed`]. Decides, as the agent does, which I/O bypasses the page cache.
    pub(super) fn opened<V: Vfs>(&self, vfs: &V, file: FileNumber, mode: OpenMode, opened: Opened) {
        let keeps = opened.keep_cache && vfs.keeps_pages(opened.handle);
        let direct = opened.direct || self.reported_sizes.conflict(file, self.now());
        let mut state = self.state.lock();
        state.opens.insert(opened.handle, OpenFile { file, direct, append: mode.append });
        if let Some(inode) = state.inodes.get_mut(&file) {
            inode.users += 1;
        }
        if mode.write && mode.truncate {
            state.change(file, |inode| {
                inode.set_size(0);
                inode.valid = Duration::ZERO;
            });
        }
        // `fuse_open` also does this for opens with direct I/O.
        if !keeps && let Some(inode) = state.inodes.get_mut(&file) {
            inode.drop_pages(0..u64::MAX);
        }
    }

    pub(super) fn closed(&self, handle: HandleNumber) {
        let open = self.state.lock().opens.remove(&handle);
        if let Some(open) = open {
            self.put(open.file);
        }
    }

    /// Drops the caches of an open file that are older than a generation, as the agent requests.
    pub(crate) fn drop_stale<V: Vfs>(&self, vfs: &V, handle: HandleNumber, stale: Generation) {
        if vfs.has_pages_before(handle, stale) {
            self.drop_bytes(handle, 0, u64::MAX);
            self.expire(handle);
            vfs.pages_dropped(handle, stale);
        }
    }

    /// Ends the lifetime of an open file's attributes.
    pub(super) fn expire(&self, handle: HandleNumber) {
        let mut state = self.state.lock();
        if let Some(&open) = state.opens.get(&handle) {
            state.change(open.file, |inode| inode.valid = Duration::ZERO);
        }
    }

    /// Drops the pages of a byte range of an open file.
    pub(super) fn drop_bytes(&self, handle: HandleNumber, offset: u64, length: u64) {
        let mut state = self.state.lock();
        let Some(&OpenFile { file, .. }) = state.opens.get(&handle) else { return };
        if let Some(inode) = state.inodes.get_mut(&file) {
            inode.drop_pages(offset / PAGE..offset.saturating_add(length).div_ceil(PAGE));
        }
    }

    /// Returns the position of a write: the end of the file with `O_APPEND`.
    pub(super) fn write_at(&self, handle: HandleNumber, offset: u64) -> WriteAt {
        let appends = self.state.lock().opens.get(&handle).is_some_and(|open| open.append);
        if appends { WriteAt::End } else { WriteAt::Offset(offset) }
    }

    /// Updates the caches after a write.
    pub(super) fn wrote<V: Vfs>(&self, vfs: &V, handle: HandleNumber, offset: u64, length: u64) {
        let open = self.state.lock().opens.get(&handle).copied();
        let Some(open) = open else { return };
        if open.direct {
            vfs.mark_pages_stale(handle);
        }
        if open.append {
            // The kernel uses its cached size as the position.
            self.drop_bytes(handle, 0, u64::MAX);
        } else {
            self.drop_bytes(handle, offset, length);
        }
        self.state.lock().change(open.file, |inode| {
            let offset = if open.append { inode.size } else { offset };
            inode.size = inode.size.max(offset + length);
            inode.valid = Duration::ZERO;
        });
    }

    /// Updates the caches after a truncate.
    pub(super) fn truncated(&self, file: FileNumber, attr: &Attr) {
        self.state.lock().change(file, |inode| {
            inode.drop_pages(0..u64::MAX);
            inode.size = attr.size;
            inode.valid = Duration::ZERO;
        });
    }

    /// Reads an open file, through the page cache unless it uses direct I/O.
    pub(super) async fn read<V: Vfs>(
        &self,
        vfs: &V,
        handle: HandleNumber,
        offset: u64,
        length: u32,
    ) -> Result<Vec<u8>> {
        let open = self.state.lock().opens.get(&handle).copied();
        let Some(OpenFile { file, direct: false, .. }) = open else {
            return vfs.read(handle, offset, length).await.map(|bytes| bytes.to_vec());
        };
        let end = offset + u64::from(length);
        let is_beyond = {
            let state = self.state.lock();
            state.inodes.get(&file).is_some_and(|inode| end > inode.size && self.now() >= inode.valid)
        };
        if is_beyond {
            let requested = self.version();
            let attr = vfs.getattr(file).await?;
            self.apply_attr(file, &attr, requested).await;
        }
        let mut bytes = Vec::new();
        loop {
            let at = offset + bytes.len() as u64;
            let (known, size) = self.known(file, at, end);
            if at >= end.min(size) {
                return Ok(bytes);
            }
            match known {
                Some(part) => bytes.extend_from_slice(&part),
                None => self.read_pages(vfs, (file, handle), at, end.min(size)).await?,
            }
        }
    }

    /// Returns the cached bytes of the page at `at`, up to `end` and the size of the file; and that size.
    fn known(&self, file: FileNumber, at: u64, end: u64) -> (Option<Vec<u8>>, u64) {
        let state = self.state.lock();
        let Some(inode) = state.inodes.get(&file) else { return (None, 0) };
        let last = end.min(inode.size).min((at / PAGE + 1) * PAGE);
        let part = inode.pages.get(&(at / PAGE)).filter(|_| last > at);
        let part = part.map(|page| page[(at % PAGE) as usize..=((last - 1) % PAGE) as usize].to_vec());
        (part, inode.size)
    }

    /// Fetches the pages of a byte range. A short reply gives the size of the file.
    async fn read_pages<V: Vfs>(
        &self,
        vfs: &V,
        (file, handle): (FileNumber, HandleNumber),
        from: u64,
        to: u64,
    ) -> Result<()> {
        let (first, last) = (from / PAGE, to.div_ceil(PAGE));
        let requested = self.version();
        let drops = self.state.lock().inodes.get(&file).map(|inode| inode.drops);
        let length = ((last - first) * PAGE).min(tameike_core::limits::UNIT_SIZE as u64);
        let bytes = vfs.read(handle, first * PAGE, length as u32).await?;
        self.wake().await;
        let mut state = self.state.lock();
        let end = first * PAGE + bytes.len() as u64;
        let is_shorter = |inode: &Inode| inode.version <= requested && end < inode.size;
        if (bytes.len() as u64) < length && state.inodes.get(&file).is_some_and(is_shorter) {
            state.change(file, |inode| inode.size = end);
        }
        let Some(inode) = state.inodes.get_mut(&file) else { return Ok(()) };
        if Some(inode.drops) != drops {
            // Invalidated meanwhile: the caller reads them again.
            return Ok(());
        }
        for page in 0..length / PAGE {
            let part = bytes.get((page * PAGE) as usize..).unwrap_or_default();
            let mut part = part[..part.len().min(PAGE as usize)].to_vec();
            part.resize(PAGE as usize, 0);
            inode.pages.entry(first + page).or_insert(part);
        }
        Ok(())
    }
}
