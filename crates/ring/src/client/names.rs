//! Lookups in the names that the agent publishes ([`crate::names`]), without a request.
//!
//! Paths are walked as the agent walks them; names that are not published, or not valid any more, take a request. An entry must still be
//! valid after it was read, so the clock is read last.

use super::Client;
use super::path::is_plain;
use crate::layout::{NAMES, looked_up};
use crate::message::{Start, Status};
use crate::names::{CLOCK, Key, Kind, NameEntry, changes, files_until, find, nanoseconds};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;
use tameike_io::os::arena::Sight;
use tameike_io::os::process::monotonic;

/// How long an agent is assumed to run after a check, in nanoseconds: as in a wait for a reply.
const TRUST: u64 = 50_000_000;

/// State of lookups in published names.
#[derive(Debug)]
pub(super) struct PublishedNames {
    /// The agent has the same clock as the program.
    is_usable: bool,
    /// Time of the last check that the agent runs.
    seen: AtomicU64,
}

impl PublishedNames {
    /// `begun` is a time before the agent's welcome.
    pub fn new(notice: &Sight, begun: Duration) -> Self {
        let clock = notice.load_long(NAMES + CLOCK);
        // Clocks of different time namespaces differ by hours, or by at least the time of the welcome.
        let is_usable = (nanoseconds(begun)..=now()).contains(&clock);
        Self { is_usable, seen: AtomicU64::new(0) }
    }
}

impl Client {
    /// Attributes of the file at a path, if they are published.
    pub(super) fn known_status(&self, at: Start, path: &[u8]) -> Option<Status> {
        if !self.published.is_usable || self.is_broken() || path.starts_with(b"/") || !is_plain(path) {
            return None;
        }
        let view = usize::from(at.view);
        let changes = self.notice.load_long(NAMES + changes(view));
        let until = self.notice.load_long(NAMES + files_until(view));
        fence(Ordering::Acquire);
        let mut walk = Walk { notice: &self.notice, view, changes, until };
        let mut dir = walk.step(at.dir, b"")?;
        let mut names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        let mut name = names.next()?;
        for next in names {
            dir = walk.step(dir, name)?;
            name = next;
        }
        let file = walk.entry(Kind::File, dir, name)?;
        let now = now();
        if walk.until <= now || !self.was_agent_there(now) {
            return None;
        }
        looked_up(&self.arena).fetch_add(1, Ordering::Relaxed);
        Some(Status::of_words(&file.value))
    }

    /// Returns true if the agent ran a moment ago.
    pub(super) fn is_agent_there(&self) -> bool {
        self.was_agent_there(now())
    }

    fn was_agent_there(&self, now: u64) -> bool {
        if now.saturating_sub(self.published.seen.load(Ordering::Relaxed)) < TRUST {
            return true;
        }
        if self.is_alone() {
            self.give_up();
            return false;
        }
        self.published.seen.store(now, Ordering::Relaxed);
        true
    }
}

/// One walk along a path.
struct Walk<'a> {
    notice: &'a Sight,
    view: usize,
    /// Number of directory changes of the view at the beginning.
    changes: u64,
    /// End of validity of everything that was read.
    until: u64,
}

impl Walk<'_> {
    fn entry(&mut self, kind: Kind, dir: u64, name: &[u8]) -> Option<NameEntry> {
        let key = Key::new(kind, self.view, dir, name)?;
        let entry = find(|place| self.notice.load_long(NAMES + place), &key)?;
        self.until = self.until.min(entry.until);
        Some(entry)
    }

    /// The inode number of a subdirectory, or of the directory itself for an empty name.
    fn step(&mut self, dir: u64, name: &[u8]) -> Option<u64> {
        let [number, changes, ..] = self.entry(Kind::Directory, dir, name)?.value;
        (changes == self.changes).then_some(number)
    }
}

fn now() -> u64 {
    nanoseconds(monotonic())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::NOTICE_SIZE;
    use tameike_io::os::arena::Notice;

    /// A process in another time namespace has another clock.
    #[test]
    fn a_program_with_another_clock_uses_no_published_names() {
        let notice = Notice::create("test", NOTICE_SIZE).expect("memory");
        let sight = Sight::map(notice.memory(), NOTICE_SIZE).expect("what was sealed");
        let begun = monotonic();
        let is_usable = |clock: u64| {
            notice.long(NAMES + CLOCK).store(clock, Ordering::Relaxed);
            PublishedNames::new(&sight, begun).is_usable
        };
        assert!(is_usable(now()));
        assert!(!is_usable(nanoseconds(begun) - 1) && !is_usable(now() + 1_000_000_000));
    }
}
