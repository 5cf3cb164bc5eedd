//! Reading: from where the agent has lent the bytes, else by a request.

use super::call::NoReply;
use super::slots::Claim;
use super::{Answer, Client, parts_mut};
use crate::message::{FileKey, Reply, Request};

/// Least bytes that a request may be answered with by lending them, which saves a copy and costs a second look.
const LENT_MIN: u32 = 32 << 10;

impl Client {
    /// Reads as `preadv` does. `key` is that of the file, where frames of it may be lent.
    pub fn read(
        &self,
        handle: u64,
        key: Option<FileKey>,
        offset: u64,
        into: &mut [&mut [u8]],
    ) -> Answer<usize> {
        let whole = into.iter().map(|part| part.len()).sum();
        self.pieces(whole, |done, size| {
            let Some(offset) = offset.checked_add(done as u64) else { return Answer::Declined };
            if let Some(count) = self.read_lent(key, offset, size, (into, done)) {
                return Answer::Done(count as usize);
            }
            let claim = match self.claim(size as usize) {
                Ok(claim) => claim,
                Err(none) => return none.into(),
            };
            let lent = self.lent.is_some() && key.is_some() && size >= LENT_MIN;
            let mut reply = self.ask(&claim, &Request::Read { handle, offset, size, lent });
            if let Ok(Reply::Lent(count)) = reply
                && lent
                && count <= size
            {
                if self.read_lent(key, offset, count, (into, done)) == Some(count) {
                    return Answer::Done(count as usize);
                }
                // Recalled meanwhile.
                reply = self.ask(&claim, &Request::Read { handle, offset, size, lent: false });
            }
            self.read_window(&claim, reply, |count| parts_mut(into, done, count), size)
        })
    }

    fn read_lent(
        &self,
        key: Option<FileKey>,
        offset: u64,
        size: u32,
        into: (&mut [&mut [u8]], usize),
    ) -> Option<u32> {
        match (&self.lent, key) {
            (Some(lent), Some(key)) if !self.is_broken() => lent.read(key, offset, size, into),
            _ => None,
        }
    }

    /// What came in the window.
    fn read_window<'b, I: Iterator<Item = &'b mut [u8]>>(
        &self,
        claim: &Claim<'_>,
        reply: Result<Reply, NoReply>,
        into: impl FnOnce(usize) -> I,
        size: u32,
    ) -> Answer<usize> {
        let count = self.take(reply, super::counted(size));
        if let Answer::Done(count) = count {
            self.get(claim, into(count));
        }
        count
    }
}
