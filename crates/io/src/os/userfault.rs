//! Page faults of shared memory, reported by userfaultfd(2) to the faulting thread.
//!
//! A process registers a mapping of shared memory for missing and write-protect faults of its user-mode accesses, which needs no
//! privilege (`UFFD_USER_MODE_ONLY`). The kernel reports them as SIGBUS to the faulting thread (`UFFD_FEATURE_SIGBUS`). A second process
//! that has received the descriptor can install and protect pages of the first one. Writes may also be recorded instead of reported
//! (`UFFD_FEATURE_WP_ASYNC`).

use super::mapping::Mapping;
use rustix::mm::{UserfaultfdFlags, userfaultfd};
use std::io::{Error, ErrorKind};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Version of the interface (`linux/userfaultfd.h`).
const API: u64 = 0xaa;
/// `UFFD_USER_MODE_ONLY`: faults of system calls are not reported, the calls fail with `EFAULT`.
const USER_MODE_ONLY: u32 = 1;
const FEATURE_PAGEFAULT_FLAG_WP: u64 = 1 << 0;
const FEATURE_MISSING_SHMEM: u64 = 1 << 5;
const FEATURE_SIGBUS: u64 = 1 << 7;
const FEATURE_WP_SHMEM: u64 = 1 << 12;
const FEATURE_WP_ASYNC: u64 = 1 << 15;
const FEATURES: u64 = FEATURE_PAGEFAULT_FLAG_WP | FEATURE_MISSING_SHMEM | FEATURE_SIGBUS | FEATURE_WP_SHMEM;
const REGISTER_MISSING: u64 = 1;
const REGISTER_WP: u64 = 2;
const COPY_DONTWAKE: u64 = 1;
const COPY_WP: u64 = 2;
const WRITEPROTECT_WP: u64 = 1;
/// `_IOWR(0xaa, number, size)`.
const fn request(number: u64, size: usize) -> u64 {
    3 << 30 | (size as u64) << 16 | API << 8 | number
}

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Register {
    start: u64,
    length: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct Copy {
    to: u64,
    from: u64,
    length: u64,
    mode: u64,
    copied: i64,
}

#[repr(C)]
struct WriteProtect {
    start: u64,
    length: u64,
    mode: u64,
}

/// Accesses that are reported as SIGBUS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reports {
    /// Those to missing pages, and writes to protected ones.
    MissingAndWrites,
    /// Those to missing pages. A write to a protected page removes the protection, so that the kernel knows which pages were written to
    /// ([`super::pagemap`]).
    Missing,
}

/// A registered mapping of shared memory, of this or of another process.
#[derive(Debug)]
pub struct Userfault {
    descriptor: OwnedFd,
    /// Address of the mapping in its process.
    start: u64,
    size: u64,
}

impl Userfault {
    /// Registers a mapping of shared memory of this process, and protects all of it. The accesses in `reports` become SIGBUS, until the
    /// page is installed or unprotected.
    ///
    /// # Errors
    /// `EINVAL` or `Unsupported` if the kernel lacks a feature (Linux before 5.19; with [`Reports::Missing`] before 6.7), `EPERM` if
    /// userfaultfd is forbidden.
    pub fn register(mapping: &Mapping, reports: Reports) -> std::io::Result<Self> {
        let features = match reports {
            Reports::MissingAndWrites => FEATURES,
            Reports::Missing => FEATURES | FEATURE_WP_ASYNC,
        };
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::from_bits_retain(USER_MODE_ONLY);
        // SAFETY: the descriptor is owned, and used by this type only.
        let descriptor = unsafe { userfaultfd(flags)? };
        let mut api = Api { api: API, features, ioctls: 0 };
        // SAFETY: the kernel reads and writes an `Api`.
        unsafe { control(&descriptor, request(0x3f, size_of::<Api>()), &raw mut api)? };
        if api.features & features != features {
            return Err(Error::new(ErrorKind::Unsupported, "userfaultfd lacks features of shared memory"));
        }
        let (start, size) = (mapping.start().as_ptr() as u64, mapping.size() as u64);
        let mode = REGISTER_MISSING | REGISTER_WP;
        let mut register = Register { start, length: size, mode, ioctls: 0 };
        // SAFETY: the kernel reads and writes a `Register`. Later accesses to missing pages raise SIGBUS, as the caller wants.
        unsafe { control(&descriptor, request(0x00, size_of::<Register>()), &raw mut register)? };
        let this = Self { descriptor, start, size };
        this.protect(0..size)?;
        Ok(this)
    }

