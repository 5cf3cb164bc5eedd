//! Requests by io_uring (Linux 6.14): the kernel writes each request into shared memory, and reads the reply from there.
//!
//! Each possible core of the machine has a queue, which receives the requests of programs on that core. A thread bound to the
//! core serves the queue: one system call receives requests and hands over replies, without waking another core. Other threads
//! pass their replies to it.
//!
//! The kernel uses the queues only when all of them are registered, and waits for that. So everything that can fail in user space
//! happens before the session announces queues ([`Rings::new`]): memory, rings and threads. If the kernel later refuses a queue,
//! it falls back to the device.
//!
//! Memory: a queue starts with some entries, each with a frame; all queues together use a part of the view's frames. The kernel
//! must always find a free entry, since a request may wait for a later one, such as an unlock. So a queue adds an entry, with
//! separate memory, whenever its requests in flight reach a new maximum. The kernel assigns waiting requests to an entry that is
//! answered, but not to one that is added (`fuse_uring_do_register`); if all others wait for them, that is never. So each queue
//! has [`SPARE`] more entries, whose memory is allocated on use. The kernel prefers the entry that became free last.

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

/// Largest number of free entries that a queue maintains.
const DEPTH_MAX: u32 = 8;
/// Smallest number, with which a program on the core continues while the request of another is in flight.
const DEPTH_MIN: u32 = 2;
/// Further entries, for bursts on one core before its thread has added entries.
const SPARE: usize = 32;
/// Divisor of the view's frames: the part that queues may use.
const FRAMES_PART: u32 = 4;
/// Smallest payload memory that the kernel accepts.
const PAYLOAD_SIZE_MIN: usize = 8192;

/// The queues of one mount, whose threads wait for the service. Memory of a thread is freed only after its end, since the kernel
/// may write a request into it until then.
pub(super) struct Rings<W = Worker>(Vec<QueueThread<W>>);

struct QueueThread<W> {
    start: mpsc::Sender<Arc<dyn Service>>,
    thread: JoinHandle<Option<W>>,
}

impl Rings {
    /// Creates a queue for each core, with frames of `frames`. Fails if io_uring is forbidden or too old, if memory or
    /// a thread is refused, or if there are too few frames for the cores.
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
    /// Starts a thread for each queue, which prepares its resources. The first failure ends all of them.
    fn prepare<P, R>(queues: u16, queue: impl Fn(u16) -> io::Result<P>) -> io::Result<Self>
    where
        P: FnOnce() -> io::Result<R> + Send + 'static,
        R: FnOnce(&dyn Service) -> W,
    {
        (0..queues).map(|number| start(number, queue(number)?)).collect::<io::Result<_>>().map(Self)
    }

    /// Serves until the unmount.
    pub(super) fn start(&self, service: &Arc<impl Service>) {
        for queue in &self.0 {
            // Fails only if the thread has ended.
            let _ = queue.start.send(service.clone());
        }
    }

    /// Joins the threads, and frees their memory.
    pub(super) fn join(self) {
        for QueueThread { thread, .. } in self.0 {
            drop(thread.join().expect("a thread that serves does not panic"));
        }
    }
}

/// Number of free entries that each queue maintains; `None` if there are too few `frames`.
fn depth(queues: u16, frames: u32) -> Option<usize> {
    let depth = (frames / FRAMES_PART).checked_div(queues.into())?.min(DEPTH_MAX);
    (depth >= DEPTH_MIN).then_some(depth as usize)
}

/// Starts the thread of a queue, and waits until it is prepared.
fn start<W: Send + 'static, R: FnOnce(&dyn Service) -> W>(
    number: u16,
    prepare: impl FnOnce() -> io::Result<R> + Send + 'static,
) -> io::Result<QueueThread<W>> {
    let (sender, receiver) = mpsc::channel();
    let (start, started) = mpsc::channel::<Arc<dyn Service>>();
    let job = move || {
        let (run, prepared) = match prepare() {
            Ok(run) => (Some(run), Ok(())),
            Err(error) => (None, Err(error)),
        };
        // The starting thread waits for this.
        let _ = sender.send(prepared);
        // An error: another queue failed, so `start` was dropped.
        let service = started.recv().ok()?;
        run.map(|run| run(&*service))
    };
    let name = format!("tameike-ring-{number}");
    let thread = process::start_thread(&name, job).map_err(io::Error::other)?;
    receiver.recv().map_err(io::Error::other)??;
    Ok(QueueThread { start, thread })
}
