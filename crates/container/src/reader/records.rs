//! Reads records by their positions, with a pool of open file descriptors per subfile.

use crate::format::entry::{Entry, Node};
use crate::format::geometry::{ADDRESS_MAX, LaneId};
use crate::format::record::{self, Found, Head, Position};
use crate::format::subfile::{LaneState, Subfile};
use crate::format::superblock::Superblock;
use crate::index::IndexEntry;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::thread::Builder;
use std::time::Duration;
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::process::{ask_until, open_files_max};
use tameike_io::shared::{Access, SharedFile, SharedFs};

/// Heads are rarely larger.
const HEAD_SIZE: usize = 4 << 10;
/// Larger reads, in bytes, use a descriptor that no other reader uses meanwhile.
const LARGE_READ: usize = 256 << 10;
/// A read that begins at most this many bytes after the last one is sequential: heads of records lie between.
const GAP_MAX: u64 = 16 << 10;
/// Maximum number of open descriptors of a subfile.
const FILES_MAX: usize = 8;
/// All subfiles together may use the process's descriptor limit divided by this; then unused ones are closed.
const PART_OF_FILES: usize = 2;
/// How long, and how often, an open is retried after `EMFILE` or `ENFILE`.
const RETRY_TIME: Duration = Duration::from_secs(10);
const RETRY_STEP: Duration = Duration::from_millis(5);
/// Maximum number of threads that open subfiles in parallel, two or more subfiles each.
const THREADS_MAX: usize = 8;

/// The subfiles of a container, opened at their first use.
pub struct Records {
    fs: Arc<dyn SharedFs>,
    superblock: Superblock,
    opened: Mutex<BTreeMap<u32, Opened>>,
    /// Maximum number of open descriptors, unless more are in use at the same time.
    files_max: usize,
}

/// A subfile, and its open descriptors.
struct Opened {
    /// For all small reads.
    shared: Subfile,
    /// `shared` belongs to a writer of this process: all reads use it.
    is_written: bool,
    /// Descriptors that no reader uses; the last one returned is last.
    free: Vec<Free>,
    /// Number of all descriptors.
    count: usize,
}

struct Free {
    file: Arc<dyn SharedFile>,
    /// Where its last read ended, if it was read.
    end: Option<u64>,
    last: WeakReader,
}

/// Identity of a reader of large parts of a file, across calls.
#[derive(Default)]
pub struct Reader(Arc<()>);

/// A reader that may be gone.
type WeakReader = Weak<()>;

/// A descriptor of a subfile for one reader at a time (one of the pool is the shared one). The kernel and clients of file systems keep
/// readahead state per open file.
pub struct PooledFile {
    records: Arc<Records>,
    number: u32,
    file: Arc<dyn SharedFile>,
    /// Where its last read ended; `None` if there was none, or the descriptor is shared.
    end: Option<u64>,
    /// The reader; `None` if the descriptor is shared.
    reader: Option<WeakReader>,
}

impl PooledFile {
    /// Number of the subfile.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Reads without readahead, unless the read continues the last one: sequential readers profit from the kernel's readahead. The hint
    /// applies to this read only, as small reads may use the same descriptor.
    pub fn read_wanted(&mut self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let is_sequential = self.end.is_some_and(|end| (end..=end + GAP_MAX).contains(&offset));
        if self.reader.is_some() {
            self.end = Some(offset + buffer.len() as u64);
        }
        if is_sequential {
            return self.file.read_at(buffer, offset);
        }
        // The kernel has the first requests in flight before the read waits for the first one.
        self.file.prefetch(offset, buffer.len() as u64);
        if self.reader.is_none() {
            return self.file.read_at(buffer, offset);
        }
        self.file.advise_exact(true);
        let read = self.file.read_at(buffer, offset);
        self.file.advise_exact(false);
        read
    }

    /// The open file.
    pub fn file(&self) -> &Arc<dyn SharedFile> {
        &self.file
    }
}

impl Drop for PooledFile {
    fn drop(&mut self) {
        let Some(last) = self.reader.take() else { return };
        if let Some(opened) =
            self.records.opened.lock().get_mut(&self.number).filter(|opened| !opened.is_written)
        {
            opened.free.push(Free { file: self.file.clone(), end: self.end, last });
        }
    }
}

impl Opened {
    /// Takes a free descriptor: the reader's last one, or else the one used last among those whose reader is gone.
    fn take_free(&mut self, reader: &Reader) -> Option<Free> {
        let is_its_own = |free: &Free| free.last.as_ptr() == Arc::as_ptr(&reader.0);
        let is_left = |free: &Free| free.last.strong_count() == 0;
        let found = self.free.iter().position(is_its_own).or_else(|| self.free.iter().rposition(is_left));
        found.map(|at| self.free.remove(at))
    }

    /// Takes the free descriptor that was not used for longest, although its reader may return.
    fn take_from_another(&mut self) -> Option<Free> {
        (!self.free.is_empty()).then(|| self.free.remove(0))
    }
}

