//! An open packed file.

use super::attributes::{stat_external, stat_of, times_of};
use super::packer_client::unexpected_reply;
use crate::PackerClient;
use crate::external::ExternalDir;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use tameike_container::format::external::name;
use tameike_core::attr::AttrChange;
use tameike_core::wire::pack::{Changed, PACKED_BYTES_MAX, PackReply, PackRequest, PackedOpen};
use tameike_core::{Errno, Fault, Result};
use tameike_io::Runtime;
use tameike_io::shared::{Access, Allocate, FileStat, Seek, SharedFile, SharedFs, retry_revalidated};

/// The access to external content.
pub struct ExternalAccess {
    pub plain: Arc<dyn SharedFs>,
    pub container: Arc<ExternalDir>,
    pub access: Access,
    /// Larger content is external.
    pub size_max: u64,
}

/// A file that the packer has open for this node.
pub struct PackedFile {
    packer: PackerClient,
    runtime: Runtime,
    file: u64,
    /// The number of the packer that has it open.
    by: AtomicU64,
    /// Its path when it was opened.
    path: Vec<u8>,
    /// Writes that the packer has got, and how many of them it has synced.
    writes: AtomicU64,
    synced: AtomicU64,
    external: ExternalAccess,
    /// The external file, once the content is external.
    content: OnceLock<Arc<dyn SharedFile>>,
    /// The packer knows that this node changes the content.
    is_announced: AtomicBool,
}

impl PackedFile {
    /// A file that the packer has just opened.
    pub fn new(
        (packer, runtime): (PackerClient, Runtime),
        PackedOpen { file, packer: by }: PackedOpen,
        path: &[u8],
        external: ExternalAccess,
    ) -> Self {
        Self {
            packer,
            runtime,
            file,
            by: AtomicU64::new(by),
            path: path.to_vec(),
            writes: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            external,
            content: OnceLock::new(),
            is_announced: AtomicBool::new(false),
        }
    }

    /// The external file.
    pub fn content(&self) -> Result<&dyn SharedFile> {
        if let Some(content) = self.content.get() {
            return Ok(&**content);
        }
        let ExternalAccess { plain, container, access, .. } = &self.external;
        let (container, name) = (container.get(&**plain)?, name(self.file));
        container.revalidate(&name);
        let content = retry_revalidated(container, &name, || container.open(&name, *access))?;
        Ok(&**self.content.get_or_init(|| content))
    }

    /// Sends a request on the open file. Another packer than the one that has opened it opens it first.
    ///
    /// # Errors
    /// `EREMCHG` if the earlier packer had got writes that it has not synced: they may be lost, and the caller repeats them.
    fn call(&self, request: impl Fn(PackedOpen) -> PackRequest) -> Result<PackReply> {
        let open = || PackedOpen { file: self.file, packer: self.by.load(Ordering::Acquire) };
        match self.packer.call(request(open())) {
            Err(fault) if fault.errno == Errno::ESTALE && self.packer.may_move() => {
                self.reopen()?;
                self.packer.call(request(open()))
            }
            replied => replied,
        }
    }

    fn reopen(&self) -> Result<()> {
        let (writes, synced) = (self.writes.load(Ordering::Acquire), self.synced.load(Ordering::Acquire));
        match self.packer.call(PackRequest::Reopen { file: self.file, path: self.path.clone() })? {
            // The container has what was written to a removed file.
            PackReply::Opened { stat, .. } if writes != synced && stat.nlink > 0 => {
                Err(Fault::new(Errno::EREMCHG, "the packer has changed, and may lack what was written last"))
            }
            PackReply::Opened { packer, .. } => {
                self.by.store(packer, Ordering::Release);
                Ok(())
            }
            other => Err(unexpected_reply(&other)),
        }
    }

    fn write(&self, part: &[u8], offset: Option<u64>) -> impl Fn(PackedOpen) -> PackRequest {
        self.writes.fetch_add(1, Ordering::AcqRel);
        move |open| PackRequest::Write { open, offset, bytes: part.to_vec() }
    }

    /// Calls the packer for the content, or `act` with the external file.
    fn request_or_act(
        &self,
        request: impl Fn(PackedOpen) -> PackRequest,
        act: impl FnOnce(&dyn SharedFile) -> Result<()>,
    ) -> Result<()> {
        if self.content.get().is_some() {
            return act(self.content_to_change()?);
        }
        if !self.is_external(request)? {
            return Ok(());
        }
        // The packer has synced what it had.
        self.synced.fetch_max(self.writes.load(Ordering::Acquire), Ordering::AcqRel);
        self.is_announced.store(true, Ordering::Relaxed);
        act(self.content()?)
    }

    /// As [`Self::content`], for changes: fails on files of another job, and announces the change to the packer.
    fn content_to_change(&self) -> Result<&dyn SharedFile> {
        if !self.is_announced.load(Ordering::Relaxed) {
            self.is_external(|open| PackRequest::Expect { file: open.file, size: 0 })?;
            self.is_announced.store(true, Ordering::Relaxed);
        }
        self.content()
    }

    /// Whether the caller must repeat the request on the external file; otherwise the packer has served it.
    fn is_external(&self, request: impl Fn(PackedOpen) -> PackRequest) -> Result<bool> {
        match self.call(request)? {
            PackReply::Done => Ok(false),
            PackReply::External { .. } => Ok(true),
            other => Err(unexpected_reply(&other)),
        }
    }

    fn size(&self) -> Result<u64> {
        Ok(self.stat()?.size)
    }
}

