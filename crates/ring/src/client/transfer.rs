//! Bytes that the agent is at while the program does something else.

use super::slots::Claim;
use super::{Answer, Client, counted};
use crate::WINDOW_SIZE;
use crate::message::{Request, Takes};
use std::time::Duration;

/// Slots that are left to calls that wait for their answer: they come and go, while transfers may stay.
const SPARE_SLOTS: usize = 4;

/// One read or write under way, of bytes that fit a window. Dropped, it waits for its end.
#[derive(Debug)]
pub struct Transfer<'a> {
    client: &'a Client,
    claim: Claim<'a>,
    size: u32,
}

impl Client {
    /// Begins to read as `pread` does; `None` when too much is under way. At most [`super::TRANSFER_SIZE_MAX`] bytes are read.
    pub fn begin_read(&self, handle: u64, offset: u64, size: usize) -> Answer<Option<Transfer<'_>>> {
        let size = size.min(WINDOW_SIZE);
        self.begin(size, |size| Request::Read { handle, offset, size, takes: Takes::default() }, |_| {})
    }

    /// Begins to write as `pwrite` does; `None` when too much is under way. At most [`super::TRANSFER_SIZE_MAX`] bytes are taken, and
    /// these at once: the program may use their memory again.
    pub fn begin_write(&self, handle: u64, offset: u64, from: &[u8]) -> Answer<Option<Transfer<'_>>> {
        let size = from.len().min(WINDOW_SIZE);
        let put = |claim: &Claim<'_>| self.put(claim, std::iter::once(&from[..size]));
        self.begin(size, |size| Request::Write { handle, offset, size }, put)
    }

    fn begin(
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
    /// Waits for its end, but not beyond `until` on the monotonic clock; whether there is nothing more to wait for.
    pub fn wait(&self, until: Option<Duration>) -> bool {
        // In a child of the process nobody ever answers.
        self.client.is_broken() || self.client.wait(&self.claim, until).unwrap_or(true)
    }

    /// Waits for its end; bytes that were read go to `into`, for which there must be room. How many were moved.
    pub fn end(self, into: &mut [u8]) -> Answer<usize> {
        // In a child of the process, the window may be used by its parent again.
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
    /// The agent may write to the window until then.
    fn drop(&mut self) {
        self.wait(None);
    }
}
