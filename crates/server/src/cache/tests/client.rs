//! A client of the services without caches, for tests.

use super::bed::NetRpc;
use std::sync::Arc;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::cache::{CacheReply, CacheRequest, CacheState, Stamp};
use tameike_core::wire::unit::{Backing, SPACE_ATTEMPTS_MAX, SpaceChange, UnitRequest};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Cluster, Errno, Generation, InodeId, Layout, NodeId, Result, Timestamp, UnitId};
use tameike_fabric::{Answer, Destination, Rpc};
use tameike_io::shared::SharedFs;
use tameike_io::{Payload, Pool, Runtime};

/// Reads and writes as the cache view does, without caches.
#[derive(Clone)]
pub(super) struct Client {
    pub(super) rpc: Arc<NetRpc>,
    pub(super) cluster: Arc<Cluster>,
    pub(super) shared: Arc<dyn SharedFs>,
    pub(super) pool: Pool,
    pub(super) runtime: Runtime,
}

/// An open file of a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opened {
    pub(super) inode: InodeId,
    pub(super) size: u64,
    pub(super) generation: Generation,
}

/// The open of a file that existed before.
pub(super) fn open_request(inode: InodeId, path: &[u8], stamp: Stamp) -> CacheRequest {
    CacheRequest::Open {
        inode,
        path: path.to_vec(),
        stamp,
        holder_outcomes: Vec::new(),
        holds: true,
        made: false,
    }
}

impl Client {
    /// Inode and stamp of a file on the shared file system.
    pub(super) fn identity(&self, path: &[u8]) -> (InodeId, Stamp) {
        let stat = self.shared.stat(path).expect("a file");
        (stat.inode_id(), stat.stamp())
    }

    /// Number of files that the coordinator of `inode` has yet to flush.
    pub(super) async fn unflushed_files(&self, inode: InodeId) -> u64 {
        match self.request(inode, CacheRequest::Progress).await.expect("progress") {
            CacheReply::Progress { files, .. } => files,
            other => panic!("a coordinator answered {other:?}"),
        }
    }

    /// Reserves a range for an append. Returns its offset, and the state of the file.
    pub(super) async fn reserve(&self, inode: InodeId, length: u64) -> Result<(u64, CacheState)> {
        let now = Timestamp::default();
        match self.request(inode, CacheRequest::Reserve { inode, length, now }).await? {
            CacheReply::Reserved { offset, state } => Ok((offset, state)),
            other => panic!("a coordinator answered {other:?}"),
        }
    }

    pub(super) async fn request(&self, inode: InodeId, request: CacheRequest) -> Result<CacheReply> {
        match self
            .rpc
            .call(self.cluster.inode_home(inode).into(), Request::Cache(request), None, None)
            .await?
            .reply
        {
            Reply::Cache(reply) => Ok(reply),
            other => panic!("a coordinator answered {other:?}"),
        }
    }

    pub(super) async fn state(&self, inode: InodeId, request: CacheRequest) -> Result<CacheState> {
        match self.request(inode, request).await? {
            CacheReply::State(state) | CacheReply::Opened { state, .. } => Ok(state),
            other => panic!("a coordinator answered {other:?}"),
        }
    }

    pub(super) async fn unit(
        &self,
        to: impl Into<Destination>,
        request: UnitRequest,
        payload: Option<Payload>,
    ) -> Result<Answer> {
        self.rpc.call(to.into(), Request::Unit(request), payload, None).await
    }

    /// Opens a file for reading, or for reading and writing if `write`.
    pub(super) async fn open(&self, path: &[u8], write: bool) -> Result<Opened> {
        let stat = self.shared.stat(path)?;
        let (inode, stamp) = (stat.inode_id(), stat.stamp());
        // Let time pass between the stat and the message.
        self.runtime.block(|| ()).await;
        let mut state = self.state(inode, open_request(inode, path, stamp)).await?;
        if write {
            let path = path.to_vec();
            let dirty = CacheRequest::Dirty { inode, path, stamp, writes: true, reach: u64::MAX };
            state = self.state(inode, dirty).await?;
        }
        let size = state.newer.map_or(stat.size, |(size, _)| size);
        Ok(Opened { inode, size, generation: state.generation })
    }

