//! Extended attributes.

use super::{Outcome, Shard, key};
use tameike_core::limits::{NAME_SIZE_MAX, XATTR_SIZE_MAX};
use tameike_core::{Errno, InodeId, Result, Timestamp};

impl Shard<'_> {
    pub(super) fn set_xattr(
        &mut self,
        inode: InodeId,
        name: &[u8],
        value: &[u8],
        (create, replace): (bool, bool),
        now: Timestamp,
    ) -> Result<Outcome> {
        let mut record = self.inode(inode)?;
        if name.is_empty() || name.len() > NAME_SIZE_MAX {
            return Err(Errno::ERANGE.into());
        }
        if value.len() > XATTR_SIZE_MAX {
            return Err(Errno::ENOSPC.into());
        }
        let exists = self.table.get(&key::xattr(inode, name))?.is_some();
        if exists && create {
            return Err(Errno::EEXIST.into());
        }
        if !exists && replace {
            return Err(Errno::ENODATA.into());
        }
        self.table.put(key::xattr(inode, name), value.to_vec());
        record.ctime = now;
        self.put_inode(inode, &record)?;
        Ok(Outcome::Done)
    }

    pub(super) fn remove_xattr(&mut self, inode: InodeId, name: &[u8], now: Timestamp) -> Result<Outcome> {
        let mut record = self.inode(inode)?;
        if self.table.get(&key::xattr(inode, name))?.is_none() {
            return Err(Errno::ENODATA.into());
        }
        self.table.delete(key::xattr(inode, name));
        record.ctime = now;
        self.put_inode(inode, &record)?;
        Ok(Outcome::Done)
    }
}
