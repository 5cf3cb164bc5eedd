//! Containers of many files for programs in C: what `tameike.h` has of them, comments and all.
//!
//! No agent is asked: the library reads and writes the container's own files.

#![expect(
    clippy::missing_safety_doc,
    reason = "the comments are those of the header; what callers owe stands in `abi`"
)]

mod files;
mod names;
mod together;

use crate::abi::{done, fits, put, text, there};
use crate::file;
use rustix::io::Errno;
use std::cell::RefCell;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use tameike_container::STREAMS;
use tameike_container::session::{
    Codec, Known, LookAgain, Openness, Rank, SUBFILES_MAX, Session, SessionOptions, block_size_of,
};
use tameike_core::{Fault, Result};
use tameike_io::os::forked::OwnMark;
use tameike_io::os::process::umask;
use tameike_io::shared::PosixTree;

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// How a process takes part in a container. All zeros but `rank`, which is -1, is what suits most programs.
#[repr(C)]
pub struct AggregateOptions {
    /// Which of `size` processes this one is, from 0 on, each once; -1 where it is not known: then the environment of Open MPI,
    /// MPICH, PMIx and Slurm is asked, and a process of none of them is one of any number.
    pub rank: i32,
    /// How many processes there are.
    pub size: u32,
    /// Bytes of a block of a container that is made: a power of two from 4096 to 67108864, the stripe of the file system at best; 0
    /// for what suits it: 4 MiB at least, and 16 MiB where several processes share a file, over MooseFS its chunk of 64 MiB.
    pub block_size: u32,
    /// Files of a container that is made, which the ranks share: as many as there are storage targets at best; 0 for up to 8.
    pub subfiles: u32,
    /// How data is kept that this process writes: 0 as it is, 1 smaller by Zstandard where that pays.
    pub compression: u32,
    /// Not 0 where all processes begin and end together, rank 0 as the first and as the last one: then each has its part of the container from
    /// the beginning on, and rank 0 alone writes the index. tameike_agg_initialize_mpi() sets it. One rank alone writes to up to five
    /// files at the same time, by threads, and has up to ten blocks in memory, of longer ones 16 MiB.
    pub is_collective: u32,
    /// Where all processes begin together: what tameike_agg_known() has told rank 0; null where nothing is known. Then none opens any of
    /// the container's files that it does not need, nor its index, unless that is large.
    pub known: *const c_void,
    /// Its bytes.
    pub known_size: usize,
}

/// A container of many files in a few.
pub struct Aggregate {
    session: Session,
    own: OwnMark,
}

/// Keeps for `tameike_agg_message` why a call has failed.
fn told<T>(result: Result<T>) -> file::Result<T> {
    result.map_err(|fault| {
        let errno = Errno::from_raw_os_error(fault.errno.0);
        let message = CString::new(fault.to_string().replace('\0', "?")).unwrap_or_default();
        MESSAGE.with(|kept| kept.replace(message));
        errno
    })
}

/// A path in a container: absolute ones begin at its root, too.
///
/// # Safety
/// As of `text`.
unsafe fn inner<'a>(path: *const c_char) -> file::Result<&'a [u8]> {
    // SAFETY: by the contract above.
    let path = unsafe { text(path)? }.to_bytes();
    let path = path.strip_prefix(b"./").unwrap_or(path);
    let start = path.iter().position(|&byte| byte != b'/').unwrap_or(path.len());
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(start, |last| last + 1);
    Ok(if &path[start..end] == b"." { b"" } else { &path[start..end] })
}

impl Aggregate {
    /// The session, in the process that has opened it.
    fn session(&self) -> file::Result<&Session> {
        if self.own.is_own() { Ok(&self.session) } else { Err(Errno::IO) }
    }
}

/// The session of a container that nobody uses any more.
///
/// # Safety
/// It is null, or came from `tameike_agg_initialize`, and was not given back.
unsafe fn take(container: *mut Aggregate) -> file::Result<Session> {
    fits(container, 1)?;
    // SAFETY: by the contract above.
    match Arc::try_unwrap(unsafe { Arc::from_raw(container) }) {
        Ok(Aggregate { session, own }) if own.is_own() => Ok(session),
        Ok(of_parent) => {
            // Its threads are in the parent alone: nobody can wait for them here.
            std::mem::forget(of_parent);
            Err(Errno::IO)
        }
        Err(container) => {
            // It stays with the program.
            let _ = Arc::into_raw(container);
            Err(Errno::BUSY)
        }
    }
}

/// The tree of a directory, which is made where it is missing and may be.
fn open_tree(dir: &Path, create: bool) -> Result<Arc<PosixTree>> {
    match PosixTree::open(dir) {
        Err(fault) if create && fault.errno == tameike_core::Errno::ENOENT => make_dir(dir)?,
        opened => return opened.map(Arc::new),
    }
    PosixTree::open(dir).map(Arc::new)
}

