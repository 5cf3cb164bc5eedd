//! [`Vfs`](crate::vfs::Vfs) of the job-shared view.

use super::SharedView;
use super::opens::Opening;
use crate::data::{FileData, Grantable, Located};
use crate::kernel_pages::{EngineFile, OnEngine};
use crate::locks::FileLocks;
use crate::region::RegionFile;
use crate::types::{
    FileNumber, Found, HandleNumber, Name, OpenMode, Opened, ReadBytes, ViewSpace, WriteAt, WriteBytes,
};
use crate::vfs::{Content, Directories, Entries, Inodes, Locking, Names, OpenFiles, SharedNames, Usage};
use std::ops::Range;
use std::sync::Arc;
use tameike_core::attr::AttrChange;
use tameike_core::limits::BLOCK_SIZE;
use tameike_core::wire::meta::{EntryName, MetaRequest, NameOperation, NewInode, Node, RenameMode, Target};
use tameike_core::wire::unit::{Sought, SpaceChange};
use tameike_core::{Attr, Errno, FileKind, Generation, InodeId, Result, name};
use tameike_fabric::{Destination, join_calls, under_one_map};
use tameike_io::Frame;

impl SharedView {
    fn entry(&self, dir: FileNumber, name: &[u8]) -> EntryName {
        EntryName { dir: self.inode(dir), name: name.to_vec() }
    }

    fn file(&self, handle: HandleNumber) -> Result<Arc<FileData>> {
        Ok(self.handle(handle)?.file)
    }
}

impl OnEngine for SharedView {
    fn engine_file(&self, handle: HandleNumber) -> Result<EngineFile> {
        Ok(EngineFile { data: self.file(handle)?, is_detached: false })
    }
}

impl Names for SharedView {
    async fn lookup(&self, dir: FileNumber, name: &[u8]) -> Result<Found> {
        let entry = self.entry(dir, name);
        let start = self.leases.start_request(self.runtime.clock.monotonic());
        if let Some(attr) = self.leases.find(&entry, self.runtime.clock.monotonic())
            && let Some(attr) = self.complete_newest(Node::of(attr), &start).await?
        {
            return Ok(Found { file: self.number(attr.inode), attr });
        }
        let entry = self.find(entry).await?;
        self.found(entry).await
    }

    fn set_shared_names(&self, names: Arc<dyn SharedNames>) -> bool {
        self.show_names_in(names);
        true
    }

    fn show(&self, file: FileNumber) {
        self.show_file(self.inode(file));
    }

    async fn make(&self, dir: FileNumber, name: &[u8], new: NewInode) -> Result<Found> {
        let entry = self.new_entry(self.entry(dir, name), new, true, None).await?;
        self.found(entry).await
    }

    async fn link(&self, file: FileNumber, dir: FileNumber, name: &[u8]) -> Result<Found> {
        name::check(name)?;
        let inode = self.inode(file);
        let entry = self.entry(dir, name);
        let target = Target { inode, kind: self.attributes(inode).await?.kind };
        self.operate(&entry, NameOperation::Link { entry: entry.clone(), target }).await?;
        let attr = self.attributes(inode).await?;
        Ok(Found { file, attr })
    }

    async fn unlink(&self, dir: FileNumber, name: &[u8]) -> Result<()> {
        let entry = self.entry(dir, name);
        self.operate(&entry, NameOperation::Unlink { entry: entry.clone() }).await
    }

    async fn rmdir(&self, dir: FileNumber, name: &[u8]) -> Result<()> {
        let entry = self.entry(dir, name);
        self.operate(&entry, NameOperation::Rmdir { entry: entry.clone() }).await
    }

    async fn rename(&self, from: Name<'_>, to: Name<'_>, mode: RenameMode) -> Result<()> {
        name::check(to.1)?;
        let (from, to) = (self.entry(from.0, from.1), self.entry(to.0, to.1));
        let operation = NameOperation::Rename { from: from.clone(), to: to.clone(), mode };
        self.operate(&from, operation).await?;
        self.directories.changed(to.dir);
        Ok(())
    }
}

impl Inodes for SharedView {
    async fn lookup_again(&self, file: FileNumber) -> Result<Found> {
        Ok(Found { file, attr: self.attributes(self.inode(file)).await? })
    }

    fn forget(&self, file: FileNumber, _count: u64) {
        // Lookups are not counted: the file number is the inode, and cached directory state is cheap to fetch again.
        self.directories.forget(self.inode(file));
    }

