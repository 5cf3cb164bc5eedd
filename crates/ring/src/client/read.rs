//! Reads: from granted frames or a device, or else by a request.

use super::call::NoReply;
use super::slots::Claim;
use super::{Answer, Client, parts_mut};
use crate::WINDOW_SIZE;
use crate::message::{Accepts, FileKey, Reply, Request};
use tameike_core::limits::UNIT_SIZE;

/// Minimum size of reads in place, which save a copy and cost a second check.
const TAKEN_MIN: usize = 32 << 10;

/// The memory for `size` bytes after the first `done`, if it is contiguous.
fn alone<'a>(into: &'a mut [&mut [u8]], done: usize, size: u32) -> Option<&'a mut [u8]> {
    let mut parts = parts_mut(into, done, size as usize).filter(|part| !part.is_empty());
    parts.next().filter(|part| part.len() == size as usize)
}

impl Client {
    /// Reads as `preadv` does. `key` is that of the file, if frames of it may be granted.
    pub fn read(
        &self,
        handle: u64,
        key: Option<FileKey>,
        offset: u64,
        into: &mut [&mut [u8]],
    ) -> Answer<usize> {
        let whole: usize = into.iter().map(|part| part.len()).sum();
        // A granted frame or a location covers one unit.
        let in_unit =
            |done: usize| UNIT_SIZE - (offset.wrapping_add(done as u64) % UNIT_SIZE as u64) as usize;
        let most = |done| if whole < TAKEN_MIN { WINDOW_SIZE } else { in_unit(done) };
        self.pieces(whole, most, |done, size| {
            let Some(offset) = offset.checked_add(done as u64) else { return Answer::Declined };
            if let Some(count) = self.read_granted(key, offset, size, (into, done)) {
                return Answer::Done(count as usize);
            }
            let claim = match self.claim(size as usize) {
                Ok(claim) => claim,
                Err(none) => return none.into(),
            };
            let is_large = whole >= TAKEN_MIN;
            let granted = is_large && self.granted.is_some() && key.is_some();
            let located = is_large && self.received.devices.are_here() && alone(into, done, size).is_some();
            let accepts = Accepts { granted, located, stale: false };
            let mut reply = self.ask(&claim, &Request::Read { handle, offset, size, accepts });
            let is_read = match reply {
                Ok(Reply::Granted(count)) if granted && count <= size => {
                    Some((count, self.read_granted(key, offset, count, (into, done)) == Some(count)))
                }
                Ok(Reply::Located(count)) if located && count <= size => {
                    let part = alone(into, done, count);
                    Some((count, part.is_some_and(|part| self.read_located(&claim, part))))
                }
                _ => None,
            };
            match is_read {
                Some((count, true)) => return Answer::Done(count as usize),
                // The frame was revoked, or the bytes have moved.
                Some((_, false)) => {
                    let stale = matches!(reply, Ok(Reply::Located(_)));
                    let accepts = Accepts { stale, ..Accepts::default() };
                    reply = self.ask(&claim, &Request::Read { handle, offset, size, accepts });
                }
                None => {}
            }
            self.read_window(&claim, reply, |count| parts_mut(into, done, count), size)
        })
    }

    fn read_granted(
        &self,
        key: Option<FileKey>,
        offset: u64,
        size: u32,
        into: (&mut [&mut [u8]], usize),
    ) -> Option<u32> {
        match (&self.granted, key) {
            (Some(granted), Some(key)) if !self.is_broken() => granted.read(key, offset, size, into),
            _ => None,
        }
    }

    /// Copies the bytes from the window.
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
