//! The agent's side of the names that programs look up without a request ([`crate::names`]).

use crate::layout::{NAMES, NOTICE_SIZE};
use crate::message::{STATUS_WORDS, Status, StatusWords};
use crate::names::{
    CLOCK, HASH, HEAD, Key, Kind, NAMES_SIZE, UNTIL, VERSION, VIEWS_MAX, changes, files_until, nanoseconds,
    value_places,
};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::Duration;
use tameike_io::os::arena::Notice;
use tameike_io::os::process::monotonic;

/// Table of published names. A publisher must hide a name before any client may be notified of a change of it.
pub struct NameTable {
    notice: Arc<Notice>,
    /// Held while a slot is written.
    writing: Mutex<()>,
    is_used: AtomicBool,
}

impl NameTable {
    /// An empty table, without a limit for the files of any view.
    pub fn new() -> std::io::Result<Arc<Self>> {
        let notice = Arc::new(Notice::create("tameike-ring-notice", NOTICE_SIZE)?);
        let table = Self { notice, writing: Mutex::default(), is_used: AtomicBool::new(false) };
        (0..VIEWS_MAX).for_each(|view| table.put(files_until(view), u64::MAX));
        Ok(Arc::new(table))
    }

    pub(super) fn notice(&self) -> &Arc<Notice> {
        &self.notice
    }

    /// Updates the clock before a program is welcomed, so that the program can compare it with its own.
    pub(super) fn update_clock(&self) {
        if !self.is_used()
            && let Err(error) = self.notice.populate(NAMES, NAMES_SIZE)
        {
            // Pages are populated one by one, or the agent runs out of memory anyway.
            log::warn!("cannot populate the memory for published names: {error}");
        }
        self.long(CLOCK).fetch_max(nanoseconds(monotonic()), Ordering::AcqRel);
        self.is_used.store(true, Ordering::Release);
    }

    /// Returns true if a program was ever welcomed.
    pub fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Acquire)
    }

    /// Publishes the file of a name; returns false if the name does not fit.
    pub fn show_file(
        &self,
        view: usize,
        directory: u64,
        name: &[u8],
        status: &Status,
        until: Duration,
    ) -> bool {
        let key = Key::new(Kind::File, view, directory, name).filter(|_| self.is_used());
        let Some(key) = key else { return false };
        self.show(&key, &status.to_words(), until);
        true
    }

    /// Publishes a directory that programs may walk through: by its name in the parent, or by an empty name in itself. `changes` is the
    /// view's number of directory changes at the lookup.
    pub fn show_directory(
        &self,
        view: usize,
        (directory, name): (u64, &[u8]),
        number: u64,
        changes: u64,
        until: Duration,
    ) {
        let key = Key::new(Kind::Directory, view, directory, name).filter(|_| self.is_used());
        let Some(key) = key else { return };
        let mut value = [0; STATUS_WORDS];
        (value[0], value[1]) = (number, changes);
        self.show(&key, &value, until);
    }

    /// Hides a file.
    pub fn hide_file(&self, view: usize, directory: u64, name: &[u8]) {
        let Some(key) = Key::new(Kind::File, view, directory, name) else { return };
        let _writing = self.writing.lock();
        if let Some(slot) = self.slot_of(&key) {
            self.write(slot, |slot| {
                self.put(slot + HASH, 0);
                self.put(slot + UNTIL, 0);
            });
        }
    }

    /// Sets the view's number of directory changes, which hides all directories published before.
    pub fn directories_changed(&self, view: usize, count: u64) {
        if view < VIEWS_MAX {
            self.long(changes(view)).fetch_max(count, Ordering::AcqRel);
        }
    }

    /// Ends the validity of all files of a view at a time. Files that were valid until an earlier one, and must stay invalid, are hidden before.
    pub fn limit_files(&self, view: usize, until: Duration) {
        if view < VIEWS_MAX {
            self.long(files_until(view)).store(nanoseconds(until), Ordering::Release);
        }
    }

    fn show(&self, key: &Key, value: &StatusWords, until: Duration) {
        let _writing = self.writing.lock();
        let free = || key.slots().find(|slot| self.get(slot + UNTIL) == 0);
        let Some(slot) = self.slot_of(key).or_else(free).or_else(|| self.replaceable(key)) else { return };
        self.write(slot, |slot| {
            self.put(slot + HASH, key.hash());
            key.words().for_each(|(place, word)| self.put(slot + place, word));
            value_places().zip(value).for_each(|(place, word)| self.put(slot + place, *word));
            self.put(slot + UNTIL, nanoseconds(until));
        });
    }

    /// The slot to replace in a full set: one whose validity has ended, or else the file whose validity ends first. Directories stay, as
    /// many paths lead through them.
    fn replaceable(&self, key: &Key) -> Option<usize> {
        let now = nanoseconds(monotonic());
        let loss = |slot: &usize| {
            let until = self.get(slot + UNTIL);
            let is_directory = Kind::of_head(self.get(slot + HEAD)) == Some(Kind::Directory);
            (until > now, until > now && is_directory, until)
        };
        key.slots().min_by_key(loss)
    }

    /// The slot of a key.
    fn slot_of(&self, key: &Key) -> Option<usize> {
        let is_it = |slot: &usize| {
            self.get(slot + HASH) == key.hash()
                && key.words().all(|(place, word)| self.get(slot + place) == word)
        };
        key.slots().find(is_it)
    }

    /// Changes a slot under an odd version, so that concurrent readers detect it.
    fn write(&self, slot: usize, change: impl FnOnce(usize)) {
        let version = self.get(slot + VERSION);
        self.put(slot + VERSION, version.wrapping_add(1));
        fence(Ordering::Release);
        change(slot);
        self.long(slot + VERSION).store(version.wrapping_add(2), Ordering::Release);
    }

    fn long(&self, place: usize) -> &AtomicU64 {
        self.notice.long(NAMES + place)
    }

    fn get(&self, place: usize) -> u64 {
        self.long(place).load(Ordering::Relaxed)
    }

    fn put(&self, place: usize, word: u64) {
        self.long(place).store(word, Ordering::Relaxed);
    }
}
