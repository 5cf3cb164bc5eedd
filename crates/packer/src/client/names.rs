//! Names that go, or are given to others, where two places have some: the shared directory and its container.

use crate::{ATTRIBUTE, PackedTree, PackerClient, unless_missing};
use tameike_core::wire::meta::RenameMode;
use tameike_core::wire::pack::{PackReply, PackRequest};
use tameike_core::{Errno, Fault, FileKind, Result};
use tameike_io::shared::{FileStat, split};

impl PackedTree {
    /// Removes what is at a path; what is packed under it first, so that it is not seen again.
    pub(crate) fn unlink_both(&self, path: &[u8]) -> Result<()> {
        let Some(packer) = &self.packer else { return self.plain.unlink(path) };
        if self.plain.stat(path).is_ok_and(|stat| stat.kind == FileKind::Directory) {
            return self.plain.unlink(path);
        }
        self.check_names_beside(path)?;
        let packed = unless_missing(packer.done(PackRequest::Unlink { path: path.to_vec() }))?;
        match unless_missing(self.plain.unlink(path))?.or(packed) {
            Some(()) => Ok(()),
            None => Err(Errno::ENOENT.into()),
        }
    }

    /// What is packed goes by the container's permissions: the shared directory says who may change names there.
    pub(crate) fn check_names_beside(&self, path: &[u8]) -> Result<()> {
        self.plain.check_names(split(path).map_or(b"", |(dir, _)| dir))
    }

    pub(crate) fn rename_either(
        &self,
        packer: &PackerClient,
        from: &[u8],
        to: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        [from, to].into_iter().try_for_each(|path| self.check_names_beside(path))?;
        let (old, new) = (from.to_vec(), to.to_vec());
        match unless_missing(self.plain.stat(from))? {
            Some(stat) if stat.kind == FileKind::Directory => {
                if self.is_packed(to)? {
                    let exists = mode == RenameMode::NoReplace;
                    return Err(if exists { Errno::EEXIST } else { Errno::ENOTDIR }.into());
                }
                self.done_there(packer, PackRequest::MoveDir { from: old, to: new, mode }, &[from, to])
            }
            Some(_) if mode == RenameMode::Exchange && self.is_dir(to)? => {
                self.done_there(packer, PackRequest::MoveDir { from: old, to: new, mode }, &[from, to])
            }
            Some(_) => self.rename_plain(packer, from, to, mode),
            None => {
                if !self.is_packed(from)? {
                    return Err(Errno::ENOENT.into());
                }
                self.rename_packed(packer, from, to, mode)
            }
        }
    }

    /// A file of the shared directory gets another name: what is packed under that is replaced.
    fn rename_plain(&self, packer: &PackerClient, from: &[u8], to: &[u8], mode: RenameMode) -> Result<()> {
        // Told before as well: what lists the directory meanwhile may miss a name that is replaced.
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
                // Another node has made it meanwhile.
                self.plain.rename(to, from, mode)?;
                self.is_packed_as_well(from)?;
                return Err(Errno::EEXIST.into());
            }
            unless_missing(packer.done(PackRequest::Unlink { path: to.to_vec() }))?;
        }
        if hides_packed {
            // It must not be seen under the old name. Where there was nothing, another node may have made a file by now.
            unless_missing(packer.done(PackRequest::Unlink { path: from.to_vec() }))?;
        }
        Ok(())
    }

    /// A packed file gets another name, and stays packed.
    fn rename_packed(&self, packer: &PackerClient, from: &[u8], to: &[u8], mode: RenameMode) -> Result<()> {
        let (dir, _) = split(to).ok_or(Errno::EBUSY)?;
        if self.plain.stat(dir)?.kind != FileKind::Directory {
            return Err(Errno::ENOTDIR.into());
        }
        let rename = PackRequest::Rename { from: from.to_vec(), to: to.to_vec(), mode };
        match (unless_missing(self.plain.stat(to))?, mode) {
            (Some(_), RenameMode::NoReplace) => Err(Errno::EEXIST.into()),
            (_, RenameMode::Exchange) => Err(Errno::EINVAL.into()),
            (Some(FileStat { kind: FileKind::Directory, .. }), RenameMode::Replace) => {
                Err(Errno::EISDIR.into())
            }
            (Some(_), RenameMode::Replace) => {
                // Should this agent die in between, nothing is at the path, and what was to come there is where it was. It may have been
                // remembered only.
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
                // Another node has made a file under the name meanwhile, or nobody knows.
                let back = RenameMode::Replace;
                packer.done(PackRequest::Rename { from: to.to_vec(), to: from.to_vec(), mode: back })?;
                found.and(Err(Errno::EEXIST.into()))
            }
        }
    }

    fn is_dir(&self, path: &[u8]) -> Result<bool> {
        let found = unless_missing(self.plain.stat(path))?;
        Ok(found.is_some_and(|stat| stat.kind == FileKind::Directory))
    }

    /// Whether files are packed that are made in a directory, in words.
    pub(crate) fn packs(&self, path: &[u8]) -> Result<Vec<u8>> {
        let Some(packer) = &self.packer else { return Err(Errno::ENODATA.into()) };
        if self.plain.stat(path)?.kind != FileKind::Directory {
            return Err(Errno::ENODATA.into());
        }
        match packer.ask(PackRequest::Packs { dir: path.to_vec() })? {
            PackReply::Packs(packs) => Ok(if packs { b"on" } else { b"off" as &[u8] }.to_vec()),
            other => Err(super::packer_client::unexpected_reply(&other)),
        }
    }

    /// Says whether files are packed that are made in a directory, and below.
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