impl Drop for PackedFile {
    fn drop(&mut self) {
        let (packer, file) = (self.packer.clone(), self.file);
        // The thread that drops a file may be one that must not block.
        let closed = self.runtime.block(move || packer.done(PackRequest::Close { file }));
        self.runtime.spawn(async move {
            match closed.await {
                // A packer that has taken over does not have it open.
                Err(fault) if fault.errno != Errno::ESTALE => log::warn!("closing a packed file: {fault}"),
                _ => {}
            }
        });
    }
}

impl SharedFile for PackedFile {
    fn stat(&self) -> Result<FileStat> {
        let stat = match self.call(|open| PackRequest::StatOpen { file: open.file })? {
            PackReply::Stat(stat) => stat,
            other => return Err(unexpected_reply(&other)),
        };
        let plain = &*self.external.plain;
        match stat.is_external {
            true => Ok(stat_external(plain, &stat, &self.content()?.stat()?)),
            false => Ok(stat_of(plain, &stat)),
        }
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() && self.content.get().is_none() {
            let length = (buffer.len() - filled).min(self.packer.bytes_max());
            let at = offset + filled as u64;
            let request =
                |open: PackedOpen| PackRequest::Read { file: open.file, offset: at, length: length as u32 };
            let bytes = match self.call(request)? {
                PackReply::Bytes(bytes) if bytes.len() <= length => bytes,
                PackReply::External { .. } => {
                    self.content()?;
                    break;
                }
                other => return Err(unexpected_reply(&other)),
            };
            buffer[filled..filled + bytes.len()].copy_from_slice(&bytes);
            filled += bytes.len();
            if bytes.len() < length {
                return Ok(filled);
            }
        }
        match self.content.get() {
            Some(content) => Ok(filled + content.read_at(&mut buffer[filled..], offset + filled as u64)?),
            None => Ok(filled),
        }
    }

    fn expect_size(&self, size: u64) -> Result<()> {
        if size <= self.external.size_max && self.content.get().is_none() {
            return Ok(());
        }
        self.request_or_act(|open| PackRequest::Expect { file: open.file, size }, |_| Ok(()))
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        if self.content.get().is_some() {
            return self.content_to_change()?.write_at(bytes, offset);
        }
        let mut offset = offset;
        for part in bytes.chunks(self.packer.bytes_max()) {
            self.request_or_act(self.write(part, Some(offset)), |content| content.write_at(part, offset))?;
            offset += part.len() as u64;
        }
        Ok(())
    }

    fn append(&self, bytes: &[u8]) -> Result<()> {
        bytes
            .chunks(self.packer.bytes_max())
            .try_for_each(|part| self.request_or_act(self.write(part, None), |content| content.append(part)))
    }

    fn truncate(&self, size: u64) -> Result<()> {
        self.request_or_act(
            |open| PackRequest::Truncate { file: open.file, size },
            |content| content.truncate(size),
        )
    }

    fn allocate(&self, how: Allocate, offset: u64, length: u64) -> Result<()> {
        let end = offset.checked_add(length).ok_or(Errno::EFBIG)?;
        let size = self.size()?;
        let grows = matches!(how, Allocate::Extend | Allocate::Zero) && end > size;
        if grows {
            self.expect_size(end)?;
        }
        if self.content.get().is_some() {
            return self.content_to_change()?.allocate(how, offset, length);
        }
        if matches!(how, Allocate::Punch | Allocate::Zero) {
            let zeros = vec![0; PACKED_BYTES_MAX];
            let within = end.min(size);
            for at in (offset..within).step_by(PACKED_BYTES_MAX) {
                self.write_at(&zeros[..(within - at).min(PACKED_BYTES_MAX as u64) as usize], at)?;
            }
        }
        // Containers do not reserve space.
        if grows { self.truncate(end) } else { Ok(()) }
    }

    fn seek(&self, what: Seek, offset: u64) -> Result<u64> {
        let size = self.size()?;
        if let Some(content) = self.content.get() {
            return content.seek(what, offset);
        }
        match what {
            _ if offset >= size => Err(Errno::ENXIO.into()),
            Seek::Data => Ok(offset),
            Seek::Hole => Ok(size),
        }
    }

    fn sync(&self) -> Result<()> {
        let content = self.content.get();
        content.map_or(Ok(()), |content| content.sync())?;
        // The packer makes the name durable as well.
        let writes = self.writes.load(Ordering::Acquire);
        let is_external = self.is_external(|open| PackRequest::Sync { open: Some(open) })?;
        self.synced.fetch_max(writes, Ordering::AcqRel);
        if is_external && content.is_none() { self.content()?.sync() } else { Ok(()) }
    }

    fn forget_pages(&self) -> Result<()> {
        match self.content.get() {
            Some(content) => content.forget_pages(),
            None => self.packer.done(PackRequest::Forget),
        }
    }

    fn revalidate(&self) -> Result<()> {
        self.content.get().map_or(Ok(()), |content| content.revalidate())
    }

    fn revalidate_content(&self) -> Result<()> {
        self.content.get().map_or(Ok(()), |content| content.revalidate_content())
    }

    fn change(&self, change: &AttrChange) -> Result<()> {
        let times = times_of(change);
        if self.content.get().is_some() && *change == times {
            return self.content_to_change()?.change(&times);
        }
        let request =
            |open: PackedOpen| PackRequest::Change { of: Changed::Open(open.file), change: change.clone() };
        if self.is_external(request)? { self.content()?.change(&times) } else { Ok(()) }
    }

    fn writer_sets_times(&self) -> bool {
        self.content.get().is_none()
    }
}
