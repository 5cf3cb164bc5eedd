//! One connected program, and its requests in flight.
//!
//! State in the agent's memory decides, not that in the arena: a program that puts two requests in a slot, or changes a request while it is
//! served, harms only itself.

use super::Handler;
use super::pinned_state::PinnedState;
use crate::WINDOW_SIZE;
use crate::extent_location::{self, DEVICES_MAX};
use crate::layout::{
    ALL_SLOTS, ANSWERED, LEFT, REGION_FILES, REGION_MARK, REMOTE_MARK, SLEEPS, SLOTS, Slot, left, looked_up,
    near, pending,
};
use crate::message::{Path, Reply, Request};
use parking_lot::Mutex;
use rustix::thread::futex;
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use tameike_core::wire::unit::UnitLocation;
use tameike_core::{Errno, Result};
use tameike_io::disk::HostDevice;
use tameike_io::os::arena::Arena;
use tameike_io::os::socket::{receive_now, send_with_files};

/// Bit beside the count of requests in flight: no request may begin.
const CLOSING: u32 = 1 << 31;

/// Maximum number of rings read from a socket at once.
const RINGS: usize = 4096;
/// Maximum number of descriptors of a program that are kept until a request takes them.
const PASSED_MAX: usize = 4;

/// A connected program.
pub(super) struct Connection<H: Handler> {
    pub handler: Arc<H>,
    pub session: H::Session,
    pub socket: Arc<UnixStream>,
    /// The process, if the system can report its end. A child may hold the socket open for longer.
    pub process: Option<OwnedFd>,
    pub arena: Arena,
    pub pinned: PinnedState,
    /// Slots with requests in flight.
    busy: AtomicU32,
    /// The slot taken last.
    last: AtomicU32,
    in_flight: AtomicU32,
    counts: Arc<Counts>,
    /// Devices that were sent to the program, by number.
    devices: Mutex<Vec<Weak<HostDevice>>>,
    /// Descriptors that the program has sent.
    passed: Mutex<VecDeque<OwnedFd>>,
    /// Wakes a serving thread.
    wakeup: Arc<OwnedFd>,
}

/// Counters for all programs.
#[derive(Default)]
pub(super) struct Counts {
    pub answered: AtomicU64,
    pub declined: AtomicU64,
    /// Of programs that have disconnected.
    pub looked_up: AtomicU64,
}

impl<H: Handler> Connection<H> {
    pub fn new(
        (handler, session, counts): (Arc<H>, H::Session, Arc<Counts>),
        (socket, process): (Arc<UnixStream>, Option<OwnedFd>),
        (arena, wakeup): (Arena, Arc<OwnedFd>),
    ) -> Self {
        let (pinned, busy, last, in_flight, devices, passed) = Default::default();
        Self {
            handler,
            session,
            socket,
            process,
            arena,
            pinned,
            busy,
            last,
            in_flight,
            counts,
            devices,
            passed,
            wakeup,
        }
    }

