//! A tree below a real directory.

use super::attributes::StatContext;
use super::directory::PosixDir;
use super::exact;
use super::file::PosixFile;
use super::ids::Ids;
use super::open_file_cache::OpenFileCache;
use super::whole::{self, WholeFile};
use super::{
    Access, FileStat, Pin, SharedDir, SharedFile, SharedFs, Special, TreeSpace, XattrMode, attributes, join,
    split, translate,
};
use crate::os::owned;
use rustix::fs::{
    Access as Permissions, AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, StatxFlags, Uid,
};
use rustix::io::Errno as Os;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use tameike_core::attr::AttrChange;
use tameike_core::limits::PATH_SIZE_MAX;
use tameike_core::wire::meta::RenameMode;
use tameike_core::{Errno, Fault, FileKind, Result};

const BENEATH: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);

/// Flags to create a file.
const NEW: OFlags =
    OFlags::RDWR.union(OFlags::CREATE).union(OFlags::EXCL).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The files below one directory of this node.
pub struct PosixTree {
    root: OwnedFd,
    /// The path of the root for messages, relative to the original tree.
    place: Vec<u8>,
    context: StatContext,
    kept: Arc<OpenFileCache>,
}

impl PosixTree {
    /// Opens the tree below `root`, which must be a directory.
    pub fn open(root: &Path) -> Result<Self> {
        Self::open_with(root, OFlags::empty())
    }

    fn open_with(root: &Path, flags: OFlags) -> Result<Self> {
        use std::os::unix::ffi::OsStrExt;
        let bytes = root.as_os_str().as_bytes();
        let flags = flags | OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = || -> rustix::io::Result<Self> {
            let root = rustix::fs::open(root, flags, Mode::empty())?;
            let root_device = rustix::fs::fstat(&root)?.st_dev;
            let context = StatContext { root_device, ids: Ids::of_process() };
            Ok(Self { root, place: Vec::new(), context, kept: Arc::default() })
        };
        open().map_err(|error| translate::fault("open the directory", bytes, error))
    }

    /// As [`Self::open`], for a directory that another user may have created: the last component must not be a symbolic link.
    /// Also returns the reason if other users can change the directory ([`owned::why_not_own`]).
    ///
    /// # Errors
    /// `ENOTDIR` if it is a link, and the errors of [`Self::open`].
    pub fn open_unfollowed(root: &Path) -> Result<(Self, Option<String>)> {
        let tree = Self::open_with(root, OFlags::NOFOLLOW)?;
        let found = rustix::fs::fstat(&tree.root).map_err(|error| translate::fault("stat", b"", error))?;
        let open = |flags| rustix::fs::openat(&tree.root, ".", flags, Mode::empty());
        let why_not_own = owned::why_not_own(&found, open);
        Ok((tree, why_not_own))
    }

    fn resolve(&self, path: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let open = |at: Option<&OwnedFd>, path: &[u8], flags| {
            let path = if path.is_empty() { b"." } else { path };
            let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::openat2(at.unwrap_or(&self.root), path, flags, Mode::empty(), BENEATH)
        };
        // The system limits the length of a path in one call.
        let (mut at, mut rest) = (None, path);
        while rest.len() >= PATH_SIZE_MAX {
            let slash =
                rest[..PATH_SIZE_MAX].iter().rposition(|&byte| byte == b'/').ok_or(Os::NAMETOOLONG)?;
            at = Some(open(at.as_ref(), &rest[..slash], OFlags::PATH | OFlags::DIRECTORY)?);
            rest = &rest[slash + 1..];
        }
        open(at.as_ref(), rest, flags)
    }

