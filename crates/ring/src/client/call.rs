//! One call: from a free slot to the answer in it.
//!
//! Why no wake-up is lost, neither of the agent nor of the program, is said in `server::watch`, where the other half is.

use super::Client;
use super::slots::Claim;
use crate::WINDOW_SIZE;
use crate::layout::{ACCOMPANIED, ANSWERED, ASKED, RESTS, SLEEPS, SLOTS, Slot, core, near, pending};
use crate::message::{Reply, Request};
use crate::server::watch;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use rustix::thread::{futex, sched_getcpu};
use rustix::time::Timespec;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;
use tameike_io::os::process::monotonic;

/// How often a program that waits looks whether the agent is still there; less than a second.
const SLICE: Duration = Duration::from_millis(50);
/// By how much of a window more is had at once than is wanted, in bytes.
const POPULATE_STEP: usize = 64 << 10;

/// How much of each window has pages.
pub(super) type Populated = [AtomicU32; SLOTS];

/// Why there is no reply.
pub(super) enum NoReply {
    Declined,
    Broken,
}

impl Client {
    /// Takes a slot whose window has memory for `size` bytes.
    pub(super) fn claim(&self, size: usize) -> Result<Claim<'_>, NoReply> {
        if self.is_broken() {
            return Err(NoReply::Broken);
        }
        let is_in_vain = || self.is_broken() || self.is_alone();
        let Some(claim) = self.slots.claim(is_in_vain) else {
            return Err(if is_in_vain() { self.give_up() } else { NoReply::Declined });
        };
        self.populate(&claim, size)?;
        Ok(claim)
    }

    /// Takes a slot of which there are more than `spare`, as [`Self::claim`] does, or none.
    pub(super) fn try_claim(&self, size: usize, spare: usize) -> Result<Option<Claim<'_>>, NoReply> {
        if self.is_broken() {
            return Err(NoReply::Broken);
        }
        let Ok(claim) = self.slots.try_claim(spare) else { return Ok(None) };
        self.populate(&claim, size)?;
        Ok(Some(claim))
    }

    /// Has the slot's window have memory for `size` bytes.
    fn populate(&self, claim: &Claim<'_>, size: usize) -> Result<(), NoReply> {
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

    /// Copies slices one after the other into the window.
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

    /// Asks, and waits for the answer.
    pub(super) fn ask(&self, claim: &Claim<'_>, request: &Request) -> Result<Reply, NoReply> {
        self.put_request(claim, request);
        let bit = self.slot(claim).bit();
        if self.hand_over_near(bit) {
            self.near.waits();
            self.sleep(claim, None)?;
        } else {
            self.announce(bit);
            self.wait(claim, None)?;
        }
        self.reply(claim)
    }

    /// Asks.
    pub(super) fn post(&self, claim: &Claim<'_>, request: &Request) {
        self.put_request(claim, request);
        self.announce(self.slot(claim).bit());
    }

    fn put_request(&self, claim: &Claim<'_>, request: &Request) {
        let slot = self.slot(claim);
        slot.set_request(&request.encode());
        slot.state().store(ASKED, Ordering::Relaxed);
    }

    /// Has the agent find what `bit` stands for.
    pub(super) fn announce(&self, bit: u32) {
        pending(&self.arena).fetch_or(bit, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if watch::wants_ring(self.notice.load(watch::WATCH)) {
            self.ring();
        }
    }

    /// Has the pinned server alone find what `bit` stands for; whether there is one that does so at once. It is at something else for
    /// long only for another call of this program.
    pub(super) fn hand_over_near(&self, bit: u32) -> bool {
        if !self.near.is_wanted() || self.slots.are_shared() {
            return false;
        }
        core(&self.arena).store(sched_getcpu() as u32 + 1, Ordering::Relaxed);
        let word = near(&self.arena);
        if word.load(Ordering::Relaxed) & ACCOMPANIED == 0 {
            return false;
        }
        let before = word.fetch_or(bit, Ordering::SeqCst);
        if before & RESTS != 0 {
            // Fails only for a word that is not mapped.
            let _ = futex::wake(word, futex::Flags::empty(), 1);
        }
        // One that has gone meanwhile may have taken it yet.
        before & ACCOMPANIED != 0 || word.fetch_and(!bit, Ordering::SeqCst) & bit == 0
    }

    /// The answer, once it is there.
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
            // As many rings as the socket takes are there already.
            Ok(_) | Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => {}
            Err(_) => drop(self.give_up()),
        }
    }

    pub(super) fn is_answered(&self, claim: &Claim<'_>) -> bool {
        self.slot(claim).state().load(Ordering::Acquire) & ANSWERED != 0
    }

    /// Waits for the answer, but not beyond `until` on the monotonic clock; whether it is there.
    pub(super) fn wait(&self, claim: &Claim<'_>, until: Option<Duration>) -> Result<bool, NoReply> {
        let Err(wait) = self.spin.look(|| self.is_answered(claim)) else { return Ok(true) };
        self.near.disappointed();
        let is_there = self.sleep(claim, until)?;
        if is_there {
            self.spin.slept(&wait);
        }
        Ok(is_there)
    }

    /// As [`Self::wait`], without looking first.
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

    /// No call is answered any more.
    pub(super) fn give_up(&self) -> NoReply {
        self.broken.store(true, Ordering::Relaxed);
        NoReply::Broken
    }
}
