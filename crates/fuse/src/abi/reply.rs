//! Answers, encoded.

use std::time::Duration;
use tameike_core::{Attr, FileKind};

/// Size of the header of every answer.
pub(crate) const OUT_HEADER_SIZE: usize = 16;
/// Largest answer but for bytes of files, names and attributes.
const BODY_SIZE_MAX: usize = 144;
/// Names in a listing begin at multiples of this.
const DIRECTORY_ALIGNMENT: usize = 8;
const DIRECTORY_ENTRY_SIZE: usize = 24;

/// How a file was opened.
pub mod open_flag {
    /// What goes through the handle is not cached.
    pub const DIRECT_IO: u32 = 1;
    /// Cached pages are still true.
    pub const KEEP_CACHE: u32 = 1 << 1;
    /// Names of a directory may be kept.
    pub const CACHE_DIR: u32 = 1 << 3;
    /// The kernel need not tell of a close.
    pub const NO_FLUSH: u32 = 1 << 5;
}

/// The header of an answer of `length` bytes, the header counted.
pub(crate) fn out_header(length: usize, error: i32, unique: u64) -> [u8; OUT_HEADER_SIZE] {
    let mut header = [0; OUT_HEADER_SIZE];
    header[..4].copy_from_slice(&(length as u32).to_ne_bytes());
    header[4..8].copy_from_slice(&error.to_ne_bytes());
    header[8..].copy_from_slice(&unique.to_ne_bytes());
    header
}

/// How long the kernel may believe an answer.
#[derive(Clone, Copy, Debug)]
pub struct Lifetimes {
    /// That the name stands for the file.
    pub name: Duration,
    /// The attributes.
    pub attr: Duration,
}

/// Space and files, in blocks.
#[derive(Clone, Copy, Debug)]
pub struct Space {
    /// Blocks in all.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Files in all.
    pub files: u64,
    /// Files that can still be made.
    pub files_free: u64,
    /// Size of a block.
    pub block_size: u32,
    /// Longest name.
    pub name_size: u32,
}

/// A lock that is in the way, or none (`F_UNLCK`).
#[derive(Clone, Copy, Debug)]
pub struct LockState {
    /// First byte.
    pub start: u64,
    /// Last byte.
    pub end: u64,
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub kind: i32,
    /// Who has it.
    pub pid: u32,
}

/// A short answer.
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
    /// These bytes, if they are short.
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

    /// A file that was found or made.
    pub(crate) fn entry(self, node: u64, attr: &Attr, lifetimes: Lifetimes) -> Self {
        // A number stands for one file as long as the kernel holds it: there is one generation.
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

/// The type of a file as it stands in a mode, without the zeros after it.
fn file_type(kind: FileKind) -> u32 {
    kind.mode_bits() >> 12
}

/// Entries of a directory, as many as the kernel has room for.
pub struct Directory {
    bytes: Vec<u8>,
    size_max: usize,
}

impl Directory {
    /// None yet, and room for `size` bytes of them.
    pub fn new(size: u32) -> Self {
        Self { bytes: Vec::new(), size_max: size as usize }
    }

    /// Adds an entry, after which `next` goes on; false when there is no room for it.
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
