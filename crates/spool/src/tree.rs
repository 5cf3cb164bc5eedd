//! The spool's tree: files, and stubs of packed files.

use super::page::SharedPage;
use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps, Uid, XattrFlags, chownat,
    renameat_with, utimensat,
};
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirEntryExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use tameike_container::session::Xattr;
use tameike_core::attr::{AttrChange, SetTime};
use tameike_core::spool::protocol::LINKED;
use tameike_core::spool::stub::Stub;
use tameike_core::{Errno, Fault, FileKind, Result, Timestamp};

/// Prefix of the names of files that are being unpacked.
const STAGED: &str = "staged.";
/// The kernel's maximum for an attribute's value, and for a list of names, in bytes.
const XATTRS_SIZE_MAX: usize = 64 << 10;

/// The tree, and a directory beside it for temporary files.
pub struct Tree {
    root: PathBuf,
    beside: PathBuf,
    staged: AtomicU64,
    /// The page shared with programs.
    pub page: SharedPage,
}

/// File type of a path of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// A regular file.
    File(Version),
    /// A directory.
    Dir,
    /// A symbolic link of a program.
    Link,
    /// A packed file.
    Packed(Stub),
    /// Any other type, which is not packed.
    Other,
}

/// Attributes by which changes of a file are detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    /// Inode number in the tree's file system.
    pub inode: u64,
    /// Size in bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u16,
    /// User ID of the owner.
    pub uid: u32,
    /// Group ID.
    pub gid: u32,
    /// Time of the last change of content.
    pub mtime: Timestamp,
    /// Time of the last change of content or attributes.
    pub ctime: Timestamp,
}

