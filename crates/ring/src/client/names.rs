//! Names that the agent shows to all its programs ([`crate::names`]): looked up without asking.
//!
//! Paths are walked as the agent walks them, and what is not shown, or not any more, it is asked for. What has been read is
//! true if it still is after it was read: so the clock is looked at last.

use super::Client;
use super::path::is_plain;
use crate::layout::{NAMES, looked_up};
use crate::message::{Start, Status};
use crate::names::{CLOCK, Key, Kind, Said, changes, find};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;
use tameike_io::os::arena::Sight;
use tameike_io::os::process::monotonic;

/// For how long an agent is believed to be there, in nanoseconds: as a program that waits for it looks.
const TRUST: u64 = 50_000_000;

/// What a program knows of who shows it names.
#[derive(Debug)]
pub(super) struct Shown {
    /// Whether the clock of the agent is that of the program.
    is_of_use: bool,
    /// When the agent was last seen to be there.
    seen: AtomicU64,
}

impl Shown {
    /// Of an agent that has said welcome since `begun`.
    pub fn new(notice: &Sight, begun: Duration) -> Self {
        let told = notice.load_long(NAMES + CLOCK);
        // Those of another time name space are hours apart, or what passes while it says welcome.
        let is_of_use = (nanoseconds(begun)..=now()).contains(&told);
        Self { is_of_use, seen: AtomicU64::new(0) }
    }
}

impl Client {
    /// Attributes of the file at a path, if they are shown.
    pub(super) fn known_status(&self, at: Start, path: &[u8]) -> Option<Status> {
        if !self.shown.is_of_use || self.is_broken() || path.starts_with(b"/") || !is_plain(path) {
            return None;
        }
        let view = usize::from(at.view);
        let changes = self.notice.load_long(NAMES + changes(view));
        fence(Ordering::Acquire);
        let mut walk = Walk { notice: &self.notice, view, changes, until: u64::MAX };
        let mut dir = walk.step(at.dir, b"")?;
        let mut names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        let mut name = names.next()?;
        for next in names {
            dir = walk.step(dir, name)?;
            name = next;
        }
        let file = walk.said(Kind::File, dir, name)?;
        let now = now();
        if walk.until <= now || !self.was_agent_there(now) {
            return None;
        }
        looked_up(&self.arena).fetch_add(1, Ordering::Relaxed);
        Some(Status::of_words(&file.value))
    }

    /// Whether the agent was there a moment ago.
    pub(super) fn is_agent_there(&self) -> bool {
        self.was_agent_there(now())
    }

    fn was_agent_there(&self, now: u64) -> bool {
        if now.saturating_sub(self.shown.seen.load(Ordering::Relaxed)) < TRUST {
            return true;
        }
        if self.is_alone() {
            self.give_up();
            return false;
        }
        self.shown.seen.store(now, Ordering::Relaxed);
        true
    }
}

/// One walk along a path.
struct Walk<'a> {
    notice: &'a Sight,
    view: usize,
    /// How often directories of the view had changed when it began.
    changes: u64,
    /// Until when all is true that was read.
    until: u64,
}

impl Walk<'_> {
    fn said(&mut self, kind: Kind, dir: u64, name: &[u8]) -> Option<Said> {
        let key = Key::new(kind, self.view, dir, name)?;
        let said = find(|place| self.notice.load_long(NAMES + place), &key)?;
        self.until = self.until.min(said.until);
        Some(said)
    }

    /// The number of a directory, by its name in another.
    fn step(&mut self, dir: u64, name: &[u8]) -> Option<u64> {
        let said = self.said(Kind::Directory, dir, name)?;
        let [number, changes, ..] = said.value;
        (changes == self.changes).then_some(number)
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn now() -> u64 {
    nanoseconds(monotonic())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::NOTICE_SIZE;
    use tameike_io::os::arena::Notice;

    /// Times of a name space of its own mean nothing here.
    #[test]
    fn who_has_another_clock_is_shown_nothing() {
        let notice = Notice::create("test", NOTICE_SIZE).expect("memory");
        let sight = Sight::map(notice.memory(), NOTICE_SIZE).expect("what was sealed");
        let begun = monotonic();
        let told = |clock: u64| {
            notice.long(NAMES + CLOCK).store(clock, Ordering::Relaxed);
            Shown::new(&sight, begun).is_of_use
        };
        assert!(told(now()));
        assert!(!told(nanoseconds(begun) - 1) && !told(now() + 1_000_000_000));
    }
}
