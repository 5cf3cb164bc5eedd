//! Answers to requests, given once, from any thread.

use super::abi::{Body, Lifetimes, LockState, Space};
use super::libc_errno;
use super::sender::Sender;
use super::uring::Slot;
use std::time::Duration;
use tameike_core::{Attr, Errno};

/// Where an answer goes.
pub(super) enum Route {
    Device(Sender, u64),
    Ring(Slot),
    Nowhere,
}

/// The answer to one request. Dropped unanswered it is an error, so that no program waits for ever.
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

    /// To a request that is not answered.
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

    /// It failed.
    pub fn error(mut self, errno: Errno) {
        self.send(libc_errno(errno), &[]);
    }

    /// It is done.
    pub fn done(mut self) {
        self.send(0, &[]);
    }

    /// Bytes of a file, a listing or an attribute.
    pub fn bytes(mut self, bytes: &[u8]) {
        self.send(0, bytes);
    }

    /// A file that was found or made.
    pub fn entry(mut self, node: u64, attr: &Attr, lifetimes: Lifetimes) {
        self.send(0, &Body::default().entry(node, attr, lifetimes));
    }

    /// A file that was made and opened; see [`super::abi::open_flag`].
    pub fn created(mut self, node: u64, attr: &Attr, lifetimes: Lifetimes, (handle, flags): (u64, u32)) {
        self.send(0, &Body::default().entry(node, attr, lifetimes).opened(handle, flags));
    }

    /// Attributes.
    pub fn attr(mut self, node: u64, attr: &Attr, lifetime: Duration) {
        self.send(0, &Body::default().attr(node, attr, lifetime));
    }

    /// A file that was opened; see [`super::abi::open_flag`].
    pub fn opened(mut self, handle: u64, flags: u32) {
        self.send(0, &Body::default().opened(handle, flags));
    }

    /// How much was written, or how large an attribute is.
    pub fn size(mut self, size: u32) {
        self.send(0, &Body::default().u32(size).u32(0));
    }

    /// A place in a file.
    pub fn offset(mut self, offset: u64) {
        self.send(0, &Body::default().u64(offset));
    }

    /// Space and files.
    pub fn space(mut self, space: Space) {
        self.send(0, &Body::default().space(space));
    }

    /// The lock that is in the way.
    pub fn lock(mut self, lock: LockState) {
        self.send(0, &Body::default().lock(lock));
    }
}