    async fn getattr(&self, file: FileNumber) -> Result<Attr> {
        self.attributes(self.inode(file)).await
    }

    async fn setattr(&self, file: FileNumber, change: AttrChange) -> Result<Attr> {
        self.change(self.inode(file), change).await
    }

    async fn readlink(&self, file: FileNumber) -> Result<Vec<u8>> {
        let inode = self.inode(file);
        self.ask_bytes(inode, MetaRequest::ReadLink { inode }).await
    }
}

impl OpenFiles for SharedView {
    async fn create(
        &self,
        dir: FileNumber,
        name: &[u8],
        new: NewInode,
        exclusive: bool,
        mode: OpenMode,
    ) -> Result<(Found, Opened)> {
        let mut opening = self.closer.opening();
        let entry = self.new_entry(self.entry(dir, name), new, exclusive, Some(&mut opening)).await?;
        let counted = entry.node.clone().filter(|_| entry.target.kind == FileKind::File);
        let (node, opening) = match counted {
            Some(node) => (node, opening),
            None => {
                opening.end_uncounted();
                match entry.target.kind {
                    FileKind::File => self.count_open(entry.target.inode).await?,
                    FileKind::Directory => return Err(Errno::EISDIR.into()),
                    // Another node created it after the kernel's lookup: the kernel retries.
                    _ => return Err(Errno::ESTALE.into()),
                }
            }
        };
        // A new file is empty.
        let mode = OpenMode { truncate: mode.truncate && !entry.created, ..mode };
        let opened = self.open_counted(node, mode, opening).await?;
        match self.found(entry).await {
            Ok(found) => Ok((found, opened)),
            Err(fault) => {
                self.close_handle(opened.handle);
                Err(fault)
            }
        }
    }

    async fn open(&self, file: FileNumber, mode: OpenMode) -> Result<Opened> {
        let (node, opening) = self.count_open(self.inode(file)).await?;
        self.open_counted(node, mode, opening).await
    }

    async fn flush(&self, handle: HandleNumber) -> Result<()> {
        let handle = self.handle(handle)?;
        if !handle.mode.write {
            return Ok(());
        }
        self.flush_file(&handle.file, false).await?;
        handle.file.report_faults(&handle.reported)
    }

    async fn fsync(&self, handle: HandleNumber) -> Result<()> {
        let handle = self.handle(handle)?;
        self.flush_file(&handle.file, true).await?;
        handle.file.report_faults(&handle.reported)
    }

    fn only_awaits_others(&self, handle: HandleNumber) -> bool {
        self.file(handle).is_ok_and(|file| file.is_flushed())
    }

    async fn size(&self, handle: HandleNumber) -> Result<u64> {
        Ok(self.file(handle)?.size())
    }

    async fn release(&self, handle: HandleNumber) {
        if let Ok(open) = self.handle(handle) {
            self.engine.flush_mapped(&open.file, open.mode).await;
            self.note_writes(&open.file);
        }
        self.close_handle(handle);
    }
}

impl Content for SharedView {
    async fn read(&self, handle: HandleNumber, offset: u64, length: u32) -> Result<ReadBytes> {
        let handle = self.handle(handle)?;
        let bytes = self.engine.read(&handle.file, offset, length).await?;
        if !handle.mode.noatime {
            handle.file.accessed(self.runtime.now());
        }
        Ok(bytes)
    }

    async fn locate(&self, handle: HandleNumber, offset: u64, length: u32) -> Result<Option<Located>> {
        let handle = self.handle(handle)?;
        let located = self.engine.locate(&handle.file, offset, length).await;
        if located.is_some() && !handle.mode.noatime {
            handle.file.accessed(self.runtime.now());
        }
        Ok(located)
    }

    fn drop_location(&self, handle: HandleNumber, offset: u64) {
        if let Ok(file) = self.file(handle) {
            file.drop_location(offset);
        }
    }

    fn spare_frame(&self) -> Option<Frame> {
        self.engine.frame_now()
    }

    fn write_now(&self, handle: HandleNumber, at: WriteAt, data: &dyn WriteBytes) -> Result<usize> {
        let handle = self.handle(handle)?;
        let WriteAt::Offset(offset) = at else { return Ok(0) };
        handle.file.check_full(&handle.reported)?;
        self.engine.write_now(&handle.file, offset, data)
    }

    async fn write(&self, handle: HandleNumber, at: WriteAt, data: &[u8]) -> Result<()> {
        let handle = self.handle(handle)?;
        handle.file.check_full(&handle.reported)?;
        match at {
            WriteAt::Offset(offset) => self.engine.write(&handle.file, offset, data).await,
            WriteAt::End => {
                let appended = self.engine.append(&handle.file, data).await;
                self.leases.changed(handle.file.inode);
                appended
            }
        }
    }

