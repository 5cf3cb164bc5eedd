//! Reading records of a container by their places.

use crate::format::entry::{Entry, Node};
use crate::format::geometry::{ADDRESS_MAX, LaneId};
use crate::format::record;
use crate::format::record::{Found, Head, Place};
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

/// Most heads are no larger.
const HEAD_SIZE: usize = 4 << 10;
/// More than this, in bytes, is read by an open file that nobody else uses meanwhile.
const MUCH: usize = 256 << 10;
/// A read that begins at most so many bytes behind the last one continues a sequential read: heads of records lie between.
const GAP_MAX: u64 = 16 << 10;
/// Open files of a subfile.
const FILES_MAX: usize = 8;
/// Of the open files that a process may have, all subfiles together have one part of this many; then those go that nobody uses.
const PART_OF_FILES: usize = 2;
/// How long, and how often, an open is tried again where there are too many open files.
const ROOM_WAIT: Duration = Duration::from_secs(10);
const ROOM_STEP: Duration = Duration::from_millis(5);
/// Threads at most that look at subfiles together, two or more each.
const LOOKERS: usize = 8;

/// The subfiles of a container, opened when they are first read.
pub struct Records {
    fs: Arc<dyn SharedFs>,
    superblock: Superblock,
    opened: Mutex<BTreeMap<u32, Opened>>,
    /// Open files at most, unless more are used at the same time.
    files_max: usize,
}

/// A subfile, and its open files.
struct Opened {
    /// By which all read that need little of it.
    shared: Subfile,
    /// That is the one which a writer here writes to: all read by it.
    is_written: bool,
    /// Those that nobody has just now who reads much. What was given back last is at the end.
    free: Vec<Free>,
    /// All of them.
    count: usize,
}

struct Free {
    file: Arc<dyn SharedFile>,
    /// Where what was read by it last ended; nothing where nothing was.
    end: Option<u64>,
    last: WeakReader,
}

/// Somebody who reads much of one file, now and again.
#[derive(Default)]
pub struct Reader(Arc<()>);

/// One that may have gone.
type WeakReader = Weak<()>;

/// An open file of a subfile which nobody else uses who reads much of it (one of them is the shared one): kernel and clients of file systems keep for each open file by itself
/// what they read ahead.
pub struct Lent {
    records: Arc<Records>,
    number: u32,
    file: Arc<dyn SharedFile>,
    /// Where what was read by it last ended; nothing where nothing was, or others may have it.
    end: Option<u64>,
    /// Who has it; nobody where others have it, too.
    reader: Option<WeakReader>,
}

impl Lent {
    /// Whose it is.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Reads what is wanted, and nothing ahead of it, but where it goes on behind what was read last: who reads in order has the kernel
    /// read ahead. The hint holds for this read: who needs little may have the same file open meanwhile.
    ///
    /// # Errors
    /// What the file system says.
    pub fn read_wanted(&mut self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let goes_on = self.end.is_some_and(|end| (end..=end + GAP_MAX).contains(&offset));
        if self.reader.is_some() {
            self.end = Some(offset + buffer.len() as u64);
        }
        if goes_on {
            return self.file.read_at(buffer, offset);
        }
        // As much of it as the kernel asks for at once is on its way before the read waits for the first of it.
        self.file.prefetch(offset, buffer.len() as u64);
        if self.reader.is_none() {
            return self.file.read_at(buffer, offset);
        }
        self.file.advise_exact(true);
        let read = self.file.read_at(buffer, offset);
        self.file.advise_exact(false);
        read
    }

    /// It.
    pub fn file(&self) -> &Arc<dyn SharedFile> {
        &self.file
    }
}

impl Drop for Lent {
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
    /// One that is free for a reader: what it had last, or what no other will go on with, which was used last.
    fn take_free(&mut self, reader: &Reader) -> Option<Free> {
        let is_its_own = |free: &Free| free.last.as_ptr() == Arc::as_ptr(&reader.0);
        let is_left = |free: &Free| free.last.strong_count() == 0;
        let found = self.free.iter().position(is_its_own).or_else(|| self.free.iter().rposition(is_left));
        found.map(|at| self.free.remove(at))
    }

    /// One that another reader will miss, if it is still there: what was not used for longest.
    fn take_from_another(&mut self) -> Option<Free> {
        (!self.free.is_empty()).then(|| self.free.remove(0))
    }
}