impl Records {
    /// `fs` is the container's directory.
    pub fn new(fs: Arc<dyn SharedFs>, superblock: Superblock) -> Self {
        Self::with_files(fs, superblock, open_files_max() / PART_OF_FILES)
    }

    /// As [`Self::new`], with a limit on open descriptors.
    pub fn with_files(fs: Arc<dyn SharedFs>, superblock: Superblock, files_max: usize) -> Self {
        Self { fs, superblock, opened: Mutex::default(), files_max }
    }

    /// The directory of the container.
    pub fn fs(&self) -> &Arc<dyn SharedFs> {
        &self.fs
    }

    /// The superblock.
    pub fn superblock(&self) -> Superblock {
        self.superblock
    }

    /// A subfile, opened if necessary.
    pub fn subfile(&self, number: u32) -> Result<Subfile> {
        if let Some(opened) = self.opened.lock().get(&number) {
            return Ok(opened.shared.clone());
        }
        if self.opened.lock().values().map(|opened| opened.count).sum::<usize>() >= self.files_max {
            self.close_unused();
        }
        let shared = self.open_with_retry(number)?;
        let open = || {
            let free = vec![Free { file: shared.file().clone(), end: None, last: WeakReader::new() }];
            Opened { free, shared, is_written: false, count: 1 }
        };
        Ok(self.opened.lock().entry(number).or_insert_with(open).shared.clone())
    }

    /// Opens a subfile. While there are too many open files, it closes unused ones and retries: other processes, or the client of the file
    /// system, may have to close theirs first.
    fn open_with_retry(&self, number: u32) -> Result<Subfile> {
        let open = || Subfile::open(&*self.fs, self.superblock, number, Access::Read);
        let mut last = match open() {
            Err(fault) if are_too_many(&fault) => fault,
            opened => return opened,
        };
        let opened = ask_until(RETRY_TIME, RETRY_STEP, || {
            self.close_unused();
            match open() {
                Err(fault) if are_too_many(&fault) => {
                    last = fault;
                    None
                }
                opened => Some(opened),
            }
        });
        opened.unwrap_or(Err(last))
    }

    /// Closes unused descriptors.
    fn close_unused(&self) {
        self.opened.lock().retain(|_, opened| {
            if !opened.is_written {
                opened.count -= opened.free.len();
                opened.free.clear();
            }
            opened.is_written || opened.count > 0
        });
    }

    /// The lane states of subfiles, in the order of `numbers`. Several threads open the subfiles, as each waits for the file system.
    pub fn lanes(&self, numbers: &[u32]) -> Result<Vec<(u32, Vec<LaneState>)>> {
        let lanes = |&number: &u32| Ok((number, self.subfile(number)?.lanes()?));
        let unopened = {
            let opened = self.opened.lock();
            numbers.iter().filter(|number| !opened.contains_key(number)).count()
        };
        let threads = THREADS_MAX.min(unopened / 2);
        if threads <= 1 {
            return numbers.iter().map(lanes).collect();
        }
        let lanes_of = |part: &[u32]| part.iter().map(lanes).collect::<Result<Vec<_>>>();
        let parts = numbers.chunks(numbers.len().div_ceil(threads));
        let found: Result<Vec<Vec<_>>> = std::thread::scope(|scope| {
            let running: Vec<_> = parts
                .map(|part| (part, Builder::new().spawn_scoped(scope, move || lanes_of(part))))
                .collect();
            let done = running.into_iter().map(|(part, thread)| match thread {
                Ok(thread) => thread.join().unwrap_or_else(|_| Err(panicked())),
                // The user's limit of threads is reached.
                Err(_) => lanes_of(part),
            });
            done.collect()
        });
        Ok(found?.concat())
    }

    /// Makes reads of `written` use its writer's descriptor: on some file systems (Gfarm) other descriptors of this host do not see unsynced
    /// writes.
    pub fn read_as_written(&self, written: &Subfile) {
        let opened = Opened { shared: written.clone(), is_written: true, free: Vec::new(), count: 1 };
        self.opened.lock().insert(written.number(), opened);
    }

    /// Borrows a descriptor of a subfile for a reader of much data.
    pub fn borrow(self: &Arc<Self>, number: u32, reader: &Reader) -> Result<PooledFile> {
        let shared = self.subfile(number)?.file().clone();
        let shared_one =
            || PooledFile { records: self.clone(), number, file: shared.clone(), end: None, reader: None };
        let own = |file, end| {
            let reader = Some(Arc::downgrade(&reader.0));
            PooledFile { records: self.clone(), number, file, end, reader }
        };
        {
            let mut opened = self.opened.lock();
            let Some(opened) = opened.get_mut(&number) else { return Ok(shared_one()) };
            if let Some(Free { file, end, .. }) = opened.take_free(reader) {
                return Ok(own(file, end));
            }
            if opened.is_written || opened.count >= FILES_MAX {
                let taken = opened.take_from_another();
                return Ok(taken.map_or_else(shared_one, |Free { file, end, .. }| own(file, end)));
            }
            opened.count += 1;
        }
        match Subfile::open(&*self.fs, self.superblock, number, Access::Read) {
            Ok(another) => Ok(own(another.file().clone(), None)),
            // The process may have too many open files.
            Err(_) => {
                if let Some(opened) = self.opened.lock().get_mut(&number).filter(|opened| !opened.is_written)
                {
                    opened.count -= 1;
                }
                Ok(shared_one())
            }
        }
    }

