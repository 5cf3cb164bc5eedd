//! Creates files in a tree. Existing files are never replaced.

use super::content::{Input, next_range};
use super::walk::Within;
use crate::{Node, Tally, Xattr, split_path};
use tameike_core::attr::{AttrChange, S_ISGID, SetTime};
use tameike_core::{Errno, Fault, FileKind, Result};
use tameike_io::os::process;
use tameike_io::shared::{SharedFile, SharedFs, Special, XattrMode};

/// Bytes per read and write of a copy.
pub const COPY_SIZE: usize = 1 << 20;

/// Attributes that extracted files get, beside content and times.
#[derive(Clone, Copy, Debug)]
pub struct Preserve {
    /// Owner and group.
    pub owners: bool,
    /// All mode bits (set-user-ID, too) and all extended attributes (access lists, too), and devices are created. If false, files get only
    /// the mode bits in `mask` and the `user.` attributes: the packed files may come from an untrusted user.
    pub all: bool,
    /// Permission bits allowed without `all`.
    pub mask: u16,
}

impl Preserve {
    /// Suitable for files of any user: no special bits, and the umask of this process applies.
    pub fn safe() -> Self {
        let umask = process::umask().unwrap_or(0o022);
        Self { owners: process::user() == 0, all: false, mask: 0o777 & !umask }
    }

    /// Preserve everything.
    pub fn all() -> Self {
        Self { all: true, ..Self::safe() }
    }

    fn mode(self, node: &Node) -> u16 {
        if self.all { node.mode } else { node.mode & self.mask }
    }
}

/// A tree in which files are created.
pub struct Files<'a> {
    pub into: &'a dyn SharedFs,
    pub preserve: Preserve,
}

impl Files<'_> {
    /// Creates a directory, and its parents if they are missing.
    pub fn make_dir(&self, path: &[u8]) -> Result<()> {
        let make = || match self.into.make(path, &Special::Directory(0o700)) {
            Err(fault) if fault.errno == Errno::EEXIST => Ok(()),
            made => made.map(drop),
        };
        self.with_parents(path, make)
    }

    /// A handle for creating many files in a directory; creates the directory if it is missing.
    pub fn within(&self, dir: &[u8]) -> Within<'_> {
        // If this fails, creating the first file returns the reason.
        let is_missing =
            !dir.is_empty() && self.into.stat(dir).is_err_and(|fault| fault.errno == Errno::ENOENT);
        let _ = if is_missing { self.make_dir(dir) } else { Ok(()) };
        Within::new(self.into, dir)
    }

    /// Calls `make`; if the parent directory is missing, creates it and calls `make` again.
    fn with_parents<T>(&self, path: &[u8], make: impl Fn() -> Result<T>) -> Result<T> {
        match make() {
            Err(fault) if fault.errno == Errno::ENOENT && path.contains(&b'/') => {
                self.make_dir(split_path(path).0)?;
                make()
            }
            made => made,
        }
    }

    /// Creates a file of any kind, with attributes and content. A directory must exist already.
    pub fn put(&self, path: &[u8], node: &Node, input: &mut dyn Input, tally: &Tally) -> Result<()> {
        match node.kind {
            FileKind::File => {
                let file = self.with_parents(path, || self.into.create(path, 0o600))?;
                let copied = copy(node.size, input, &*file, tally);
                if copied.is_err() {
                    // A partial file is not left behind.
                    self.into.unlink(path)?;
                }
                copied?;
                // Through the descriptor: another user may have replaced the name by now. Owner first, as chown drops capabilities;
                // mode last, as a file without write permission accepts no extended attributes.
                let AttrChange { uid, gid, mode, .. } = self.permissions(node, self.preserve.mode(node));
                file.change(&AttrChange { uid, gid, ..AttrChange::default() })?;
                for xattr in self.xattrs(node) {
                    file.set_xattr(&xattr.name, &xattr.value)?;
                }
                file.change(&AttrChange { mode, ..AttrChange::default() })?;
                drop(file);
                return self.into.change(path, &times(node));
            }
            FileKind::Directory => {}
            FileKind::Symlink => self.make_special(path, &Special::Symlink(node.target.clone()))?,
            kind
            @ (FileKind::Fifo | FileKind::Socket | FileKind::CharacterDevice | FileKind::BlockDevice) => {
                let is_device = matches!(kind, FileKind::CharacterDevice | FileKind::BlockDevice);
                if is_device && !self.preserve.all {
                    return Err(Fault::new(
                        Errno::EPERM,
                        "it is a device; create it with `--same-permissions`",
                    ));
                }
                let mode = self.preserve.mode(node);
                self.make_special(path, &Special::Node { kind, mode, rdev: node.rdev })?;
            }
        }
        self.finish(path, node)
    }

    fn make_special(&self, path: &[u8], special: &Special) -> Result<()> {
        self.with_parents(path, || self.into.make(path, special)).map(drop)
    }

    /// Sets the attributes of what is not a regular file.
    pub fn finish(&self, path: &[u8], node: &Node) -> Result<()> {
        for xattr in self.xattrs(node) {
            self.into.set_xattr(path, &xattr.name, &xattr.value, XattrMode::Any)?;
        }
        // A directory preserve the set-group-ID bit inherited from its parent, so that new files inherit the group.
        let inherited = match node.kind {
            FileKind::Directory if !self.preserve.all => self.into.stat(path)?.mode & S_ISGID,
            _ => 0,
        };
        let mut change = self.permissions(node, self.preserve.mode(node) | inherited);
        change.mode.take_if(|_| node.kind == FileKind::Symlink);
        let AttrChange { atime, mtime, .. } = times(node);
        self.into.change(path, &AttrChange { atime, mtime, ..change })
    }

    fn xattrs<'b>(&self, node: &'b Node) -> impl Iterator<Item = &'b Xattr> + use<'b> {
        let all = self.preserve.all;
        node.xattrs.iter().filter(move |xattr| all || xattr.name.starts_with(b"user."))
    }

    fn permissions(&self, node: &Node, mode: u16) -> AttrChange {
        let (uid, gid) = (self.preserve.owners.then_some(node.uid), self.preserve.owners.then_some(node.gid));
        AttrChange { uid, gid, mode: Some(mode), ..AttrChange::default() }
    }
}