impl Version {
    /// The version of a file with this metadata.
    pub fn of(metadata: &Metadata) -> Self {
        let time = |seconds, nanoseconds: i64| Timestamp { seconds, nanoseconds: nanoseconds as u32 };
        Self {
            inode: metadata.ino(),
            size: metadata.len(),
            mode: (metadata.mode() & 0o7777) as u16,
            uid: metadata.uid(),
            gid: metadata.gid(),
            mtime: time(metadata.mtime(), metadata.mtime_nsec()),
            ctime: time(metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// The stub for the file.
    pub fn stub(&self) -> Stub {
        let Self { size, mode, uid, gid, mtime, .. } = *self;
        Stub { size, mode, uid, gid, mtime }
    }

    /// The attributes as a change.
    pub fn attributes(&self) -> AttrChange {
        attributes(&self.stub())
    }

    /// The attributes of a symbolic link as a change; a link has no mode.
    pub fn link_attributes(&self) -> AttrChange {
        let atime = Some(SetTime::To(self.mtime));
        AttrChange { mode: None, atime, ..self.attributes() }
    }
}

/// The attributes of a packed file as a change.
pub fn attributes(stub: &Stub) -> AttrChange {
    AttrChange {
        mode: Some(stub.mode),
        uid: Some(stub.uid),
        gid: Some(stub.gid),
        mtime: Some(SetTime::To(stub.mtime)),
        ..AttrChange::default()
    }
}

impl Tree {
    /// The tree in `root`; `beside` is on the same file system.
    pub fn new(root: PathBuf, beside: &Path, page: SharedPage) -> Self {
        Self { root, beside: beside.to_owned(), staged: AtomicU64::new(0), page }
    }

    /// Removes temporary files of a killed packer.
    pub fn clear_beside(&self) -> Result<()> {
        let names = std::fs::read_dir(&self.beside).map_err(spool_fault)?;
        for name in names.flatten().filter(|name| name.file_name().as_bytes().starts_with(STAGED.as_bytes()))
        {
            std::fs::remove_file(name.path()).map_err(spool_fault)?;
        }
        Ok(())
    }

    /// The real path of a path in the tree.
    pub fn real(&self, path: &[u8]) -> PathBuf {
        if path.is_empty() { self.root.clone() } else { self.root.join(OsStr::from_bytes(path)) }
    }

    /// The metadata of a path, without following a link.
    pub fn metadata(&self, path: &[u8]) -> Result<Metadata> {
        std::fs::symlink_metadata(self.real(path)).map_err(spool_fault)
    }

    /// The type of a path; `None` if it does not exist.
    pub fn lookup(&self, path: &[u8]) -> Result<Option<Found>> {
        let real = self.real(path);
        let metadata = match std::fs::symlink_metadata(&real) {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            found => found.map_err(spool_fault)?,
        };
        let kind = metadata.file_type();
        Ok(Some(if kind.is_symlink() {
            match Stub::parse(&self.link(path)?) {
                Some(stub) => Found::Packed(stub),
                None => Found::Link,
            }
        } else if kind.is_dir() {
            Found::Dir
        } else if kind.is_file() {
            Found::File(Version::of(&metadata))
        } else {
            debug_assert!(
                kind.is_fifo() || kind.is_socket() || kind.is_char_device() || kind.is_block_device()
            );
            Found::Other
        }))
    }

    /// Target of a symbolic link.
    pub fn link(&self, path: &[u8]) -> Result<Vec<u8>> {
        let target = std::fs::read_link(self.real(path)).map_err(spool_fault)?;
        Ok(target.into_os_string().into_encoded_bytes())
    }

    /// Opens a regular file for reading. Also returns extended attributes if the mode forbids to read them later.
    pub fn open(&self, path: &[u8]) -> std::io::Result<(File, Option<Vec<Xattr>>)> {
        let (real, flags) = (self.real(path), open_flags());
        let open = || File::options().read(true).custom_flags(flags).open(&real);
        match open() {
            // The owner may read it after a temporary change of the mode.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                let mode = std::fs::symlink_metadata(&real)?.mode() & 0o7777;
                let change = |mode: u32| {
                    change_at(&real, &AttrChange { mode: Some(mode as u16), ..AttrChange::default() })
                };
                change(mode | 0o400)?;
                let opened = open().and_then(|file| Ok((xattrs(&file)?, file)));
                change(mode)?;
                opened.map(|(xattrs, file)| (file, Some(xattrs)))
            }
            opened => opened.map(|file| (file, None)),
        }
    }

    /// A new temporary file, with its path.
    pub fn stage(&self) -> Result<(File, PathBuf)> {
        let path = self.staged_path();
        let file = File::options().create_new(true).read(true).write(true).mode(0o600).open(&path);
        file.map(|file| (file, path)).map_err(|error| Fault::from_os("creating a file in the spool", &error))
    }

    /// Renames a temporary file to a path, and replaces what is there.
    pub fn put(&self, staged: &Path, path: &[u8]) -> Result<()> {
        std::fs::rename(staged, self.real(path)).map_err(spool_fault)
    }

    /// Records the inode number that programs know for a file, before it gets a second name.
    pub fn keep_number(&self, inode: u64, number: u64) -> Result<()> {
        let staged = self.staged_path();
        std::os::unix::fs::symlink(number.to_string(), &staged).map_err(spool_fault)?;
        let kept = self.beside.join(format!("{LINKED}{inode}"));
        std::fs::rename(staged, kept).map_err(spool_fault)
    }

    fn staged_path(&self) -> PathBuf {
        let number = self.staged.fetch_add(1, Ordering::Relaxed);
        self.beside.join(format!("{STAGED}{}.{number}", std::process::id()))
    }

    /// Puts a stub to a path, and replaces what is there.
    pub fn put_stub(&self, path: &[u8], stub: &Stub) -> Result<()> {
        let staged = self.staged_path();
        std::os::unix::fs::symlink(stub.target(), &staged).map_err(spool_fault)?;
        self.put(&staged, path)
    }

    /// Runs `change`, which replaces entries of a directory, and restores the directory's mtime: programs must see no change.
    pub fn keeping_time<T>(&self, dir: &[u8], change: impl FnOnce() -> Result<T>) -> Result<T> {
        self.page.while_changing(|| {
            let before = self.metadata(dir)?;
            let changed = change()?;
            let mtime = Some(SetTime::To(Version::of(&before).mtime));
            self.change(dir, &AttrChange { mtime, ..AttrChange::default() })?;
            Ok(changed)
        })
    }

    /// Creates a directory with the attributes that it has in the container.
    pub fn make_dir(&self, path: &[u8], attributes: &AttrChange, xattrs: &[Xattr]) -> Result<()> {
        let real = self.real(path);
        std::fs::create_dir(&real).map_err(spool_fault)?;
        for Xattr { name, value } in xattrs {
            rustix::fs::lsetxattr(&real, name.as_slice(), value, XattrFlags::empty()).map_err(spool_fault)?;
        }
        self.change(path, attributes)
    }

    /// Extended attributes of a directory.
    pub fn xattrs(&self, path: &[u8]) -> Result<Vec<Xattr>> {
        let dir = File::options().read(true).custom_flags(open_flags()).open(self.real(path));
        dir.and_then(|dir| xattrs(&dir)).map_err(spool_fault)
    }

    /// Renames, and replaces what is at the target; `keeps` fails if the target exists.
    pub fn rename(&self, from: &[u8], to: &[u8], keeps: bool) -> Result<()> {
        let flags = if keeps { RenameFlags::NOREPLACE } else { RenameFlags::empty() };
        renameat_with(CWD, self.real(from), CWD, self.real(to), flags).map_err(spool_fault)
    }

    /// Creates a symbolic link with the target and attributes that it has in the container.
    pub fn make_link(&self, path: &[u8], target: &[u8], attributes: &AttrChange) -> Result<()> {
        std::os::unix::fs::symlink(OsStr::from_bytes(target), self.real(path)).map_err(spool_fault)?;
        let AttrChange { uid, gid, mtime, .. } = *attributes;
        match self.change(path, &AttrChange { uid, gid, ..AttrChange::default() }) {
            // Without the privilege to change owners, the link keeps its own.
            Err(fault) if fault.errno == Errno::EPERM => {}
            done => done?,
        }
        self.change(path, &AttrChange { mtime, ..AttrChange::default() })
    }

    /// Changes attributes of a path, without following a link.
    pub fn change(&self, path: &[u8], change: &AttrChange) -> Result<()> {
        change_at(&self.real(path), change).map_err(spool_fault)
    }

    /// Names in a directory, by inode number, which is the order of creation: files read in that order lie in the same order in the
    /// container.
    pub fn names(&self, path: &[u8]) -> Result<Vec<(Vec<u8>, FileKind)>> {
        let mut names = Vec::new();
        for name in std::fs::read_dir(self.real(path)).map_err(spool_fault)? {
            let name = name.map_err(spool_fault)?;
            let kind = name.file_type().map_err(spool_fault)?;
            let kind = if kind.is_dir() {
                FileKind::Directory
            } else if kind.is_symlink() {
                FileKind::Symlink
            } else if kind.is_file() {
                FileKind::File
            } else {
                FileKind::Fifo
            };
            names.push((name.ino(), name.file_name().into_encoded_bytes(), kind));
        }
        names.sort_unstable_by_key(|(number, ..)| *number);
        Ok(names.into_iter().map(|(_, name, kind)| (name, kind)).collect())
    }
}

/// Nonblocking, in case a FIFO has replaced the file.
fn open_flags() -> i32 {
    (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed()
}

/// Changes attributes of a path, without following a link.
pub fn change_at(path: &Path, change: &AttrChange) -> std::io::Result<()> {
    if change.uid.is_some() || change.gid.is_some() {
        let (uid, gid) = (change.uid.map(Uid::from_raw), change.gid.map(Gid::from_raw));
        match chownat(CWD, path, uid, gid, AtFlags::SYMLINK_NOFOLLOW) {
            // Without the privilege to change owners, the file keeps its own.
            Err(rustix::io::Errno::PERM) if change.mode.is_some() => {}
            done => done?,
        }
    }
    if let Some(mode) = change.mode {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::empty())?;
        rustix::fs::chmod(format!("/proc/self/fd/{}", file.as_raw_fd()), Mode::from_raw_mode(mode.into()))?;
    }
    if change.atime.is_some() || change.mtime.is_some() {
        let time = |time: Option<SetTime>| match time {
            None => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
            Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
            Some(SetTime::To(Timestamp { seconds, nanoseconds })) => {
                Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() }
            }
        };
        let times = Timestamps { last_access: time(change.atime), last_modification: time(change.mtime) };
        utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(())
}

/// Extended attributes of an open file or directory, by name.
pub fn xattrs(file: &File) -> std::io::Result<Vec<Xattr>> {
    // The common case.
    if matches!(rustix::fs::flistxattr_query(file), Ok(0) | Err(rustix::io::Errno::OPNOTSUPP)) {
        return Ok(Vec::new());
    }
    let mut list = vec![0; XATTRS_SIZE_MAX];
    let count = rustix::fs::flistxattr(file, list.as_mut_slice())?;
    let names = list[..count].split(|byte| *byte == 0).filter(|name| name.starts_with(b"user."));
    let mut xattrs = Vec::new();
    for name in names {
        let mut value = vec![0; XATTRS_SIZE_MAX];
        match rustix::fs::fgetxattr(file, name, value.as_mut_slice()) {
            // It was removed since.
            Err(rustix::io::Errno::NODATA) => continue,
            count => value.truncate(count?),
        }
        xattrs.push(Xattr { name: name.to_vec(), value });
    }
    xattrs.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    Ok(xattrs)
}

/// The error for a failed operation in the spool's file system.
pub fn spool_fault(error: impl Into<std::io::Error>) -> Fault {
    Fault::from_os("in the spool", &error.into())
}
