//! Asynchronous reads and writes.

use super::slots::Claim;
use super::{Answer, Client, counted};
use crate::WINDOW_SIZE;
use crate::message::{Accepts, Request};
use std::time::Duration;

/// Slots reserved for synchronous calls, which are short, while transfers may stay.
const SPARE_SLOTS: usize = 4;

/// A read or write in flight, of bytes that fit in a window. Dropping it waits for its end.
#[derive(Debug)]
pub struct Transfer<'a> {
    client: &'a Client,
    claim: Claim<'a>,
    size: u32,
}

impl Client {
    /// Begins to read as `pread` does; `None` if too many transfers are in flight. Reads at most [`super::TRANSFER_SIZE_MAX`] bytes.
    pub fn begin_read(&self, handle: u64, offset: u64, size: usize) -> Answer<Option<Transfer<'_>>> {
        let size = size.min(WINDOW_SIZE);
        self.begin(size, |size| Request::Read { handle, offset, size, accepts: Accepts::default() }, |_| {})
    }

    /// Begins to write as `pwrite` does; `None` if too many transfers are in flight. Takes at most [`super::TRANSFER_SIZE_MAX`] bytes, and
    /// copies them before it returns.
    pub fn begin_write(&self, handle: u64, offset: u64, from: &[u8]) -> Answer<Option<Transfer<'_>>> {
        let size = from.len().min(WINDOW_SIZE);
        let put = |claim: &Claim<'_>| self.put(claim, std::iter::once(&from[..size]));
        self.begin(size, |size| Request::Write { handle, offset, size }, put)
    }

    pub(super) fn begin(
        &self,
        size: usize,
        request: impl FnOnce(u32) -> Request,
        put: impl FnOnce(&Claim<'_>),
    ) -> Answer<Option<Transfer<'_>>> {
        match self.try_claim(size, SPARE_SLOTS) {
            Ok(None) => Answer::Done(None),
            Ok(Some(claim)) => {
                let size = size as u32;
                put(&claim);
                self.post(&claim, &request(size));
                Answer::Done(Some(Transfer { client: self, claim, size }))
            }
            Err(none) => none.into(),
        }
    }
}

impl Transfer<'_> {
    /// Waits until `until` on the monotonic clock; returns true if there is nothing more to wait for.
    pub fn wait(&self, until: Option<Duration>) -> bool {
        // In a child of the process, no reply arrives.
        self.client.is_broken() || self.client.wait(&self.claim, until).unwrap_or(true)
    }

    /// Waits for the end, and copies the read bytes to `into`, which must be large enough. Returns the number of moved bytes.
    pub fn end(self, into: &mut [u8]) -> Answer<usize> {
        // In a child of the process, its parent may have reused the window.
        if !self.client.own.is_own() || !self.wait(None) || !self.client.is_answered(&self.claim) {
            return Answer::Broken;
        }
        let reply = self.client.reply(&self.claim);
        let count = self.client.take(reply, counted(self.size));
        if let Answer::Done(count) = count
            && !into.is_empty()
        {
            self.client.get(&self.claim, std::iter::once(&mut into[..count]));
        }
        count
    }
}

impl Drop for Transfer<'_> {
    /// Waits, as the agent may write to the window until the end.
    fn drop(&mut self) {
        self.wait(None);
    }
}