impl Records {
    /// Those of the container whose directory `fs` is.
    pub fn new(fs: Arc<dyn SharedFs>, superblock: Superblock) -> Self {
        Self::with_files(fs, superblock, open_files_max() / PART_OF_FILES)
    }

    /// The same, with so many open files at most.
    pub fn with_files(fs: Arc<dyn SharedFs>, superblock: Superblock, files_max: usize) -> Self {
        Self { fs, superblock, opened: Mutex::default(), files_max }
    }

    /// The directory of the container.
    pub fn fs(&self) -> &Arc<dyn SharedFs> {
        &self.fs
    }

    /// What is the same for all of it.
    pub fn superblock(&self) -> Superblock {
        self.superblock
    }

    /// One of the subfiles.
    ///
    /// # Errors
    /// `ENOENT` when it is missing, and what the file system says.
    pub fn subfile(&self, number: u32) -> Result<Subfile> {
        if let Some(opened) = self.opened.lock().get(&number) {
            return Ok(opened.shared.clone());
        }
        if self.opened.lock().values().map(|opened| opened.count).sum::<usize>() >= self.files_max {
            self.close_unused();
        }
        let shared = self.open_as_room_is(number)?;
        let open = || {
            let free = vec![Free { file: shared.file().clone(), end: None, last: WeakReader::new() }];
            Opened { free, shared, is_written: false, count: 1 }
        };
        Ok(self.opened.lock().entry(number).or_insert_with(open).shared.clone())
    }

