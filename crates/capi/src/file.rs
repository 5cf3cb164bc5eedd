//! Open files and names: the ring's while it serves them, else the kernel's.
//!
//! A file of the ring that meets a call which only the kernel can answer becomes the kernel's for good, under the same
//! [`File`]. Calls under way keep what they began on.

use crate::connection::{self, Connection};
use parking_lot::RwLock;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tameike_io::os::process::umask;
use tameike_ring::client::{
    Answer, Client, FileKey, HANDOVER_NAME_SIZE, OpenFile, Start, Status, Time, Transfer,
};

/// Flags of who changes something.
const CHANGES: i32 = libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC;

/// What a call tells.
pub type Result<T> = std::result::Result<T, Errno>;

/// What of the flags has been done when the file was opened.
const DONE: OFlags =
    OFlags::CREATE.union(OFlags::EXCL).union(OFlags::TRUNC).union(OFlags::NOCTTY).union(OFlags::NOFOLLOW);

/// An open file.
pub struct File {
    flags: OFlags,
    backing: RwLock<Backing>,
}

enum Backing {
    Ring(Arc<RingFile>),
    Kernel(Arc<OwnedFd>),
}

/// A handle of the ring, closed when nobody uses it any more.
pub struct RingFile {
    connection: &'static Connection,
    view: u8,
    handle: u64,
    key: Option<FileKey>,
    /// Whether something may have been changed through it.
    changed: AtomicBool,
    closed: bool,
}

/// What has become of a transfer that was to begin.
pub enum Begun {
    /// It is under way; the handle lives as long.
    UnderWay(Transfer<'static>, Arc<RingFile>),
    /// Too much is.
    Later,
    /// It is to be done by a call that waits.
    Call,
}

/// Which way bytes of a transfer go; written ones are given.
pub enum Direction<'a> {
    /// So many are read.
    Read(usize),
    /// These are written.
    Write(&'a [u8]),
}

/// A call of which the ring has said how it ended; `None` leaves it to the kernel.
fn ended<T>(answer: Answer<T>) -> Option<Result<T>> {
    match answer {
        Answer::Done(done) => Some(Ok(done)),
        Answer::Failed(errno) => Some(Err(Errno::from_raw_os_error(errno))),
        Answer::Declined => None,
        Answer::Broken => Some(Err(Errno::IO)),
    }
}

impl File {
    /// Opens as `open` does, with the mask of the process.
    pub fn open(path: &CStr, flags: i32, mode: u32) -> Result<Self> {
        let ask = |connection: &'static Connection, start: Start, path: &[u8]| {
            let mode = if flags & libc::O_CREAT == 0 { 0 } else { mode & !u32::from(umask()?) };
            let opened = ended(connection.client.open(start, path, flags, mode))?;
            Some(opened.map(|opened| (connection, start.view, opened)))
        };
        let opened = if flags & CHANGES == 0 {
            connection::on_path(path.to_bytes(), ask)
        } else {
            connection::on_path_to_change(path.to_bytes(), ask)
        };
        let flags = OFlags::from_bits_retain(flags.cast_unsigned());
        let backing = match opened.flatten().transpose()? {
            Some((connection, view, OpenFile { handle, key, .. })) => {
                let changed = AtomicBool::new(flags.contains(OFlags::TRUNC));
                Backing::Ring(Arc::new(RingFile { connection, view, handle, key, changed, closed: false }))
            }
            None => {
                let mode = Mode::from_bits_retain(mode);
                Backing::Kernel(Arc::new(rustix::fs::openat(CWD, path, flags | OFlags::CLOEXEC, mode)?))
            }
        };
        Ok(Self { flags, backing: RwLock::new(backing) })
    }

    /// Asks the ring while the file is its; `None` leaves the call to the kernel.
    fn ask<T>(&self, ask: impl FnOnce(&RingFile) -> Answer<T>) -> Option<Result<T>> {
        let file = self.ring_file()?;
        ended(ask(&file))
    }

    fn ring_file(&self) -> Option<Arc<RingFile>> {
        match &*self.backing.read() {
            Backing::Ring(file) => Some(file.clone()),
            Backing::Kernel(_) => None,
        }
    }

