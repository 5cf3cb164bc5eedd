//! Requests by which the kernel comes to have a file, or sees another than before: the ring must know of them.

use super::FuseDoor;
use super::answer::{answer_attr, answer_created, answer_entry, answer_open};
use crate::custody::Custody;

use std::time::Duration;
use tameike_client::lock_calls;
use tameike_client::reported_sizes::ReportedSizes;
use tameike_client::vfs::{FileNumber, OpenMode, Opened, Vfs};
use tameike_core::attr::AttrChange;
use tameike_core::wire::meta::NewInode;
use tameike_core::{Attr, Errno, FileKind, Result};
use tameike_fuse::Reply;

impl<V: Vfs> FuseDoor<V> {
    /// Looks a name up for a thread: also one by which the ring hands a file over.
    pub(super) fn find(&self, (dir, name): (FileNumber, &[u8]), thread: u32, reply: Reply) {
        let (vfs, ahead, looked) = (self.vfs.clone(), self.ahead.clone(), self.looked.clone());
        let (reported_sizes, directories) = (self.reported_sizes.clone(), self.directories.clone());
        let (runtime, custody, name) = (self.tasks.runtime().clone(), self.custody.clone(), name.to_vec());
        self.tasks.spawn(async move {
            let changes = custody.changes();
            let found = match custody.handed(dir, &name) {
                Some(handed) => vfs.find_again(handed).await,
                None => ahead.lookup(&vfs, thread, (dir, &name)).await,
            };
            if let Ok(found) = &found {
                let now = runtime.clock.monotonic();
                looked.note(thread, found, now);
                directories.record(found.file, &found.attr);
                record_size(&reported_sizes, found.file, &found.attr, now);
            }
            answer_entry(reply, found, &custody, changes);
        });
    }

    /// Tells a thread attributes: those of its look-up where another file has taken the name since.
    pub(super) fn getattr(&self, file: FileNumber, thread: u32, reply: Reply) {
        let (vfs, custody, looked) = (self.vfs.clone(), self.custody.clone(), self.looked.clone());
        let (runtime, reported_sizes) = (self.tasks.runtime().clone(), self.reported_sizes.clone());
        let directories = self.directories.clone();
        self.tasks.spawn(async move {
            let changes = custody.changes();
            let told = looked.take(thread, file, runtime.clock.monotonic());
            let attr = match (vfs.getattr(file).await, told) {
                (Err(fault), Some(told)) if fault.errno == Errno::ESTALE => Ok(told),
                (attr, _) => directories.or_removed(file, attr, &AttrChange::default()),
            };
            if let Ok(attr) = &attr {
                record_size(&reported_sizes, file, attr, runtime.clock.monotonic());
            }
            answer_attr(reply, file, attr, &custody, changes);
        });
    }

    /// Opens a file for a thread.
    pub(super) fn open_file(&self, file: FileNumber, mode: OpenMode, thread: u32, reply: Reply) {
        let (vfs, ahead, custody) = (self.vfs.clone(), self.ahead.clone(), self.custody.clone());
        self.looked.forget(thread);
        let (runtime, reported_sizes) = (self.tasks.runtime().clone(), self.reported_sizes.clone());
        self.tasks.spawn(async move {
            let changes = custody.directories();
            let mut opened = match ahead.open(&vfs, thread, file, mode).await {
                Ok(opened) => admitted(&*vfs, (&custody, changes), (file, mode), opened).await,
                Err(fault) => Err(fault),
            };
            if opened.is_ok()
                && reported_sizes.take_conflict(file, runtime.clock.monotonic())
                && let Err(fault) = custody.kernel().drop_attributes(file).await
            {
                if let Ok(Opened { handle, .. }) = opened {
                    custody.kernel().closed(file, handle);
                    lock_calls::release(&*vfs, handle).await;
                    custody.closed(file);
                }
                opened = Err(fault);
            }
            answer_open(reply, opened, mode, vfs.locks().is_some());
        });
    }

    /// Makes a file, or finds it, and opens it.
    pub(super) fn create_file(
        &self,
        (dir, name): (FileNumber, &[u8]),
        new: NewInode,
        (exclusive, mode): (bool, OpenMode),
        reply: Reply,
    ) {
        let (vfs, custody, name) = (self.vfs.clone(), self.custody.clone(), name.to_vec());
        self.tasks.spawn(async move {
            let changes = custody.directories();
            let created = match vfs.create(dir, &name, new, exclusive, mode).await {
                Ok((found, opened)) => {
                    let opened = admitted(&*vfs, (&custody, changes), (found.file, mode), opened).await;
                    opened.map(|opened| (found, opened))
                }
                Err(fault) => Err(fault),
            };
            answer_created(reply, created, mode, vfs.locks().is_some());
        });
    }

    /// Changes attributes, with them perhaps who may use a directory.
    pub(super) fn change_attributes(&self, file: FileNumber, change: AttrChange, reply: Reply) {
        let (vfs, custody) = (self.vfs.clone(), self.custody.clone());
        let directories = self.directories.clone();
        self.tasks.spawn(async move {
            let changes = custody.changes();
            let mode = change.mode;
            let is_access = mode.is_some() || change.uid.is_some() || change.gid.is_some();
            let attr = vfs.setattr(file, change.clone()).await;
            let attr = directories.or_removed(file, attr, &change);
            if is_access {
                custody.access_changed(file, mode);
            }
            answer_attr(reply, file, attr, &custody, changes);
        });
    }
}

fn record_size(reported_sizes: &ReportedSizes, file: FileNumber, attr: &Attr, now: Duration) {
    if attr.kind == FileKind::File {
        reported_sizes.record(file, attr.size, now);
    }
}

/// Has the kernel have a file that was opened for it when the count of changes was so.
async fn admitted<V: Vfs>(
    vfs: &V,
    (custody, changes): (&Custody, u64),
    (file, mode): (FileNumber, OpenMode),
    opened: Opened,
) -> Result<Opened> {
    match custody.admit(file).await {
        Ok(()) => {
            if let Some(lendable) = vfs.lendable(opened.handle) {
                lendable.recall();
            }
            custody.opened(file, opened.gives_rights, changes);
            Ok(custody.kernel().opened(vfs, file, mode, opened))
        }
        Err(fault) => {
            // The kernel, which hears of no open, keeps what it has.
            vfs.pages_passed(opened.handle);
            lock_calls::release(vfs, opened.handle).await;
            Err(fault)
        }
    }
}
