//! Answers that several requests share, with how long the kernel may believe them.

use super::convert::{errno, file_attr};
use super::{ATTRIBUTE_LIFETIME, NAME_LIFETIME, open_flags};
use crate::custody::Custody;
use fuser::{
    FileHandle, FopenFlags, Generation, ReplyAttr, ReplyCreate, ReplyData, ReplyEntry, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite,
};
use std::time::Duration;
use tameike_client::vfs::{FileNumber, Found, HandleNumber, OpenMode, Opened, ViewSpace};
use tameike_core::limits::{BLOCK_SIZE, NAME_SIZE_MAX};
use tameike_core::{Attr, FileKind, Result};

/// A number stands for one file as long as the kernel holds it.
const GENERATION: Generation = Generation(0);

fn name_lifetime(kind: FileKind) -> Duration {
    if kind == FileKind::Directory { ATTRIBUTE_LIFETIME } else { NAME_LIFETIME }
}

/// How long the kernel may show attributes that were had after so many changes.
fn attribute_lifetime(custody: &Custody, file: FileNumber, attr: &Attr, changes: u64) -> Duration {
    let may_keep = attr.kind != FileKind::Directory || custody.tell(file, changes);
    if may_keep { ATTRIBUTE_LIFETIME } else { Duration::ZERO }
}

pub(super) fn answer_entry(reply: ReplyEntry, found: Result<Found>, custody: &Custody, changes: u64) {
    match found {
        Ok(found) => {
            let attr = file_attr(found.file, &found.attr);
            let attributes = attribute_lifetime(custody, found.file, &found.attr, changes);
            reply.entry_with_ttls(&attributes, &name_lifetime(found.attr.kind), &attr, GENERATION);
        }
        Err(fault) => reply.error(errno(&fault)),
    }
}

pub(super) fn answer_attr(
    reply: ReplyAttr,
    file: FileNumber,
    attr: Result<Attr>,
    custody: &Custody,
    changes: u64,
) {
    match attr {
        Ok(attr) => {
            reply.attr(&attribute_lifetime(custody, file, &attr, changes), &file_attr(file, &attr));
        }
        Err(fault) => reply.error(errno(&fault)),
    }
}

pub(super) fn answer_open(reply: ReplyOpen, opened: Result<Opened>, mode: OpenMode, keeps_locks: bool) {
    match opened {
        Ok(opened) => reply.opened(FileHandle(opened.handle.0), open_flags(opened, mode, keeps_locks)),
        Err(fault) => reply.error(errno(&fault)),
    }
}

pub(super) fn answer_created(
    reply: ReplyCreate,
    created: Result<(Found, Opened)>,
    mode: OpenMode,
    keeps_locks: bool,
) {
    match created {
        Ok((found, opened)) => reply.created(
            &NAME_LIFETIME,
            &file_attr(found.file, &found.attr),
            GENERATION,
            FileHandle(opened.handle.0),
            open_flags(opened, mode, keeps_locks),
        ),
        Err(fault) => reply.error(errno(&fault)),
    }
}

pub(super) fn answer_open_dir(reply: ReplyOpen, opened: Result<HandleNumber>) {
    match opened {
        Ok(handle) => reply.opened(FileHandle(handle.0), FopenFlags::empty()),
        Err(fault) => reply.error(errno(&fault)),
    }
}

pub(super) fn answer_bytes<B: std::ops::Deref<Target = [u8]>>(reply: ReplyData, bytes: Result<B>) {
    match bytes {
        Ok(bytes) => reply.data(&bytes),
        Err(fault) => reply.error(errno(&fault)),
    }
}

pub(super) fn answer_write(reply: ReplyWrite, size: u32, written: Result<()>) {
    match written {
        Ok(()) => reply.written(size),
        Err(fault) => reply.error(errno(&fault)),
    }
}

pub(super) fn answer_seek(reply: ReplyLseek, found: Result<u64>) {
    match found {
        Ok(at) => reply.offset(at as i64),
        Err(fault) => reply.error(errno(&fault)),
    }
}

pub(super) fn answer_space(reply: ReplyStatfs, space: Result<ViewSpace>) {
    match space {
        Ok(space) => {
            let block = BLOCK_SIZE as u64;
            let (all, free) = (space.capacity / block, space.free / block);
            let (size, name) = (BLOCK_SIZE as u32, NAME_SIZE_MAX as u32);
            let files = space.inodes + space.inodes_free;
            reply.statfs(all, free, free, files, space.inodes_free, size, name, size);
        }
        Err(fault) => reply.error(errno(&fault)),
    }
}
