//! File content in the cache view: open, read, write and truncate.

use super::CacheView;
use super::opens::OpenFile;
use crate::data::{FileVersion, Grantable, Home, Located};
use crate::passthrough::Identity;
use crate::replies::unexpected_reply;
use crate::types::{FileNumber, HandleNumber, OpenMode, Opened, ReadBytes, WriteAt, WriteBytes, has_setid};
use crate::vfs::Content;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tameike_core::attr::{AttrChange, SetTime};
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::cache::{CacheReply, CacheRequest, CacheState, Stamp, Writing};
use tameike_core::wire::holders::Holder;
use tameike_core::wire::unit::{Sought, SpaceChange};
use tameike_core::{Attr, Errno, FaultKind, Generation, InodeId, Result};
use tameike_io::Frame;
use tameike_io::shared::{Access, FileStat, SharedFile, SharedFs, revalidate_path};

impl CacheView {
    /// Opens the shared file at `path` and its data in the pool. If the file is missing or stale, revalidates the path for the caller's
    /// retry.
    pub(super) async fn open_at(&self, path: Vec<u8>, mode: OpenMode) -> Result<(FileStat, Opened)> {
        let opened = self.open_there(path.clone(), mode).await;
        if opened.as_ref().is_err_and(|fault| fault.kind() == FaultKind::Missing) {
            self.revalidate(path).await?;
        }
        opened
    }

    /// Makes the next lookup of a path bypass this node's caches.
    pub(super) async fn revalidate(&self, path: Vec<u8>) -> Result<()> {
        let revalidate = move |fs: &dyn SharedFs| {
            revalidate_path(fs, &path);
            Ok(())
        };
        self.below.run(revalidate).await
    }

    async fn open_there(&self, path: Vec<u8>, mode: OpenMode) -> Result<(FileStat, Opened)> {
        let access = if mode.write { Access::Write } else { Access::Read };
        let at = path.clone();
        let (shared, stat) = self
            .below
            .run(move |fs| {
                let file = fs.open(&at, access)?;
                file.revalidate()?;
                let stat = file.stat()?;
                Ok((file, stat))
            })
            .await?;
        let opened = self.open_shared((path, shared), &stat, mode, false).await?;
        Ok((stat, opened))
    }

    /// Opens the data of a shared file that is already open; `made` if this call created it.
    pub(super) async fn open_shared(
        &self,
        (path, shared): (Vec<u8>, Arc<dyn SharedFile>),
        stat: &FileStat,
        mode: OpenMode,
        made: bool,
    ) -> Result<Opened> {
        let (file, stamp) = (Identity::of(stat), stat.stamp());
        let inode = file.inode;
        let opening = self.opens.begin(inode, &path, stamp);
        let (state, holders) = self.ask_open((inode, path.clone(), stamp), true, made).await?;
        let cell = match self.opens.of_file(&file) {
            Some(open) => {
                // Another node may have renamed it since this node opened it.
                *open.path.lock() = path;
                open.path.clone()
            }
            None => Arc::new(Mutex::new(path)),
        };
        let layout = tameike_core::Layout::Striped;
        let home = Home::Shared(cell.clone());
        let (data, keep_cache) = self.engine.open(
            inode,
            layout,
            home,
            FileVersion { holders, ..FileVersion::of_cache(state, stat.size) },
            mode,
        );
        let open = OpenFile::new(file, data.clone(), shared, cell.clone(), stamp, mode);
        let (direct, has_setid) = (mode.is_direct(data.size()), has_setid(stat.mode));
        let handle = self.opens.add(open);
        if (opening.end() || state.removing)
            && let Err(fault) = self.switch_to_shared(inode).await
        {
            self.close(handle);
            return Err(fault);
        }
        self.truncated(Opened { handle, keep_cache, direct, has_setid }, mode).await
    }

    /// Truncates a file that was opened with `O_TRUNC`.
    async fn truncated(&self, opened: Opened, mode: OpenMode) -> Result<Opened> {
        if !mode.truncate || !mode.write {
            return Ok(opened);
        }
        if let Err(fault) = self.empty(&*self.handle(opened.handle)?).await {
            self.close(opened.handle);
            return Err(fault);
        }
        Ok(Opened { keep_cache: false, direct: mode.is_direct(0), ..opened })
    }

