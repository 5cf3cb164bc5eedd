//! One call: from a free slot to its reply.
//!
//! `server::watch` explains why no wake-up of either side is lost.

use super::Client;
use super::pace::Pace;
use super::slots::{Claim, Slots};
use crate::WINDOW_SIZE;
use crate::layout::{ACCOMPANIED, ANSWERED, REQUESTED, RESTS, SLEEPS, SLOTS, Slot, core, near, pending};
use crate::message::{Reply, Request};
use crate::server::watch;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use rustix::thread::{futex, sched_getcpu};
use rustix::time::Timespec;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;
use tameike_io::os::process::monotonic;

/// How often a waiting program checks that the agent still runs; less than a second.
const SLICE: Duration = Duration::from_millis(50);
/// Granularity in which memory of a window is populated, in bytes.
const POPULATE_STEP: usize = 64 << 10;

/// Populated bytes of each window.
pub(super) type Populated = [AtomicU32; SLOTS];

/// Reason for a missing reply.
pub(super) enum NoReply {
    Declined,
    Broken,
}

impl Client {
    /// Takes a slot, and populates its window with `size` bytes.
    pub(super) fn claim(&self, size: usize) -> Result<Claim<'_>, NoReply> {
        let claim = self.claim_of(&self.slots, self.fault_slots(), true)?;
        self.populate(&claim, size)?;
        Ok(claim)
    }

    /// Takes one of `slots` if more than `spare` are free, or waits for it: for a limited time, or until the connection is broken.
    pub(super) fn claim_of<'a>(
        &self,
        slots: &'a Slots,
        spare: usize,
        limited: bool,
    ) -> Result<Claim<'a>, NoReply> {
        if self.is_broken() {
            return Err(NoReply::Broken);
        }
        let must_give_up = || self.is_broken() || self.is_alone();
        let claim = slots.claim(spare, limited, must_give_up);
        claim.ok_or_else(|| if must_give_up() { self.give_up() } else { NoReply::Declined })
    }

    /// As [`Self::claim`] without waiting, if more than `spare` slots are free.
    pub(super) fn try_claim(&self, size: usize, spare: usize) -> Result<Option<Claim<'_>>, NoReply> {
        if self.is_broken() {
            return Err(NoReply::Broken);
        }
        let Ok(claim) = self.slots.try_claim(spare) else { return Ok(None) };
        self.populate(&claim, size)?;
        Ok(Some(claim))
    }

    /// Populates the slot's window with memory for `size` bytes.
    pub(super) fn populate(&self, claim: &Claim<'_>, size: usize) -> Result<(), NoReply> {
        let populated = &self.populated[claim.number];
        let has = populated.load(Ordering::Relaxed) as usize;
        if has < size {
            let wanted = size.next_multiple_of(POPULATE_STEP).min(WINDOW_SIZE);
            let window = self.slot(claim).window();
            if self.arena.populate(window + has, wanted - has).is_err() {
                return Err(NoReply::Declined);
            }
            populated.store(wanted as u32, Ordering::Relaxed);
        }
        Ok(())
    }

    fn slot(&self, claim: &Claim<'_>) -> Slot<'_> {
        Slot::new(&self.arena, claim.number)
    }

    /// Copies slices to the window, one after the other.
    pub(super) fn put<'b>(&self, claim: &Claim<'_>, parts: impl Iterator<Item = &'b [u8]>) {
        let mut at = self.slot(claim).window();
        for part in parts {
            self.arena.copy_in(at, part);
            at += part.len();
        }
    }

    /// Copies bytes from the start of the window.
    pub(super) fn get<'b>(&self, claim: &Claim<'_>, parts: impl Iterator<Item = &'b mut [u8]>) {
        let mut at = self.slot(claim).window();
        for part in parts {
            self.arena.copy_out(at, part);
            at += part.len();
        }
    }

    /// Sends a request, and waits for the reply.
    pub(super) fn ask(&self, claim: &Claim<'_>, request: &Request) -> Result<Reply, NoReply> {
        self.ask_at(&self.file_pace, claim, request)
    }

    /// As [`Self::ask`], for a request of another pace than those on files.
    pub(super) fn ask_at(&self, pace: &Pace, claim: &Claim<'_>, request: &Request) -> Result<Reply, NoReply> {
        self.put_request(claim, request);
        let bit = self.slot(claim).bit();
        if self.hand_over_near(pace, bit) {
            pace.waits_near();
            self.sleep(claim, None)?;
        } else {
            self.announce(bit);
            self.wait_at(pace, claim, None)?;
        }
        self.reply(claim)
    }

    /// As [`Self::ask`], for a request that may wait for other processes or nodes.
    pub(super) fn ask_long(&self, claim: &Claim<'_>, request: &Request) -> Result<Reply, NoReply> {
        self.post(claim, request);
        self.wait_at(&self.wait_pace, claim, None)?;
        self.reply(claim)
    }

    /// Sends a request.
    pub(super) fn post(&self, claim: &Claim<'_>, request: &Request) {
        self.put_request(claim, request);
        self.announce(self.slot(claim).bit());
    }

    fn put_request(&self, claim: &Claim<'_>, request: &Request) {
        let slot = self.slot(claim);
        slot.set_request(&request.encode());
        slot.state().store(REQUESTED, Ordering::Relaxed);
    }

    /// Announces the work of `bit` to the agent.
    pub(super) fn announce(&self, bit: u32) {
        pending(&self.arena).fetch_or(bit, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if watch::wants_ring(self.notice.load(watch::WATCH)) {
            self.ring();
        }
    }

    /// Hands the work of `bit` to the pinned server only; false if there is none that serves it at once. The server is busy for long only
    /// with another call of this program.
    pub(super) fn hand_over_near(&self, pace: &Pace, bit: u32) -> bool {
        if !pace.is_near() || self.slots.are_shared() {
            return false;
        }
        core(&self.arena).store(sched_getcpu() as u32 + 1, Ordering::Relaxed);
        let word = near(&self.arena);
        if word.load(Ordering::Relaxed) & ACCOMPANIED == 0 {
            return false;
        }
        let before = word.fetch_or(bit, Ordering::SeqCst);
        if before & RESTS != 0 {
            // Fails only for an unmapped word.
            let _ = futex::wake(word, futex::Flags::empty(), 1);
        }
        // A server that has ended meanwhile may have taken the bit.
        before & ACCOMPANIED != 0 || word.fetch_and(!bit, Ordering::SeqCst) & bit == 0
    }

    /// The reply of an answered slot.
    pub(super) fn reply(&self, claim: &Claim<'_>) -> Result<Reply, NoReply> {
        match Reply::decode(&self.slot(claim).reply()) {
            Some(Reply::Declined) => Err(NoReply::Declined),
            Some(reply) => Ok(reply),
            None => Err(self.give_up()),
        }
    }

    /// Wakes a thread of the agent.
    fn ring(&self) {
        match send(&self.socket, &[1], SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            // The socket's buffer is full of rings.
            Ok(_) | Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => {}
            Err(_) => drop(self.give_up()),
        }
    }

    pub(super) fn is_answered(&self, claim: &Claim<'_>) -> bool {
        self.slot(claim).state().load(Ordering::Acquire) & ANSWERED != 0
    }

    /// Waits for the reply until `until` on the monotonic clock; returns true if it is there.
    pub(super) fn wait(&self, claim: &Claim<'_>, until: Option<Duration>) -> Result<bool, NoReply> {
        self.wait_at(&self.file_pace, claim, until)
    }

    fn wait_at(&self, pace: &Pace, claim: &Claim<'_>, until: Option<Duration>) -> Result<bool, NoReply> {
        let Err(wait) = pace.poll(|| self.is_answered(claim)) else { return Ok(true) };
        let is_there = self.sleep(claim, until)?;
        if is_there {
            pace.slept(&wait);
        }
        Ok(is_there)
    }

    /// As [`Self::wait`], without polling first.
    fn sleep(&self, claim: &Claim<'_>, until: Option<Duration>) -> Result<bool, NoReply> {
        let slot = self.slot(claim);
        let mut state = slot.state().fetch_or(SLEEPS, Ordering::AcqRel) | SLEEPS;
        while state & ANSWERED == 0 {
            let left = until.map_or(SLICE, |until| until.saturating_sub(monotonic()).min(SLICE));
            if left.is_zero() {
                return Ok(false);
            }
            let left = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
            let woken = futex::wait(slot.state(), futex::Flags::empty(), state, Some(&left));
            state = slot.state().load(Ordering::Acquire);
            if woken == Err(Errno::TIMEDOUT) && state & ANSWERED == 0 && self.is_alone() {
                return Err(self.give_up());
            }
        }
        Ok(true)
    }

    /// Marks the connection as broken: no later call is answered.
    pub(super) fn give_up(&self) -> NoReply {
        self.broken.store(true, Ordering::Relaxed);
        NoReply::Broken
    }
}
