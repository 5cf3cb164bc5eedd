//! Attributes from the last lookup of each thread.
//!
//! Between lookup and open of a file, the kernel may request its attributes, to check permissions. If another node has replaced the
//! file in between, the home no longer has them. The reply then uses those of the lookup; the following open reports ESTALE.

use parking_lot::Mutex;
use std::time::Duration;
use tameike_client::vfs::{FileNumber, Found};
use tameike_core::{Attr, FileKind};

/// Slots; a thread uses the slot of its ID modulo this number.
const THREADS_MAX: usize = 256;
/// Lifetime of an entry: the kernel requests attributes directly after the lookup.
const LIFETIME: Duration = Duration::from_secs(1);

struct Entry {
    thread: u32,
    file: FileNumber,
    attr: Attr,
    time: Duration,
}

/// The last lookup of each thread.
pub(super) struct RecentLookups(Vec<Mutex<Option<Entry>>>);

impl Default for RecentLookups {
    fn default() -> Self {
        Self((0..THREADS_MAX).map(|_| Mutex::default()).collect())
    }
}

impl RecentLookups {
    /// Records a lookup of a thread; `time` is of the monotonic clock.
    pub(super) fn note(&self, thread: u32, found: &Found, time: Duration) {
        if found.attr.kind == FileKind::File {
            let entry = Entry { thread, file: found.file, attr: found.attr.clone(), time };
            *self.slot(thread).lock() = Some(entry);
        }
    }

    /// Returns and removes the attributes of a thread's last lookup, if it was of `file`.
    pub(super) fn take(&self, thread: u32, file: FileNumber, now: Duration) -> Option<Attr> {
        let mut slot = self.slot(thread).lock();
        let entry = slot.take_if(|entry| entry.thread == thread)?;
        (entry.file == file && entry.time + LIFETIME > now).then_some(entry.attr)
    }

    pub(super) fn forget(&self, thread: u32) {
        self.slot(thread).lock().take_if(|entry| entry.thread == thread);
    }

    fn slot(&self, thread: u32) -> &Mutex<Option<Entry>> {
        &self.0[thread as usize % THREADS_MAX]
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use tameike_core::{Generation, InodeId, Layout, Timestamp};

    const START: Duration = Duration::from_secs(7);
    const THREAD: u32 = 11;

    pub(in crate::fuse) fn attr(number: u64, kind: FileKind) -> Attr {
        let time = Timestamp { seconds: 1, nanoseconds: 0 };
        Attr {
            inode: InodeId(number),
            kind,
            mode: 0o755,
            nlink: 2,
            uid: 3,
            gid: 4,
            rdev: 0,
            size: 5,
            blocks: 8,
            atime: time,
            mtime: time,
            ctime: time,
            generation: Generation(0),
            layout: Layout::Striped,
            inline: false,
            sparse: false,
        }
    }

    fn found(number: u64, kind: FileKind) -> Found {
        Found { file: FileNumber(number), attr: attr(number, kind) }
    }

    #[test]
    fn the_last_lookup_of_a_thread_is_returned_once() {
        let recent_lookups = RecentLookups::default();
        let file = FileNumber(3);
        recent_lookups.note(THREAD, &found(2, FileKind::File), START);
        recent_lookups.note(THREAD, &found(3, FileKind::File), START);
        assert!(recent_lookups.take(THREAD + THREADS_MAX as u32, file, START).is_none());
        assert_eq!(recent_lookups.take(THREAD, file, START).map(|attr| attr.size), Some(5));
        assert!(recent_lookups.take(THREAD, file, START).is_none());
        recent_lookups.note(THREAD, &found(3, FileKind::File), START);
        recent_lookups.forget(THREAD);
        assert!(recent_lookups.take(THREAD, file, START).is_none());
    }

    #[test]
    fn expired_lookups_and_those_of_other_files_are_not_returned() {
        let recent_lookups = RecentLookups::default();
        for (wanted, kind, wait) in [
            (3, FileKind::File, LIFETIME),
            (4, FileKind::File, Duration::ZERO),
            (3, FileKind::Directory, Duration::ZERO),
        ] {
            recent_lookups.note(THREAD, &found(3, kind), START);
            assert!(recent_lookups.take(THREAD, FileNumber(wanted), START + wait).is_none());
        }
    }
}
