//! The C functions for containers. `include/tameike.h` is generated from these modules, with their comments.
//!
//! They need no agent: the library reads and writes the container's files itself.

#![expect(
    clippy::missing_safety_doc,
    reason = "the comments are those of the header; `abi` states the contract"
)]

mod collective;
mod files;
mod names;

use crate::abi::{check_memory, deref, done, text, write_out};
use crate::file;
use rustix::io::Errno;
use std::cell::RefCell;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use tameike_container::STREAMS;
use tameike_container::session::{
    Codec, Permissions, Rank, Refresh, SUBFILES_MAX, Session, SessionOptions, Snapshot, block_size_of,
};
use tameike_core::{Fault, Result};
use tameike_io::os::forked::OwnMark;
use tameike_io::os::process::umask;
use tameike_io::shared::PosixTree;

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// Options of a process that opens a container. Most programs set `rank` to -1, and all others to 0.
#[repr(C)]
pub struct AggregateOptions {
    /// Number of this process among `size` ones, unique and from 0 on. With -1, the library uses the environment of Open MPI, MPICH, PMIx
    /// or Slurm; without these, any number of processes may use the container.
    pub rank: i32,
    /// Number of processes.
    pub size: u32,
    /// Block size of a new container in bytes: a power of two from 4096 to 67108864, best the stripe size of the file system. With 0,
    /// the library chooses at least 4 MiB, at least 16 MiB if several processes share a file, and 64 MiB (the chunk size) on MooseFS.
    pub block_size: u32,
    /// Number of files of a new container, which the ranks share: best the number of storage targets; 0 selects up to 8.
    pub subfiles: u32,
    /// Compression of data that this process writes: 0 for none, 1 for Zstandard if that saves space.
    pub compression: u32,
    /// Nonzero if all processes open and finalize the container together, rank 0 as the first and the last one. Then each has its part of
    /// the container from the beginning, and only rank 0 writes the index. tameike_agg_initialize_mpi() sets it. A single rank writes to up
    /// to five files concurrently, with threads, and buffers up to ten blocks, or 16 MiB of larger ones.
    pub is_collective: u32,
    /// For collective use: the result of tameike_agg_known() on rank 0, or null. With it, other ranks open only those files of the
    /// container that they need, and the index only if it is large.
    pub known: *const c_void,
    /// Size of `known` in bytes.
    pub known_size: usize,
}

/// An open container of many files.
pub struct Aggregate {
    session: Session,
    own: OwnMark,
}

/// Records the message of a failed call for `tameike_agg_message`.
fn with_message<T>(result: Result<T>) -> file::Result<T> {
    result.map_err(|fault| {
        let errno = Errno::from_raw_os_error(fault.errno.0);
        let message = CString::new(fault.to_string().replace('\0', "?")).unwrap_or_default();
        MESSAGE.with(|kept| kept.replace(message));
        errno
    })
}

/// Converts a path in a container. Absolute paths also begin at its root.
///
/// # Safety
/// As for `text`.
unsafe fn container_path<'a>(path: *const c_char) -> file::Result<&'a [u8]> {
    // SAFETY: by the contract above.
    let path = unsafe { text(path)? }.to_bytes();
    let path = path.strip_prefix(b"./").unwrap_or(path);
    let start = path.iter().position(|&byte| byte != b'/').unwrap_or(path.len());
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(start, |last| last + 1);
    Ok(if &path[start..end] == b"." { b"" } else { &path[start..end] })
}

impl Aggregate {
    /// Returns the session; `EIO` in a child of the process that opened it.
    fn session(&self) -> file::Result<&Session> {
        if self.own.is_own() { Ok(&self.session) } else { Err(Errno::IO) }
    }
}

/// Calls `call` with the session of a container, and a path in it.
///
/// # Safety
/// As for `deref` and `container_path`.
unsafe fn on_path<T>(
    container: *mut Aggregate,
    path: *const c_char,
    call: impl FnOnce(&Session, &[u8]) -> Result<T>,
) -> file::Result<T> {
    // SAFETY: by the contract above.
    let (aggregate, path) = unsafe { (deref(container)?, container_path(path)?) };
    with_message(call(aggregate.session()?, path))
}

/// Takes the session of a container without open files and lists.
///
/// # Safety
/// The pointer is null, or came from `tameike_agg_initialize` and was not taken before.
unsafe fn take(container: *mut Aggregate) -> file::Result<Session> {
    check_memory(container, 1)?;
    // SAFETY: by the contract above.
    match Arc::try_unwrap(unsafe { Arc::from_raw(container) }) {
        Ok(Aggregate { session, own }) if own.is_own() => Ok(session),
        Ok(of_parent) => {
            // A child cannot join the threads of its parent.
            std::mem::forget(of_parent);
            Err(Errno::IO)
        }
        Err(container) => {
            // The program keeps the container.
            let _ = Arc::into_raw(container);
            Err(Errno::BUSY)
        }
    }
}

/// Opens a directory; creates it if it is missing and `create` is set.
fn open_tree(dir: &Path, create: bool) -> Result<Arc<PosixTree>> {
    match PosixTree::open(dir) {
        Err(fault) if create && fault.errno == tameike_core::Errno::ENOENT => make_dir(dir)?,
        opened => return opened.map(Arc::new),
    }
    PosixTree::open(dir).map(Arc::new)
}

/// Creates a directory, unless it exists.
fn make_dir(dir: &Path) -> Result<()> {
    match std::fs::create_dir(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(Fault::from_os("creating the directory", &error))
        }
        _ => Ok(()),
    }
}

