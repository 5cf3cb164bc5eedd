//! Descriptors that the agent sends on the socket: of devices, and of the memory of regions.
//!
//! Any thread or signal handler may receive them for another one.

use super::Client;
use crate::extent_location::DEVICES_MAX;
use crate::layout::{REGION_FILES, REGION_MARK, REMOTE_MARK};
use rustix::thread::futex;
use rustix::time::Timespec;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use tameike_io::os::descriptor::{DescriptorCell, DescriptorPlace};
use tameike_io::os::process::monotonic;
use tameike_io::os::socket::receive_files_now;

/// Number of descriptors of a device.
const DEVICE_FILES: usize = 2;
/// Time limit of the arrival of a region's memory, which was sent before the reply. Another thread may be receiving it.
const ARRIVAL_TIME: Duration = Duration::from_secs(20);
/// How often a waiter receives itself.
const SLICE: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// What the agent has sent.
#[derive(Debug, Default)]
pub(super) struct Received {
    pub devices: Devices,
    pub region: RegionFiles,
}

/// Devices that the agent has sent, by number.
#[derive(Debug, Default)]
pub(super) struct Devices {
    all: [Device; DEVICES_MAX],
    /// A device did not arrive, or was closed.
    are_lacking: AtomicBool,
}

#[derive(Debug, Default)]
struct Device {
    bytes: DescriptorCell,
    /// Set last.
    clock: DescriptorCell,
}

impl Devices {
    /// Returns true if the program can use locations.
    pub fn are_here(&self) -> bool {
        !self.are_lacking.load(Ordering::Relaxed)
    }

    /// Descriptors of the bytes and the clock.
    pub fn get(&self, number: usize) -> Option<(BorrowedFd<'_>, BorrowedFd<'_>)> {
        let device = self.all.get(number)?;
        let clock = device.clock.get()?;
        Some((device.bytes.get()?, clock))
    }

    /// A device did not arrive, or the program has closed it.
    pub fn lack(&self) {
        self.are_lacking.store(true, Ordering::Relaxed);
    }

    fn set(&self, number: usize, files: [Option<OwnedFd>; DEVICE_FILES]) {
        match (self.all.get(number), files) {
            (Some(device), [Some(bytes), Some(clock)]) => {
                device.bytes.set(bytes);
                device.clock.set(clock);
            }
            _ => self.lack(),
        }
    }

    pub fn numbers(&self) -> impl Iterator<Item = RawFd> {
        self.all.iter().flat_map(|device| [&device.bytes, &device.clock]).filter_map(DescriptorCell::number)
    }
}

/// The memory of a region, from its arrival until the thread that opens the region takes it.
#[derive(Debug, Default)]
pub(super) struct RegionFiles {
    files: [DescriptorPlace; REGION_FILES],
    /// Changes last.
    state: AtomicU32,
}

/// State of a region's memory: it has not arrived.
const AWAITED: u32 = 0;
/// State: it is here.
const HERE: u32 = 1;
/// State: a descriptor did not arrive.
const LACKING: u32 = 2;

/// Reason why the memory of a region is missing.
pub(super) enum NoFiles {
    /// The process has too many open files.
    Lacking,
    /// The agent has not sent it.
    Unsent,
}

impl RegionFiles {
    /// Expects the memory of a region from now on. Must be called by one thread at a time.
    pub fn expect(&self) {
        self.state.store(AWAITED, Ordering::Relaxed);
        self.files.iter().for_each(|place| drop(place.take()));
    }

    /// Puts the first `count` descriptors.
    fn put(&self, files: [Option<OwnedFd>; REGION_FILES], count: usize) {
        let mut state = HERE;
        for (place, file) in self.files.iter().zip(files).take(count) {
            match file {
                Some(file) => place.put(file),
                None => state = LACKING,
            }
        }
        self.state.store(state, Ordering::Release);
        // Fails only for an unmapped word.
        let _ = futex::wake(&self.state, futex::Flags::PRIVATE, 1);
    }
}

impl Client {
    /// Receives what the agent has sent.
    pub(super) fn receive(&self) {
        let mut mark = [0];
        while let Ok(Some((size, files))) = receive_files_now::<REGION_FILES>(self.socket.as_fd(), &mut mark)
        {
            if size == 0 {
                return;
            }
            let expected = match mark[0] {
                REGION_MARK => REGION_FILES,
                REMOTE_MARK => 1,
                _ => 0,
            };
            if expected > 0 {
                let files = files.map(|file| file.and_then(Self::move_descriptor));
                self.received.region.put(files, expected);
                continue;
            }
            let [bytes, clock, _] = files.map(|file| file.and_then(|file| self.keep_descriptor(file)));
            self.received.devices.set(usize::from(mark[0]), [bytes, clock]);
        }
    }

    /// Waits for the memory of a region or window whose open was answered.
    fn await_files(&self) -> Result<(), NoFiles> {
        let (region, until) = (&self.received.region, monotonic() + ARRIVAL_TIME);
        loop {
            self.receive();
            match region.state.load(Ordering::Acquire) {
                HERE => return Ok(()),
                LACKING => return Err(NoFiles::Lacking),
                _ if self.is_broken() || self.is_alone() || monotonic() > until => {
                    return Err(NoFiles::Unsent);
                }
                state => drop(futex::wait(&region.state, futex::Flags::PRIVATE, state, Some(&SLICE))),
            }
        }
    }

    /// Takes the memory of a window whose open was answered.
    pub(super) fn take_window_file(&self) -> Result<OwnedFd, NoFiles> {
        self.await_files()?;
        self.received.region.files[0].take().ok_or(NoFiles::Unsent)
    }

    /// Takes the memory of a region whose open was answered.
    pub(super) fn take_region_files(&self) -> Result<[OwnedFd; REGION_FILES], NoFiles> {
        self.await_files()?;
        match self.received.region.files.each_ref().map(DescriptorPlace::take) {
            [Some(data), Some(twins), Some(control)] => Ok([data, twins, control]),
            _ => Err(NoFiles::Unsent),
        }
    }
}
