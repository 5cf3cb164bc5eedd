//! Encoding of replies.

use std::time::Duration;
use tameike_core::{Attr, FileKind};

/// Size of the header of a reply.
pub(crate) const OUT_HEADER_SIZE: usize = 16;
/// Largest reply without file data, names and attributes, in bytes.
const BODY_SIZE_MAX: usize = 144;
const DIRECTORY_ALIGNMENT: usize = 8;
const DIRECTORY_ENTRY_SIZE: usize = 24;

/// Flags of the reply to an open.
pub mod open_flag {
    /// I/O by this handle bypasses the page cache.
    pub const DIRECT_IO: u32 = 1;
    /// Cached pages remain valid.
    pub const KEEP_CACHE: u32 = 1 << 1;
    /// The kernel may cache the directory's entries.
    pub const CACHE_DIR: u32 = 1 << 3;
    /// The kernel sends no FLUSH at close.
    pub const NO_FLUSH: u32 = 1 << 5;
}

/// The header of a reply of `length` bytes, header included.
pub(crate) fn out_header(length: usize, error: i32, unique: u64) -> [u8; OUT_HEADER_SIZE] {
    let mut header = [0; OUT_HEADER_SIZE];
    header[..4].copy_from_slice(&(length as u32).to_ne_bytes());
    header[4..8].copy_from_slice(&error.to_ne_bytes());
    header[8..].copy_from_slice(&unique.to_ne_bytes());
    header
}

/// Times for which the kernel may cache a reply.
#[derive(Clone, Copy, Debug)]
pub struct Lifetimes {
    /// The dentry.
    pub name: Duration,
    /// The attributes.
    pub attr: Duration,
}

/// Capacity of the file system, in blocks.
#[derive(Clone, Copy, Debug)]
pub struct Space {
    /// Total blocks.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Total files.
    pub files: u64,
    /// Files that can still be created.
    pub files_free: u64,
    /// Size of a block, in bytes.
    pub block_size: u32,
    /// Longest name, in bytes.
    pub name_size: u32,
}

/// A conflicting lock, or none (`F_UNLCK`).
#[derive(Clone, Copy, Debug)]
pub struct LockState {
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub end: u64,
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub kind: i32,
    /// The process that holds it.
    pub pid: u32,
}

/// A reply without large data.
#[derive(Clone, Copy, Debug)]
pub struct Body {
    bytes: [u8; BODY_SIZE_MAX],
    size: usize,
}

impl Default for Body {
    fn default() -> Self {
        Self { bytes: [0; BODY_SIZE_MAX], size: 0 }
    }
}

impl std::ops::Deref for Body {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.size]
    }
}

impl Body {
    /// A copy of `bytes`, if they are small enough.
    pub(crate) fn of(bytes: &[u8]) -> Option<Self> {
        (bytes.len() <= BODY_SIZE_MAX).then(|| Self::default().push(bytes))
    }

    fn push(mut self, bytes: &[u8]) -> Self {
        self.bytes[self.size..self.size + bytes.len()].copy_from_slice(bytes);
        self.size += bytes.len();
        self
    }

    pub(crate) fn u16(self, value: u16) -> Self {
        self.push(&value.to_ne_bytes())
    }

    pub(crate) fn u32(self, value: u32) -> Self {
        self.push(&value.to_ne_bytes())
    }

    pub(crate) fn u64(self, value: u64) -> Self {
        self.push(&value.to_ne_bytes())
    }

    pub(crate) fn zeros(mut self, count: usize) -> Self {
        self.size += count;
        self
    }

    /// A file that was looked up or created.
    pub(crate) fn entry(self, node: u64, attr: &Attr, lifetimes: Lifetimes) -> Self {
        // The generation is 0, since a node id denotes one file as long as the kernel references it.
        self.u64(node)
            .u64(0)
            .u64(lifetimes.name.as_secs())
            .u64(lifetimes.attr.as_secs())
            .u32(lifetimes.name.subsec_nanos())
            .u32(lifetimes.attr.subsec_nanos())
            .attributes(node, attr)
    }

    pub(crate) fn attr(self, node: u64, attr: &Attr, lifetime: Duration) -> Self {
        self.u64(lifetime.as_secs()).u32(lifetime.subsec_nanos()).u32(0).attributes(node, attr)
    }

    fn attributes(self, node: u64, attr: &Attr) -> Self {
        let times = [attr.atime, attr.mtime, attr.ctime];
        let body = self.u64(node).u64(attr.size).u64(attr.blocks);
        let body = times.iter().fold(body, |body, time| body.u64(time.seconds as u64));
        let body = times.iter().fold(body, |body, time| body.u32(time.nanoseconds));
        body.u32(file_type(attr.kind) << 12 | u32::from(attr.mode))
            .u32(attr.nlink)
            .u32(attr.uid)
            .u32(attr.gid)
            .u32(attr.rdev)
            .u32(tameike_core::limits::UNIT_SIZE as u32)
            .u32(0)
    }

    pub(crate) fn opened(self, handle: u64, flags: u32) -> Self {
        self.u64(handle).u32(flags).u32(0)
    }

    pub(crate) fn space(self, space: Space) -> Self {
        self.u64(space.blocks)
            .u64(space.blocks_free)
            .u64(space.blocks_free)
            .u64(space.files)
            .u64(space.files_free)
            .u32(space.block_size)
            .u32(space.name_size)
            .u32(space.block_size)
            .zeros(28)
    }

    pub(crate) fn lock(self, lock: LockState) -> Self {
        self.u64(lock.start).u64(lock.end).u32(lock.kind.cast_unsigned()).u32(lock.pid)
    }
}

/// The type of a file, as in the upper bits of a mode.
fn file_type(kind: FileKind) -> u32 {
    kind.mode_bits() >> 12
}

/// Directory entries in a buffer of limited size.
pub struct Directory {
    bytes: Vec<u8>,
    size_max: usize,
}

impl Directory {
    /// An empty buffer for `size` bytes.
    pub fn new(size: u32) -> Self {
        Self { bytes: Vec::new(), size_max: size as usize }
    }

    /// Adds an entry, with `next` as the cursor after it. False if it does not fit.
    pub fn add(&mut self, inode: u64, next: u64, kind: FileKind, name: &[u8]) -> bool {
        let size = (DIRECTORY_ENTRY_SIZE + name.len()).next_multiple_of(DIRECTORY_ALIGNMENT);
        let end = self.bytes.len() + size;
        if end > self.size_max {
            return false;
        }
        self.bytes.extend_from_slice(&inode.to_ne_bytes());
        self.bytes.extend_from_slice(&next.to_ne_bytes());
        self.bytes.extend_from_slice(&(name.len() as u32).to_ne_bytes());
        self.bytes.extend_from_slice(&file_type(kind).to_ne_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
        true
    }
}

impl std::ops::Deref for Directory {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}
