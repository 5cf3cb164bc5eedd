//! The expected outcome of a call on the tree of one view.

use super::names::Names;
use super::path::split;
use crate::op::{Flags, Op};
use tameike_core::wire::meta::RenameMode;
use tameike_core::{Errno, FileKind};

type Expected = Result<(), Vec<Errno>>;

fn require(is_met: bool, errnos: &[Errno]) -> Expected {
    if is_met { Ok(()) } else { Err(errnos.to_vec()) }
}

impl Names {
    /// Returns the errors with which a call on names may end; none if it must succeed.
    pub fn expect(&self, op: &Op) -> Vec<Errno> {
        self.expect_call(op).err().unwrap_or_default()
    }

    fn kind_at(&self, path: &str) -> Result<FileKind, Vec<Errno>> {
        self.find(path).map(|id| self.object(id).kind).map_err(|errno| vec![errno])
    }

    fn require_parent(&self, path: &str) -> Expected {
        require(self.kind_at(split(path).0)? == FileKind::Directory, &[Errno::ENOTDIR])
    }

    fn require_missing(&self, path: &str) -> Expected {
        require(self.find(path).is_err(), &[Errno::EEXIST])
    }

    fn require_empty(&self, path: &str) -> Expected {
        let is_empty = self.find(path).is_ok_and(|id| self.object(id).children.is_empty());
        require(is_empty, &[Errno::ENOTEMPTY, Errno::EEXIST])
    }

    fn expect_call(&self, op: &Op) -> Expected {
        match op {
            Op::Open { path, flags, .. } => self.expect_open(path, *flags),
            Op::Truncate { path, .. } => match self.kind_at(path)? {
                FileKind::File => Ok(()),
                FileKind::Directory => Err(vec![Errno::EISDIR]),
                _ => Err(vec![Errno::EINVAL, Errno::ELOOP]),
            },
            Op::Stat { path } => self.kind_at(path).map(drop),
            Op::Chmod { path, .. } => require(self.kind_at(path)? != FileKind::Symlink, &[Errno::EOPNOTSUPP]),
            Op::SetXattr { path, .. } | Op::GetXattr { path } => {
                require(self.kind_at(path)? != FileKind::Symlink, &[Errno::EPERM, Errno::ENODATA])
            }
            Op::List { path } | Op::SyncDir { path } => {
                require(self.kind_at(path)? == FileKind::Directory, &[Errno::ENOTDIR])
            }
            Op::Readlink { path } => require(self.kind_at(path)? == FileKind::Symlink, &[Errno::EINVAL]),
            Op::Mkdir { path } | Op::Symlink { path, .. } => {
                self.require_parent(path)?;
                self.require_missing(path)
            }
            Op::Rmdir { path } => {
                require(self.kind_at(path)? == FileKind::Directory, &[Errno::ENOTDIR])?;
                self.require_empty(path)
            }
            Op::Unlink { path } => {
                require(self.kind_at(path)? != FileKind::Directory, &[Errno::EISDIR, Errno::EPERM])
            }
            Op::Link { from, to } => {
                let kind = self.kind_at(from)?;
                self.require_parent(to)?;
                self.require_missing(to)?;
                require(kind != FileKind::Directory, &[Errno::EPERM])
            }
            Op::Rename { from, to, mode } => self.expect_rename(from, to, *mode),
            // The other calls use a descriptor.
            _ => Ok(()),
        }
    }

    fn expect_open(&self, path: &str, flags: Flags) -> Expected {
        self.require_parent(path)?;
        match self.kind_at(path) {
            Err(_) if flags.create => Ok(()),
            Ok(_) if flags.create && flags.exclusive => Err(vec![Errno::EEXIST]),
            kind => match kind? {
                FileKind::File => Ok(()),
                FileKind::Directory => Err(vec![Errno::EISDIR]),
                _ => Err(vec![Errno::ELOOP]),
            },
        }
    }

    fn expect_rename(&self, from: &str, to: &str, mode: RenameMode) -> Expected {
        // The kernel resolves both directories first, in this order.
        self.require_parent(from)?;
        self.require_parent(to)?;
        let kind = self.kind_at(from)?;
        match mode {
            RenameMode::NoReplace => self.require_missing(to)?,
            RenameMode::Exchange => require(self.find(to).is_ok(), &[Errno::ENOENT])?,
            RenameMode::Replace => {}
        }
        require(!to.starts_with(&format!("{from}/")), &[Errno::EINVAL])?;
        if from.starts_with(&format!("{to}/")) {
            return Err(match mode {
                RenameMode::Replace => vec![Errno::ENOTEMPTY, Errno::EEXIST],
                RenameMode::NoReplace | RenameMode::Exchange => vec![Errno::EINVAL],
            });
        }
        let Ok(target) = self.find(to) else { return Ok(()) };
        if mode != RenameMode::Replace || self.find(from) == Ok(target) {
            return Ok(());
        }
        match (kind, self.object(target).kind) {
            (FileKind::Directory, FileKind::Directory) => self.require_empty(to),
            (FileKind::Directory, _) => Err(vec![Errno::ENOTDIR]),
            (_, FileKind::Directory) => Err(vec![Errno::EISDIR]),
            _ => Ok(()),
        }
    }
}
