//! Requests by io_uring (Linux 6.14): the kernel puts each into memory of ours, and takes the answer from there.
//!
//! There is a queue for each core that the machine may have, and the kernel sends a request to that of the core on which a
//! program makes it. A queue has a thread, bound to its core, which takes requests in and hands answers over: one system
//! call does both, and no other core is woken. Who answers from another thread leaves the answer to it.
//!
//! The kernel uses the queues only when all of them are there. When one is refused it goes back to the device by itself, so
//! everything that can fail is tried before it is told that rings are wanted ([`Rings::new`]).

mod memory;
mod queue;

pub(super) use queue::Slot;

use super::Service;
use super::abi::PAGE_SIZE;
use super::device::{self, Device};
use crate::os::process;
use io_uring::{IoUring, squeue};
use queue::{Queue, Worker};
use std::io;
use std::sync::Arc;

/// Requests that a queue can take in beside those that wait for their answers. The kernel sends no further ones: what a
/// request waits for, as a lock, may be brought by the next, so that there must always be room for it.
const FREE_MIN: usize = 8;
/// Entries of a ring; what is more is submitted in parts.
const RING_SIZE: u32 = 64;
/// Least memory for what a request carries, by the kernel's rules.
const PAYLOAD_SIZE_MIN: usize = 2 * PAGE_SIZE;

/// The rings of one mount, not yet in use.
pub(super) struct Rings(Vec<(IoUring<squeue::Entry128>, Arc<Queue>)>);

impl Rings {
    /// A ring for each core.
    ///
    /// # Errors
    /// io_uring is forbidden or too old, or memory is refused.
    pub(super) fn new(request_size: u32) -> io::Result<Self> {
        let payload = (request_size as usize).next_multiple_of(PAGE_SIZE).max(PAYLOAD_SIZE_MIN);
        let one = |number| Ok((ring()?, Arc::new(Queue::new(number, payload)?)));
        (0..process::cores_possible()?).map(one).collect::<io::Result<_>>().map(Self)
    }

    /// Serves on threads of their own, until the file system is unmounted.
    pub(super) fn start(self, device: &Device, service: &Arc<impl Service>) {
        for (ring, queue) in self.0 {
            let name = format!("tameike-ring-{}", queue.number());
            let worker = device.duplicate().map(|device| Worker::new(ring, queue, device));
            let service = service.clone();
            let started = worker.map(|worker| process::start_thread(&name, move || worker.run(&*service)));
            match started {
                Ok(Ok(_)) => {}
                Ok(Err(fault)) => log::warn!("{fault}: requests come by {}", device::PATH),
                Err(error) => log::warn!("{name}: {error}: requests come by {}", device::PATH),
            }
        }
    }
}

/// A ring that the thread which enables it submits to, and nobody else.
fn ring() -> io::Result<IoUring<squeue::Entry128>> {
    IoUring::builder().setup_single_issuer().setup_defer_taskrun().setup_r_disabled().build(RING_SIZE)
}