    /// Writes bytes of an opened file without committing them.
    pub(super) async fn write_uncommitted(&self, file: Opened, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let position = offset + done as u64;
            let unit = UnitId { inode: file.inode, index: position / UNIT_SIZE as u64 };
            let count = (UNIT_SIZE - (position - unit.start()) as usize).min(bytes.len() - done);
            let piece = &bytes[done..done + count];
            let mut attempt = 0;
            while let Err(fault) = self.send_write(file, position, piece).await {
                if fault.errno != Errno::ENOSPC || attempt == SPACE_ATTEMPTS_MAX {
                    return Err(fault);
                }
                self.wait_for_space(unit, attempt).await?;
                attempt += 1;
            }
            done += count;
        }
        Ok(())
    }

    /// Sends one message with bytes of one unit of an opened file.
    pub(super) async fn send_write(&self, file: Opened, offset: u64, bytes: &[u8]) -> Result<()> {
        let unit = UnitId { inode: file.inode, index: offset / UNIT_SIZE as u64 };
        let start = (offset - unit.start()) as u32;
        let mut frame = self.pool.take().await;
        frame[..bytes.len()].copy_from_slice(bytes);
        let payload = Payload::new(Arc::new(frame), 0..bytes.len() as u32);
        let ranges = (start..start + bytes.len() as u32).into();
        let request = UnitRequest::Write { unit, ranges, generation: file.generation };
        self.unit(self.cluster.unit_home(Layout::Striped, unit), request, Some(payload)).await.map(drop)
    }

    /// Waits until the home of a unit has space.
    pub(super) async fn wait_for_space(&self, unit: UnitId, attempt: u32) -> Result<()> {
        let home = self.cluster.unit_home(Layout::Striped, unit);
        self.unit(home, UnitRequest::WaitForSpace { attempt }, None).await.map(drop)
    }

    /// Persists the data up to `end` on the homes, and commits the size.
    pub(super) async fn close(&self, file: Opened, end: u64) -> Result<CacheState> {
        let inode = file.inode;
        for node in self.cluster.map().primaries(self.cluster.unit_homes(Layout::Striped, inode)) {
            self.unit(node, UnitRequest::Sync { inode, durable: false }, None).await?;
        }
        self.state(inode, CacheRequest::Commit { inode, end, sparse: false, now: self.runtime.now() }).await
    }

    /// Opens, writes and closes.
    pub(super) async fn write(&self, path: &[u8], offset: u64, bytes: &[u8]) -> Result<()> {
        let file = self.open(path, true).await?;
        self.write_uncommitted(file, offset, bytes).await?;
        self.close(file, offset + bytes.len() as u64).await.map(|_| ())
    }

    /// Creates a file and writes it.
    pub(super) async fn create(&self, path: &[u8], bytes: &[u8]) -> Result<()> {
        self.shared.create(path, 0o644)?;
        self.write(path, 0, bytes).await
    }

    /// Opens and reads the whole file.
    pub(super) async fn read(&self, path: &[u8]) -> Result<Vec<u8>> {
        let file = self.open(path, false).await?;
        self.read_from(file, path, Vec::new()).await
    }

    /// Reads an open file. `holders` may have its units in memory.
    pub(super) async fn read_from(&self, file: Opened, path: &[u8], holders: Vec<NodeId>) -> Result<Vec<u8>> {
        let mut content = Vec::with_capacity(file.size as usize);
        while (content.len() as u64) < file.size {
            let position = content.len() as u64;
            let unit = UnitId { inode: file.inode, index: position / UNIT_SIZE as u64 };
            let offset = (position - unit.start()) as u32;
            let length = (file.size - position).min(UNIT_SIZE as u64 - u64::from(offset)) as u32;
            let backing = Backing::Shared { path: path.to_vec(), holders: holders.clone() };
            let request = UnitRequest::Read { unit, offset, length, generation: file.generation, backing };
            let answer = self.unit(self.cluster.unit_home(Layout::Striped, unit), request, None).await?;
            let payload = answer.payload.expect("a read returns bytes");
            assert_eq!(payload.len(), length as usize);
            content.extend_from_slice(&payload);
        }
        Ok(content)
    }

    pub(super) async fn truncate(&self, path: &[u8], size: u64) -> Result<CacheState> {
        let file = self.open(path, true).await?;
        let (inode, now) = (file.inode, self.runtime.now());
        self.state(inode, CacheRequest::Truncate { inode, size, now }).await
    }

    /// Changes the space of a byte range of a file.
    pub(super) async fn change_space(
        &self,
        path: &[u8],
        change: SpaceChange,
        bytes: std::ops::Range<u64>,
        grows: bool,
    ) -> Result<CacheState> {
        let inode = self.open(path, true).await?.inode;
        let (start, end, now) = (bytes.start, bytes.end, self.runtime.now());
        self.state(inode, CacheRequest::Space { inode, change, start, end, grows, now }).await
    }

    /// Size as `stat` returns it.
    pub(super) async fn size(&self, path: &[u8]) -> Result<u64> {
        let stat = self.shared.stat(path)?;
        let (inode, size, mtime) = (stat.inode_id(), stat.size, stat.mtime);
        self.runtime.block(|| ()).await;
        let state = self.state(inode, CacheRequest::State { inode, size, mtime }).await?;
        Ok(state.newer.map_or(size, |(size, _)| size))
    }

    /// Sends the notifications of the cache view before a rename of a file or directory.
    pub(super) async fn announce_rename(&self, from: &[u8], to: &[u8]) -> Result<()> {
        let inode = self.file_at(from)?;
        let request = CacheRequest::Renamed { inode, from: from.to_vec(), to: to.to_vec() };
        self.request_coordinators(inode, request).await
    }

    /// Sends those after a rename.
    pub(super) async fn end_rename(&self, from: &[u8], to: &[u8], is_renamed: bool) -> Result<()> {
        let inode = self.file_at(if is_renamed { to } else { from })?;
        let request = CacheRequest::RenameEnded { inode, from: from.to_vec(), to: to.to_vec(), is_renamed };
        self.request_coordinators(inode, request).await
    }

    /// The number of a file, or `None` for a directory.
    fn file_at(&self, path: &[u8]) -> Result<Option<InodeId>> {
        let stat = self.shared.stat(path)?;
        Ok((stat.kind == tameike_core::FileKind::File).then(|| stat.inode_id()))
    }

    /// Sends a request to the coordinator of a file, or to all.
    async fn request_coordinators(&self, inode: Option<InodeId>, request: CacheRequest) -> Result<()> {
        for node in self.cluster.nodes().iter() {
            if inode.is_none_or(|inode| self.cluster.primary(self.cluster.inode_home(inode)) == node.id) {
                self.rpc.call(node.id.into(), Request::Cache(request.clone()), None, None).await?;
            }
        }
        Ok(())
    }

    /// Renames a file or directory, and sends the notifications of the cache view.
    pub(super) async fn rename(&self, from: &[u8], to: &[u8]) -> Result<()> {
        let replaced = self.shared.pin(to).ok();
        self.announce_rename(from, to).await?;
        let renamed = self.shared.rename(from, to, tameike_core::wire::meta::RenameMode::Replace);
        self.end_rename(from, to, renamed.is_ok()).await?;
        renamed?;
        if let Some((stat, _pin)) = replaced {
            self.request(stat.inode_id(), CacheRequest::Removed { inode: stat.inode_id() }).await?;
        }
        Ok(())
    }

    pub(super) async fn unlink(&self, path: &[u8]) -> Result<()> {
        let (stat, _pin) = self.shared.pin(path)?;
        self.shared.unlink(path)?;
        self.request(stat.inode_id(), CacheRequest::Removed { inode: stat.inode_id() }).await.map(|_| ())
    }

    pub(super) async fn write_back(&self, path: &[u8]) -> Result<()> {
        let inode = self.shared.stat(path)?.inode_id();
        self.request(inode, CacheRequest::Writeback { inode }).await.map(|_| ())
    }
}