    /// Runs `operation` on the parent directory and the last name of `path`.
    fn at<T>(
        &self,
        doing: &str,
        path: &[u8],
        operation: impl FnOnce(BorrowedFd<'_>, &[u8]) -> rustix::io::Result<T>,
    ) -> Result<T> {
        let run = || match split(path) {
            None => operation(self.root.as_fd(), b"."),
            Some((b"", name)) => operation(self.root.as_fd(), name),
            Some((dir, name)) => {
                let dir = self.resolve(dir, OFlags::PATH | OFlags::DIRECTORY)?;
                operation(dir.as_fd(), name)
            }
        };
        if path.split(|&byte| byte == b'/').any(|name| name == b"..") {
            return Err(Errno::EINVAL.into());
        }
        run().map_err(|error| self.fault(doing, path, error))
    }

    /// Runs `operation` on the name of the file itself in `/proc`, whatever its kind.
    fn by_descriptor<T>(
        &self,
        doing: &str,
        path: &[u8],
        operation: impl FnOnce(&str) -> rustix::io::Result<T>,
    ) -> Result<T> {
        let run = || {
            let file = self.resolve(path, OFlags::PATH)?;
            operation(&format!("/proc/self/fd/{}", file.as_raw_fd()))
        };
        run().map_err(|error| self.fault(doing, path, error))
    }

    /// Opens a file whose permissions forbid it to its owner, by a temporary change of them.
    fn open_forbidden(&self, path: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let file = self.resolve(path, OFlags::PATH)?;
        let stat = rustix::fs::fstat(&file)?;
        let own = rustix::process::geteuid().as_raw() == stat.st_uid;
        if !own || stat.st_mode & 0o600 == 0o600 {
            return Err(Os::ACCESS);
        }
        let name = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::chmod(&name, Mode::from_raw_mode((stat.st_mode & 0o7777) | 0o600))?;
        let opened = rustix::fs::open(&name, flags | OFlags::CLOEXEC, Mode::empty());
        rustix::fs::chmod(&name, Mode::from_raw_mode(stat.st_mode & 0o7777))?;
        opened
    }

    /// Opens a regular file, and returns its attributes without [`FileStat::handle_hash`].
    fn open_file(&self, path: &[u8], access: Access) -> Result<(OwnedFd, FileStat)> {
        let flags = match access {
            Access::Read => OFlags::RDONLY,
            Access::Write => OFlags::RDWR,
        } | OFlags::NONBLOCK;
        let open = || {
            let opened = match self.resolve(path, flags) {
                Err(Os::ACCESS) => self.open_forbidden(path, flags),
                other => other,
            }?;
            let stat = attributes::open_without_hash(self.context, &opened)?;
            Ok((opened, stat))
        };
        let (descriptor, stat) = open().map_err(|error| self.fault("open", path, error))?;
        if stat.kind == FileKind::File { Ok((descriptor, stat)) } else { Err(Errno::EINVAL.into()) }
    }

    fn file(&self, descriptor: OwnedFd, path: &[u8]) -> Arc<dyn SharedFile> {
        Arc::new(PosixFile { descriptor, path: self.shown(path), context: self.context })
    }

    /// The path in messages.
    fn shown(&self, path: &[u8]) -> Vec<u8> {
        if path.is_empty() { self.place.clone() } else { join(&self.place, path) }
    }

    fn fault(&self, doing: &str, path: &[u8], error: Os) -> Fault {
        translate::fault(doing, &self.shown(path), error)
    }
}

impl SharedFs for PosixTree {
    fn stat(&self, path: &[u8]) -> Result<FileStat> {
        self.at("stat", path, |dir, name| attributes::at(self.context, dir, name))
    }

    fn pin(&self, path: &[u8]) -> Result<(FileStat, Pin)> {
        let pin = || {
            let file = self.resolve(path, OFlags::PATH)?;
            Ok((attributes::open(self.context, &file)?, Box::new(file) as Pin))
        };
        pin().map_err(|error| self.fault("pin", path, error))
    }

