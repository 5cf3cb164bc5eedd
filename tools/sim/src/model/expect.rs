//! The expected outcome of a call on the tree of one view.

use super::names::{Names, ObjectId};
use super::path::split;
use crate::op::{Flags, Op};
use tameike_core::wire::meta::RenameMode;
use tameike_core::{Errno, FileKind};

impl Names {
    /// Returns the errors with which a call on names may end; none if it must succeed.
    pub fn expect(&self, op: &Op) -> Vec<Errno> {
        self.judge(op).err().unwrap_or_default()
    }

    fn kind(&self, id: ObjectId) -> FileKind {
        self.object(id).kind
    }

    fn above(&self, path: &str) -> Result<(), Vec<Errno>> {
        let dir = self.find(split(path).0).map_err(|errno| vec![errno])?;
        if self.kind(dir) == FileKind::Directory { Ok(()) } else { Err(vec![Errno::ENOTDIR]) }
    }

    fn judge(&self, op: &Op) -> Result<(), Vec<Errno>> {
        let find = |path: &str| self.find(path).map_err(|errno| vec![errno]);
        let is_dir = |id| self.kind(id) == FileKind::Directory;
        let none = |path: &str| match self.find(path) {
            Ok(_) => Err(vec![Errno::EEXIST]),
            Err(_) => Ok(()),
        };
        match op {
            Op::Open { path, flags, .. } => self.judge_open(path, *flags),
            Op::Truncate { path, .. } => match self.kind(find(path)?) {
                FileKind::File => Ok(()),
                FileKind::Directory => Err(vec![Errno::EISDIR]),
                _ => Err(vec![Errno::EINVAL, Errno::ELOOP]),
            },
            Op::Stat { path } | Op::Chmod { path, .. } => match self.kind(find(path)?) {
                FileKind::Symlink if matches!(op, Op::Chmod { .. }) => Err(vec![Errno::EOPNOTSUPP]),
                _ => Ok(()),
            },
            Op::SetXattr { path, .. } | Op::GetXattr { path } => match self.kind(find(path)?) {
                FileKind::Symlink => Err(vec![Errno::EPERM, Errno::ENODATA]),
                _ => Ok(()),
            },
            Op::List { path } | Op::SyncDir { path } => {
                if is_dir(find(path)?) {
                    Ok(())
                } else {
                    Err(vec![Errno::ENOTDIR])
                }
            }
            Op::Readlink { path } => match self.kind(find(path)?) {
                FileKind::Symlink => Ok(()),
                _ => Err(vec![Errno::EINVAL]),
            },
            Op::Mkdir { path } | Op::Symlink { path, .. } => {
                self.above(path)?;
                none(path)
            }
            Op::Rmdir { path } => {
                let id = find(path)?;
                match is_dir(id) {
                    false => Err(vec![Errno::ENOTDIR]),
                    true if !self.object(id).children.is_empty() => {
                        Err(vec![Errno::ENOTEMPTY, Errno::EEXIST])
                    }
                    true => Ok(()),
                }
            }
            Op::Unlink { path } => {
                if is_dir(find(path)?) {
                    Err(vec![Errno::EISDIR, Errno::EPERM])
                } else {
                    Ok(())
                }
            }
            Op::Link { from, to } => {
                let id = find(from)?;
                self.above(to)?;
                none(to)?;
                if is_dir(id) { Err(vec![Errno::EPERM]) } else { Ok(()) }
            }
            Op::Rename { from, to, mode } => self.judge_rename(from, to, *mode),
            Op::Read { .. }
            | Op::Write { .. }
            | Op::Space { .. }
            | Op::Lock { .. }
            | Op::Unlock { .. }
            | Op::Fsync { .. }
            | Op::Close { .. } => Ok(()),
        }
    }

    fn judge_open(&self, path: &str, flags: Flags) -> Result<(), Vec<Errno>> {
        self.above(path)?;
        match self.find(path) {
            Err(_) if flags.create => Ok(()),
            Err(errno) => Err(vec![errno]),
            Ok(_) if flags.create && flags.exclusive => Err(vec![Errno::EEXIST]),
            Ok(id) => match self.kind(id) {
                FileKind::File => Ok(()),
                FileKind::Directory => Err(vec![Errno::EISDIR]),
                _ => Err(vec![Errno::ELOOP]),
            },
        }
    }

    fn judge_rename(&self, from: &str, to: &str, mode: RenameMode) -> Result<(), Vec<Errno>> {
        let find = |path: &str| self.find(path).map_err(|errno| vec![errno]);
        // The kernel resolves both directories first, in this order.
        self.above(from)?;
        self.above(to)?;
        let id = find(from)?;
        let target = self.find(to).ok();
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(vec![Errno::EEXIST]),
            (RenameMode::Exchange, None) => return Err(vec![Errno::ENOENT]),
            _ => {}
        }
        if to.starts_with(&format!("{from}/")) {
            return Err(vec![Errno::EINVAL]);
        }
        if from.starts_with(&format!("{to}/")) {
            return Err(match mode {
                RenameMode::Replace => vec![Errno::ENOTEMPTY, Errno::EEXIST],
                RenameMode::NoReplace | RenameMode::Exchange => vec![Errno::EINVAL],
            });
        }
        let is_dir = |id| self.kind(id) == FileKind::Directory;
        match (mode, target) {
            (RenameMode::Replace, Some(target)) if target != id => match (is_dir(id), is_dir(target)) {
                (true, false) => Err(vec![Errno::ENOTDIR]),
                (false, true) => Err(vec![Errno::EISDIR]),
                (true, true) if !self.object(target).children.is_empty() => {
                    Err(vec![Errno::ENOTEMPTY, Errno::EEXIST])
                }
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }
}