    /// Reports an open to the coordinator; `holds` if this node will cache content of the file in memory.
    pub(super) async fn ask_open(
        &self,
        (inode, path, stamp): (InodeId, Vec<u8>, Stamp),
        holds: bool,
        made: bool,
    ) -> Result<(CacheState, Vec<Holder>)> {
        let coordinator = self.cluster.inode_home(inode);
        let holder_outcomes = self.engine.reports().take(self.cluster.primary(coordinator));
        match self
            .ask(coordinator, CacheRequest::Open { inode, path, stamp, holder_outcomes, holds, made })
            .await?
        {
            CacheReply::Opened { state, holders } => Ok((state, holders)),
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Opens another handle of an open file without a name, for example through `/proc/self/fd`. Fails with `EACCES` to write when no
    /// handle is open for writing.
    pub(super) async fn reopen_orphan(&self, file: FileNumber, mode: OpenMode) -> Result<Option<Opened>> {
        let id = self.below.identity(file);
        // The oldest handle suffices: when a file loses its last name, it becomes an orphan first.
        let Some(oldest) = self.opens.of_file(&id).filter(|open| open.is_orphan()) else { return Ok(None) };
        let open = match oldest.mode.write || !mode.write {
            true => oldest,
            false => self.opens.find_of(&id, |open| open.mode.write).ok_or(Errno::EACCES)?,
        };
        let direct = mode.is_direct(open.data.size());
        let handle = self.opens.add(open.again(mode));
        // The mode bits are unknown, so assume that they may be set-ID.
        let opened = Opened { handle, keep_cache: false, direct, has_setid: true };
        self.truncated(opened, mode).await.map(Some)
    }

    pub(super) fn close(&self, handle: HandleNumber) {
        // A reopened handle of an orphan holds no open of the data.
        if let Some(open) = self.opens.remove(handle).filter(|open| !open.is_reopened) {
            self.engine.close(&open.data);
        }
    }

    /// Announces writes to the coordinator before the first write of a handle and the first one after each commit. The coordinator then
    /// logs the file in its journal. The announced range doubles each time, which limits the number of requests.
    pub(super) async fn announce(&self, open: &OpenFile, end: u64) -> Result<()> {
        if open.is_announced_to(end) {
            return Ok(());
        }
        let units = end.div_ceil(UNIT_SIZE as u64);
        let reach =
            units.checked_next_power_of_two().unwrap_or(units).max(open.reach.load(Ordering::Acquire));
        let inode = open.data.inode;
        let commits = open.data.commits();
        let request = match open.announced.load(Ordering::Acquire) {
            0 => {
                let path = open.path.lock().clone();
                CacheRequest::Dirty { inode, path, stamp: open.stamp, writes: true, reach }
            }
            _ => CacheRequest::Writing { inode, what: Writing::Begins { reach } },
        };
        self.notify(inode, request).await?;
        open.reach.fetch_max(reach, Ordering::AcqRel);
        open.announced.store(commits + 1, Ordering::Release);
        Ok(())
    }

    /// Reports all files that programs here write as interrupted, before those programs are killed.
    pub async fn mark_interrupted(&self) {
        let reports = self.opens.writing().into_iter().map(|inode| async move {
            let request = CacheRequest::Writing { inode, what: Writing::Interrupted };
            if let Err(fault) = self.notify(inode, request).await {
                log::warn!("cannot report that {inode} was interrupted during writes: {fault}");
            }
        });
        futures_util::future::join_all(reports).await;
    }

    pub(super) async fn truncate(&self, file: FileNumber, size: u64) -> Result<()> {
        let id = self.below.identity(file);
        let open = self.opens.of_file(&id);
        let _stays = match &open {
            Some(open) => Some(open.data.leaving.read().await),
            None => None,
        };
        if let Some(open) = self.opens.find_of(&id, |open| open.is_orphan() && open.mode.write) {
            return self.below.run(move |_| open.shared.truncate(size)).await;
        }
        let stamp = self.stat(file).await?.stamp();
        let path = match &open {
            Some(open) => open.path.lock().clone(),
            None => self.below.path(file)?,
        };
        if self.opens.find_of(&id, |open| open.mode.write).is_none() {
            // No open has checked write permission yet.
            let (shared, path) = (open.as_ref().map(|open| open.shared.clone()), path.clone());
            let check = move |fs: &dyn SharedFs| {
                shared.map_or_else(|| fs.check_write(&path), |file| file.check_write())
            };
            self.below.run(check).await?;
        }
        self.truncate_content(id.inode, path, stamp, size).await
    }

    /// Truncates a file to 0 during its open.
    async fn empty(&self, open: &OpenFile) -> Result<()> {
        let _stays = open.data.leaving.read().await;
        if open.is_orphan() {
            let shared = open.shared.clone();
            return self.below.run(move |_| shared.truncate(0)).await;
        }
        let path = open.path.lock().clone();
        self.truncate_content(open.data.inode, path, open.stamp, 0).await
    }

    async fn truncate_content(&self, inode: InodeId, path: Vec<u8>, stamp: Stamp, size: u64) -> Result<()> {
        self.notify(inode, CacheRequest::Dirty { inode, path, stamp, writes: false, reach: 0 }).await?;
        let now = self.runtime.now();
        let resize = self.ask_state(inode, CacheRequest::Truncate { inode, size, now });
        match self.engine.find(inode) {
            Some(data) => {
                let state = self.engine.resize(&data, size, resize).await?;
                data.refresh(FileVersion::of_cache(state, size));
            }
            None => resize.await.map(drop)?,
        }
        Ok(())
    }

    pub(super) async fn change(&self, file: FileNumber, change: AttrChange) -> Result<Attr> {
        if let Some(size) = change.size {
            self.truncate(file, size).await?;
        }
        let rest = AttrChange { size: None, ..change };
        if rest != AttrChange::default() {
            self.change_attributes(file, rest).await?;
        }
        self.overlay(&self.stat(file).await?).await
    }

    async fn change_attributes(&self, file: FileNumber, change: AttrChange) -> Result<()> {
        let inode = self.below.inode(file);
        if let Some(data) = self.engine.find(inode).filter(|data| data.newer().is_some()) {
            // A pending write must not overwrite the time that a program sets.
            self.engine.flush(&data, false).await?;
        }
        let Some(mtime) = change.mtime else { return self.change_shared(file, change).await };
        let mtime = if let SetTime::To(time) = mtime { time } else { self.runtime.now() };
        // The coordinator recognises this change by its exact time.
        let exact = AttrChange { mtime: Some(SetTime::To(mtime)), ..change };
        match self.change_shared(file, exact.clone()).await {
            // A writer that is not the owner may only set the time to the current time of the shared file system.
            Err(fault) if fault.errno == Errno::EPERM && exact != change => {
                self.change_shared(file, change).await?;
            }
            changed => changed?,
        }
        self.notify(inode, CacheRequest::SetMtime { inode, mtime }).await
    }

    async fn change_shared(&self, file: FileNumber, change: AttrChange) -> Result<()> {
        match self.opens.of_file(&self.below.identity(file)) {
            // Use the descriptor: another node may have renamed the file and reused its name.
            Some(open) => self.below.run(move |_| open.shared.change(&change)).await,
            None => self.below.change(file, change).await,
        }
    }

    /// Revalidates the cached state of an open file, as an open does. Returns the version if the kernel's pages are outdated.
    pub(super) async fn revalidate_open(&self, open: &OpenFile) -> Result<Option<Generation>> {
        if open.is_orphan() {
            return Ok(Some(Generation(0))); // other nodes write to the shared file directly
        }
        let stat = match self.below.tree.number_of(&open.file) {
            Some(number) => self.stat(number).await?,
            None => {
                let shared = open.shared.clone();
                self.below.run(move |_| shared.stat()).await?
            }
        };
        let (inode, attr) = (open.data.inode, stat.attr());
        if self.removed_elsewhere(&open.file, &attr).is_some() {
            return Ok(None);
        }
        let request = CacheRequest::State { inode, size: attr.size, mtime: attr.mtime };
        let state = self.ask_state(inode, request).await?;
        Ok(open.data.revalidate(FileVersion::of_cache(state, attr.size)))
    }

    /// Flushes a handle for close, or syncs it for fsync if `durable`.
    pub(super) async fn sync_open(&self, open: &OpenFile, durable: bool) -> Result<()> {
        if !durable && !open.mode.write {
            return Ok(());
        }
        if open.is_orphan() {
            let shared = open.shared.clone();
            if durable {
                self.below.run(move |_| shared.sync()).await?;
            }
        } else {
            self.engine.flush(&open.data, durable).await?;
            if open.is_announced() {
                // The flush had nothing to commit.
                open.data.count_commit();
                let inode = open.data.inode;
                self.notify(inode, CacheRequest::Writing { inode, what: Writing::Ends }).await?;
            }
        }
        open.data.report_faults(&open.reported)
    }
}

impl Content for CacheView {
    async fn read(&self, handle: HandleNumber, offset: u64, length: u32) -> Result<ReadBytes> {
        let open = self.handle(handle)?;
        let _stays = open.data.leaving.read().await;
        if !open.is_orphan() {
            return self.engine.read(&open.data, offset, length).await;
        }
        let shared = open.shared.clone();
        let bytes = self.below.run(move |_| {
            let mut bytes = vec![0; length as usize];
            let mut count = shared.read_at(&mut bytes, offset)?;
            if count < bytes.len() {
                // The cached size of the shared file may be stale.
                shared.revalidate()?;
                count = shared.read_at(&mut bytes, offset)?;
            }
            bytes.truncate(count);
            Ok(bytes)
        });
        bytes.await.map(ReadBytes::Memory)
    }

    async fn locate(&self, handle: HandleNumber, offset: u64, length: u32) -> Result<Option<Located>> {
        let open = self.handle(handle)?;
        let _stays = open.data.leaving.read().await;
        Ok(if open.is_orphan() { None } else { self.engine.locate(&open.data, offset, length).await })
    }

    fn drop_location(&self, handle: HandleNumber, offset: u64) {
        if let Ok(open) = self.handle(handle) {
            open.data.drop_location(offset);
        }
    }

    fn spare_frame(&self) -> Option<Frame> {
        self.engine.frame_now()
    }

    fn write_now(&self, handle: HandleNumber, at: WriteAt, data: &dyn WriteBytes) -> Result<usize> {
        let open = self.handle(handle)?;
        let WriteAt::Offset(offset) = at else { return Ok(0) };
        let Some(_stays) = open.data.leaving.try_read() else { return Ok(0) };
        if open.is_orphan() || !open.is_announced_to(offset.saturating_add(data.size() as u64)) {
            return Ok(0);
        }
        open.data.check_full(&open.reported)?;
        self.engine.write_now(&open.data, offset, data)
    }

    async fn write(&self, handle: HandleNumber, at: WriteAt, data: &[u8]) -> Result<()> {
        let open = self.handle(handle)?;
        let _stays = open.data.leaving.read().await;
        if open.is_orphan() {
            let (shared, data) = (open.shared.clone(), data.to_vec());
            let write = move |_: &dyn SharedFs| match at {
                WriteAt::Offset(offset) => shared.write_at(&data, offset),
                WriteAt::End => shared.append(&data),
            };
            return self.below.run(write).await;
        }
        open.data.check_full(&open.reported)?;
        let end = match at {
            WriteAt::Offset(offset) => offset.saturating_add(data.len() as u64),
            // The coordinator reserves the range.
            WriteAt::End => 0,
        };
        self.announce(&open, end).await?;
        match at {
            WriteAt::Offset(offset) => self.engine.write(&open.data, offset, data).await,
            WriteAt::End => self.engine.append(&open.data, data).await,
        }
    }

    fn grantable(&self, handle: HandleNumber) -> Option<Grantable> {
        self.handle(handle).ok().map(|open| self.engine.grantable(&open.data))
    }

    async fn change_space(
        &self,
        handle: HandleNumber,
        change: SpaceChange,
        bytes: Range<u64>,
        grows: bool,
    ) -> Result<()> {
        self.change_open_space(&*self.handle(handle)?, change, bytes, grows).await
    }

    async fn seek(&self, handle: HandleNumber, sought: Sought, offset: u64) -> Result<u64> {
        self.seek_open(&*self.handle(handle)?, sought, offset).await
    }
}