/// Makes a directory, unless somebody else does.
fn make_dir(dir: &Path) -> Result<()> {
    match std::fs::create_dir(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(Fault::from_os("making it", &error))
        }
        _ => Ok(()),
    }
}

/// The codec of a number that [`AggregateOptions::compression`] has.
fn codec_of(compression: u32) -> Result<Codec> {
    match compression {
        0 => Ok(Codec::None),
        1 => Ok(Codec::Zstd),
        other => {
            let message = format!("there is no compression {other}");
            Err(Fault::new(tameike_core::Errno::EINVAL, message))
        }
    }
}

/// What the options tell that another process knows.
///
/// # Safety
/// Their pointer is null, or to so many bytes as they say, which nobody changes meanwhile.
unsafe fn known_of(options: &AggregateOptions) -> file::Result<Option<Known>> {
    let (known, size) = (options.known.cast::<u8>(), options.known_size);
    fits(known, size)?;
    if size == 0 {
        return Ok(None);
    }
    // SAFETY: by the contract above.
    Ok(Known::decode(unsafe { std::slice::from_raw_parts(known, size) }))
}

/// `known` is what another process knows of the container.
fn open_session(
    dir: &CStr,
    flags: c_int,
    options: Option<&AggregateOptions>,
    known: Option<Known>,
) -> Result<Session> {
    let dir = Path::new(OsStr::from_bytes(dir.to_bytes()));
    let of_dir = |fault: Fault| Fault::new(fault.errno, format!("{}: {fault}", dir.display()));
    let create = flags & libc::O_CREAT != 0;
    let codec = codec_of(options.map_or(0, |options| options.compression))?;
    let is_read_only = flags & libc::O_ACCMODE == libc::O_RDONLY;
    // Who is told of the container finds one that another process has made.
    let makes = create && known.is_none();
    // What suits the file system is asked of a directory that is there.
    let tree = open_tree(dir, create).map_err(of_dir)?;
    let given = options.and_then(|options| {
        let rank = u32::try_from(options.rank).ok()?;
        Some(Rank { rank, size: options.size, is_guess: false })
    });
    let asked = |value: fn(&AggregateOptions) -> u32| options.map(value).filter(|value| *value > 0);
    let is_collective = given.is_some() && asked(|options| options.is_collective).is_some();
    let subfiles = asked(|options| options.subfiles);
    let is_alone = is_collective && given.is_some_and(|rank| rank.size == 1);
    // Several ranks use several files already.
    let streams = if is_alone { subfiles.map_or(STREAMS, |most| STREAMS.min(most as usize - 1)) } else { 0 };
    // Who writes to several files takes them as a writer of its host.
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
        openness: Openness::ByUmask,
        is_read_only,
        look_again: LookAgain::Always,
        block_size: asked(|options| options.block_size)
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

/// Opens a container, which is a directory: O_RDONLY, or O_RDWR to add to it, with O_CREAT to make it where it is missing. `options`
/// may be null. Any number of processes may do so at the same time, on any nodes; each needs to do it for itself, children of fork(), too.
/// `*container` is for tameike_agg_finalize(). Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_agg_initialize(
    dir: *const c_char,
    flags: c_int,
    options: *const AggregateOptions,
    container: *mut *mut Aggregate,
) -> c_int {
    done(|| {
        fits(container, 1)?;
        // SAFETY: by the contract of the function.
        let (dir, options) = unsafe { (text(dir)?, options.as_ref()) };
        let own = OwnMark::new().map_err(|_| Errno::NOMEM)?;
        // SAFETY: the same.
        let known = options.map_or(Ok(None), |options| unsafe { known_of(options) })?;
        let session = told(open_session(dir, flags, options, known))?;
        // SAFETY: the same.
        unsafe { put(container, Arc::into_raw(Arc::new(Aggregate { session, own })).cast_mut()) }
    })
}

/// Ends the use of a container: all that was written is safe then. The last of all processes that ends writes an index, with which it is
/// opened at once. Files and lists must be closed before, -EBUSY tells of one that is not. What cannot be made safe is told, and
/// the container is gone for the process all the same. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_agg_finalize(container: *mut Aggregate) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| told(unsafe { take(container)? }.finish()))
}

/// Makes all that was written to files of a container safe, open ones, too; others see it when they look again. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_agg_sync(container: *mut Aggregate) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| told(unsafe { there(container)? }.session()?.sync()))
}

/// Looks for what other processes have added. A name that is missing is looked for without being asked; files that were changed are
/// seen after this. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tameike_agg_refresh(container: *mut Aggregate) -> c_int {
    // SAFETY: by the contract of the function.
    done(|| told(unsafe { there(container)? }.session()?.refresh()))
}

/// Tells in words why the last call on a container has failed in this thread: what happened, to what. It is there until the next one
/// fails, and empty when none has.
#[unsafe(no_mangle)]
pub extern "C" fn tameike_agg_message() -> *const c_char {
    MESSAGE.with(|kept| kept.borrow().as_ptr())
}