    fn open_dir(&self, path: &[u8]) -> Result<Arc<dyn SharedDir>> {
        let open = || {
            let descriptor = self.resolve(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
            PosixDir::new(descriptor, &self.shown(path), self.context)
        };
        match open() {
            Ok(dir) => Ok(Arc::new(dir)),
            Err(error) => Err(self.fault("open the directory", path, error)),
        }
    }

    fn read_link(&self, path: &[u8]) -> Result<Vec<u8>> {
        let target = self.at("read the link", path, |dir, name| {
            rustix::fs::readlinkat(dir, name, Vec::with_capacity(PATH_SIZE_MAX))
        })?;
        Ok(target.into_bytes())
    }

    fn open(&self, path: &[u8], access: Access) -> Result<Arc<dyn SharedFile>> {
        let (descriptor, _) = self.open_file(path, access)?;
        Ok(self.file(descriptor, path))
    }

    fn open_whole(&self, path: &[u8]) -> Result<WholeFile> {
        let (descriptor, stat) = self.open_file(path, Access::Read)?;
        let xattrs = whole::xattrs_of_open(&descriptor)
            .map_err(|error| self.fault("read the attributes of", path, error))?;
        Ok(WholeFile { file: self.file(descriptor, path), stat, xattrs })
    }

    fn below(&self, dir: &[u8]) -> Result<Arc<dyn SharedFs>> {
        let root = self.resolve(dir, OFlags::PATH | OFlags::DIRECTORY);
        Ok(Arc::new(Self {
            root: root.map_err(|error| self.fault("open the directory", dir, error))?,
            place: self.shown(dir),
            context: self.context,
            kept: self.kept.clone(),
        }))
    }

    fn create(&self, path: &[u8], mode: u16) -> Result<Arc<dyn SharedFile>> {
        let descriptor = self.at("create", path, |dir, name| {
            let file = rustix::fs::openat(dir, name, NEW, translate::mode(mode))?;
            exact::set_of_file(&file, mode)?;
            Ok(file)
        })?;
        Ok(self.file(descriptor, path))
    }

    fn create_by_umask(&self, path: &[u8]) -> Result<Arc<dyn SharedFile>> {
        let create =
            |dir: BorrowedFd<'_>, name: &[u8]| rustix::fs::openat(dir, name, NEW, Mode::from_raw_mode(0o666));
        Ok(self.file(self.at("create", path, create)?, path))
    }

    fn make(&self, path: &[u8], special: &Special) -> Result<FileStat> {
        if let Special::Node { kind: FileKind::File, mode, .. } = special {
            return self.create(path, *mode)?.stat();
        }
        self.at("make", path, |dir, name| {
            match special {
                Special::Directory(mode) => {
                    rustix::fs::mkdirat(dir, name, translate::mode(*mode))?;
                    exact::set_of_name(dir, name, FileType::Directory, *mode)?;
                }
                Special::Symlink(target) => rustix::fs::symlinkat(target.as_slice(), dir, name)?,
                Special::Node { kind, mode, rdev } => {
                    let device = translate::system_device(*rdev);
                    let file_type = translate::file_type(*kind);
                    rustix::fs::mknodat(dir, name, file_type, translate::mode(*mode), device)?;
                    exact::set_of_name(dir, name, file_type, *mode)?;
                }
            }
            attributes::at(self.context, dir, name)
        })
    }

    fn unlink(&self, path: &[u8]) -> Result<()> {
        let remove =
            || self.at("remove", path, |dir, name| rustix::fs::unlinkat(dir, name, AtFlags::empty()));
        self.kept.invalidate_around(|| self.stat(path), remove)
    }

    fn rmdir(&self, path: &[u8]) -> Result<()> {
        self.at("remove", path, |dir, name| rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR))
    }

    fn rename(&self, from: &[u8], to: &[u8], mode: RenameMode) -> Result<()> {
        let flags = match mode {
            RenameMode::Replace => RenameFlags::empty(),
            RenameMode::NoReplace => RenameFlags::NOREPLACE,
            RenameMode::Exchange => RenameFlags::EXCHANGE,
        };
        let rename = || {
            self.at("rename", from, |old_dir, old_name| {
                Ok(self.at("rename to", to, |new_dir, new_name| {
                    rustix::fs::renameat_with(old_dir, old_name, new_dir, new_name, flags)
                }))
            })?
        };
        self.kept.invalidate_around(|| self.stat(to), rename)
    }

    fn open_file_cache(&self) -> Option<&OpenFileCache> {
        Some(&self.kept)
    }

    fn link(&self, from: &[u8], to: &[u8]) -> Result<()> {
        self.at("link", from, |old_dir, old_name| {
            Ok(self.at("link as", to, |new_dir, new_name| {
                rustix::fs::linkat(old_dir, old_name, new_dir, new_name, AtFlags::empty())
            }))
        })?
    }

    /// Linux asks the file system before it creates a hard link, even if it has the name cached. A link to a file on another file
    /// system always fails, so this has no effect. An NFS client trusts a cached missing name without asking, until it sees a
    /// change of the directory; so the directory is revalidated too.
    fn revalidate(&self, path: &[u8]) {
        let now = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
        let _ = self.at("stat", path, |dir, name| {
            match rustix::fs::linkat(rustix::fs::CWD, c"/proc", dir, name, AtFlags::empty()) {
                Err(Os::EXIST) => Ok(()),
                _ => rustix::fs::statx(dir, c"", now, StatxFlags::BASIC_STATS).map(drop),
            }
        });
    }