    fn grantable(&self, handle: HandleNumber) -> Option<Grantable> {
        self.file(handle).ok().map(|file| self.engine.grantable(&file))
    }

    fn region_file(&self, handle: HandleNumber) -> Option<RegionFile> {
        if self.root != InodeId::ROOT {
            return None;
        }
        let file = self.file(handle).ok()?;
        let pages = u32::try_from(file.size().div_ceil(BLOCK_SIZE as u64)).ok()?;
        Some(RegionFile { inode: file.inode, layout: file.layout, pages })
    }

    async fn change_space(
        &self,
        handle: HandleNumber,
        change: SpaceChange,
        bytes: Range<u64>,
        grows: bool,
    ) -> Result<()> {
        let file = self.file(handle)?;
        let change_homes = self.engine.space().change_at_homes(&file, change, bytes.clone(), grows);
        let changed = self.engine.space().change(&file, change, bytes, change_homes).await;
        self.leases.changed(file.inode);
        changed
    }

    async fn seek(&self, handle: HandleNumber, sought: Sought, offset: u64) -> Result<u64> {
        let file = self.file(handle)?;
        let size = file.size();
        if offset >= size {
            return Err(Errno::ENXIO.into());
        }
        match (self.engine.space().seek(&file, sought, offset, size).await?, sought) {
            (Some(at), _) => Ok(at),
            (None, Sought::Hole) => Ok(size),
            (None, Sought::Data) => Err(Errno::ENXIO.into()),
        }
    }
}

impl Locking for SharedView {
    fn locks(&self) -> Option<&Arc<FileLocks>> {
        self.locks.as_ref()
    }

    fn locked_inode(&self, handle: HandleNumber) -> Result<InodeId> {
        Ok(self.file(handle)?.inode)
    }

    async fn publish(&self, handle: HandleNumber) -> Result<()> {
        let file = self.file(handle)?;
        if file.is_flushed() { Ok(()) } else { self.flush_file(&file, false).await }
    }

    async fn revalidate(&self, handle: HandleNumber) -> Result<Option<Generation>> {
        let file = self.file(handle)?;
        // The lease must not hide what other nodes wrote under the lock.
        self.leases.changed(file.inode);
        Ok(file.revalidate(self.engine.version(file.inode).await?))
    }
}

impl Usage for SharedView {
    async fn space(&self) -> Result<ViewSpace> {
        self.gather_space().await
    }
}

impl Directories for SharedView {
    async fn open_dir(&self, dir: FileNumber) -> Result<HandleNumber> {
        let inode = self.inode(dir);
        self.fetch_directory_stat(inode).await?;
        Ok(self.open_dirs.open(inode))
    }

    async fn readdir(&self, dir: HandleNumber, after: u64) -> Result<Entries> {
        self.open_dirs.read(dir, after, |inode| self.list(inode, after)).await
    }

    fn release_dir(&self, dir: HandleNumber) {
        self.open_dirs.close(dir);
    }

    async fn fsync_dir(&self, dir: FileNumber) -> Result<()> {
        let inode = self.inode(dir);
        let synced = under_one_map(&self.cluster, |map| {
            let nodes = match self.directories.is_sharded(inode) {
                true => map.nodes().to_vec(),
                false => map.primaries([self.cluster.children_home(inode), self.cluster.inode_home(inode)]),
            };
            let nodes = nodes.into_iter().map(|node| Destination::Primary(node, map.epoch));
            join_calls(nodes.map(|to| self.ask(to, MetaRequest::Sync { durable: true })).collect::<Vec<_>>())
        });
        synced.await.map(drop)
    }
}

impl SharedView {
    /// Counts an open at the inode's home. The reply includes the attributes and inline content.
    async fn count_open(&self, inode: InodeId) -> Result<(Node, Opening)> {
        let mut opening = self.closer.opening();
        let node = self.send_open(inode, &mut opening).await?;
        Ok((node, opening))
    }

    /// Has the inode's home count an open. It counts once, however often it is sent.
    pub(super) async fn send_open(&self, inode: InodeId, opening: &mut Opening) -> Result<Node> {
        let opener = opening.ask(self.cluster.inode_home(inode));
        let answer = self.ask_node(inode, MetaRequest::Open { inode, opener }).await;
        opening.record_reply(&answer);
        answer
    }
}
