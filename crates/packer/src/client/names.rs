//! Removes and renames names in a tree that merges the shared directory with packed files.

use crate::{ATTRIBUTE, PackedTree, PackerClient, is_dir, unless_missing};
use tameike_container::split_path;
use tameike_core::wire::meta::RenameMode;
use tameike_core::wire::pack::{PackReply, PackRequest};
use tameike_core::{Errno, Fault, FileKind, Result};
use tameike_io::shared::{FileStat, split};

impl PackedTree {
    /// Removes what is at a path: a packed file first, so that it does not appear again.
    pub(crate) fn unlink_both(&self, path: &[u8]) -> Result<()> {
        let Some(packer) = &self.packer else { return self.plain.unlink(path) };
        if self.plain.stat(path).is_ok_and(|stat| stat.kind == FileKind::Directory) {
            return self.plain.unlink(path);
        }
        self.check_names_beside(path)?;
        let packed = self.unlink_packed(packer, path)?;
        match unless_missing(self.plain.unlink(path))?.or(packed) {
            Some(()) => Ok(()),
            None => Err(Errno::ENOENT.into()),
        }
    }

    /// Removes the packed file at a path, if there is one.
    fn unlink_packed(&self, packer: &PackerClient, path: &[u8]) -> Result<Option<()>> {
        // A packer that gets the request after an earlier one must not take a file that was created since.
        let number = match packer.may_move() {
            true => match unless_missing(self.stat_packed(path))? {
                Some(stat) => Some(stat.number),
                None => return Ok(None),
            },
            false => None,
        };
        unless_missing(packer.done(PackRequest::Unlink { path: path.to_vec(), number }))
    }

    /// The packer checks the container's permissions only: this checks those of the shared directory.
    pub(crate) fn check_names_beside(&self, path: &[u8]) -> Result<()> {
        self.plain.check_names(split_path(path).0)
    }

    pub(crate) fn rename_either(
        &self,
        packer: &PackerClient,
        from: &[u8],
        to: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        [from, to].into_iter().try_for_each(|path| self.check_names_beside(path))?;
        let (call, old, new) = (self.runtime.random_u64(), from.to_vec(), to.to_vec());
        match unless_missing(self.plain.stat(from))? {
            Some(stat) if stat.kind == FileKind::Directory => {
                if self.is_packed(to)? {
                    let exists = mode == RenameMode::NoReplace;
                    return Err(if exists { Errno::EEXIST } else { Errno::ENOTDIR }.into());
                }
                self.done_there(packer, PackRequest::MoveDir { call, from: old, to: new, mode }, &[from, to])
            }
            Some(_) if mode == RenameMode::Exchange && is_dir(&*self.plain, to)? => {
                self.done_there(packer, PackRequest::MoveDir { call, from: old, to: new, mode }, &[from, to])
            }
            Some(_) => self.rename_plain(packer, from, to, mode),
            None => {
                let number = self.stat_packed(from)?.number;
                self.rename_packed(packer, (from, number), to, mode)
            }
        }
    }

    /// Renames a file of the shared directory, and replaces the packed file that has the new name.
    fn rename_plain(&self, packer: &PackerClient, from: &[u8], to: &[u8], mode: RenameMode) -> Result<()> {
        // Before and after the rename: a listing in between may miss a replaced name.
        let is_packed = self.is_packed_as_well(to)?;
        match mode {
            RenameMode::NoReplace if is_packed => return Err(Errno::EEXIST.into()),
            RenameMode::Exchange if is_packed => return Err(Errno::EINVAL.into()),
            RenameMode::Exchange => {
                self.is_packed_as_well(from)?;
            }
            RenameMode::NoReplace | RenameMode::Replace => {}
        }
        let hides_packed = mode != RenameMode::Exchange && from != to && self.is_packed(from)?;
        self.plain.rename(from, to, mode)?;
        if self.is_packed_as_well(to)? {
            if mode == RenameMode::NoReplace {
                // Another node has created the file meanwhile.
                self.plain.rename(to, from, mode)?;
                self.is_packed_as_well(from)?;
                return Err(Errno::EEXIST.into());
            }
            self.unlink_packed(packer, to)?;
        }
        if hides_packed {
            // The old name must disappear. If it was free, another node may have created a file there by now.
            self.unlink_packed(packer, from)?;
        }
        Ok(())
    }

    /// Renames a packed file, which stays packed.
    fn rename_packed(
        &self,
        packer: &PackerClient,
        (from, number): (&[u8], u64),
        to: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        let (dir, _) = split(to).ok_or(Errno::EBUSY)?;
        if self.plain.stat(dir)?.kind != FileKind::Directory {
            return Err(Errno::ENOTDIR.into());
        }
        let rename = PackRequest::Rename { number, from: from.to_vec(), to: to.to_vec(), mode };
        match (unless_missing(self.plain.stat(to))?, mode) {
            (Some(_), RenameMode::NoReplace) => Err(Errno::EEXIST.into()),
            (_, RenameMode::Exchange) => Err(Errno::EINVAL.into()),
            (Some(FileStat { kind: FileKind::Directory, .. }), RenameMode::Replace) => {
                Err(Errno::EISDIR.into())
            }
            (Some(_), RenameMode::Replace) => {
                // If this agent fails in between, the path is free, and the file has its old name. The file at the path may come from a
                // stale cache only.
                unless_missing(self.plain.unlink(to))?;
                packer.done(rename)
            }
            (None, RenameMode::Replace) => packer.done(rename),
            (None, RenameMode::NoReplace) => {
                packer.done(rename)?;
                let found = unless_missing(self.plain.stat(to));
                if matches!(found, Ok(None)) {
                    return Ok(());
                }
                // Another node has created a file at the path, or the outcome is unknown.
                let back = RenameMode::Replace;
                let (from, to) = (to.to_vec(), from.to_vec());
                packer.done(PackRequest::Rename { number, from, to, mode: back })?;
                found.and(Err(Errno::EEXIST.into()))
            }
        }
    }

    /// The value of the attribute that says whether a directory packs new files.
    pub(crate) fn packs(&self, path: &[u8]) -> Result<Vec<u8>> {
        let Some(packer) = &self.packer else { return Err(Errno::ENODATA.into()) };
        if self.plain.stat(path)?.kind != FileKind::Directory {
            return Err(Errno::ENODATA.into());
        }
        match packer.call(PackRequest::Packs { dir: path.to_vec() })? {
            PackReply::Packs(packs) => Ok(if packs { b"on" } else { b"off" as &[u8] }.to_vec()),
            other => Err(super::packer_client::unexpected_reply(&other)),
        }
    }

    /// Sets whether a directory and those below it pack new files.
    pub(crate) fn mark(&self, path: &[u8], said: Option<&[u8]>) -> Result<()> {
        let name = String::from_utf8_lossy(path);
        let wrong = |errno: Errno, why: &str| Err(Fault::new(errno, format!("{name}: {why}")));
        let Some(packer) = &self.packer else {
            return wrong(
                Errno::EOPNOTSUPP,
                "this job packs no files: start it with --aggregate=on or --aggregate=auto",
            );
        };
        if self.plain.stat(path)?.kind != FileKind::Directory {
            return wrong(Errno::ENOTDIR, "files are packed by directories");
        }
        let packs = match said {
            None => None,
            Some(b"on") => Some(true),
            Some(b"off") => Some(false),
            Some(_) => {
                let attribute = String::from_utf8_lossy(ATTRIBUTE);
                return wrong(Errno::EINVAL, &format!("{attribute} is on or off"));
            }
        };
        packer.done(PackRequest::Mark { dir: path.to_vec(), packs })
    }
}
