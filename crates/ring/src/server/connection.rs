//! One program, and its requests under way.
//!
//! What is counted here decides, not what stands in the arena: a program that asks twice in a slot, or changes a request
//! while it is served, hurts itself alone.

use super::Handler;
use super::pinned_state::PinnedState;
use crate::WINDOW_SIZE;
use crate::layout::{ALL_SLOTS, ANSWERED, LEFT, SLEEPS, SLOTS, Slot, left, looked_up, near, pending};
use crate::message::{Path, Reply, Request};
use crate::placed::{self, DEVICES_MAX};
use parking_lot::Mutex;
use rustix::thread::futex;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use tameike_core::Errno;
use tameike_core::wire::unit::UnitPlace;
use tameike_io::disk::HostDevice;
use tameike_io::os::arena::Arena;
use tameike_io::os::socket::send_with_files;

/// Beside the count of requests under way: no other begins.
const CLOSING: u32 = 1 << 31;

/// A program that has connected.
pub(super) struct Connection<H: Handler> {
    pub handler: Arc<H>,
    pub session: H::Session,
    pub socket: Arc<UnixStream>,
    /// The process, where the system tells of its end. A child may hold the socket open for longer.
    pub process: Option<OwnedFd>,
    pub arena: Arena,
    pub pinned: PinnedState,
    /// Slots whose requests are under way.
    busy: AtomicU32,
    /// The slot taken last.
    last: AtomicU32,
    under_way: AtomicU32,
    counts: Arc<Counts>,
    /// Devices that the program has been sent, by number.
    devices: Mutex<Vec<Weak<HostDevice>>>,
}

/// Requests of all programs.
#[derive(Default)]
pub(super) struct Counts {
    pub answered: AtomicU64,
    pub declined: AtomicU64,
    /// By programs that are gone.
    pub looked_up: AtomicU64,
}

impl<H: Handler> Connection<H> {
    pub fn new(
        (handler, session, counts): (Arc<H>, H::Session, Arc<Counts>),
        (socket, process): (Arc<UnixStream>, Option<OwnedFd>),
        arena: Arena,
    ) -> Self {
        let (pinned, busy, last, under_way, devices) = Default::default();
        Self { handler, session, socket, process, arena, pinned, busy, last, under_way, counts, devices }
    }

    /// By which number the program knows a device; it is sent one that it does not know.
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
        // What does not fit the socket now, its next read may find room for.
        send_with_files(&self.socket, &[number as u8], &device.descriptors()).ok()?;
        devices.push(Arc::downgrade(device));
        Some(number)
    }

    /// Whether something is asked.
    pub fn is_pending(&self) -> bool {
        pending(&self.arena).load(Ordering::Relaxed) & (ALL_SLOTS | LEFT) != 0
    }

    /// Takes a request, if there is one: in turn, so that none waits for ever.
    pub fn take(self: &Arc<Self>) -> Option<Asked<H>> {
        self.take_of(pending(&self.arena))
    }

    /// As [`Self::take`], of those whose bits are in a word.
    pub fn take_of(self: &Arc<Self>, word: &AtomicU32) -> Option<Asked<H>> {
        loop {
            let asked = word.load(Ordering::Relaxed) & ALL_SLOTS;
            if asked == 0 {
                return None;
            }
            let later = asked & (ALL_SLOTS << (self.last.load(Ordering::Relaxed) + 1));
            let number = if later == 0 { asked } else { later }.trailing_zeros();
            let bit = 1 << number;
            if word.fetch_and(!bit, Ordering::SeqCst) & bit == 0 {
                continue; // another thread has taken it
            }
            self.last.store(number, Ordering::Relaxed);
            if self.busy.fetch_or(bit, Ordering::AcqRel) & bit != 0 {
                continue; // asked again before it was answered
            }
            if !self.begin() {
                return None;
            }
            let mut asked =
                Asked { connection: self.clone(), slot: number as usize, request: None, names: Vec::new() };
            asked.read();
            return Some(asked);
        }
    }

    /// Whether handles are left.
    pub fn has_left(&self) -> bool {
        pending(&self.arena).load(Ordering::Relaxed) & LEFT != 0
    }

    /// Ends the handles that are left.
    pub fn take_left(&self) {
        let words = [pending(&self.arena), near(&self.arena)];
        let is_ours = words.map(|word| word.fetch_and(!LEFT, Ordering::SeqCst) & LEFT != 0).contains(&true);
        if is_ours && self.begin() {
            let _under_way = UnderWay(self);
            let taken = left(&self.arena).map(|place| place.swap(0, Ordering::AcqRel));
            taken.filter(|handle| *handle != 0).for_each(|handle| self.handler.left(&self.session, handle));
        }
    }

    fn begin(&self) -> bool {
        let more = |count: u32| (count & CLOSING == 0).then_some(count + 1);
        self.under_way.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    fn end(&self) {
        if self.under_way.fetch_sub(1, Ordering::AcqRel) == CLOSING + 1 {
            self.handler.ended(&self.session);
        }
    }

    /// Names that the program has looked up by itself, as it says.
    pub fn looked_up(&self) -> u64 {
        looked_up(&self.arena).load(Ordering::Relaxed)
    }

    /// The program is gone, and counted as one from now on.
    pub fn leaves(&self) {
        self.counts.looked_up.fetch_add(self.looked_up(), Ordering::Relaxed);
        self.handler.leaves(&self.session);
    }

    /// The program is gone: when what is under way has ended, its session does.
    pub fn close(&self) {
        // Of whoever still holds the other end, nobody waits for an answer any more.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        if self.under_way.fetch_or(CLOSING, Ordering::AcqRel) == 0 {
            self.handler.ended(&self.session);
        }
        self.pinned.end(&self.arena);
    }
}