    /// Starts reading the beginning of an entry's record, as much as a small file takes in one read. A hint.
    pub fn prefetch(&self, entry: &IndexEntry) {
        let offset = self.superblock.geometry.offset(entry.lane.lane, entry.address);
        // If the open fails, the read reports it.
        if let Ok(subfile) = self.subfile(entry.lane.subfile) {
            subfile.file().prefetch(offset, LARGE_READ.min(entry.record_size as usize) as u64);
        }
    }

    /// Reads the record of an entry: its head, its node, and the bytes read, which contain up to `ahead` bytes of data. Fails with `EIO` if
    /// it is missing or damaged.
    pub fn read_entry(self: &Arc<Self>, entry: &IndexEntry, ahead: usize) -> Result<(Head, Node, Vec<u8>)> {
        let size = (entry.record_size as usize).min(HEAD_SIZE + ahead);
        let (head, bytes) = self.read(entry.lane, entry.address, size)?;
        match &head.entry {
            Some(Entry { path, version, node: Some(node) })
                if *path == entry.path && *version == entry.version =>
            {
                let node = node.clone();
                Ok((head, node, bytes))
            }
            _ => Err(not_there(entry.lane, entry.address, "another record than the index says is there")),
        }
    }

    /// Reads a record; returns its head, and the `size` bytes that were read (more if the head is larger). Fails with `EIO` if it is
    /// missing or damaged.
    pub fn read(self: &Arc<Self>, lane: LaneId, address: u64, size: usize) -> Result<(Head, Vec<u8>)> {
        let opened = match size > LARGE_READ {
            true => self
                .borrow(lane.subfile, &Reader::default())
                .map(|pooled| self.read_by(&**pooled.file(), lane, address, size)),
            false => {
                self.subfile(lane.subfile).map(|subfile| self.read_by(&**subfile.file(), lane, address, size))
            }
        };
        opened.unwrap_or_else(|fault| Err(missing(fault, lane, address)))
    }

    /// As [`Self::read`], with an open descriptor of its subfile.
    pub fn read_by(
        &self,
        file: &dyn SharedFile,
        lane: LaneId,
        address: u64,
        size: usize,
    ) -> Result<(Head, Vec<u8>)> {
        let geometry = self.superblock.geometry;
        if lane.lane >= geometry.lanes
            || address >= ADDRESS_MAX
            || geometry.block_end(address) - address < record::FIXED_SIZE as u64
        {
            return Err(not_there(lane, address, "the address is invalid"));
        }
        let block_rest = (geometry.block_end(address) - address) as usize;
        let offset = geometry.offset(lane.lane, address);
        let mut wanted = size.clamp(record::FIXED_SIZE, block_rest);
        let position = Position { container: self.superblock.container, lane, address, sequence: 0 };
        loop {
            let mut bytes = vec![0; wanted];
            let count = file.read_at(&mut bytes, offset)?;
            bytes.truncate(count);
            if count < record::FIXED_SIZE {
                return Err(not_there(lane, address, "the subfile ends before it"));
            }
            match record::decode(&bytes, &position) {
                Found::Record(head) => return Ok((*head, bytes)),
                Found::Part(size) if size > wanted && size <= block_rest => wanted = size,
                Found::Part(_) => return Err(not_there(lane, address, "the subfile ends within it")),
                Found::Blank => return Err(not_there(lane, address, "nothing was ever written there")),
                Found::Damaged(why) => return Err(not_there(lane, address, why)),
            }
        }
    }
}

fn are_too_many(fault: &Fault) -> bool {
    matches!(fault.errno, Errno::EMFILE | Errno::ENFILE)
}

fn panicked() -> Fault {
    Fault::new(Errno::EIO, "a thread that opens subfiles panicked")
}

/// The error for a record whose subfile cannot be opened.
pub fn missing(fault: Fault, lane: LaneId, address: u64) -> Fault {
    match fault.errno {
        Errno::ENOENT => not_there(lane, address, "the subfile is missing"),
        _ => fault,
    }
}

/// The error for a damaged or missing record.
pub fn not_there(lane: LaneId, address: u64, why: &str) -> Fault {
    Fault::new(Errno::EIO, format!("the record at {address} in {lane} is damaged: {why}"))
}
