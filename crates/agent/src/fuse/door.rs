//! [`fuser::Filesystem`] over a [`Vfs`].

use super::FuseDoor;
use super::answer::{answer_attr, answer_bytes, answer_entry, answer_open_dir, answer_seek, answer_space};
use super::convert::{
    O_EXCL, XATTR_CREATE, XATTR_REPLACE, attr_change, errno, file, handle, kind_of_mode, new_inode,
    open_mode, rename_mode, sought, space_change,
};
use super::lists::{answer_xattr, joined, list};
use super::lock::{self, LockArguments, SetLock};
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, FileHandle, Filesystem, INodeNo, KernelConfig, LockOwner, OpenFlags,
    RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLock,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::SystemTime;
use tameike_client::locks;
use tameike_client::vfs::Vfs;
use tameike_core::limits::FILE_SIZE_MAX;
use tameike_core::wire::meta::NewInode;
use tameike_core::{Errno, FileKind};

impl<V: Vfs> Filesystem for FuseDoor<V> {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        self.configure(config);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (vfs, ahead, thread) = (self.vfs.clone(), self.ahead.clone(), request.pid());
        let name = name.as_bytes().to_vec();
        self.tasks.spawn(async move {
            answer_entry(reply, ahead.lookup(&vfs, thread, (file(parent), &name)).await);
        });
    }

    fn forget(&self, _request: &Request, number: INodeNo, count: u64) {
        self.vfs.forget(file(number), count);
    }

    fn getattr(&self, _request: &Request, number: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        let vfs = self.vfs.clone();
        self.tasks.spawn(async move {
            answer_attr(reply, file(number), vfs.getattr(file(number)).await);
        });
    }

    fn setattr(
        &self,
        _request: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = attr_change(mode, (uid, gid), size, (atime, mtime));
        self.change_attributes(file(number), change, reply);
    }

    fn readlink(&self, _request: &Request, number: INodeNo, reply: ReplyData) {
        let vfs = self.vfs.clone();
        self.tasks.spawn(async move { answer_bytes(reply, vfs.readlink(file(number)).await) });
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        match kind_of_mode(mode) {
            Ok(kind) => {
                let new = NewInode { rdev, ..new_inode(request, kind, mode, umask) };
                self.make(parent, name, new, reply);
            }
            Err(fault) => reply.error(errno(&fault)),
        }
    }

    fn mkdir(&self, request: &Request, dir: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        self.make(dir, name, new_inode(request, FileKind::Directory, mode, umask), reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let symlink = target.as_os_str().as_bytes().to_vec();
        self.make(
            parent,
            name,
            NewInode { symlink, ..new_inode(request, FileKind::Symlink, 0o777, 0) },
            reply,
        );
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes().to_vec();
        self.run(reply, |vfs| async move { vfs.unlink(file(parent), &name).await });
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes().to_vec();
        self.run(reply, |vfs| async move { vfs.rmdir(file(parent), &name).await });
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (from, to) = (name.as_bytes().to_vec(), new_name.as_bytes().to_vec());
        self.run(reply, |vfs| async move {
            vfs.rename((file(parent), &from), (file(new_parent), &to), rename_mode(flags)?).await
        });
    }

    fn link(&self, _request: &Request, number: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (vfs, name) = (self.vfs.clone(), name.as_bytes().to_vec());
        self.tasks.spawn(async move {
            answer_entry(reply, vfs.link(file(number), file(parent), &name).await);
        });
    }

    fn open(&self, request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.open_file(file(number), open_mode(flags), request.pid(), reply);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let new = new_inode(request, FileKind::File, mode, umask);
        let how = (flags & O_EXCL != 0, open_mode(OpenFlags(flags)));
        self.create_file((file(parent), name), new, how, reply);
    }

    fn read(
        &self,
        _request: &Request,
        _number: INodeNo,
        number: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let vfs = self.vfs.clone();
        self.tasks.spawn(async move {
            answer_bytes(reply, vfs.read(handle(number), offset, size).await);
        });
    }

    fn write(
        &self,
        _request: &Request,
        number: INodeNo,
        open: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.write_bytes(number, (handle(open), offset, data), write_flags, reply);
    }

    fn flush(&self, _: &Request, _: INodeNo, number: FileHandle, owner: LockOwner, reply: ReplyEmpty) {
        self.run(reply, |vfs| async move {
            let flushed = vfs.flush(handle(number)).await;
            locks::closed(&*vfs, handle(number), owner.0).await;
            flushed
        });
    }

    fn getlk(
        &self,
        _request: &Request,
        _number: INodeNo,
        number: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        pid: u32,
        reply: ReplyLock,
    ) {
        let vfs = self.vfs.clone();
        let wanted = LockArguments { owner, start, end, kind, pid };
        self.tasks.spawn(async move { lock::test(&*vfs, number, wanted, reply).await });
    }

    fn setlk(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        pid: u32,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        let (runtime, vfs, kernel) = (self.tasks.runtime().clone(), self.vfs.clone(), self.kernel.clone());
        let waits = sleep.then(|| request.pid());
        let set = SetLock { runtime, vfs, kernel, file: number, handle, waits };
        // It may wait for long, for another program: that is no reason to put off background work.
        self.tasks.runtime().spawn(set.run(LockArguments { owner, start, end, kind, pid }, reply));
    }

    fn fsync(&self, _: &Request, number: INodeNo, open: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let kernel = self.kernel.clone();
        self.run(reply, move |vfs| async move {
            let (open, awaits_others) = (handle(open), vfs.awaits_others(handle(open)));
            vfs.fsync(open).await?;
            if awaits_others {
                let stale = vfs.revalidate(open).await?;
                kernel.drop_stale(&vfs, number, open, stale).await?;
            }
            Ok(())
        });
    }

    fn fallocate(
        &self,
        _request: &Request,
        _number: INodeNo,
        number: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.run(reply, |vfs| async move {
            let (change, grows) = space_change(mode)?;
            let end = offset.checked_add(length).filter(|&end| end <= FILE_SIZE_MAX).ok_or(Errno::EFBIG)?;
            vfs.change_space(handle(number), change, offset..end, grows).await
        });
    }

    fn lseek(&self, _: &Request, _: INodeNo, number: FileHandle, from: i64, whence: i32, reply: ReplyLseek) {
        let (vfs, from) = (self.vfs.clone(), u64::try_from(from).map_err(|_| Errno::ENXIO));
        self.tasks.spawn(async move {
            let found = async { vfs.seek(handle(number), sought(whence)?, from?).await };
            answer_seek(reply, found.await);
        });
    }

    /// The kernel copies by reading and writing, which are as near as any other way: it asks this once per mount.
    fn copy_file_range(
        &self,
        _request: &Request,
        _source: INodeNo,
        _source_handle: FileHandle,
        _source_offset: u64,
        _target: INodeNo,
        _target_handle: FileHandle,
        _target_offset: u64,
        _length: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        reply.error(fuser::Errno::ENOSYS);
    }

    fn release(
        &self,
        _request: &Request,
        number: INodeNo,
        open: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.kernel.closed(number, handle(open));
        self.rights.closed(file(number), handle(open));
        self.run(reply, |vfs| async move {
            locks::release(&*vfs, handle(open)).await;
            Ok(())
        });
    }

    fn opendir(&self, _request: &Request, number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let vfs = self.vfs.clone();
        self.tasks.spawn(async move { answer_open_dir(reply, vfs.open_dir(file(number)).await) });
    }

    fn readdir(&self, _: &Request, _: INodeNo, dir: FileHandle, after: u64, mut reply: ReplyDirectory) {
        let vfs = self.vfs.clone();
        self.tasks.spawn(async move {
            match list(&*vfs, handle(dir), after, &mut reply).await {
                Ok(()) => reply.ok(),
                Err(fault) => reply.error(errno(&fault)),
            }
        });
    }

    fn releasedir(&self, _: &Request, _: INodeNo, dir: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.vfs.release_dir(handle(dir));
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, number: INodeNo, _: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.run(reply, |vfs| async move { vfs.fsync_dir(file(number)).await });
    }

    fn statfs(&self, _request: &Request, _number: INodeNo, reply: ReplyStatfs) {
        let vfs = self.vfs.clone();
        self.tasks.spawn(async move { answer_space(reply, vfs.space().await) });
    }

    fn setxattr(
        &self,
        _request: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let (name, value) = (name.as_bytes().to_vec(), value.to_vec());
        let (create, replace) = (flags & XATTR_CREATE != 0, flags & XATTR_REPLACE != 0);
        self.run(
            reply,
            |vfs| async move { vfs.set_xattr(file(number), &name, &value, create, replace).await },
        );
    }

    fn getxattr(&self, _request: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let (vfs, name) = (self.vfs.clone(), name.as_bytes().to_vec());
        self.tasks.spawn(async move {
            answer_xattr(reply, size, vfs.get_xattr(file(number), &name).await);
        });
    }

    fn listxattr(&self, _request: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        let vfs = self.vfs.clone();
        self.tasks.spawn(async move {
            answer_xattr(reply, size, vfs.list_xattr(file(number)).await.map(joined));
        });
    }

    fn removexattr(&self, _request: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes().to_vec();
        self.run(reply, |vfs| async move { vfs.remove_xattr(file(number), &name).await });
    }
}
