//! Directory listings and lists of extended attributes, as the kernel wants them.

use super::convert::kind;
use fuser::{INodeNo, ReplyDirectory, ReplyXattr};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use tameike_client::vfs::{FileNumber, Vfs};
use tameike_core::limits::READDIR_ENTRIES_MAX;
use tameike_core::{Errno, Result};

/// Cursors after `.` and after `..`; a view's own cursors are larger.
const AFTER_DOT: u64 = 1;
const AFTER_DOTDOT: u64 = 2;

/// Fills one answer to a directory read from cursor `offset`.
pub(super) async fn list<V: Vfs>(
    vfs: &V,
    dir: FileNumber,
    offset: u64,
    reply: &mut ReplyDirectory,
) -> Result<()> {
    let number = INodeNo(dir.0);
    if offset < AFTER_DOT && reply.add(number, AFTER_DOT, fuser::FileType::Directory, ".") {
        return Ok(());
    }
    if offset < AFTER_DOTDOT && reply.add(number, AFTER_DOTDOT, fuser::FileType::Directory, "..") {
        return Ok(());
    }
    let mut after = if offset <= AFTER_DOTDOT { 0 } else { offset };
    loop {
        let entries = vfs.readdir(dir, after, READDIR_ENTRIES_MAX).await?;
        let Some(last) = entries.last() else { return Ok(()) };
        after = last.next;
        for entry in &entries {
            let name = OsStr::from_bytes(&entry.name);
            if reply.add(INodeNo(entry.inode), entry.next, kind(entry.kind), name) {
                return Ok(());
            }
        }
    }
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
