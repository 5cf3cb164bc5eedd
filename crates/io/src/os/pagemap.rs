//! Pages that a process has written to, as the kernel records them: `PAGEMAP_SCAN` (Linux 6.7, `Documentation/admin-guide/mm/pagemap.rst`) of
//! mappings that are write-protected asynchronously ([`super::userfault::Reports::Missing`]).

use super::userfault::Userfault;
use rustix::fs::{Mode, OFlags, fstatfs, open};
use std::io::Error;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// `struct pm_scan_arg` of `linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    regions: u64,
    region_count: u64,
    pages_max: u64,
    category_inverted: u64,
    category_mask: u64,
    category_any: u64,
    return_mask: u64,
}

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

const WRITE_PROTECT_MATCHING: u64 = 1;
const CHECK_ASYNC: u64 = 2;
const IS_WRITTEN: u64 = 2;
/// `_IOWR('f', 16, struct pm_scan_arg)`.
const SCAN: u64 = 3 << 30 | (size_of::<Scan>() as u64) << 16 | (b'f' as u64) << 8 | 16;
/// Runs of pages that one call reports.
const REGIONS: usize = 64;

/// The page table of a process: its file `/proc/PID/pagemap`.
#[derive(Debug)]
pub struct Pagemap(OwnedFd);

impl Pagemap {
    /// That of this process.
    ///
    /// # Errors
    /// `ENOENT` if /proc is not mounted.
    pub fn open() -> std::io::Result<Self> {
        Ok(Self(open("/proc/self/pagemap", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?))
    }

    /// That of another process, which has sent its descriptor.
    ///
    /// # Errors
    /// `EINVAL` if the descriptor is something else: its calls might block.
    pub fn of_process(descriptor: OwnedFd) -> std::io::Result<Self> {
        let is_in_proc = fstatfs(&descriptor)?.f_type == libc::PROC_SUPER_MAGIC;
        let link = std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd()))?;
        if !is_in_proc || link.file_name().is_none_or(|name| name != "pagemap") {
            return Err(Error::from_raw_os_error(libc::EINVAL));
        }
        Ok(Self(descriptor))
    }

    /// The descriptor, for another process.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Protects the pages again that the process has written to since the last call, and reports them as ranges of offsets in its mapping. Bytes
    /// that are read afterwards contain all stores to them, or the next call reports the page again.
    ///
    /// # Errors
    /// `EPERM` if the process has other memory there now, `ESRCH` if it has ended.
    pub fn take_written(
        &self,
        mapping: &Userfault,
        bytes: Range<u64>,
        mut report: impl FnMut(Range<u64>),
    ) -> std::io::Result<()> {
        let Range { start, end } = mapping.addresses(&bytes)?;
        let mut regions = [PageRegion::default(); REGIONS];
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            flags: WRITE_PROTECT_MATCHING | CHECK_ASYNC,
            end,
            walk_end: start,
            regions: regions.as_mut_ptr() as u64,
            region_count: REGIONS as u64,
            // Only with this category alone, pages count that the kernel has unmapped since they were written.
            category_mask: IS_WRITTEN,
            return_mask: IS_WRITTEN,
            ..Scan::default()
        };
        while scan.walk_end < end {
            scan.start = scan.walk_end;
            // SAFETY: the kernel reads and writes a `Scan`, and writes up to `region_count` regions.
            let count = unsafe { libc::ioctl(self.0.as_raw_fd(), SCAN as _, &raw mut scan) };
            let count = match usize::try_from(count) {
                Ok(count) => count,
                Err(_) => match Error::last_os_error() {
                    error if error.raw_os_error() == Some(libc::EINTR) => continue,
                    error => return Err(error),
                },
            };
            for region in &regions[..count] {
                report(region.start - mapping.start()..region.end - mapping.start());
            }
            if scan.walk_end == scan.start {
                return Err(Error::other("the kernel does not report written pages"));
            }
        }
        Ok(())
    }
}
