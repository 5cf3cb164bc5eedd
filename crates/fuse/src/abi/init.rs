//! INIT, the first request: kernel and view negotiate the protocol.

use super::fields::Fields;
use super::{Body, Malformed};
use rustix::param::page_size;

/// Major version of the protocol.
pub(crate) const MAJOR: u32 = 7;
/// Oldest supported minor version.
pub(crate) const FIRST_MINOR: u32 = 31;
/// Minor version announced to the kernel; no later features are used.
const MINOR: u32 = 45;

/// Feature flags.
mod flag {
    pub(super) const ASYNC_READ: u64 = 1;
    pub(super) const POSIX_LOCKS: u64 = 1 << 1;
    pub(super) const BIG_WRITES: u64 = 1 << 5;
    pub(super) const FLOCK_LOCKS: u64 = 1 << 10;
    pub(super) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(super) const POSIX_ACL: u64 = 1 << 20;
    pub(super) const MAX_PAGES: u64 = 1 << 22;
    pub(super) const INIT_EXT: u64 = 1 << 30;
    pub(super) const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub(super) const OVER_IO_URING: u64 = 1 << 41;
}

/// Bound on background requests in flight, such as readahead.
const BACKGROUND_MAX: u16 = 16;
const BACKGROUND_CONGESTED: u16 = 12;

/// The features that a view requests.
#[derive(Clone, Copy, Debug)]
pub struct Init {
    /// Largest read and write request, and the readahead, in bytes.
    pub request_size: u32,
    /// The view implements file locks.
    pub keeps_locks: bool,
    /// The kernel must check permissions, whatever the options of the mount are. It then also requests access control lists.
    pub checks_permissions: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct InitRequest {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    flags: u64,
}

/// The negotiated features.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Negotiated {
    request_size: u32,
    flags: u64,
}

impl InitRequest {
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut fields = Fields(bytes);
        // The readahead is ignored, since it may change later.
        let (major, minor, _readahead) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let flags = u64::from(fields.u32()?);
        let more = if flags & flag::INIT_EXT != 0 { u64::from(fields.u32()?) } else { 0 };
        Ok(Self { major, minor, flags: flags | more << 32 })
    }

    pub(crate) fn offers_rings(&self) -> bool {
        self.flags & flag::OVER_IO_URING != 0
    }

    /// True if the kernel can check permissions although the mount was made without `default_permissions`: it does so for file systems with
    /// access control lists.
    pub(crate) fn offers_permission_checks(&self) -> bool {
        self.flags & flag::POSIX_ACL != 0
    }

    /// The requested features that the kernel offers.
    pub(crate) fn negotiate(&self, wanted: Init, rings: bool) -> Negotiated {
        let mut flags = flag::ASYNC_READ | flag::BIG_WRITES | flag::PARALLEL_DIROPS | flag::MAX_PAGES;
        flags |= flag::INIT_EXT | flag::DIRECT_IO_ALLOW_MMAP;
        if wanted.keeps_locks {
            flags |= flag::POSIX_LOCKS | flag::FLOCK_LOCKS;
        }
        if wanted.checks_permissions {
            flags |= flag::POSIX_ACL;
        }
        if rings {
            flags |= flag::OVER_IO_URING;
        }
        Negotiated { request_size: wanted.request_size, flags: flags & self.flags }
    }
}

impl Negotiated {
    /// True if the kernel can map files that are open with direct I/O.
    pub(crate) fn maps_direct(&self) -> bool {
        self.flags & flag::DIRECT_IO_ALLOW_MMAP != 0
    }

    pub(crate) fn encode(&self) -> Body {
        let pages = (self.request_size as usize).div_ceil(page_size()) as u16;
        Body::default()
            .u32(MAJOR)
            .u32(MINOR)
            // The kernel reads ahead up to the smaller of this and its own limit.
            .u32(self.request_size)
            .u32(self.flags as u32)
            .u16(BACKGROUND_MAX)
            .u16(BACKGROUND_CONGESTED)
            .u32(self.request_size)
            // Granularity of times: 1 ns.
            .u32(1)
            .u16(pages)
            .u16(0)
            .u32((self.flags >> 32) as u32)
            .zeros(28)
    }
}
