//! What threads were told of the files that they have just looked up.
//!
//! On its way to open a file, the kernel may ask for its attributes after it has looked it up, to check rights by them. Where another node has
//! replaced the file in between, nobody can tell them any more: but they are what they were a moment ago, and that the file has gone
//! the open that follows will say.

use parking_lot::Mutex;
use std::time::Duration;
use tameike_client::vfs::{FileNumber, Found};
use tameike_core::{Attr, FileKind};

/// Threads that are known at a time, each at a place by its number.
const THREADS_MAX: usize = 256;
/// How long a look-up counts: a thread has nothing else to do before it asks for attributes.
const LASTS: Duration = Duration::from_secs(1);

struct Look {
    thread: u32,
    file: FileNumber,
    attr: Attr,
    time: Duration,
}

/// The last look-up of each thread.
pub(super) struct Looked(Vec<Mutex<Option<Look>>>);

impl Default for Looked {
    fn default() -> Self {
        Self((0..THREADS_MAX).map(|_| Mutex::default()).collect())
    }
}

impl Looked {
    /// A thread was told what it has found, at this time of the monotonic clock.
    pub(super) fn note(&self, thread: u32, found: &Found, time: Duration) {
        if found.attr.kind == FileKind::File {
            let look = Look { thread, file: found.file, attr: found.attr.clone(), time };
            *self.slot(thread).lock() = Some(look);
        }
    }

    /// What a thread was told, once.
    pub(super) fn take(&self, thread: u32, file: FileNumber, now: Duration) -> Option<Attr> {
        let mut slot = self.slot(thread).lock();
        let look = slot.take_if(|look| look.thread == thread)?;
        (look.file == file && look.time + LASTS > now).then_some(look.attr)
    }

    /// The thread has gone on.
    pub(super) fn forget(&self, thread: u32) {
        self.slot(thread).lock().take_if(|look| look.thread == thread);
    }

    fn slot(&self, thread: u32) -> &Mutex<Option<Look>> {
        &self.0[thread as usize % THREADS_MAX]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tameike_core::{Generation, InodeId, Layout, Timestamp};

    const START: Duration = Duration::from_secs(7);
    const THREAD: u32 = 11;

    fn found(number: u64, kind: FileKind) -> Found {
        let (time, generation) = (Timestamp { seconds: 1, nanoseconds: 0 }, Generation(0));
        let attr = Attr {
            inode: InodeId(number),
            kind,
            mode: 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 5,
            blocks: 8,
            atime: time,
            mtime: time,
            ctime: time,
            generation,
            layout: Layout::Striped,
            inline: false,
            sparse: false,
        };
        Found { file: FileNumber(number), attr }
    }

    #[test]
    fn a_thread_is_told_again_what_it_was_told_last_and_once() {
        let looked = Looked::default();
        let file = FileNumber(3);
        looked.note(THREAD, &found(2, FileKind::File), START);
        looked.note(THREAD, &found(3, FileKind::File), START);
        assert!(looked.take(THREAD + THREADS_MAX as u32, file, START).is_none());
        assert_eq!(looked.take(THREAD, file, START).map(|attr| attr.size), Some(5));
        assert!(looked.take(THREAD, file, START).is_none());
        looked.note(THREAD, &found(3, FileKind::File), START);
        looked.forget(THREAD);
        assert!(looked.take(THREAD, file, START).is_none());
    }

    #[test]
    fn what_is_old_or_of_something_else_is_not_told() {
        let looked = Looked::default();
        for (wanted, kind, wait) in [
            (3, FileKind::File, LASTS),
            (4, FileKind::File, Duration::ZERO),
            (3, FileKind::Directory, Duration::ZERO),
        ] {
            looked.note(THREAD, &found(3, kind), START);
            assert!(looked.take(THREAD, FileNumber(wanted), START + wait).is_none());
        }
    }
}