    /// The registered mapping of another process, with `size` bytes at the address `start` there. Calls fail if the address is wrong.
    ///
    /// # Errors
    /// `EINVAL` if the descriptor is no userfaultfd: its calls might block.
    pub fn of_process(descriptor: OwnedFd, start: u64, size: u64) -> std::io::Result<Self> {
        let link = std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd()))?;
        if link.as_os_str() != "anon_inode:[userfaultfd]" {
            return Err(Error::from_raw_os_error(libc::EINVAL));
        }
        Ok(Self { descriptor, start, size })
    }

    /// The descriptor, for another process.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Address of the mapping in its process.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Installs pages with the content `bytes` at `offset`, protected against writes. Each page appears as a whole, in all processes that
    /// share the memory. Pages that exist already are left as they are, and end the call. Returns the number of bytes installed.
    ///
    /// # Errors
    /// `ESRCH` if the process has ended, `ENOENT` if it has removed the mapping.
    pub fn install(&self, offset: u64, bytes: &[u8]) -> std::io::Result<usize> {
        let to = self.addresses(&(offset..offset + bytes.len() as u64))?.start;
        let mut done = 0;
        while done < bytes.len() {
            let from = bytes[done..].as_ptr() as u64;
            let length = (bytes.len() - done) as u64;
            let mode = COPY_DONTWAKE | COPY_WP;
            let mut copy = Copy { to: to + done as u64, from, length, mode, copied: 0 };
            // SAFETY: the kernel reads and writes a `Copy`, and reads `bytes`. It writes to missing pages only.
            let result =
                unsafe { control(&self.descriptor, request(0x03, size_of::<Copy>()), &raw mut copy) };
            match result {
                Ok(()) => return Ok(bytes.len()),
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => return Ok(done),
                // Interrupted, or the mappings of the process are changing.
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
                    done += usize::try_from(copy.copied).unwrap_or_default();
                }
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Protects pages against writes.
    pub fn protect(&self, bytes: Range<u64>) -> std::io::Result<()> {
        self.set_protection(bytes, WRITEPROTECT_WP)
    }

    /// Allows writes to pages.
    pub fn unprotect(&self, bytes: Range<u64>) -> std::io::Result<()> {
        self.set_protection(bytes, 0)
    }

    fn set_protection(&self, bytes: Range<u64>, mode: u64) -> std::io::Result<()> {
        let Range { start, end } = self.addresses(&bytes)?;
        let mut change = WriteProtect { start, length: end - start, mode };
        let code = request(0x06, size_of::<WriteProtect>());
        loop {
            // SAFETY: the kernel reads a `WriteProtect`.
            match unsafe { control(&self.descriptor, code, &raw mut change) } {
                // The mappings of the process are changing.
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
                done => return done,
            }
        }
    }

    /// Addresses of a part of the mapping in its process.
    pub(super) fn addresses(&self, bytes: &Range<u64>) -> std::io::Result<Range<u64>> {
        if bytes.start > bytes.end || bytes.end > self.size {
            return Err(ErrorKind::InvalidInput.into());
        }
        Ok(self.start + bytes.start..self.start + bytes.end)
    }
}

/// # Safety
/// `argument` has the type of `request`.
unsafe fn control<T>(descriptor: &OwnedFd, request: u64, argument: *mut T) -> std::io::Result<()> {
    // SAFETY: by the contract above.
    let result = unsafe { libc::ioctl(descriptor.as_raw_fd(), request as _, argument) };
    if result == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}