/// Times are set last, after the file is closed: a file system may update them at close.
fn times(node: &Node) -> AttrChange {
    let (atime, mtime) = (Some(SetTime::To(node.atime)), Some(SetTime::To(node.mtime)));
    AttrChange { atime, mtime, ..AttrChange::default() }
}

fn copy(size: u64, input: &mut dyn Input, file: &dyn SharedFile, tally: &Tally) -> Result<()> {
    let mut end = 0;
    copy_pieces(size, input, tally, |data, at| {
        end = at + data.len() as u64;
        file.write_at(data, at)
    })?;
    // The file ends with a hole.
    if end == size { Ok(()) } else { file.truncate(size) }
}

/// Reads up to `size` bytes of content, and passes those that are not in holes to `write`.
pub fn copy_pieces(
    size: u64,
    input: &mut dyn Input,
    tally: &Tally,
    mut write: impl FnMut(&[u8], u64) -> Result<()>,
) -> Result<()> {
    let mut buffer = vec![0; COPY_SIZE.min(size as usize)];
    let mut at = 0;
    while at < size {
        let range = next_range(input, at, size)?.unwrap_or(size..size);
        at = range.start.min(size);
        let end = range.end.min(size);
        while at < end {
            let wanted = (end - at).min(buffer.len() as u64) as usize;
            let count = input.read_at(&mut buffer[..wanted], at)?;
            if count == 0 {
                return Err(Fault::new(Errno::EIO, "it became shorter while it was read"));
            }
            let data = &buffer[..count];
            // Blocks of zeros become holes.
            if data.iter().any(|&byte| byte != 0) {
                write(data, at)?;
            }
            at += count as u64;
        }
    }
    tally.add_bytes(size);
    Ok(())
}