    /// Reads the rings from the socket, as each later one is an event, and keeps a few descriptors. Returns true if the program still
    /// holds the socket.
    pub fn receive(&self) -> bool {
        let mut passed = self.passed.lock();
        let mut rings = [0; RINGS];
        loop {
            match receive_now(&self.socket, &mut rings) {
                Ok((0, _)) => return false,
                Ok((count, files)) => {
                    // A receive ends after descriptors; there may be more.
                    let is_all = count < RINGS && files.is_empty();
                    let left = PASSED_MAX - passed.len();
                    passed.extend(files.into_iter().take(left));
                    if is_all {
                        return true;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
    }

    /// The program's number of a device; sends the device if the program does not have it.
    fn device(&self, device: &Arc<HostDevice>) -> Option<usize> {
        let mut devices = self.devices.lock();
        let known = devices.iter().position(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(device)));
        if known.is_some() {
            return known;
        }
        let number = devices.len();
        if number == DEVICES_MAX {
            return None;
        }
        // If the socket's buffer is full, the program's next read may find space.
        send_with_files(&self.socket, &[number as u8], &device.descriptors()).ok()?;
        devices.push(Arc::downgrade(device));
        Some(number)
    }

    /// Returns true if there is a request, or handles to close.
    pub fn is_pending(&self) -> bool {
        pending(&self.arena).load(Ordering::Relaxed) & (ALL_SLOTS | LEFT) != 0
    }

    /// Takes a request, if there is one: round-robin, so that no slot starves.
    pub fn take(self: &Arc<Self>) -> Option<Call<H>> {
        self.take_of(pending(&self.arena))
    }

    /// As [`Self::take`], from the bits of `word`.
    pub fn take_of(self: &Arc<Self>, word: &AtomicU32) -> Option<Call<H>> {
        loop {
            let slots = word.load(Ordering::Relaxed) & ALL_SLOTS;
            if slots == 0 {
                return None;
            }
            let later = slots & (ALL_SLOTS << (self.last.load(Ordering::Relaxed) + 1));
            let number = if later == 0 { slots } else { later }.trailing_zeros();
            let bit = 1 << number;
            if word.fetch_and(!bit, Ordering::SeqCst) & bit == 0 {
                continue; // another thread has taken it
            }
            self.last.store(number, Ordering::Relaxed);
            if self.busy.fetch_or(bit, Ordering::AcqRel) & bit != 0 {
                continue; // the program reused the slot before its reply
            }
            if !self.begin() {
                return None;
            }
            let mut call =
                Call { connection: self.clone(), slot: number as usize, request: None, names: Vec::new() };
            call.read();
            return Some(call);
        }
    }

    /// Returns true if handles are left.
    pub fn has_left(&self) -> bool {
        pending(&self.arena).load(Ordering::Relaxed) & LEFT != 0
    }

    /// Closes the left handles.
    pub fn take_left(&self) {
        let words = [pending(&self.arena), near(&self.arena)];
        let is_ours = words.map(|word| word.fetch_and(!LEFT, Ordering::SeqCst) & LEFT != 0).contains(&true);
        if is_ours && self.begin() {
            let _in_flight = InFlight(self);
            let taken = left(&self.arena).map(|place| place.swap(0, Ordering::AcqRel));
            taken.filter(|handle| *handle != 0).for_each(|handle| self.handler.left(&self.session, handle));
        }
    }

    fn begin(&self) -> bool {
        let more = |count: u32| (count & CLOSING == 0).then_some(count + 1);
        self.in_flight.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    fn end(&self) {
        if self.in_flight.fetch_sub(1, Ordering::AcqRel) == CLOSING + 1 {
            self.handler.ended(&self.session);
        }
    }

    /// Number of names that the program has looked up without a request, as it reports.
    pub fn looked_up(&self) -> u64 {
        looked_up(&self.arena).load(Ordering::Relaxed)
    }

    /// The program has disconnected.
    pub fn leaves(&self) {
        self.counts.looked_up.fetch_add(self.looked_up(), Ordering::Relaxed);
        self.handler.leaves(&self.session);
    }

    /// Ends the session after the requests in flight have ended.
    pub fn close(&self) {
        // A child that holds the other end expects no reply.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        if self.in_flight.fetch_or(CLOSING, Ordering::AcqRel) == 0 {
            self.handler.ended(&self.session);
        }
        self.pinned.end(&self.arena);
    }
}

/// Guard of a request in flight.
struct InFlight<'a, H: Handler>(&'a Connection<H>);

impl<H: Handler> Drop for InFlight<'_, H> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A request of a program. If it is dropped without a reply, the call fails with `EIO`.
pub struct Call<H: Handler> {
    connection: Arc<Connection<H>>,
    slot: usize,
    /// `None` if the words are invalid.
    request: Option<Request>,
    names: Vec<u8>,
}

impl<H: Handler> Call<H> {
    /// Copies the request once; later changes by the program have no effect.
    fn read(&mut self) {
        self.request = Request::decode(&self.slot().request());
        let names = self.request.as_ref().map_or(0, Request::names_size);
        if names > 0 {
            self.names = vec![0; names];
            self.connection.arena.copy_out(self.slot().window(), &mut self.names);
        }
    }

    fn slot(&self) -> Slot<'_> {
        Slot::new(&self.connection.arena, self.slot)
    }

    pub(super) fn connection(&self) -> &Arc<Connection<H>> {
        &self.connection
    }

    /// The request; `None` if it is invalid.
    pub fn request(&self) -> Option<Request> {
        self.request
    }

    /// Session of the program.
    pub fn session(&self) -> &H::Session {
        &self.connection.session
    }

    /// Bytes of the first path.
    pub fn name(&self, path: &Path) -> &[u8] {
        &self.names[..path.size as usize]
    }

    /// Bytes of the second path.
    pub fn second_name(&self, first: &Path) -> &[u8] {
        &self.names[first.size as usize..]
    }

    /// The window of the request, until the reply.
    pub fn window(&self) -> Window<H> {
        Window { connection: self.connection.clone(), slot: self.slot }
    }

    /// Sends the reply.
    pub fn answer(mut self, reply: &Reply) {
        self.reply(reply);
    }

    /// Replies with bytes in the window, and their count.
    pub fn answer_with(mut self, bytes: &[u8]) {
        assert!(bytes.len() <= WINDOW_SIZE, "no more than a window");
        self.connection.arena.copy_in(self.slot().window(), bytes);
        self.reply(&Reply::Count(bytes.len() as u32));
    }

    /// Replies with the location of `range` of a unit on a device, to a program that accepts such a reply. Returns the request if the
    /// location cannot be encoded or the device cannot be sent.
    pub fn answer_located(
        mut self,
        device: &Arc<HostDevice>,
        place: &UnitLocation,
        range: &Range<u32>,
    ) -> std::result::Result<(), Self> {
        let device = self.connection.device(device);
        let Some(bytes) = device.and_then(|device| extent_location::encode(device, place, range)) else {
            return Err(self);
        };
        self.connection.arena.copy_in(self.slot().window(), &bytes);
        self.reply(&Reply::Located(range.len() as u32));
        Ok(())
    }

    /// Sends the memory of a region to the program, before [`Reply::Region`].
    ///
    /// # Errors
    /// The other end is closed, or does not read.
    pub fn send_region(&self, memory: &[BorrowedFd<'_>; REGION_FILES]) -> Result<()> {
        send_with_files(&self.connection.socket, &[REGION_MARK], memory)
    }

    /// Sends the memory of a remote memory window to the program, before the reply to [`Request::WindowOpen`].
    ///
    /// # Errors
    /// As [`Self::send_region`].
    pub fn send_window(&self, memory: BorrowedFd<'_>) -> Result<()> {
        send_with_files(&self.connection.socket, &[REMOTE_MARK], &[memory])
    }

    /// Takes the descriptors that the program has sent before the request.
    pub fn take_descriptors(&self) -> VecDeque<OwnedFd> {
        // If the program has ended, its connection is closed by another thread.
        self.connection.receive();
        // A serving thread that was to be woken by a ring finds it read. Fails only if the counter is full, and then a thread is being
        // woken anyway.
        let _ = rustix::io::write(&self.connection.wakeup, &1_u64.to_ne_bytes());
        std::mem::take(&mut *self.connection.passed.lock())
    }

    fn reply(&mut self, reply: &Reply) {
        let Counts { answered, declined, .. } = &*self.connection.counts;
        if *reply == Reply::Declined { declined } else { answered }.fetch_add(1, Ordering::Relaxed);
        let slot = self.slot();
        slot.set_reply(&reply.encode());
        // Before the reply, after which the program can reuse the slot.
        self.connection.busy.fetch_and(!slot.bit(), Ordering::AcqRel);
        if slot.state().swap(ANSWERED, Ordering::AcqRel) & SLEEPS != 0 {
            // Fails only for an unmapped word.
            let _ = futex::wake(slot.state(), futex::Flags::empty(), 1);
        }
        self.slot = SLOTS;
    }
}

impl<H: Handler> Drop for Call<H> {
    fn drop(&mut self) {
        if self.slot < SLOTS {
            self.reply(&Reply::Failed(Errno::EIO.0));
        }
        self.connection.end();
    }
}

/// The window of a request. The program may change its bytes at any time, and reuses it after the reply.
pub struct Window<H: Handler> {
    connection: Arc<Connection<H>>,
    slot: usize,
}

impl<H: Handler> Window<H> {
    /// Copies bytes from `start` on.
    pub fn copy_to(&self, start: usize, into: &mut [u8]) {
        assert!(start + into.len() <= WINDOW_SIZE, "no more than a window");
        let arena = &self.connection.arena;
        arena.copy_out(Slot::new(arena, self.slot).window() + start, into);
    }
}
