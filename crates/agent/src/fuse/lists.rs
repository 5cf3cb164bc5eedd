//! Directory listings and lists of extended attributes, as the kernel wants them.

use super::convert::kind;
use fuser::{INodeNo, ReplyDirectory, ReplyXattr};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use tameike_client::vfs::{HandleNumber, Vfs};
use tameike_core::{Errno, Result};

/// Fills one answer to a read of an open directory after cursor `after`: with what its view has at hand, so that
/// what the kernel cannot use of it is still at hand when it asks again.
pub(super) async fn list<V: Vfs>(
    vfs: &V,
    dir: HandleNumber,
    after: u64,
    reply: &mut ReplyDirectory,
) -> Result<()> {
    let entries = vfs.readdir(dir, after).await?;
    for (next, inode, file_kind, name) in entries.iter() {
        if reply.add(INodeNo(inode), next, kind(file_kind), OsStr::from_bytes(name)) {
            break;
        }
    }
    Ok(())
}

/// Answers a request for an attribute's value or the list of names: its size when the kernel asks for that.
pub(super) fn answer_xattr(reply: ReplyXattr, size: u32, value: Result<Vec<u8>>) {
    match value {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() <= size as usize => reply.data(&value),
        Ok(_) => reply.error(fuser::Errno::from_i32(Errno::ERANGE.0)),
        Err(fault) => reply.error(super::convert::errno(&fault)),
    }
}

/// Names as the kernel lists them: each ended by a zero byte.
pub(super) fn joined(names: Vec<Vec<u8>>) -> Vec<u8> {
    names
        .into_iter()
        .flat_map(|mut name| {
            name.push(0);
            name
        })
        .collect()
}
