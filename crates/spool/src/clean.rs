//! Files of the tree that have their content in the container, too: brought back, or packed while somebody reads them.
//!
//! What is written through a mapping changes no time of a file in memory, where its page was read before. So the kernel is asked to
//! tell when somebody who could write closes such a file (inotify(7)); whoever has it open still is told by the lease that is refused.

use super::tree::Mark;
use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

/// Bytes of what is told that are read at once: an entry has a name of up to 255 bytes.
const TOLD_SIZE: usize = 16 << 10;

/// The files, by path.
pub struct Clean {
    /// Nothing where the system has none left: then no file is known to be clean.
    told: Option<OwnedFd>,
    files: HashMap<Vec<u8>, (i32, Mark)>,
    /// Names of one file are watched together.
    paths: HashMap<i32, Vec<Vec<u8>>>,
    /// Those that were known and are not any more.
    changed: Vec<Vec<u8>>,
}

impl Default for Clean {
    fn default() -> Self {
        let told = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok();
        Self { told, files: HashMap::new(), paths: HashMap::new(), changed: Vec::new() }
    }
}

/// A file that is watched from now on.
pub struct Watched(Option<i32>);

impl Clean {
    /// Watches a file, before anybody can write to it.
    pub fn watch(&self, real: &Path) -> Watched {
        let told = self.told.as_ref();
        Watched(told.and_then(|told| inotify::add_watch(told, real, WatchFlags::CLOSE_WRITE).ok()))
    }

    /// A watched file has this name, and is as the container has it.
    pub fn insert(&mut self, path: &[u8], Watched(watch): Watched, mark: Mark) {
        let Some(watch) = watch else { return };
        // First, so that a watch that the file has already stays.
        self.paths.entry(watch).or_default().push(path.to_vec());
        if let Some((before, _)) = self.files.insert(path.to_vec(), (watch, mark)) {
            self.leave(before, path);
        }
    }

    /// A file is not known any more.
    pub fn remove(&mut self, path: &[u8]) {
        if let Some((watch, _)) = self.files.remove(path) {
            self.leave(watch, path);
            self.changed.push(path.to_vec());
        }
    }

    fn leave(&mut self, watch: i32, path: &[u8]) {
        let Some(paths) = self.paths.get_mut(&watch) else { return };
        if let Some(at) = paths.iter().position(|known| known == path) {
            paths.swap_remove(at);
        }
        if paths.is_empty() {
            self.paths.remove(&watch);
            if let Some(told) = &self.told {
                // It may have gone, and its watch with it.
                let _ = inotify::remove_watch(told, watch);
            }
        }
    }

    /// What is to be packed again since this was last asked: that a file has changed does not show in its directory.
    pub fn take_changed(&mut self) -> Vec<Vec<u8>> {
        self.learn();
        std::mem::take(&mut self.changed)
    }

    /// The same of all below a directory.
    pub fn remove_below(&mut self, dir: &[u8]) {
        let is_below = |path: &[u8]| path.strip_prefix(dir).is_some_and(|rest| rest.starts_with(b"/"));
        let below: Vec<_> = self.files.keys().filter(|path| is_below(path)).cloned().collect();
        below.iter().for_each(|path| self.remove(path));
    }

    /// Whether a file that nobody has open for writing is as the container has it.
    pub fn has(&mut self, path: &[u8], mark: &Mark) -> bool {
        self.learn();
        self.files.get(path).is_some_and(|(_, known)| known == mark)
    }

    /// Forgets what somebody may have changed.
    fn learn(&mut self) {
        let mut changed = Vec::new();
        if let Some(told) = &self.told {
            let mut room = [MaybeUninit::uninit(); TOLD_SIZE];
            let mut reader = Reader::new(told, &mut room);
            while let Ok(event) = reader.next() {
                changed.push(event.wd());
            }
        }
        for watch in changed {
            for path in self.paths.get(&watch).cloned().unwrap_or_default() {
                self.remove(&path);
            }
        }
    }
}
