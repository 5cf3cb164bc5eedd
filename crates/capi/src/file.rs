//! Calls on open files and paths, served by the ring if possible, else by the kernel.
//!
//! A call that only the kernel can serve moves a ring file to the kernel for good, within the same [`File`]. Calls in flight continue
//! on the ring.

use crate::connection::{self, Connection, get_for_change, on_path};
use parking_lot::RwLock;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tameike_io::os::process::umask;
use tameike_ring::client::{
    Answer, CHANGING_FLAGS, Client, FileKey, HANDOVER_NAME_SIZE, OpenFile, Start, Status, Transfer,
};

/// Result of a call.
pub type Result<T> = std::result::Result<T, Errno>;

/// Flags that took effect when the file was opened.
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

/// A handle of the ring, closed with its last user.
pub struct RingFile {
    connection: &'static Connection,
    view: u8,
    handle: u64,
    key: Option<FileKey>,
    /// The file may have been modified through this handle.
    changed: AtomicBool,
    closed: bool,
}

/// Result of starting a transfer.
pub enum Begun {
    /// The transfer is in flight, and keeps the handle open.
    InFlight(Transfer<'static>, Arc<RingFile>),
    /// Too many transfers are in flight.
    Busy,
    /// The transfer needs a blocking call.
    Blocking,
}

/// Direction of a transfer.
pub enum Direction<'a> {
    /// Reads this many bytes.
    Read(usize),
    /// Writes these bytes.
    Write(&'a [u8]),
}

impl File {
    /// Opens a file like `open`, with the umask of the process.
    pub fn open(path: &CStr, flags: i32, mode: u32) -> Result<Self> {
        let opened = RingFile::open(path, flags, mode).and_then(Answer::served);
        let flags = OFlags::from_bits_retain(flags.cast_unsigned());
        let backing = match opened.transpose()? {
            Some(file) => Backing::Ring(Arc::new(file)),
            None => {
                let mode = Mode::from_bits_retain(mode);
                Backing::Kernel(Arc::new(rustix::fs::openat(CWD, path, flags | OFlags::CLOEXEC, mode)?))
            }
        };
        Ok(Self { flags, backing: RwLock::new(backing) })
    }

    /// Calls the ring if the file is a ring file; `None` leaves the call to the kernel.
    fn ask<T>(&self, ask: impl FnOnce(&RingFile) -> Answer<T>) -> Option<Result<T>> {
        ask(&*self.ring_file()?).served()
    }

    fn ring_file(&self) -> Option<Arc<RingFile>> {
        match &*self.backing.read() {
            Backing::Ring(file) => Some(file.clone()),
            Backing::Kernel(_) => None,
        }
    }

    /// Returns a kernel descriptor of the file, and moves the file to the kernel for good.
    pub fn kernel(&self) -> Result<Arc<OwnedFd>> {
        let mut backing = self.backing.write();
        let file = match &*backing {
            Backing::Ring(file) => Arc::new(file.open_in_kernel(self.flags)?),
            Backing::Kernel(file) => return Ok(file.clone()),
        };
        *backing = Backing::Kernel(file.clone());
        Ok(file)
    }

    /// Returns whether the file was opened with `O_APPEND`.
    pub fn appends(&self) -> bool {
        self.flags.contains(OFlags::APPEND)
    }

    /// Reads at `offset`; short only at end of file.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        if self.flags & OFlags::ACCMODE == OFlags::WRONLY {
            return Err(Errno::BADF);
        }
        let served = self.ask(|file| file.client().read(file.handle, file.key, offset, &mut [&mut *into]));
        if let Some(served) = served {
            return served;
        }
        let file = self.kernel()?;
        whole(into.len(), |done| rustix::io::pread(&file, &mut into[done..], offset + done as u64))
    }

    /// Writes at `offset`, or at the end with `O_APPEND`; short only if the rest failed.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<usize> {
        if self.flags & OFlags::ACCMODE == OFlags::RDONLY {
            return Err(Errno::BADF);
        }
        let served = self.ask(|file| {
            file.note_change();
            if self.appends() {
                file.client().append(file.handle, &[from]).map(|(count, _)| count)
            } else {
                file.client().write(file.handle, offset, &[from])
            }
        });
        if let Some(served) = served {
            return served;
        }
        let file = self.kernel()?;
        whole(from.len(), |done| rustix::io::pwrite(&file, &from[done..], offset + done as u64))
    }

    /// Starts an asynchronous transfer.
    pub fn begin(&self, offset: u64, direction: &Direction<'_>) -> Begun {
        let Some(file) = self.ring_file().filter(|_| self.moves(direction)) else { return Begun::Blocking };
        let client = file.client();
        let begun = match *direction {
            Direction::Read(size) => client.begin_read(file.handle, offset, size),
            Direction::Write(from) => {
                file.note_change();
                client.begin_write(file.handle, offset, from)
            }
        };
        match begun {
            Answer::Done(Some(transfer)) => Begun::InFlight(transfer, file),
            Answer::Done(None) => Begun::Busy,
            Answer::Failed(_) | Answer::Declined | Answer::Broken => Begun::Blocking,
        }
    }

    /// Returns whether the file's access mode allows the transfer, and the program chooses its offset.
    fn moves(&self, direction: &Direction<'_>) -> bool {
        let access = self.flags & OFlags::ACCMODE;
        match direction {
            Direction::Read(_) => access != OFlags::WRONLY,
            Direction::Write(_) => access != OFlags::RDONLY && !self.appends(),
        }
    }

    /// Returns the attributes.
    pub fn status(&self) -> Result<Status> {
        let served = self.ask(|file| file.client().status(file.handle));
        served.unwrap_or_else(|| Ok((&rustix::fs::fstat(self.kernel()?)?).into()))
    }

    /// Truncates or extends the file.
    pub fn set_size(&self, size: u64) -> Result<()> {
        if self.flags & OFlags::ACCMODE == OFlags::RDONLY {
            return Err(Errno::INVAL);
        }
        let served = self.ask(|file| {
            file.note_change();
            file.client().set_size(file.handle, size)
        });
        served.unwrap_or_else(|| rustix::fs::ftruncate(self.kernel()?, size))
    }

    /// Syncs the file like `fsync`.
    pub fn sync(&self) -> Result<()> {
        let served = self.ask(|file| file.client().sync(file.handle));
        served.unwrap_or_else(|| rustix::fs::fsync(self.kernel()?))
    }

    /// Closes the file, and returns the result of `close`.
    pub fn close(self) -> Result<()> {
        match self.backing.into_inner() {
            Backing::Ring(file) => Arc::into_inner(file).map_or(Ok(()), RingFile::close),
            Backing::Kernel(file) => Arc::into_inner(file).map_or(Ok(()), close),
        }
    }
}

