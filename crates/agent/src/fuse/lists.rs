//! Directory listings and lists of extended attributes in the kernel's formats.

use super::answer::answer;
use tameike_client::vfs::{HandleNumber, Vfs};
use tameike_core::{Errno, Result};
use tameike_fuse::Reply;
use tameike_fuse::abi::Directory;

/// Fills one reply to a read of an open directory after cursor `after`, from the entries that the view has buffered. Entries that
/// do not fit stay buffered for the next read.
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

/// Replies with an attribute's value or the list of names, or with its size if `size` is 0.
pub(super) fn answer_xattr(reply: Reply, size: u32, value: Result<Vec<u8>>) {
    answer(reply, value, |reply, value| match size {
        0 => reply.size(value.len() as u32),
        _ if value.len() <= size as usize => reply.bytes(&value),
        _ => reply.error(Errno::ERANGE),
    });
}

/// Joins names, each terminated by NUL.
pub(super) fn joined(names: Vec<Vec<u8>>) -> Vec<u8> {
    names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect()
}
