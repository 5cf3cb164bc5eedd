//! A remote memory window in the address space of the process.
//!
//! The process accesses the memory of ranks on its node by itself, and that of others through the agent ([`super::remote`]).

use super::remote::Remote;
use super::strided::Strided;
use crate::dsm::attached::{self, Attached};
use crate::dsm::{OPENING, errno_of, result_of};
use crate::file::{Result, RingFile};
use rustix::io::Errno;
use std::ffi::CString;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;
use tameike_core::wire::window::{Atomic, Signal};
use tameike_dsm::window::{Comparison, Queue, Shape, Waiter, WindowMemory};
use tameike_io::os::process::monotonic;
use tameike_ring::client::{Answer, Client};

/// Pause after the first attempt to send to a full queue on another node, and the longest one.
const PAUSES: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));

/// A remote memory window.
pub struct Window {
    memory: WindowMemory,
    rank: u32,
    /// For each rank whether it is a process of this node.
    near: Vec<bool>,
    remote: Remote,
    attached: Attached,
    /// Open as long as the process is attached.
    file: RingFile,
    path: CString,
}

/// A message queue of a rank.
#[derive(Clone, Copy)]
pub struct QueueAt {
    /// The rank.
    pub rank: u32,
    /// Offset of the queue in its memory.
    pub offset: u64,
}

fn errno(error: tameike_core::Errno) -> Errno {
    Errno::from_raw_os_error(error.0)
}

impl Window {
    /// Attaches to the window of a file, and waits for all other ranks.
    pub fn attach(file: RingFile, path: CString, shape: Shape, rank: u32) -> Result<Self> {
        let client = file.client();
        let (memory, attached) = {
            let _opening = OPENING.lock();
            let opened = client.open_window(file.handle(), shape.rank(rank), shape.ranks());
            let opened = result_of(opened)?;
            (opened.memory, Attached { client, region: opened.number })
        };
        let ready = WindowMemory::map(&memory, shape).map_err(|error| errno_of(&error)).and_then(|mapped| {
            mapped.reserve(&memory, rank).map_err(errno)?;
            result_of(client.wait_for_region(attached.region))?;
            let mut near = vec![0; shape.ranks() as usize];
            result_of(client.near_ranks(attached.region, &mut near))?;
            Ok((mapped, near.into_iter().map(|near| near != 0).collect()))
        });
        match ready {
            Ok((memory, near)) => {
                attached::add(attached);
                let remote = Remote::new(client, attached.region);
                Ok(Self { memory, rank, near, remote, attached, file, path })
            }
            Err(error) => {
                // The call fails in any case.
                let _: Answer<()> = attached.close();
                Err(error)
            }
        }
    }

