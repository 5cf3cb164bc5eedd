//! Replies to requests, sent once, from any thread.

use super::abi::{Body, Lifetimes, LockState, Space};
use super::libc_errno;
use super::sender::Sender;
use super::uring::Slot;
use std::time::Duration;
use tameike_core::{Attr, Errno};

/// The destination of a reply.
pub(super) enum Route {
    Device(Sender, u64),
    Ring(Slot),
    Nowhere,
}

/// The reply to one request. Its drop without a reply sends EIO, so that no program waits forever.
pub struct Reply(Route);

impl Drop for Reply {
    fn drop(&mut self) {
        self.send(libc_errno(Errno::EIO), &[]);
    }
}

impl Reply {
    pub(super) fn new(route: Route) -> Self {
        Self(route)
    }

    /// The reply to a request that expects none.
    pub(super) fn none(mut self) -> Self {
        self.0 = Route::Nowhere;
        self
    }

    fn send(&mut self, error: i32, bytes: &[u8]) {
        match std::mem::replace(&mut self.0, Route::Nowhere) {
            Route::Device(sender, unique) => sender.answer(unique, error, bytes),
            Route::Ring(slot) => slot.answer(error, bytes),
            Route::Nowhere => {}
        }
    }

    /// Replies with an error.
    pub fn error(mut self, errno: Errno) {
        self.send(libc_errno(errno), &[]);
    }

    /// Replies with success, without data.
    pub fn done(mut self) {
        self.send(0, &[]);
    }

    /// Replies with bytes of a file, a listing or an extended attribute.
    pub fn bytes(mut self, bytes: &[u8]) {
        self.send(0, bytes);
    }

    /// Replies with a file that was looked up or created.
    pub fn entry(mut self, node: u64, attr: &Attr, lifetimes: Lifetimes) {
        self.send(0, &Body::default().entry(node, attr, lifetimes));
    }

    /// Replies with a file that was created and opened; see [`super::abi::open_flag`].
    pub fn created(mut self, node: u64, attr: &Attr, lifetimes: Lifetimes, (handle, flags): (u64, u32)) {
        self.send(0, &Body::default().entry(node, attr, lifetimes).opened(handle, flags));
    }

    /// Replies with attributes.
    pub fn attr(mut self, node: u64, attr: &Attr, lifetime: Duration) {
        self.send(0, &Body::default().attr(node, attr, lifetime));
    }

    /// Replies with an open handle; see [`super::abi::open_flag`].
    pub fn opened(mut self, handle: u64, flags: u32) {
        self.send(0, &Body::default().opened(handle, flags));
    }

    /// Replies with the number of bytes written, or the size of an extended attribute.
    pub fn size(mut self, size: u32) {
        self.send(0, &Body::default().u32(size).u32(0));
    }

    /// Replies with an offset in a file.
    pub fn offset(mut self, offset: u64) {
        self.send(0, &Body::default().u64(offset));
    }

    /// Replies with the capacity of the file system.
    pub fn space(mut self, space: Space) {
        self.send(0, &Body::default().space(space));
    }

    /// Replies with the conflicting lock.
    pub fn lock(mut self, lock: LockState) {
        self.send(0, &Body::default().lock(lock));
    }
}
