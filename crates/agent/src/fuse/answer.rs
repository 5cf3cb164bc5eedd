//! Replies that several requests share, with their cache lifetimes.

use super::convert::errno;
use super::{ATTRIBUTE_LIFETIME, NAME_LIFETIME, UNCHANGING_LIFETIME, open_flags};
use crate::arbiter::Arbiter;
use std::ops::Deref;
use std::time::Duration;
use tameike_client::vfs::{FileNumber, Found, HandleNumber, OpenMode, Opened, ViewSpace};
use tameike_core::limits::{BLOCK_SIZE, NAME_SIZE_MAX};
use tameike_core::{Attr, FileKind, Result};
use tameike_fuse::Reply;
use tameike_fuse::abi::{Lifetimes, Space, open_flag};

/// Time for which the kernel may cache a name that was looked up when the arbiter's count was `changes`.
fn name_lifetime(arbiter: &Arbiter, file: FileNumber, kind: FileKind, changes: u64) -> Duration {
    match kind {
        _ if arbiter.is_unchanging() => UNCHANGING_LIFETIME,
        FileKind::Directory if arbiter.may_cache_name(file, changes) => ATTRIBUTE_LIFETIME,
        _ => NAME_LIFETIME,
    }
}

/// Time for which the kernel may cache attributes that were read when the arbiter's count was `changes`.
fn attribute_lifetime(arbiter: &Arbiter, file: FileNumber, attr: &Attr, changes: u64) -> Duration {
    if arbiter.is_unchanging() {
        return UNCHANGING_LIFETIME;
    }
    let may_keep = attr.kind != FileKind::Directory || arbiter.may_cache_attributes(file, changes);
    if may_keep { ATTRIBUTE_LIFETIME } else { Duration::ZERO }
}

/// Replies to a request: with its error if it failed, else through `send`.
pub(super) fn answer<T>(reply: Reply, result: Result<T>, send: impl FnOnce(Reply, T)) {
    match result {
        Ok(value) => send(reply, value),
        Err(fault) => reply.error(errno(&fault)),
    }
}

pub(super) fn answer_done(reply: Reply, done: Result<()>) {
    answer(reply, done, |reply, ()| reply.done());
}

pub(super) fn answer_entry(reply: Reply, found: Result<Found>, arbiter: &Arbiter, changes: u64) {
    answer(reply, found, |reply, found| {
        let attr = attribute_lifetime(arbiter, found.file, &found.attr, changes);
        let lifetimes =
            Lifetimes { name: name_lifetime(arbiter, found.file, found.attr.kind, changes), attr };
        reply.entry(found.file.0, &found.attr, lifetimes);
    });
}

pub(super) fn answer_attr(
    reply: Reply,
    file: FileNumber,
    attr: Result<Attr>,
    arbiter: &Arbiter,
    changes: u64,
) {
    answer(reply, attr, |reply, attr| {
        reply.attr(file.0, &attr, attribute_lifetime(arbiter, file, &attr, changes));
    });
}

pub(super) fn answer_created(
    reply: Reply,
    created: Result<(Found, Opened)>,
    mode: OpenMode,
    keeps_locks: bool,
) {
    answer(reply, created, |reply, (found, opened)| {
        let open = (opened.handle.0, open_flags(opened, mode, keeps_locks));
        let lifetimes = Lifetimes { name: NAME_LIFETIME, attr: ATTRIBUTE_LIFETIME };
        reply.created(found.file.0, &found.attr, lifetimes, open);
    });
}

pub(super) fn answer_open_dir(reply: Reply, opened: Result<HandleNumber>, arbiter: &Arbiter) {
    let flags = if arbiter.is_unchanging() { open_flag::CACHE_DIR | open_flag::KEEP_CACHE } else { 0 };
    answer(reply, opened, |reply, handle| reply.opened(handle.0, flags));
}

pub(super) fn answer_bytes(reply: Reply, bytes: Result<impl Deref<Target = [u8]>>) {
    answer(reply, bytes, |reply, bytes| reply.bytes(&bytes));
}

pub(super) fn answer_space(reply: Reply, space: Result<ViewSpace>) {
    answer(reply, space, |reply, space| {
        reply.space(Space {
            blocks: space.capacity / BLOCK_SIZE as u64,
            blocks_free: space.free / BLOCK_SIZE as u64,
            files: space.inodes + space.inodes_free,
            files_free: space.inodes_free,
            block_size: BLOCK_SIZE as u32,
            name_size: NAME_SIZE_MAX as u32,
        });
    });
}