/// Closes a descriptor, and returns the kernel's result.
fn close(file: OwnedFd) -> Result<()> {
    // SAFETY: the number was owned, and is given up.
    unsafe { rustix::io::try_close(file.into_raw_fd()) }
}

impl RingFile {
    /// Opens a file through the ring; `None` if the ring does not serve its path.
    pub fn open(path: &CStr, flags: i32, mode: u32) -> Option<Answer<Self>> {
        let connection = if flags & CHANGING_FLAGS == 0 { connection::get() } else { get_for_change() };
        on_path(connection, path.to_bytes(), |connection, Start { view, dir }, path| {
            let mode = if flags & libc::O_CREAT == 0 { 0 } else { mode & !u32::from(umask()?) };
            let opened = connection.client.open(Start { view, dir }, path, flags, mode);
            let changed = AtomicBool::new(flags & libc::O_TRUNC != 0);
            Some(opened.map(|OpenFile { handle, key, .. }| Self {
                connection,
                view,
                handle,
                key,
                changed,
                closed: false,
            }))
        })
    }

    pub fn client(&self) -> &'static Client {
        &self.connection.client
    }

    /// The agent's number of the file.
    pub fn handle(&self) -> u64 {
        self.handle
    }

    /// Opens the same file in the kernel.
    fn open_in_kernel(&self, flags: OFlags) -> Result<OwnedFd> {
        let root = self.connection.root(self.view).ok_or(Errno::IO)?;
        let mut name = [0; HANDOVER_NAME_SIZE];
        let length = self.client().hand_over(self.handle, &mut name).served().ok_or(Errno::IO)??;
        let flags = flags.difference(DONE) | OFlags::CLOEXEC;
        rustix::fs::openat(root, &name[..length], flags, Mode::empty())
    }

    /// Records a modification, before it begins.
    pub fn note_change(&self) {
        self.changed.store(true, Ordering::Relaxed);
    }

    pub fn close(mut self) -> Result<()> {
        self.closed = true;
        self.end().served().unwrap_or(Ok(()))
    }

    /// Closes the handle. Without changes, there are no errors to report, and the close does not wait.
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
            // The file has moved to the kernel, whose close reports errors.
            let _: Answer<()> = self.end();
        }
    }
}

/// Returns attributes by path; `follow` selects the target of a link.
pub fn status_at(path: &CStr, follow: bool) -> Result<Status> {
    let served = on_path(connection::get(), path.to_bytes(), |connection, start, path| {
        connection.client.status_at(start, path, follow).served()
    });
    let flags = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
    served.unwrap_or_else(|| Ok((&rustix::fs::statat(CWD, path, flags)?).into()))
}

pub fn unlink(path: &CStr) -> Result<()> {
    let served = on_path(get_for_change(), path.to_bytes(), |connection, start, path| {
        connection.client.unlink(start, path).served()
    });
    served.unwrap_or_else(|| rustix::fs::unlinkat(CWD, path, AtFlags::empty()))
}

pub fn make_dir(path: &CStr, mode: u32) -> Result<()> {
    let served = on_path(get_for_change(), path.to_bytes(), |connection, start, path| {
        connection.client.make_dir(start, path, mode & !u32::from(umask()?)).served()
    });
    served.unwrap_or_else(|| rustix::fs::mkdirat(CWD, path, Mode::from_bits_retain(mode)))
}

/// Renames a file like `renameat2`.
pub fn rename(from: &CStr, to: &CStr, flags: u32) -> Result<()> {
    let served = on_path(get_for_change(), from.to_bytes(), |connection, start, path| {
        on_path(connection::get(), to.to_bytes(), |_, target, new| {
            let is_one_view = target.view == start.view;
            let rename = || connection.client.rename((start, path), (target, new), flags).served();
            is_one_view.then(rename).flatten()
        })
    });
    served.unwrap_or_else(|| {
        rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::from_bits_retain(flags))
    })
}

/// Repeats `call` until `size` bytes are transferred or it returns 0. Returns the bytes transferred before a failure.
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