/// Returns the codec of [`AggregateOptions::compression`].
fn codec_of(compression: u32) -> Result<Codec> {
    match compression {
        0 => Ok(Codec::None),
        1 => Ok(Codec::Zstd),
        other => {
            let message = format!("compression {other} does not exist: use 0 (none) or 1 (Zstandard)");
            Err(Fault::new(tameike_core::Errno::EINVAL, message))
        }
    }
}

/// Decodes [`AggregateOptions::known`].
///
/// # Safety
/// The pointer is null, or to `known_size` bytes that do not change meanwhile.
unsafe fn known_of(options: &AggregateOptions) -> file::Result<Option<Snapshot>> {
    let (known, size) = (options.known.cast::<u8>(), options.known_size);
    check_memory(known, size)?;
    if size == 0 {
        return Ok(None);
    }
    // SAFETY: by the contract above.
    Ok(Snapshot::decode(unsafe { std::slice::from_raw_parts(known, size) }))
}

/// Opens the session of a container; `known` comes from another process.
fn open_session(
    dir: &CStr,
    flags: c_int,
    options: Option<&AggregateOptions>,
    known: Option<Snapshot>,
) -> Result<Session> {
    let dir = Path::new(OsStr::from_bytes(dir.to_bytes()));
    let of_dir = |fault: Fault| Fault::new(fault.errno, format!("{}: {fault}", dir.display()));
    let create = flags & libc::O_CREAT != 0;
    let codec = codec_of(options.map_or(0, |options| options.compression))?;
    let is_read_only = flags & libc::O_ACCMODE == libc::O_RDONLY;
    // `known` implies that another process has created the container.
    let makes = create && known.is_none();
    // The directory must exist before its file system is examined.
    let tree = open_tree(dir, create).map_err(of_dir)?;
    let given = options.and_then(|options| {
        let rank = u32::try_from(options.rank).ok()?;
        Some(Rank { rank, size: options.size, is_guess: false })
    });
    let option = |value: fn(&AggregateOptions) -> u32| options.map(value).filter(|value| *value > 0);
    let is_collective = given.is_some() && option(|options| options.is_collective).is_some();
    let subfiles = option(|options| options.subfiles);
    let is_alone = is_collective && given.is_some_and(|rank| rank.size == 1);
    // Several ranks use several files already.
    let streams = if is_alone { subfiles.map_or(STREAMS, |most| STREAMS.min(most as usize - 1)) } else { 0 };
    // A process that writes to several files uses them as an independent writer of its host.
    let rank = match streams {
        0 => given.or_else(|| Rank::guess(|name| std::env::var(name).ok())),
        _ => None,
    };
    let are_in_turn = match rank {
        Some(rank) => rank.size > subfiles.unwrap_or(SUBFILES_MAX),
        None => streams == 0,
    };
    let options = SessionOptions {
        rank,
        is_collective,
        create,
        permissions: Permissions::ByUmask,
        is_read_only,
        refresh: Refresh::Automatic,
        block_size: option(|options| options.block_size)
            .or_else(|| makes.then(|| block_size_of(dir, are_in_turn))),
        subfiles,
        codec,
        streams,
        umask: if is_read_only { 0 } else { umask().unwrap_or(0o022) },
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
    };
    match known {
        Some(known) => Session::join(tree, options, &known),
        None => Session::open(tree, options),
    }
    .map_err(of_dir)
}

/// Opens a container, which is a directory: with O_RDONLY, or with O_RDWR to write to it; O_CREAT creates it if it is missing. `options`
/// may be null. Any number of processes on any nodes may open it at the same time. Each must open it itself, including children of fork().
/// Close `*container` with tameike_agg_finalize(). Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_agg_initialize(
    dir: *const c_char,
    flags: c_int,
    options: *const AggregateOptions,
    container: *mut *mut Aggregate,
) -> c_int {
    done(|| {
        check_memory(container, 1)?;
        // SAFETY: by the contract of the function.
        let (dir, options) = unsafe { (text(dir)?, options.as_ref()) };
        let own = OwnMark::new().map_err(|_| Errno::NOMEM)?;
        // SAFETY: the same.
        let known = options.map_or(Ok(None), |options| unsafe { known_of(options) })?;
        let session = with_message(open_session(dir, flags, options, known))?;
        // SAFETY: the same.
        unsafe { write_out(container, Arc::into_raw(Arc::new(Aggregate { session, own })).cast_mut()) }
    })
}

/// Closes a container, and makes all written data durable. The last of all processes writes the index, with which later opens are fast.
/// Files and lists must be closed before, otherwise it fails with -EBUSY. On any other error, data may not be durable, and the container
/// is closed. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_agg_finalize(container: *mut Aggregate) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| with_message(unsafe { take(container)? }.finish()))
}

/// Makes all data written to a container durable, including that of open files. Other processes see it after tameike_agg_refresh().
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_agg_sync(container: *mut Aggregate) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| with_message(unsafe { deref(container)? }.session()?.sync()))
}

/// Makes changes by other processes visible. Lookups of missing names do so automatically; changed files are visible only after this call.
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_agg_refresh(container: *mut Aggregate) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| with_message(unsafe { deref(container)? }.session()?.refresh()))
}

/// Returns a message for the last failed call on a container in this thread, or an empty string if none has failed. It is valid until the
/// next call fails.
#[unsafe(no_mangle)]
pub extern "C" fn tameike_agg_message() -> *const c_char {
    MESSAGE.with(|kept| kept.borrow().as_ptr())
}