    fn client(&self) -> &'static Client {
        self.attached.client
    }

    /// Fails with `EIO` in a child of the process that attached, and after the agent has failed.
    fn check(&self) -> Result<()> {
        if self.client().is_broken() { Err(Errno::IO) } else { Ok(()) }
    }

    /// Returns true in a child of the process that attached.
    pub fn is_child(&self) -> bool {
        self.client().is_child()
    }

    /// Returns true if a rank is a process of this node.
    fn is_near(&self, rank: u32) -> Result<bool> {
        self.check()?;
        self.near.get(rank as usize).copied().ok_or(Errno::INVAL)
    }

    /// Checks that bytes are in the memory of a rank.
    fn check_range(&self, offset: u64, size: u64) -> Result<()> {
        let end = offset.checked_add(size).ok_or(Errno::INVAL)?;
        if end <= self.size() { Ok(()) } else { Err(Errno::INVAL) }
    }

    /// Checks that a word is in the memory of a rank.
    fn check_word(&self, offset: u64) -> Result<()> {
        if offset.is_multiple_of(8) { self.check_range(offset, 8) } else { Err(Errno::INVAL) }
    }

    /// Size of the memory of each rank.
    pub fn size(&self) -> u64 {
        self.memory.shape().bytes()
    }

    /// The rank of this process, and the number of ranks.
    pub fn rank(&self) -> (u32, u32) {
        (self.rank, self.memory.shape().ranks())
    }

    /// Path of the file.
    pub fn path(&self) -> &CString {
        &self.path
    }

    /// Address of the memory of a rank of this node.
    pub fn address(&self, rank: u32) -> Result<usize> {
        if self.is_near(rank)? { self.memory.address(rank).map_err(errno) } else { Err(Errno::INVAL) }
    }

    /// Stores bytes; then, once they are there, changes a word.
    pub fn put(&self, rank: u32, offset: u64, from: &[u8], signal: Option<Signal>) -> Result<()> {
        let is_near = self.is_near(rank)?;
        self.check_range(offset, from.len() as u64)?;
        if let Some(signal) = signal {
            self.check_word(signal.offset)?;
        }
        if !is_near {
            return self.remote.put(rank, offset, from, signal);
        }
        self.memory.store(rank, offset, from).map_err(errno)?;
        if let Some(signal) = signal {
            self.memory.change(rank, signal.offset, signal.change).map_err(errno)?;
        }
        self.memory.changed(rank).map_err(errno)
    }

    /// Loads bytes.
    pub fn get(&self, rank: u32, offset: u64, into: &mut [u8]) -> Result<()> {
        let is_near = self.is_near(rank)?;
        self.check_range(offset, into.len() as u64)?;
        if is_near {
            return self.memory.load(rank, offset, into).map_err(errno);
        }
        self.remote.get(rank, offset, into)
    }

    /// Stores elements of the program's memory.
    ///
    /// # Safety
    /// The elements are valid for reads, and do not change during the call.
    pub unsafe fn put_strided(&self, rank: u32, to: &Strided, from: *const u8) -> Result<()> {
        let is_near = self.is_near(rank)?;
        to.check(self.size())?;
        if !is_near {
            for part in to.parts() {
                let mut packed = vec![0; part.total()];
                // SAFETY: by the contract above.
                unsafe { part.pack(from, &mut packed) };
                match part.message() {
                    Some(elements) => self.remote.put_elements(rank, elements, &packed)?,
                    None => self.remote.put(rank, part.offset(), &packed, None)?,
                }
            }
            return Ok(());
        }
        for number in 0..to.count() {
            // SAFETY: by the contract above.
            let element = unsafe { to.element(from, number) };
            self.memory.store(rank, to.offset_of(number), element).map_err(errno)?;
        }
        self.memory.changed(rank).map_err(errno)
    }

    /// Loads elements into the program's memory.
    ///
    /// # Safety
    /// The elements are valid for writes, and no other thread accesses them during the call.
    pub unsafe fn get_strided(&self, rank: u32, from: &Strided, into: *mut u8) -> Result<()> {
        let is_near = self.is_near(rank)?;
        from.check(self.size())?;
        if !is_near {
            for part in from.parts() {
                let mut packed = vec![0; part.total()];
                match part.message() {
                    Some(elements) => self.remote.get_elements(rank, elements, &mut packed)?,
                    None => self.remote.get(rank, part.offset(), &mut packed)?,
                }
                // SAFETY: by the contract above.
                unsafe { part.unpack(&packed, into) };
            }
            return Ok(());
        }
        for number in 0..from.count() {
            // SAFETY: by the contract above.
            let element = unsafe { from.element_mut(into, number) };
            self.memory.load(rank, from.offset_of(number), element).map_err(errno)?;
        }
        Ok(())
    }

    /// Executes an atomic operation on a word.
    pub fn atomic(&self, rank: u32, offset: u64, operation: Atomic) -> Result<u64> {
        let is_near = self.is_near(rank)?;
        self.check_word(offset)?;
        if is_near {
            return self.memory.atomic(rank, offset, operation).map_err(errno);
        }
        self.remote.atomic(rank, offset, operation)
    }

    /// Orders later accesses to each rank after the puts to it before.
    pub fn fence(&self) -> Result<()> {
        self.check()?;
        fence(Ordering::SeqCst);
        self.remote.fence()
    }

    /// Waits until all puts are in their memory.
    pub fn quiet(&self) -> Result<()> {
        self.check()?;
        fence(Ordering::SeqCst);
        self.remote.quiet()
    }

    /// Completes all puts, and waits for all ranks.
    pub fn barrier(&self) -> Result<()> {
        let quiet = self.quiet();
        // Also after a failed put: the others wait.
        let released = result_of(self.client().wait_for_region(self.attached.region));
        fence(Ordering::SeqCst);
        released.and(quiet)
    }

    fn wait<T>(
        &self,
        rank: u32,
        until: Option<Duration>,
        attempt: impl FnMut() -> std::result::Result<Option<T>, tameike_core::Errno>,
    ) -> Result<T> {
        self.check()?;
        let client = self.client();
        let waiter = Waiter { rank, until, gives_up: &|| client.has_ended() };
        self.memory.wait(&waiter, attempt).map_err(errno)
    }

    /// Waits until an own word has a value.
    pub fn wait_until(&self, offset: u64, value: (Comparison, u64), until: Option<Duration>) -> Result<()> {
        self.wait(self.rank, until, || Ok(self.memory.test(self.rank, offset, value)?.then_some(())))
    }

    /// Returns true if an own word has a value.
    pub fn test(&self, offset: u64, value: (Comparison, u64)) -> Result<bool> {
        self.check()?;
        self.memory.test(self.rank, offset, value).map_err(errno)
    }

    /// Creates a message queue in the own memory.
    pub fn create_queue(&self, offset: u64, slots: u64, message_size: u64) -> Result<()> {
        self.check()?;
        Queue::create(&self.memory, (self.rank, offset), slots, message_size).map(drop).map_err(errno)
    }

    /// Appends a message to a queue; waits while it is full.
    pub fn send(&self, queue: QueueAt, message: &[u8], until: Option<Duration>) -> Result<()> {
        let QueueAt { rank, offset } = queue;
        if !self.is_near(rank)? {
            return self.send_far(queue, message, until);
        }
        let queue = Queue::open(&self.memory, (rank, offset)).map_err(errno)?;
        self.wait(rank, until, || Ok(queue.send(message)?.then_some(())))
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "no event shows here that a queue on another node has a free slot"
    )]
    fn send_far(&self, queue: QueueAt, message: &[u8], until: Option<Duration>) -> Result<()> {
        let (mut pause, longest) = PAUSES;
        loop {
            match self.remote.send(queue.rank, queue.offset, message) {
                Err(Errno::AGAIN) => {}
                sent => return sent,
            }
            self.memory.check_whole(self.rank).map_err(errno)?;
            let left = until.map_or(pause, |until| until.saturating_sub(monotonic()));
            if left.is_zero() {
                return Err(Errno::AGAIN);
            }
            std::thread::sleep(pause.min(left));
            pause = longest.min(pause * 2);
        }
    }

    /// Takes the oldest message of an own queue, and waits for it. Returns its size.
    pub fn receive(&self, offset: u64, into: &mut [u8], until: Option<Duration>) -> Result<usize> {
        self.check()?;
        let queue = Queue::open(&self.memory, (self.rank, offset)).map_err(errno)?;
        self.wait(self.rank, until, || queue.receive(into))
    }

    /// Completes all puts and detaches.
    pub fn detach(self) -> Result<()> {
        // In a child, the window is that of the parent, with its transfers.
        if self.is_child() {
            std::mem::forget(self);
            return Err(Errno::IO);
        }
        let quiet = self.quiet();
        // At the end of the process, the window may be closed already.
        let detached =
            if attached::remove(self.attached) { result_of(self.attached.close()) } else { Ok(()) };
        let Self { memory, remote, file, .. } = self;
        drop(remote);
        drop(memory);
        let closed = file.close();
        quiet.and(detached).and(closed)
    }
}
