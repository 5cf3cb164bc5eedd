//! Directory listings and lists of extended attributes, as the kernel wants them.

use super::convert::errno;
use tameike_client::vfs::{HandleNumber, Vfs};
use tameike_core::{Errno, Result};
use tameike_fuse::Reply;
use tameike_fuse::abi::Directory;

/// One answer to a read of an open directory after cursor `after`: with what its view has at hand, so that
/// what the kernel cannot use of it is still at hand when it asks again.
pub(super) async fn list<V: Vfs>(vfs: &V, dir: HandleNumber, after: u64, size: u32) -> Result<Directory> {
    let entries = vfs.readdir(dir, after).await?;
    let mut listing = Directory::new(size);
    for (next, inode, kind, name) in entries.iter() {
        if !listing.add(inode, next, kind, name) {
            break;
        }
    }
    Ok(listing)
}

/// Answers a request for an attribute's value or the list of names: its size when the kernel asks for that.
pub(super) fn answer_xattr(reply: Reply, size: u32, value: Result<Vec<u8>>) {
    match value {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() <= size as usize => reply.bytes(&value),
        Ok(_) => reply.error(Errno::ERANGE),
        Err(fault) => reply.error(errno(&fault)),
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
