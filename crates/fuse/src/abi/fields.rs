//! Parts of kernel requests: numbers, names, locks, attribute changes.

use tameike_core::Timestamp;
use tameike_core::attr::{AttrChange, SetTime};

/// The bytes are not a valid request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the kernel sent a malformed FUSE request")]
pub struct Malformed;

pub(super) type Decoded<T> = Result<T, Malformed>;

/// The lock in a lock request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRequest {
    /// The open file.
    pub handle: u64,
    /// The lock owner.
    pub owner: u64,
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub end: u64,
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub kind: i32,
    /// The requesting process.
    pub pid: u32,
}

/// Nodes that the kernel no longer references, with their lookup counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgets<'a>(pub(super) &'a [u8]);

impl Forgets<'_> {
    pub(super) const ONE_SIZE: usize = 16;

    /// Node ids with the lookup counts to subtract.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.chunks_exact(Self::ONE_SIZE).filter_map(|one| {
            let mut fields = Fields(one);
            Some((fields.u64().ok()?, fields.u64().ok()?))
        })
    }
}

/// Flags of the attributes that a request changes.
mod set {
    pub(super) const MODE: u32 = 1;
    pub(super) const UID: u32 = 1 << 1;
    pub(super) const GID: u32 = 1 << 2;
    pub(super) const SIZE: u32 = 1 << 3;
    pub(super) const ATIME: u32 = 1 << 4;
    pub(super) const MTIME: u32 = 1 << 5;
    pub(super) const ATIME_NOW: u32 = 1 << 7;
    pub(super) const MTIME_NOW: u32 = 1 << 8;
}

/// A sequence of numbers.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl Fields<'_> {
    pub(super) fn u32(&mut self) -> Decoded<u32> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(u32::from_ne_bytes(*bytes))
    }

    pub(super) fn i32(&mut self) -> Decoded<i32> {
        Ok(self.u32()?.cast_signed())
    }

    pub(super) fn u64(&mut self) -> Decoded<u64> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(u64::from_ne_bytes(*bytes))
    }

    pub(super) fn handle_and_range(&mut self) -> Decoded<(u64, u64, u32)> {
        Ok((self.u64()?, self.u64()?, self.u32()?))
    }

    pub(super) fn lock(&mut self) -> Decoded<LockRequest> {
        let (handle, owner, start, end) = (self.u64()?, self.u64()?, self.u64()?, self.u64()?);
        Ok(LockRequest { handle, owner, start, end, kind: self.i32()?, pid: self.u32()? })
    }

    pub(super) fn attr_change(&mut self) -> Decoded<AttrChange> {
        let (valid, _padding, _handle) = (self.u32()?, self.u32()?, self.u64()?);
        let (size, _owner) = (self.u64()?, self.u64()?);
        let seconds = [self.u64()? as i64, self.u64()? as i64, self.u64()? as i64];
        let nanoseconds = [self.u32()?, self.u32()?, self.u32()?];
        let (mode, _unused, uid, gid) = (self.u32()?, self.u32()?, self.u32()?, self.u32()?);
        let has = |flag| valid & flag != 0;
        let time = |index: usize, sets, now| {
            let to = Timestamp { seconds: seconds[index], nanoseconds: nanoseconds[index] };
            has(sets).then(|| if has(now) { SetTime::Now } else { SetTime::To(to) })
        };
        Ok(AttrChange {
            mode: has(set::MODE).then_some((mode & 0o7777) as u16),
            uid: has(set::UID).then_some(uid),
            gid: has(set::GID).then_some(gid),
            size: has(set::SIZE).then_some(size),
            atime: time(0, set::ATIME, set::ATIME_NOW),
            mtime: time(1, set::MTIME, set::MTIME_NOW),
            layout: None,
        })
    }
}

/// A sequence of names and bytes.
pub(super) struct Rest<'a>(pub(super) &'a [u8]);

impl<'a> Rest<'a> {
    /// Reads a name, terminated by a zero byte.
    pub(super) fn name(&mut self) -> Decoded<&'a [u8]> {
        let end = self.0.iter().position(|&byte| byte == 0).ok_or(Malformed)?;
        let (name, rest) = (&self.0[..end], &self.0[end + 1..]);
        self.0 = rest;
        Ok(name)
    }

    pub(super) fn bytes(&mut self, size: u32) -> Decoded<&'a [u8]> {
        self.0.get(..size as usize).ok_or(Malformed)
    }

    pub(super) fn forgets(&mut self, count: u32) -> Decoded<Forgets<'a>> {
        let size = (count as usize).checked_mul(Forgets::ONE_SIZE).ok_or(Malformed)?;
        self.0.get(..size).map(Forgets).ok_or(Malformed)
    }
}