    /// The kernel's descriptor of the file, which is the kernel's from now on.
    pub fn kernel(&self) -> Result<Arc<OwnedFd>> {
        let mut backing = self.backing.write();
        let file = match &*backing {
            Backing::Ring(file) => Arc::new(file.open_again(self.flags)?),
            Backing::Kernel(file) => return Ok(file.clone()),
        };
        *backing = Backing::Kernel(file.clone());
        Ok(file)
    }

    /// Whether all writes go to the end.
    pub fn appends(&self) -> bool {
        self.flags.contains(OFlags::APPEND)
    }

    /// Reads at `offset`; less than there is room for only at the end of the file.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        if self.flags & OFlags::ACCMODE == OFlags::WRONLY {
            return Err(Errno::BADF);
        }
        let told = self.ask(|file| file.client().read(file.handle, file.key, offset, &mut [&mut *into]));
        if let Some(told) = told {
            return told;
        }
        let file = self.kernel()?;
        whole(into.len(), |done| rustix::io::pread(&file, &mut into[done..], offset + done as u64))
    }

    /// Writes at `offset`, or at the end where the file was opened with `O_APPEND`; less than all when the rest failed.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<usize> {
        if self.flags & OFlags::ACCMODE == OFlags::RDONLY {
            return Err(Errno::BADF);
        }
        let told = self.ask(|file| {
            file.changes();
            if self.appends() {
                file.client().append(file.handle, &[from]).map(|(count, _)| count)
            } else {
                file.client().write(file.handle, offset, &[from])
            }
        });
        if let Some(told) = told {
            return told;
        }
        let file = self.kernel()?;
        whole(from.len(), |done| rustix::io::pwrite(&file, &from[done..], offset + done as u64))
    }

    /// Begins to move bytes while the program goes on.
    pub fn begin(&self, offset: u64, direction: &Direction<'_>) -> Begun {
        let Some(file) = self.ring_file().filter(|_| self.moves(direction)) else { return Begun::Call };
        let client = file.client();
        let begun = match *direction {
            Direction::Read(size) => client.begin_read(file.handle, offset, size),
            Direction::Write(from) => {
                file.changes();
                client.begin_write(file.handle, offset, from)
            }
        };
        match begun {
            Answer::Done(Some(transfer)) => Begun::UnderWay(transfer, file),
            Answer::Done(None) => Begun::Later,
            Answer::Failed(_) | Answer::Declined | Answer::Broken => Begun::Call,
        }
    }

    /// Whether the file was opened for what is asked, to a place that the program says.
    fn moves(&self, direction: &Direction<'_>) -> bool {
        let access = self.flags & OFlags::ACCMODE;
        match direction {
            Direction::Read(_) => access != OFlags::WRONLY,
            Direction::Write(_) => access != OFlags::RDONLY && !self.appends(),
        }
    }

    /// Attributes.
    pub fn status(&self) -> Result<Status> {
        let told = self.ask(|file| file.client().status(file.handle));
        told.unwrap_or_else(|| Ok(status(&rustix::fs::fstat(self.kernel()?)?)))
    }

    /// Cuts or extends.
    pub fn set_size(&self, size: u64) -> Result<()> {
        if self.flags & OFlags::ACCMODE == OFlags::RDONLY {
            return Err(Errno::INVAL);
        }
        let told = self.ask(|file| {
            file.changes();
            file.client().set_size(file.handle, size)
        });
        told.unwrap_or_else(|| rustix::fs::ftruncate(self.kernel()?, size))
    }

    /// As `fsync`.
    pub fn sync(&self) -> Result<()> {
        let told = self.ask(|file| file.client().sync(file.handle));
        told.unwrap_or_else(|| rustix::fs::fsync(self.kernel()?))
    }

    /// Closes, and tells what `close` tells.
    pub fn close(self) -> Result<()> {
        match self.backing.into_inner() {
            Backing::Ring(file) => Arc::into_inner(file).map_or(Ok(()), RingFile::close),
            Backing::Kernel(file) => Arc::into_inner(file).map_or(Ok(()), close),
        }
    }
}

/// Closes a descriptor, and tells what the kernel tells.
fn close(file: OwnedFd) -> Result<()> {
    // SAFETY: the number was owned, and is given up.
    unsafe { rustix::io::try_close(file.into_raw_fd()) }
}

