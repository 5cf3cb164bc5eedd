//! Lookups, opens, creates and attribute requests of the kernel, which the arbiter must track.

use super::answer::{answer, answer_attr, answer_created, answer_entry};
use super::{FuseFrontend, open_flags};
use crate::arbiter::Arbiter;
use std::time::Duration;
use tameike_client::lock_calls;
use tameike_client::reported_sizes::ReportedSizes;
use tameike_client::vfs::{FileNumber, OpenMode, Opened, Vfs};
use tameike_core::attr::AttrChange;
use tameike_core::wire::meta::NewInode;
use tameike_core::{Attr, Errno, FileKind, Result};
use tameike_fuse::Reply;

impl<V: Vfs> FuseFrontend<V> {
    /// Looks a name up for a thread, including names by which the ring hands a file over.
    pub(super) fn find(&self, (dir, name): (FileNumber, &[u8]), thread: u32, reply: Reply) {
        let (vfs, open_ahead) = (self.vfs.clone(), self.open_ahead.clone());
        let recent_lookups = self.recent_lookups.clone();
        let (reported_sizes, directories) = (self.reported_sizes.clone(), self.directories.clone());
        let (runtime, arbiter, name) = (self.tasks.runtime().clone(), self.arbiter.clone(), name.to_vec());
        self.tasks.spawn(async move {
            let changes = arbiter.changes();
            let found = match arbiter.handed_over(dir, &name) {
                Some(handed) => vfs.lookup_again(handed).await,
                None => open_ahead.lookup(&vfs, thread, (dir, &name)).await,
            };
            if let Ok(found) = &found {
                let now = runtime.clock.monotonic();
                recent_lookups.note(thread, found, now);
                directories.record(found.file, &found.attr);
                record_size(&reported_sizes, found.file, &found.attr, now);
            }
            answer_entry(reply, found, &arbiter, changes);
        });
    }

    /// Replies with attributes: those of the thread's lookup if another file has replaced the file since.
    pub(super) fn getattr(&self, file: FileNumber, thread: u32, reply: Reply) {
        let (vfs, arbiter, recent_lookups) =
            (self.vfs.clone(), self.arbiter.clone(), self.recent_lookups.clone());
        let (runtime, reported_sizes) = (self.tasks.runtime().clone(), self.reported_sizes.clone());
        let directories = self.directories.clone();
        self.tasks.spawn(async move {
            let changes = arbiter.changes();
            let recent = recent_lookups.take(thread, file, runtime.clock.monotonic());
            let attr = match (vfs.getattr(file).await, recent) {
                (Err(fault), Some(recent)) if fault.errno == Errno::ESTALE => Ok(recent),
                (attr, _) => directories.or_removed(file, attr, &AttrChange::default()),
            };
            if let Ok(attr) = &attr {
                record_size(&reported_sizes, file, attr, runtime.clock.monotonic());
            }
            answer_attr(reply, file, attr, &arbiter, changes);
        });
    }

    pub(super) fn open_file(&self, file: FileNumber, mode: OpenMode, thread: u32, reply: Reply) {
        let (vfs, open_ahead, arbiter) = (self.vfs.clone(), self.open_ahead.clone(), self.arbiter.clone());
        self.recent_lookups.forget(thread);
        let (runtime, reported_sizes) = (self.tasks.runtime().clone(), self.reported_sizes.clone());
        self.tasks.spawn(async move {
            let changes = arbiter.directories();
            let mut opened = match open_ahead.open(&vfs, thread, file, mode).await {
                Ok(mut opened) => {
                    opened.direct |= reported_sizes.conflict(file, runtime.clock.monotonic());
                    admitted(&*vfs, (&arbiter, changes), (file, mode), opened).await
                }
                Err(fault) => Err(fault),
            };
            if opened.as_ref().is_ok_and(|opened| !opened.direct)
                && reported_sizes.take_conflict(file, runtime.clock.monotonic())
                && let Err(fault) = arbiter.kernel().drop_attributes(file).await
            {
                if let Ok(Opened { handle, .. }) = opened {
                    arbiter.kernel().closed(file, handle);
                    lock_calls::release(&*vfs, handle).await;
                    arbiter.kernel_closed(file);
                }
                opened = Err(fault);
            }
            answer(reply, opened, |reply, opened| {
                reply.opened(opened.handle.0, open_flags(opened, mode, vfs.locks().is_some()));
            });
        });
    }

    pub(super) fn create_file(
        &self,
        (dir, name): (FileNumber, &[u8]),
        new: NewInode,
        (exclusive, mode): (bool, OpenMode),
        reply: Reply,
    ) {
        let (vfs, arbiter, name) = (self.vfs.clone(), self.arbiter.clone(), name.to_vec());
        self.tasks.spawn(async move {
            let changes = arbiter.directories();
            let created = match vfs.create(dir, &name, new, exclusive, mode).await {
                Ok((found, opened)) => {
                    let opened = admitted(&*vfs, (&arbiter, changes), (found.file, mode), opened).await;
                    opened.map(|opened| (found, opened))
                }
                Err(fault) => Err(fault),
            };
            answer_created(reply, created, mode, vfs.locks().is_some());
        });
    }

    /// Changes attributes. Changes of owner or mode invalidate path walks of the ring.
    pub(super) fn change_attributes(&self, file: FileNumber, change: AttrChange, reply: Reply) {
        let (vfs, arbiter) = (self.vfs.clone(), self.arbiter.clone());
        let directories = self.directories.clone();
        self.tasks.spawn(async move {
            let changes = arbiter.changes();
            let mode = change.mode;
            let is_access = mode.is_some() || change.uid.is_some() || change.gid.is_some();
            let attr = vfs.setattr(file, change.clone()).await;
            let attr = directories.or_removed(file, attr, &change);
            if is_access {
                arbiter.access_changed(file, mode);
            }
            answer_attr(reply, file, attr, &arbiter, changes);
        });
    }
}

fn record_size(reported_sizes: &ReportedSizes, file: FileNumber, attr: &Attr, now: Duration) {
    if attr.kind == FileKind::File {
        reported_sizes.record(file, attr.size, now);
    }
}

/// Gives a file to the kernel that was opened when the arbiter's count of directory changes was `changes`.
async fn admitted<V: Vfs>(
    vfs: &V,
    (arbiter, changes): (&Arbiter, u64),
    (file, mode): (FileNumber, OpenMode),
    opened: Opened,
) -> Result<Opened> {
    match arbiter.kernel_opens(file).await {
        Ok(()) => {
            if let Some(grantable) = vfs.grantable(opened.handle) {
                grantable.revoke();
            }
            arbiter.opened(file, opened.has_setid, changes);
            Ok(arbiter.kernel().opened(vfs, file, mode, opened))
        }
        Err(fault) => {
            // Without a reply to an open, the kernel keeps the pages that it has.
            vfs.mark_pages_stale(opened.handle);
            lock_calls::release(vfs, opened.handle).await;
            Err(fault)
        }
    }
}
