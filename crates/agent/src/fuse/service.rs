//! Dispatches FUSE requests to a [`Vfs`].

use super::FuseFrontend;
use super::answer::{answer, answer_bytes, answer_done, answer_entry, answer_open_dir, answer_space};
use super::convert::{Caller, errno, kind_of_mode, new_inode, open_mode, rename_mode, sought, space_change};
use super::lists::{answer_xattr, joined, list};
use super::lock::{self, SetLock};
use tameike_client::lock_calls;
use tameike_client::vfs::{FileNumber, FrameBytes, HandleNumber, Vfs};
use tameike_core::limits::FILE_SIZE_MAX;
use tameike_core::wire::meta::NewInode;
use tameike_core::{Errno, FileKind};
use tameike_fuse::abi::{Header, LockRequest, Operation, Request};
use tameike_fuse::{FrameWrite, Reply, Service};
use tameike_io::Frame;

impl<V: Vfs> Service for FuseFrontend<V> {
    fn serve(&self, request: Request<'_>, reply: Reply) {
        let caller = Caller::of(&request.header);
        let file = FileNumber(request.header.node);
        match request.operation {
            Operation::Lookup { name } => self.find((file, name), caller.thread, reply),
            Operation::Forget { lookups } => self.vfs.forget(file, lookups),
            Operation::BatchForget(forgets) => {
                forgets.iter().for_each(|(file, lookups)| self.vfs.forget(FileNumber(file), lookups));
            }
            Operation::GetAttr => self.getattr(file, caller.thread, reply),
            Operation::SetAttr(change) => self.change_attributes(file, change, reply),
            Operation::ReadLink => self.readlink(file, reply),
            Operation::Open { flags } => self.open_file(file, open_mode(flags), caller.thread, reply),
            Operation::Create { name, flags, mode, umask } => {
                let new = new_inode(caller, FileKind::File, mode, umask);
                self.create_file((file, name), new, (flags & libc::O_EXCL != 0, open_mode(flags)), reply);
            }
            Operation::Read { handle, offset, size } => self.read(HandleNumber(handle), offset, size, reply),
            Operation::Write { handle, offset, flags, data } => {
                self.write_bytes(file, (HandleNumber(handle), offset, &data), flags, reply);
            }
            Operation::Flush { handle, owner } => self.flush(HandleNumber(handle), owner, reply),
            Operation::Release { handle } => self.release(file, HandleNumber(handle), reply),
            Operation::Fsync { handle } => self.fsync(file, HandleNumber(handle), reply),
            Operation::Fallocate { handle, offset, length, mode } => {
                self.fallocate(HandleNumber(handle), (offset, length), mode, reply);
            }
            Operation::Seek { handle, from, whence } => self.seek(HandleNumber(handle), from, whence, reply),
            Operation::GetLock(wanted) => {
                let vfs = self.vfs.clone();
                self.tasks.spawn(async move { lock::test(&*vfs, wanted, reply).await });
            }
            Operation::SetLock { lock, sleep } => self.set_lock(caller, file, (lock, sleep), reply),
            names => self.serve_names(caller, file, names, reply),
        }
    }

    fn serve_frame(&self, header: Header, write: FrameWrite, reply: Reply) {
        let FrameWrite { handle, offset, flags, frame } = write;
        let data = FrameBytes::new(frame);
        let file = FileNumber(header.node);
        self.write_bytes(file, (HandleNumber(handle), offset, &data), flags, reply);
    }

    fn frame(&self) -> Option<Frame> {
        self.vfs.spare_frame()
    }
}

impl<V: Vfs> FuseFrontend<V> {
    /// Names, directories and extended attributes.
    fn serve_names(&self, caller: Caller, file: FileNumber, operation: Operation<'_>, reply: Reply) {
        match operation {
            Operation::MkNod { name, mode, rdev, umask } => match kind_of_mode(mode) {
                Ok(kind) => {
                    self.make(file, name, NewInode { rdev, ..new_inode(caller, kind, mode, umask) }, reply);
                }
                Err(fault) => reply.error(errno(&fault)),
            },
            Operation::MkDir { name, mode, umask } => {
                self.make(file, name, new_inode(caller, FileKind::Directory, mode, umask), reply);
            }
            Operation::SymLink { name, target } => {
                let new = new_inode(caller, FileKind::Symlink, 0o777, 0);
                self.make(file, name, NewInode { symlink: target.to_vec(), ..new }, reply);
            }
            Operation::Unlink { name } => {
                let name = name.to_vec();
                self.run(reply, |vfs| async move { vfs.unlink(file, &name).await });
            }
            Operation::RmDir { name } => {
                let (arbiter, name) = (self.arbiter.clone(), name.to_vec());
                self.run(reply, |vfs| async move {
                    let removed = vfs.rmdir(file, &name).await;
                    arbiter.directory_changed();
                    removed
                });
            }
            Operation::Rename { name, new_parent, new_name, flags } => {
                let (arbiter, from, to) = (self.arbiter.clone(), name.to_vec(), new_name.to_vec());
                self.run(reply, move |vfs| async move {
                    let (from, to) = ((file, &from[..]), (FileNumber(new_parent), &to[..]));
                    let renamed = vfs.rename(from, to, rename_mode(flags)?).await;
                    arbiter.directory_changed();
                    renamed
                });
            }
            Operation::Link { source, name } => {
                let (vfs, arbiter, name) = (self.vfs.clone(), self.arbiter.clone(), name.to_vec());
                self.tasks.spawn(async move {
                    let changes = arbiter.changes();
                    let linked = vfs.link(FileNumber(source), file, &name).await;
                    answer_entry(reply, linked, &arbiter, changes);
                });
            }
            Operation::OpenDir => {
                let (vfs, arbiter) = (self.vfs.clone(), self.arbiter.clone());
                self.tasks.spawn(async move { answer_open_dir(reply, vfs.open_dir(file).await, &arbiter) });
            }
            Operation::ReadDir { handle, after, size } => {
                let vfs = self.vfs.clone();
                self.tasks.spawn(async move {
                    let listed = list(&*vfs, HandleNumber(handle), after, size).await;
                    answer_bytes(reply, listed);
                });
            }
            Operation::ReleaseDir { handle } => {
                self.vfs.release_dir(HandleNumber(handle));
                reply.done();
            }
            Operation::FsyncDir => self.sync_directory(file, reply),
            Operation::StatFs => {
                let vfs = self.vfs.clone();
                self.tasks.spawn(async move { answer_space(reply, vfs.space().await) });
            }
            xattrs => self.serve_xattrs(file, xattrs, reply),
        }
    }