    fn check_names(&self, dir: &[u8]) -> Result<()> {
        match self.context.ids {
            None => Ok(()),
            Some(_) => self.at("change names in", dir, |at, name| {
                rustix::fs::accessat(at, name, Permissions::WRITE_OK | Permissions::EXEC_OK, AtFlags::empty())
            }),
        }
    }

    fn check_write(&self, path: &[u8]) -> Result<()> {
        self.at("write to", path, |dir, name| self.context.check_write(dir, name))
    }

    fn shown_group(&self, owner: (u32, u32)) -> u32 {
        self.context.ids.map_or(owner.1, |ids| ids.group(owner))
    }

    fn change(&self, path: &[u8], change: &AttrChange) -> Result<()> {
        if change.size.is_some() || change.layout.is_some() {
            return Err(Errno::EINVAL.into());
        }
        let change = &self.at("stat", path, |dir, name| {
            self.context.effective_change(change, || rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW))
        })?;
        if change.uid.is_some() || change.gid.is_some() {
            let (uid, gid) = (change.uid.map(Uid::from_raw), change.gid.map(Gid::from_raw));
            self.at("chown", path, |dir, name| {
                rustix::fs::chownat(dir, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
            })?;
        }
        if let Some(bits) = change.mode {
            self.by_descriptor("chmod", path, |file| rustix::fs::chmod(file, translate::mode(bits)))?;
        }
        match translate::times(change) {
            None => Ok(()),
            Some(times) => self.at("set times of", path, |dir, name| {
                rustix::fs::utimensat(dir, name, &times, AtFlags::SYMLINK_NOFOLLOW)
            }),
        }
    }

    fn change_made(&self, path: &[u8], kind: FileKind, change: &AttrChange) -> Result<()> {
        let AttrChange { uid, gid, mode, .. } = *change;
        if *change != (AttrChange { uid, gid, mode, ..AttrChange::default() }) {
            return Err(Errno::EINVAL.into());
        }
        self.at("chown", path, |dir, name| {
            let kept = self
                .context
                .effective_change(change, || rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW))?;
            exact::change_owner(dir, name, translate::file_type(kind), (kept.uid, kept.gid), mode)
        })
    }

    fn xattr(&self, path: &[u8], name: &[u8]) -> Result<Vec<u8>> {
        self.by_descriptor("read an attribute of", path, |file| {
            whole::read_buffer(|value| rustix::fs::getxattr(file, name, value))
        })
    }

    fn xattrs(&self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.by_descriptor("list the attributes of", path, |file| {
            let list = whole::read_buffer(|list| rustix::fs::listxattr(file, list))?;
            Ok(whole::names(&list).collect())
        })
    }

    fn set_xattr(&self, path: &[u8], name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.by_descriptor("set an attribute of", path, |file| {
            rustix::fs::setxattr(file, name, value, translate::xattr(mode))
        })
    }

    fn remove_xattr(&self, path: &[u8], name: &[u8]) -> Result<()> {
        self.by_descriptor("remove an attribute of", path, |file| rustix::fs::removexattr(file, name))
    }

    fn space(&self) -> Result<TreeSpace> {
        let fail = |error| self.fault("get the space of", b"the shared directory", error);
        let root = self.resolve(b"", OFlags::RDONLY | OFlags::DIRECTORY).map_err(fail)?;
        let space = rustix::fs::fstatvfs(&root).map_err(fail)?;
        Ok(TreeSpace {
            total: space.f_blocks * space.f_frsize,
            free: space.f_bfree * space.f_frsize,
            available: space.f_bavail * space.f_frsize,
            inodes: space.f_files,
            inodes_free: space.f_ffree,
        })
    }

    fn sync_dir(&self, path: &[u8]) -> Result<()> {
        let sync = || match self.resolve(path, OFlags::RDONLY | OFlags::DIRECTORY) {
            // A directory without read permission cannot be synced, but its names can change.
            Err(Os::ACCESS) => Ok(()),
            other => rustix::fs::fsync(other?),
        };
        sync().map_err(|error| self.fault("fsync the directory", path, error))
    }
}