/// Counts until dropped.
struct UnderWay<'a, H: Handler>(&'a Connection<H>);

impl<H: Handler> Drop for UnderWay<'_, H> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A request of a program. Dropped without an answer, it fails with `EIO`.
pub struct Asked<H: Handler> {
    connection: Arc<Connection<H>>,
    slot: usize,
    /// None when the words were no request.
    request: Option<Request>,
    names: Vec<u8>,
}

impl<H: Handler> Asked<H> {
    /// Copies the request, once. What the program writes there from now on is not seen.
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

    /// What is asked; none when it is nothing that can be asked.
    pub fn request(&self) -> Option<Request> {
        self.request
    }

    /// Who asks.
    pub fn session(&self) -> &H::Session {
        &self.connection.session
    }

    /// The bytes of the request's first path.
    pub fn name(&self, path: &Path) -> &[u8] {
        &self.names[..path.size as usize]
    }

    /// The bytes of the path after the first one.
    pub fn second_name(&self, first: &Path) -> &[u8] {
        &self.names[first.size as usize..]
    }

    /// The bytes of the request, until it is answered.
    pub fn window(&self) -> Window<H> {
        Window { connection: self.connection.clone(), slot: self.slot }
    }

    /// Answers.
    pub fn answer(mut self, reply: &Reply) {
        self.reply(reply);
    }

    /// Answers with bytes at the start of the window, whose number the reply tells.
    pub fn answer_with(mut self, bytes: &[u8]) {
        assert!(bytes.len() <= WINDOW_SIZE, "no more than a window");
        self.connection.arena.copy_in(self.slot().window(), bytes);
        self.reply(&Reply::Count(bytes.len() as u32));
    }

    /// Answers with where `range` of a unit lies on a device, for a program that takes such an answer; if that cannot be told, the
    /// request comes back.
    ///
    /// # Errors
    /// The request.
    pub fn answer_placed(
        mut self,
        device: &Arc<HostDevice>,
        place: &UnitPlace,
        range: &Range<u32>,
    ) -> Result<(), Self> {
        let device = self.connection.device(device);
        let Some(bytes) = device.and_then(|device| placed::encode(device, place, range)) else {
            return Err(self);
        };
        self.connection.arena.copy_in(self.slot().window(), &bytes);
        self.reply(&Reply::Placed(range.len() as u32));
        Ok(())
    }

    fn reply(&mut self, reply: &Reply) {
        let Counts { answered, declined, .. } = &*self.connection.counts;
        if *reply == Reply::Declined { declined } else { answered }.fetch_add(1, Ordering::Relaxed);
        let slot = self.slot();
        slot.set_reply(&reply.encode());
        // Before the program can ask again.
        self.connection.busy.fetch_and(!slot.bit(), Ordering::AcqRel);
        if slot.state().swap(ANSWERED, Ordering::AcqRel) & SLEEPS != 0 {
            // Fails only for a word that is not mapped.
            let _ = futex::wake(slot.state(), futex::Flags::empty(), 1);
        }
        self.slot = SLOTS;
    }
}

impl<H: Handler> Drop for Asked<H> {
    fn drop(&mut self) {
        if self.slot < SLOTS {
            self.reply(&Reply::Failed(Errno::EIO.0));
        }
        self.connection.end();
    }
}

/// The window of a request. The program may change its bytes at any time, and has it back with the answer.
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
