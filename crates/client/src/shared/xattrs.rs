//! Extended attributes of the job-shared view.

use super::SharedView;
use crate::replies::unexpected_reply;
use crate::types::FileNumber;
use crate::vfs::Xattrs;
use tameike_core::wire::meta::{Command, MetaReply, MetaRequest};
use tameike_core::{Errno, Result};

/// Returns a file's layout, or gets and sets the layout that a directory's new children inherit.
const LAYOUT_XATTR: &[u8] = b"user.tameike.layout";

/// Rejects `system.` attributes, such as ACLs. A program that could store them would assume that the file system enforces them.
fn check_xattr(name: &[u8]) -> Result<()> {
    if name.starts_with(b"system.") { Err(Errno::EOPNOTSUPP.into()) } else { Ok(()) }
}

impl Xattrs for SharedView {
    async fn get_xattr(&self, file: FileNumber, name: &[u8]) -> Result<Vec<u8>> {
        let inode = self.inode(file);
        if name == LAYOUT_XATTR {
            // An explicit request bypasses cached directory state.
            let node = self.ask_node(inode, MetaRequest::GetAttr { inode }).await?;
            return Ok(node.attr.layout.to_string().into_bytes());
        }
        check_xattr(name)?;
        self.ask_bytes(inode, MetaRequest::GetXattr { inode, name: name.to_vec() }).await
    }

    async fn list_xattr(&self, file: FileNumber) -> Result<Vec<Vec<u8>>> {
        let inode = self.inode(file);
        match self.ask_home(inode, MetaRequest::ListXattr { inode }).await? {
            MetaReply::Names(names) => Ok(names.into_iter().map(|name| name.into_vec()).collect()),
            other => Err(unexpected_reply(&other)),
        }
    }

    async fn set_xattr(
        &self,
        file: FileNumber,
        name: &[u8],
        value: &[u8],
        create: bool,
        replace: bool,
    ) -> Result<()> {
        if name == LAYOUT_XATTR {
            return self.set_layout(file, value).await;
        }
        check_xattr(name)?;
        let inode = self.inode(file);
        let (name, value) = (name.to_vec(), value.to_vec());
        let now = self.runtime.now();
        let command = Command::SetXattr { inode, name, value, create, replace, now };
        let done = self.ask_home(inode, MetaRequest::Execute(command)).await;
        self.leases.changed(inode);
        done.map(drop)
    }

    async fn remove_xattr(&self, file: FileNumber, name: &[u8]) -> Result<()> {
        let inode = self.inode(file);
        let command = Command::RemoveXattr { inode, name: name.to_vec(), now: self.runtime.now() };
        let done = self.ask_home(inode, MetaRequest::Execute(command)).await;
        self.leases.changed(inode);
        done.map(drop)
    }
}