    fn serve_xattrs(&self, file: FileNumber, operation: Operation<'_>, reply: Reply) {
        let vfs = self.vfs.clone();
        match operation {
            Operation::SetXattr { name, value, flags } => {
                let (name, value) = (name.to_vec(), value.to_vec());
                let (create, replace) = (flags & libc::XATTR_CREATE != 0, flags & libc::XATTR_REPLACE != 0);
                self.run(
                    reply,
                    |vfs| async move { vfs.set_xattr(file, &name, &value, create, replace).await },
                );
            }
            Operation::GetXattr { name, size } => {
                let name = name.to_vec();
                self.tasks.spawn(async move {
                    answer_xattr(reply, size, vfs.get_xattr(file, &name).await);
                });
            }
            Operation::ListXattr { size } => self.tasks.spawn(async move {
                answer_xattr(reply, size, vfs.list_xattr(file).await.map(joined));
            }),
            Operation::RemoveXattr { name } => {
                let name = name.to_vec();
                self.run(reply, |vfs| async move { vfs.remove_xattr(file, &name).await });
            }
            _ => reply.error(Errno::ENOSYS),
        }
    }

    fn readlink(&self, file: FileNumber, reply: Reply) {
        let vfs = self.vfs.clone();
        self.tasks.spawn(async move { answer_bytes(reply, vfs.readlink(file).await) });
    }

    fn read(&self, handle: HandleNumber, offset: u64, size: u32, reply: Reply) {
        let vfs = self.vfs.clone();
        self.tasks.spawn(async move { answer_bytes(reply, vfs.read(handle, offset, size).await) });
    }

    fn flush(&self, handle: HandleNumber, owner: u64, reply: Reply) {
        self.run(reply, move |vfs| async move {
            let flushed = vfs.flush(handle).await;
            lock_calls::closed(&*vfs, handle, owner).await;
            flushed
        });
    }

    fn set_lock(&self, caller: Caller, file: FileNumber, (lock, sleep): (LockRequest, bool), reply: Reply) {
        let (runtime, vfs, kernel) = (self.tasks.runtime().clone(), self.vfs.clone(), self.kernel_cache());
        let thread = self.sees_threads.then_some(caller.thread);
        let set = SetLock { runtime, vfs, kernel, file, waits: sleep, thread };
        // It may wait long for another program, which must not delay background work.
        self.tasks.spawn_in_background(async move { answer_done(reply, set.run(lock).await) });
    }

    fn fsync(&self, file: FileNumber, open: HandleNumber, reply: Reply) {
        let kernel = self.kernel_cache();
        self.run(reply, move |vfs| async move {
            let only_awaits_others = vfs.only_awaits_others(open);
            vfs.fsync(open).await?;
            if only_awaits_others {
                let stale = vfs.revalidate(open).await?;
                kernel.drop_stale(&vfs, file, open, stale).await?;
            }
            Ok(())
        });
    }

    fn fallocate(&self, handle: HandleNumber, (offset, length): (u64, u64), mode: i32, reply: Reply) {
        self.run(reply, move |vfs| async move {
            let (change, grows) = space_change(mode)?;
            let end = offset.checked_add(length).filter(|&end| end <= FILE_SIZE_MAX).ok_or(Errno::EFBIG)?;
            vfs.change_space(handle, change, offset..end, grows).await
        });
    }

    fn seek(&self, handle: HandleNumber, from: i64, whence: i32, reply: Reply) {
        let (vfs, from) = (self.vfs.clone(), u64::try_from(from).map_err(|_| Errno::ENXIO));
        self.tasks.spawn(async move {
            let found = async { vfs.seek(handle, sought(whence)?, from?).await };
            answer(reply, found.await, Reply::offset);
        });
    }

    fn release(&self, file: FileNumber, handle: HandleNumber, reply: Reply) {
        self.kernel_cache().closed(file, handle);
        let arbiter = self.arbiter.clone();
        self.run(reply, move |vfs| async move {
            lock_calls::release(&*vfs, handle).await;
            arbiter.kernel_closed(file);
            Ok(())
        });
    }
}
