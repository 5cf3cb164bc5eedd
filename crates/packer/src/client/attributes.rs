//! Attributes of packed files.

use super::packer_client::unexpected_reply;
use super::{DEVICE, PackedTree};
use tameike_container::format::external::{self, name};
use tameike_core::attr::AttrChange;
use tameike_core::wire::pack::{Changed, PackReply, PackRequest, PackedStat};
use tameike_core::{Errno, FileKind, Result};
use tameike_io::shared::{FileStat, SharedFs, retry_revalidated};

/// Bytes per block of `st_blocks`.
const STAT_BLOCK: u64 = 512;

/// The attributes of a file whose content is in the container.
pub(crate) fn stat_of(plain: &dyn SharedFs, packed: &PackedStat) -> FileStat {
    FileStat {
        device: DEVICE,
        inode: packed.number,
        handle_hash: 0,
        kind: FileKind::File,
        mode: packed.mode,
        nlink: packed.nlink,
        uid: packed.uid,
        gid: plain.shown_group((packed.uid, packed.gid)),
        rdev: 0,
        size: packed.size,
        blocks: packed.size.div_ceil(STAT_BLOCK),
        atime: packed.atime,
        mtime: packed.mtime,
        ctime: packed.ctime,
    }
}

/// The attributes of a file with external content.
pub(crate) fn stat_external(plain: &dyn SharedFs, packed: &PackedStat, content: &FileStat) -> FileStat {
    let FileStat { size, blocks, atime, mtime, .. } = *content;
    FileStat { size, blocks, atime, mtime, ctime: packed.ctime.max(content.ctime), ..stat_of(plain, packed) }
}

impl PackedTree {
    /// The present attributes of a packed file. `ENOENT` where its external content is gone.
    pub(crate) fn shown(&self, packed: &PackedStat) -> Result<FileStat> {
        if !packed.is_external {
            return Ok(stat_of(&*self.plain, packed));
        }
        let (container, name) = (self.container.get(&*self.plain)?, name(packed.number));
        // Callers revalidate the file's path, not this name.
        container.revalidate(&name);
        let content = retry_revalidated(container, &name, || container.stat(&name))?;
        Ok(stat_external(&*self.plain, packed, &content))
    }
}

impl PackedTree {
    /// Changes attributes of the packed file at a path.
    pub(crate) fn change_packed(&self, path: &[u8], change: &AttrChange) -> Result<()> {
        let Some(packer) = &self.packer else { return Err(Errno::ENOENT.into()) };
        match packer.call(PackRequest::Change { of: Changed::At(path.to_vec()), change: change.clone() })? {
            PackReply::Done => Ok(()),
            PackReply::External { file } => {
                let (container, name) = (self.container.get(&*self.plain)?, external::name(file));
                retry_revalidated(container, &name, || container.change(&name, &times_of(change)))
            }
            other => Err(unexpected_reply(&other)),
        }
    }
}

/// The part of a change that goes to the external content: the times.
pub(super) fn times_of(change: &AttrChange) -> AttrChange {
    AttrChange { atime: change.atime, mtime: change.mtime, ..AttrChange::default() }
}