    /// Opens a subfile. Where there are too many open files, those go that nobody uses just now; other processes, or the client of the file system, may have
    /// to let go of theirs first.
    fn open_as_room_is(&self, number: u32) -> Result<Subfile> {
        let open = || Subfile::open(&*self.fs, self.superblock, number, Access::Read);
        let mut last = match open() {
            Err(fault) if are_too_many(&fault) => fault,
            opened => return opened,
        };
        let opened = ask_until(ROOM_WAIT, ROOM_STEP, || {
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

    /// Closes what is not lent. It is opened again when it is wanted.
    fn close_unused(&self) {
        self.opened.lock().retain(|_, opened| {
            if !opened.is_written {
                opened.count -= opened.free.len();
                opened.free.clear();
            }
            opened.is_written || opened.count > 0
        });
    }

    /// How the lanes of subfiles stand, in their order. What is to be opened for that is opened by several threads: each waits for the file system.
    ///
    /// # Errors
    /// As [`Self::subfile`], and what the file system says.
    pub fn lanes(&self, numbers: &[u32]) -> Result<Vec<(u32, Vec<LaneState>)>> {
        let look = |&number: &u32| Ok((number, self.subfile(number)?.lanes()?));
        let unopened = {
            let opened = self.opened.lock();
            numbers.iter().filter(|number| !opened.contains_key(number)).count()
        };
        let lookers = LOOKERS.min(unopened / 2);
        if lookers <= 1 {
            return numbers.iter().map(look).collect();
        }
        let look_at = |part: &[u32]| part.iter().map(look).collect::<Result<Vec<_>>>();
        let parts = numbers.chunks(numbers.len().div_ceil(lookers));
        let found: Result<Vec<Vec<_>>> = std::thread::scope(|scope| {
            let looking: Vec<_> =
                parts.map(|part| (part, Builder::new().spawn_scoped(scope, move || look_at(part)))).collect();
            let done = looking.into_iter().map(|(part, looker)| match looker {
                Ok(looker) => looker.join().unwrap_or_else(|_| Err(died())),
                // The user may have no more threads.
                Err(_) => look_at(part),
            });
            done.collect()
        });
        Ok(found?.concat())
    }

    /// From now on reads of `written` use the open file through which a writer writes to it. A file system may keep what an open file
    /// has written where other open files of this machine do not see it before it is synced (Gfarm's).
    pub fn read_as_written(&self, written: &Subfile) {
        let opened = Opened { shared: written.clone(), is_written: true, free: Vec::new(), count: 1 };
        self.opened.lock().insert(written.number(), opened);
    }

    /// An open file of a subfile for somebody who reads much of it.
    ///
    /// # Errors
    /// As [`Self::subfile`].
    pub fn lend(self: &Arc<Self>, number: u32, reader: &Reader) -> Result<Lent> {
        let shared = self.subfile(number)?.file().clone();
        let of_all = || Lent { records: self.clone(), number, file: shared.clone(), end: None, reader: None };
        let own = |file, end| {
            let reader = Some(Arc::downgrade(&reader.0));
            Lent { records: self.clone(), number, file, end, reader }
        };
        {
            let mut opened = self.opened.lock();
            let Some(opened) = opened.get_mut(&number) else { return Ok(of_all()) };
            if let Some(Free { file, end, .. }) = opened.take_free(reader) {
                return Ok(own(file, end));
            }
            if opened.is_written || opened.count >= FILES_MAX {
                let taken = opened.take_from_another();
                return Ok(taken.map_or_else(of_all, |Free { file, end, .. }| own(file, end)));
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
                Ok(of_all())
            }
        }
    }

    /// Has the first of the record of an entry be on its way, as much as is read at once of a file that is small. A hint, as those of [`Lent::read_wanted`].
    pub fn prefetch(&self, entry: &IndexEntry) {
        let offset = self.superblock.geometry.offset(entry.lane.lane, entry.address);
        // What cannot be opened is told of by the read.
        if let Ok(subfile) = self.subfile(entry.lane.subfile) {
            subfile.file().prefetch(offset, MUCH.min(entry.record_size as usize) as u64);
        }
    }

    /// The record of an entry, what it tells, and its bytes as far as they were read: with the head, up to `ahead` of data.
    ///
    /// # Errors
    /// `EIO` when it is not there, or damaged.
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
            _ => Err(not_there(entry.lane, entry.address, "it is another one than the index tells of")),
        }
    }

    /// A record and the bytes of it that were read: `size`, and more where its head is larger.
    ///
    /// # Errors
    /// `EIO` when it is not there, or damaged.
    pub fn read(self: &Arc<Self>, lane: LaneId, address: u64, size: usize) -> Result<(Head, Vec<u8>)> {
        let opened = match size > MUCH {
            true => self
                .lend(lane.subfile, &Reader::default())
                .map(|lent| self.read_by(&**lent.file(), lane, address, size)),
            false => {
                self.subfile(lane.subfile).map(|subfile| self.read_by(&**subfile.file(), lane, address, size))
            }
        };
        opened.unwrap_or_else(|fault| Err(missing(fault, lane, address)))
    }

    /// The same, by an open file of its subfile.
    ///
    /// # Errors
    /// As [`Self::read`].
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
            return Err(not_there(lane, address, "there is no such place"));
        }
        let room = (geometry.block_end(address) - address) as usize;
        let offset = geometry.offset(lane.lane, address);
        let mut wanted = size.clamp(record::FIXED_SIZE, room);
        let place = Place { container: self.superblock.container, lane, address, sequence: 0 };
        loop {
            let mut bytes = vec![0; wanted];
            let count = file.read_at(&mut bytes, offset)?;
            bytes.truncate(count);
            if count < record::FIXED_SIZE {
                return Err(not_there(lane, address, "the subfile ends before it"));
            }
            match record::decode(&bytes, &place) {
                Found::Record(head) => return Ok((*head, bytes)),
                Found::Part(size) if size > wanted && size <= room => wanted = size,
                Found::Part(_) => return Err(not_there(lane, address, "the subfile ends in it")),
                Found::Blank => return Err(not_there(lane, address, "nothing was ever written there")),
                Found::Damaged(why) => return Err(not_there(lane, address, why)),
            }
        }
    }
}

fn are_too_many(fault: &Fault) -> bool {
    matches!(fault.errno, Errno::EMFILE | Errno::ENFILE)
}

fn died() -> Fault {
    Fault::new(Errno::EIO, "a thread that looks at subfiles has ended with a panic")
}

/// What a reader is told where it cannot open the subfile of a record.
pub fn missing(fault: Fault, lane: LaneId, address: u64) -> Fault {
    match fault.errno {
        Errno::ENOENT => not_there(lane, address, "the subfile is missing"),
        _ => fault,
    }
}

/// What a reader is told of a record that is not as it should be.
pub fn not_there(lane: LaneId, address: u64, why: &str) -> Fault {
    Fault::new(Errno::EIO, format!("the record at {address} in {lane} is damaged: {why}"))
}
