//! Files of the tree whose content is also in the container: unpacked files, and files packed while they were open.
//!
//! A write through a mapping need not update the mtime of a file in memory. So inotify(7) reports each close of such a file by a process that
//! could write. A process that still has it open makes the lease fail.

use super::tree::Version;
use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;

/// Bytes per read of events; an event has a name of up to 255 bytes.
const EVENTS_SIZE: usize = 16 << 10;

/// The clean files, by path.
pub struct Clean {
    /// `None` if the system has no inotify instance left: then no file counts as clean.
    inotify: Option<OwnedFd>,
    files: HashMap<Vec<u8>, (i32, Version)>,
    /// Hard links of a file share a watch.
    paths: HashMap<i32, Vec<Vec<u8>>>,
    /// Files that are not clean any more.
    changed: Vec<Vec<u8>>,
}

impl Default for Clean {
    fn default() -> Self {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok();
        Self { inotify, files: HashMap::new(), paths: HashMap::new(), changed: Vec::new() }
    }
}

/// A watch of a file.
pub struct Watched(Option<i32>);

impl Clean {
    /// Watches a file, before any process can write to it.
    pub fn watch(&self, real: &Path) -> Watched {
        let add = |inotify| inotify::add_watch(inotify, real, WatchFlags::CLOSE_WRITE).ok();
        Watched(self.inotify.as_ref().and_then(add))
    }

    /// Adds a watched file, whose content equals that in the container.
    pub fn insert(&mut self, path: &[u8], Watched(watch): Watched, version: Version) {
        let Some(watch) = watch else { return };
        // Before the old watch is removed: both may be the same.
        self.paths.entry(watch).or_default().push(path.to_vec());
        if let Some((before, _)) = self.files.insert(path.to_vec(), (watch, version)) {
            self.leave(before, path);
        }
    }

    /// Removes a file.
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
            if let Some(inotify) = &self.inotify {
                // The file may be gone, and its watch with it.
                let _ = inotify::remove_watch(inotify, watch);
            }
        }
    }

    /// Returns the files that must be packed again since the last call: their changes do not show in their directories.
    pub fn take_changed(&mut self) -> Vec<Vec<u8>> {
        self.read_events();
        std::mem::take(&mut self.changed)
    }

    /// Removes all files below a directory.
    pub fn remove_below(&mut self, dir: &[u8]) {
        let is_below = |path: &[u8]| path.strip_prefix(dir).is_some_and(|rest| rest.starts_with(b"/"));
        let below: Vec<_> = self.files.keys().filter(|path| is_below(path)).cloned().collect();
        below.iter().for_each(|path| self.remove(path));
    }

    /// Returns true if a file that no process has open for writing equals the one in the container.
    pub fn has(&mut self, path: &[u8], version: &Version) -> bool {
        self.read_events();
        self.files.get(path).is_some_and(|(_, known)| known == version)
    }

    /// Removes files that may have been changed.
    fn read_events(&mut self) {
        let mut changed = Vec::new();
        if let Some(inotify) = &self.inotify {
            let mut buffer = [MaybeUninit::uninit(); EVENTS_SIZE];
            let mut reader = Reader::new(inotify, &mut buffer);
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
