//! Requests by io_uring (Linux 6.14): the kernel puts each into memory of ours, and takes the answer from there.
//!
//! There is a queue for each core that the machine may have, and the kernel sends a request to that of the core on which a
//! program makes it. A queue has a thread, bound to its core, which takes requests in and hands answers over: one system
//! call does both, and no other core is woken. Who answers from another thread leaves the answer to it.
//!
//! The kernel uses the queues only when all of them are there, and waits for that. So everything of ours that can fail is done
//! before it is told that rings are wanted ([`Rings::new`]): memory, rings and threads of all queues. When it refuses one
//! itself later, it goes back to the device.
//!
//! Memory: a queue begins with some entries, each with a frame; all queues together may have a part of the frames of the
//! view. The kernel must always find a free entry, since what a request waits for, as a lock, may be brought by the next: one
//! more, with memory of its own, is added whenever more requests are under way than ever before. Requests that come while there is no
//! free one the kernel gives to an entry that is answered, but not to one that is added (`fuse_uring_do_register`): where all others wait
//! for them, never. So there are [`SPARE`] more, of which memory is taken when they are used; and the kernel uses the one first that was
//! free last.

mod memory;
mod queue;
#[cfg(test)]
mod tests;
mod worker;

pub(super) use queue::Slot;

use super::Service;
use super::device::Device;
use rustix::param::page_size;
use std::io;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use tameike_core::limits::UNIT_SIZE;
use tameike_io::os::process;
use tameike_io::slab::Pool;
use worker::Worker;

/// Most requests that a queue can take in beside those that are under way.
const DEPTH_MAX: u32 = 8;
/// Fewest, with which a program on the core goes on while another one's request is answered.
const DEPTH_MIN: u32 = 2;
/// Entries beside these, for requests of one core that come before its thread has added others.
const SPARE: usize = 32;
/// One part in so many of a view's frames is room for requests in rings.
const FRAMES_PART: u32 = 4;
/// Least memory for what a request carries, by the kernel's rules.
const PAYLOAD_SIZE_MIN: usize = 8192;

/// The rings of one mount: threads that are ready, and wait for what they shall serve. What a thread has used is dropped
/// when it has ended: until then the kernel may put a request into its memory.
pub(super) struct Rings<W = Worker>(Vec<QueueThread<W>>);

/// The thread of a queue.
struct QueueThread<W> {
    start: mpsc::Sender<Arc<dyn Service>>,
    thread: JoinHandle<Option<W>>,
}

impl Rings {
    /// A ring for each core, with frames of `frames`.
    ///
    /// # Errors
    /// io_uring is forbidden or too old; memory or a thread is refused; there are too few frames for so many cores.
    pub(super) fn new(device: &Device, request_size: u32, frames: &Pool) -> io::Result<Self> {
        let payload_size = (request_size as usize).next_multiple_of(page_size()).max(PAYLOAD_SIZE_MIN);
        let queues = process::cores_possible()?;
        let depth = depth(queues, frames.share()).filter(|_| payload_size <= UNIT_SIZE).ok_or_else(|| {
            let wanted = u32::from(queues) * DEPTH_MIN * FRAMES_PART;
            io::Error::other(format!("rings for {queues} cores need {wanted} frames of the view"))
        })?;
        Self::prepare(queues, |number| {
            let (device, frames) = (device.duplicate()?, frames.clone());
            Ok(move || {
                let worker = Worker::new(number, device, (depth, payload_size), &frames)?;
                Ok(move |service: &dyn Service| worker.run(service))
            })
        })
    }
}

impl<W: Send + 'static> Rings<W> {
    /// A thread for each queue, which prepares what it needs. The first failure ends those that are there.
    fn prepare<P, R>(queues: u16, queue: impl Fn(u16) -> io::Result<P>) -> io::Result<Self>
    where
        P: FnOnce() -> io::Result<R> + Send + 'static,
        R: FnOnce(&dyn Service) -> W,
    {
        (0..queues).map(|number| start(number, queue(number)?)).collect::<io::Result<_>>().map(Self)
    }

    /// Serves until the file system is unmounted.
    pub(super) fn start(&self, service: &Arc<impl Service>) {
        for queue in &self.0 {
            // Its thread waits for it.
            let _ = queue.start.send(service.clone());
        }
    }

    /// Waits until the threads have ended, and drops what they have used.
    pub(super) fn join(self) {
        for QueueThread { thread, .. } in self.0 {
            drop(thread.join().expect("a thread that serves does not panic"));
        }
    }
}

/// Requests that each queue can take in beside those that are under way; none if `frames` are too few for so many queues.
fn depth(queues: u16, frames: u32) -> Option<usize> {
    let depth = (frames / FRAMES_PART).checked_div(queues.into())?.min(DEPTH_MAX);
    (depth >= DEPTH_MIN).then_some(depth as usize)
}

/// Starts the thread of a queue, and returns when that has prepared itself.
fn start<W: Send + 'static, R: FnOnce(&dyn Service) -> W>(
    number: u16,
    prepare: impl FnOnce() -> io::Result<R> + Send + 'static,
) -> io::Result<QueueThread<W>> {
    let (tell, told) = mpsc::channel();
    let (start, started) = mpsc::channel::<Arc<dyn Service>>();
    let job = move || {
        let (run, prepared) = match prepare() {
            Ok(run) => (Some(run), Ok(())),
            Err(error) => (None, Err(error)),
        };
        // Who started this thread waits for it.
        let _ = tell.send(prepared);
        // It drops `start` when another queue cannot be had.
        let service = started.recv().ok()?;
        run.map(|run| run(&*service))
    };
    let name = format!("tameike-ring-{number}");
    let thread = process::start_thread(&name, job).map_err(io::Error::other)?;
    told.recv().map_err(io::Error::other)??;
    Ok(QueueThread { start, thread })
}
