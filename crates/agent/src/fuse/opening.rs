//! Requests by which the kernel comes to have a file open, or a file to give other rights.

use super::FuseDoor;
use super::answer::{answer_attr, answer_created, answer_open};
use super::kernel_cache::KernelCache;
use super::rights::Rights;
use tameike_client::vfs::{FileNumber, OpenMode, Opened, Vfs};
use tameike_core::attr::AttrChange;
use tameike_core::wire::meta::NewInode;
use tameike_io::fuse::Reply;

impl<V: Vfs> FuseDoor<V> {
    /// Opens a file for a thread.
    pub(super) fn open_file(&self, file: FileNumber, mode: OpenMode, thread: u32, reply: Reply) {
        let (vfs, ahead, door) = (self.vfs.clone(), self.ahead.clone(), self.opening());
        self.tasks.spawn(async move {
            let opened = ahead.open(&vfs, thread, file, mode).await;
            let opened = opened.map(|opened| door.opened(&*vfs, file, mode, opened));
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
        let (vfs, door, name) = (self.vfs.clone(), self.opening(), name.to_vec());
        self.tasks.spawn(async move {
            let created = vfs.create(dir, &name, new, exclusive, mode).await;
            let created = created.map(|(found, opened)| {
                let opened = door.opened(&*vfs, found.file, mode, opened);
                (found, opened)
            });
            answer_created(reply, created, mode, vfs.locks().is_some());
        });
    }

    /// Changes attributes, with them perhaps what rights the file gives.
    pub(super) fn change_attributes(&self, file: FileNumber, change: AttrChange, reply: Reply) {
        let (vfs, rights) = (self.vfs.clone(), self.rights.clone());
        self.tasks.spawn(async move {
            let mode = change.mode;
            let attr = vfs.setattr(file, change).await;
            if let Some(mode) = mode {
                rights.changed(file, mode);
            }
            answer_attr(reply, file, attr);
        });
    }

    fn opening(&self) -> Opening {
        let (kernel, rights) = (self.kernel.clone(), self.rights.clone());
        Opening { kernel, given: rights.given(), rights }
    }
}

/// An open that is under way.
struct Opening {
    kernel: KernelCache,
    rights: Rights,
    /// How often files had been given rights when it began.
    given: u64,
}

impl Opening {
    /// The view has opened the file: how the kernel shall use the handle.
    fn opened<V: Vfs>(&self, vfs: &V, file: FileNumber, mode: OpenMode, opened: Opened) -> Opened {
        let opened = self.kernel.opened(vfs, file, mode, opened);
        if opened.direct && mode.write {
            self.rights.opened(file, opened.handle, (opened.gives_rights, self.given));
        }
        opened
    }
}
