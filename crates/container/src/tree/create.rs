//! Files of a tree that are made anew: nothing that is there is replaced.

use super::content::{Input, next_range};
use super::walk::Within;
use crate::Tally;
use crate::{Node, Xattr, split_path};
use tameike_core::attr::S_ISGID;
use tameike_core::attr::{AttrChange, SetTime};
use tameike_core::{Errno, Fault, FileKind, Result};
use tameike_io::os::process;
use tameike_io::shared::{SharedFile, SharedFs, Special, XattrMode};

/// Of a directory, that what is made in it gets its group.
/// Bytes that are copied at once.
pub const COPY_SIZE: usize = 1 << 20;

/// What files get beside their content and times, when they are brought back.
#[derive(Clone, Copy, Debug)]
pub struct Keeps {
    /// Their owners.
    pub owners: bool,
    /// All of their permissions and extended attributes, set-user-ID bits and access lists, too, and devices are made. Else they get of permissions what
    /// is in `mask`, and of attributes those of programs (`user.`): who has packed them may be anybody.
    pub all: bool,
    /// Permission bits that they may have.
    pub mask: u16,
}

impl Keeps {
    /// What is right for a file of anybody, with the umask of this process.
    pub fn safe() -> Self {
        let umask = process::umask().unwrap_or(0o022);
        Self { owners: process::user() == 0, all: false, mask: 0o777 & !umask }
    }

    /// Everything.
    pub fn all() -> Self {
        Self { all: true, ..Self::safe() }
    }

    fn mode(self, node: &Node) -> u16 {
        if self.all { node.mode } else { node.mode & self.mask }
    }
}

/// A tree in which files are made.
pub struct Files<'a> {
    pub into: &'a dyn SharedFs,
    pub keeps: Keeps,
}

impl Files<'_> {
    /// Makes a directory and those that it lies in, where they are missing.
    pub fn make_dir(&self, path: &[u8]) -> Result<()> {
        let make = || match self.into.make(path, &Special::Directory(0o700)) {
            Err(fault) if fault.errno == Errno::EEXIST => Ok(()),
            made => made.map(drop),
        };
        self.with_parents(path, make)
    }

    /// A directory, in which many files are made. It is made itself where it is missing.
    pub fn within(&self, dir: &[u8]) -> Within<'_> {
        // What is made in it tells why there can be none.
        let is_missing =
            !dir.is_empty() && self.into.stat(dir).is_err_and(|fault| fault.errno == Errno::ENOENT);
        let _ = if is_missing { self.make_dir(dir) } else { Ok(()) };
        Within::new(self.into, dir)
    }

    /// Makes something; when the directory is missing that it lies in, that first.
    fn with_parents<T>(&self, path: &[u8], make: impl Fn() -> Result<T>) -> Result<T> {
        match make() {
            Err(fault) if fault.errno == Errno::ENOENT && path.contains(&b'/') => {
                self.make_dir(split_path(path).0)?;
                make()
            }
            made => made,
        }
    }

    /// Makes a file of any kind, with its attributes and content; a directory is there already.
    pub fn put(&self, path: &[u8], node: &Node, input: &mut dyn Input, tally: &Tally) -> Result<()> {
        match node.kind {
            FileKind::File => {
                let file = self.with_parents(path, || self.into.create(path, 0o600))?;
                let copied = copy(node.size, input, &*file, tally);
                if copied.is_err() {
                    // Half a file is not left behind.
                    self.into.unlink(path)?;
                }
                copied?;
                // By descriptor: who may rename files there may have put another one in its place by now. Who gives a file away takes
                // its capabilities, and who has none of its permissions can set no extended attributes.
                let AttrChange { uid, gid, mode, .. } = self.rights(node, self.keeps.mode(node));
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
                if is_device && !self.keeps.all {
                    return Err(Fault::new(
                        Errno::EPERM,
                        "it is a device, which is made with `--same-permissions`",
                    ));
                }
                let mode = self.keeps.mode(node);
                self.make_special(path, &Special::Node { kind, mode, rdev: node.rdev })?;
            }
        }
        self.finish(path, node)
    }

    fn make_special(&self, path: &[u8], special: &Special) -> Result<()> {
        self.with_parents(path, || self.into.make(path, special)).map(drop)
    }

    /// Gives what is no regular file its attributes.
    pub fn finish(&self, path: &[u8], node: &Node) -> Result<()> {
        for xattr in self.xattrs(node) {
            self.into.set_xattr(path, &xattr.name, &xattr.value, XattrMode::Any)?;
        }
        // A directory keeps what it has from the one above, which its files are to have, too.
        let inherited = match node.kind {
            FileKind::Directory if !self.keeps.all => self.into.stat(path)?.mode & S_ISGID,
            _ => 0,
        };
        let mut rights = self.rights(node, self.keeps.mode(node) | inherited);
        rights.mode.take_if(|_| node.kind == FileKind::Symlink);
        let AttrChange { atime, mtime, .. } = times(node);
        self.into.change(path, &AttrChange { atime, mtime, ..rights })
    }

    fn xattrs<'b>(&self, node: &'b Node) -> impl Iterator<Item = &'b Xattr> + use<'b> {
        let all = self.keeps.all;
        node.xattrs.iter().filter(move |xattr| all || xattr.name.starts_with(b"user."))
    }

    fn rights(&self, node: &Node, mode: u16) -> AttrChange {
        let (uid, gid) = (self.keeps.owners.then_some(node.uid), self.keeps.owners.then_some(node.gid));
        AttrChange { uid, gid, mode: Some(mode), ..AttrChange::default() }
    }
}

/// Times come last, and when a file is closed: a file system may give it another one then.
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
    // A hole is behind it.
    if end == size { Ok(()) } else { file.truncate(size) }
}

/// Reads up to `size` bytes of content, and has those written that are no hole.
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
            // Holes stay holes.
            if data.iter().any(|&byte| byte != 0) {
                write(data, at)?;
            }
            at += count as u64;
        }
    }
    tally.add_bytes(size);
    Ok(())
}
