//! The memfds of a region on one node.

use crate::control::{Control, PAGE_SIZE};
use rustix::fs::{FallocateFlags, fallocate, fstat};
use rustix::io::{Errno, pwrite};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use tameike_io::os::arena::Arena;

/// Number of descriptors of a region: of the data, the twins and the control memory.
pub const DESCRIPTORS: usize = 3;

/// The memory of a region, as agent or process. The data has holes for absent pages.
#[derive(Debug)]
pub struct RegionMemory {
    data: OwnedFd,
    /// The data in the address space of the agent.
    mapped: Option<Arena>,
    twins: Arena,
    /// The words of pages.
    pub control: Control,
    /// Descriptors of the twins and the control memory, as far as they are to be passed on.
    descriptors: Option<[OwnedFd; DESCRIPTORS - 1]>,
}

fn bytes(pages: &Range<u32>) -> (u64, usize) {
    (u64::from(pages.start) * PAGE_SIZE as u64, pages.len() * PAGE_SIZE)
}

fn punch(file: &OwnedFd, pages: &Range<u32>) -> std::io::Result<()> {
    let (at, size) = bytes(pages);
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    loop {
        match fallocate(file, flags, at, size as u64) {
            Err(Errno::INTR) => {}
            done => return Ok(done?),
        }
    }
}

impl RegionMemory {
    /// Creates the memory of a region whose pages are all absent.
    ///
    /// # Errors
    /// `ENOMEM`, `EMFILE`, `ENFILE`.
    pub fn create(pages: u32) -> std::io::Result<Self> {
        let size = pages as usize * PAGE_SIZE;
        let (mapped, data) = Arena::create("tameike-dsm", size)?;
        let (twins, twins_file) = Arena::create("tameike-dsm-twins", size)?;
        let (control, control_file) = Control::create(pages)?;
        let descriptors = Some([twins_file, control_file]);
        Ok(Self { data, mapped: Some(mapped), twins, control, descriptors })
    }

    /// Maps the memory of a region of the agent.
    ///
    /// # Errors
    /// A size differs, or the memory is not sealed.
    pub fn map(descriptors: [OwnedFd; DESCRIPTORS], pages: u32) -> std::io::Result<Self> {
        let [data, twins, control] = descriptors;
        let twins = Arena::map(twins, pages as usize * PAGE_SIZE)?;
        let control = Control::map(control, pages)?;
        Ok(Self { data, mapped: None, twins, control, descriptors: None })
    }

    /// The descriptors for a process; `None` in a process.
    pub fn descriptors(&self) -> Option<[BorrowedFd<'_>; DESCRIPTORS]> {
        let [twins, control] = self.descriptors.as_ref()?;
        Some([self.data.as_fd(), twins.as_fd(), control.as_fd()])
    }

    /// The data memfd.
    pub fn data(&self) -> BorrowedFd<'_> {
        self.data.as_fd()
    }

    /// Number of pages.
    pub fn pages(&self) -> u32 {
        self.control.pages()
    }

    fn mapped(&self) -> &Arena {
        self.mapped.as_ref().expect("only the agent accesses the data through this type")
    }

    /// Copies the data of pages, in the agent. Concurrent stores make single bytes old or new. The pages must not be absent: they
    /// would come into being.
    pub fn read(&self, pages: Range<u32>, into: &mut [u8]) {
        let (at, size) = bytes(&pages);
        assert_eq!(size, into.len(), "as many bytes as pages");
        self.mapped().copy_out(at as usize, into);
    }

    /// Changes bytes of pages that are not absent, exactly these, from `at` on, in the agent.
    pub fn write(&self, at: u64, bytes: &[u8]) {
        self.mapped().copy_in(at as usize, bytes);
    }

    /// Writes whole pages from `at` on, absent ones too.
    pub fn fill(&self, at: u64, bytes: &[u8]) -> std::io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            match pwrite(&self.data, &bytes[done..], at + done as u64) {
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Frees the data of pages, and removes them from all mappings.
    pub fn punch(&self, pages: Range<u32>) -> std::io::Result<()> {
        punch(&self.data, &pages)
    }

    /// Frees the twins of pages, in the agent.
    pub fn punch_twins(&self, pages: Range<u32>) -> std::io::Result<()> {
        let [twins, _] = self.descriptors.as_ref().expect("only the agent frees twins");
        punch(twins, &pages)
    }

    /// Number of pages of data and twins that take memory, in the agent.
    pub fn used_pages(&self) -> u64 {
        let twins = self.descriptors.iter().map(|[twins, _]| twins.as_fd());
        let files = twins.chain([self.data.as_fd()]);
        // It fails only for descriptors that are not open.
        let blocks = files.filter_map(|file| fstat(file).ok()).map(|stat| stat.st_blocks as u64).sum::<u64>();
        blocks * 512 / PAGE_SIZE as u64
    }

    /// Copies the data of pages to their twins. Async-signal-safe.
    pub fn make_twins(&self, pages: Range<u32>) -> std::io::Result<()> {
        let (at, size) = bytes(&pages);
        self.twins.read_from(at as usize, self.data.as_fd(), at, size)
    }

    /// Copies twins.
    pub fn read_twins(&self, pages: Range<u32>, into: &mut [u8]) {
        let (at, size) = bytes(&pages);
        assert_eq!(size, into.len(), "as many bytes as pages");
        self.twins.copy_out(at as usize, into);
    }

    /// Changes bytes of twins, from `at` on.
    pub fn write_twins(&self, at: u64, bytes: &[u8]) {
        self.twins.copy_in(at as usize, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_share_data_and_twins() {
        let agent = RegionMemory::create(4).expect("memory");
        let descriptors = agent.descriptors().expect("of the agent");
        let copies = descriptors.map(|file| file.try_clone_to_owned().expect("a descriptor"));
        let process = RegionMemory::map(copies, 4).expect("the same memory");
        assert!(process.descriptors().is_none());
        agent.fill(4096, b"page").expect("data");
        process.make_twins(1..3).expect("twins");
        agent.write(4098, b"!");
        let (mut page, mut twin) = ([9; 4096], [9; 4096]);
        agent.read(1..2, &mut page);
        agent.read_twins(1..2, &mut twin);
        assert_eq!((&page[..5], &twin[..5]), (&b"pa!e\0"[..], &b"page\0"[..]));
        process.punch(1..2).expect("a hole");
        agent.read(1..2, &mut page);
        assert_eq!(page, [0; 4096]);
        assert!(rustix::fs::ftruncate(process.data(), 0).is_err(), "sealed");
    }
}