impl RingFile {
    fn client(&self) -> &'static Client {
        &self.connection.client
    }

    /// The kernel opens the same file.
    fn open_again(&self, flags: OFlags) -> Result<OwnedFd> {
        let root = self.connection.root(self.view).ok_or(Errno::IO)?;
        let mut name = [0; HANDOVER_NAME_SIZE];
        let length = match self.client().hand_over(self.handle, &mut name) {
            Answer::Done(length) => length,
            Answer::Failed(errno) => return Err(Errno::from_raw_os_error(errno)),
            Answer::Declined | Answer::Broken => return Err(Errno::IO),
        };
        let flags = flags.difference(DONE) | OFlags::CLOEXEC;
        rustix::fs::openat(root, &name[..length], flags, Mode::empty())
    }

    /// Something is about to be changed through it.
    fn changes(&self) {
        self.changed.store(true, Ordering::Relaxed);
    }

    fn close(mut self) -> Result<()> {
        self.closed = true;
        ended(self.end()).unwrap_or(Ok(()))
    }

    /// Who has not changed anything is told nothing, and does not wait for that.
    fn end(&self) -> Answer<()> {
        if self.changed.load(Ordering::Relaxed) {
            self.client().close(self.handle)
        } else {
            self.client().leave(self.handle)
        }
    }
}

impl Drop for RingFile {
    fn drop(&mut self) {
        if !self.closed {
            // It is the kernel's now, whose close tells: nobody hears this one.
            let _: Answer<()> = self.end();
        }
    }
}

/// Attributes of what a path names; `follow`: of what a link at its end leads to.
pub fn status_at(path: &CStr, follow: bool) -> Result<Status> {
    let told = connection::on_path(path.to_bytes(), |connection, start, path| {
        ended(connection.client.status_at(start, path, follow))
    });
    let flags = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
    told.flatten().unwrap_or_else(|| Ok(status(&rustix::fs::statat(CWD, path, flags)?)))
}

/// Removes a name.
pub fn unlink(path: &CStr) -> Result<()> {
    let told = connection::on_path_to_change(path.to_bytes(), |connection, start, path| {
        ended(connection.client.unlink(start, path))
    });
    told.flatten().unwrap_or_else(|| rustix::fs::unlinkat(CWD, path, AtFlags::empty()))
}

/// Makes a directory.
pub fn make_dir(path: &CStr, mode: u32) -> Result<()> {
    let told = connection::on_path_to_change(path.to_bytes(), |connection, start, path| {
        ended(connection.client.make_dir(start, path, mode & !u32::from(umask()?)))
    });
    told.flatten().unwrap_or_else(|| rustix::fs::mkdirat(CWD, path, Mode::from_bits_retain(mode)))
}

/// Gives a file another name, as `renameat2`.
pub fn rename(from: &CStr, to: &CStr, flags: u32) -> Result<()> {
    let told = connection::on_path_to_change(from.to_bytes(), |connection, start, path| {
        let renamed = connection::on_path(to.to_bytes(), |_, target, new| {
            let one_view = target.view == start.view;
            ended(if one_view {
                connection.client.rename((start, path), (target, new), flags)
            } else {
                Answer::Declined
            })
        });
        renamed.flatten()
    });
    told.flatten().unwrap_or_else(|| {
        rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::from_bits_retain(flags))
    })
}

/// Calls until `size` bytes are moved or there are no more; what was moved before a failure is told.
pub fn whole(size: usize, mut call: impl FnMut(usize) -> Result<usize>) -> Result<usize> {
    let mut done = 0;
    while done < size {
        match call(done) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// What the kernel tells, as the ring has it.
fn status(stat: &Stat) -> Status {
    let time = |seconds: i64, nanoseconds: libc::c_ulong| Time { seconds, nanoseconds: nanoseconds as u32 };
    Status {
        inode: stat.st_ino,
        size: stat.st_size.cast_unsigned(),
        blocks: stat.st_blocks.cast_unsigned(),
        atime: time(stat.st_atime, stat.st_atime_nsec),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
        ctime: time(stat.st_ctime, stat.st_ctime_nsec),
        mode: stat.st_mode,
        nlink: stat.st_nlink as u32,
        uid: stat.st_uid,
        gid: stat.st_gid,
        rdev: stat.st_rdev,
        block_size: stat.st_blksize as u32,
    }
}
