//! An open packed file.

use super::attributes::{stat_external, stat_of, times_of};
use super::packer_client::unexpected_reply;
use crate::PackerClient;
use crate::external::ExternalDir;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use tameike_container::format::external::name;
use tameike_core::attr::AttrChange;
use tameike_core::wire::pack::{Changed, PACKED_BYTES_MAX, PackReply, PackRequest};
use tameike_core::{Errno, Result};
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
    external: ExternalAccess,
    /// The external file, once the content is external.
    content: OnceLock<Arc<dyn SharedFile>>,
    /// The packer knows that this node changes the content.
    is_announced: AtomicBool,
}

impl PackedFile {
    /// A file that the packer has just opened.
    pub fn new(packer: PackerClient, runtime: Runtime, file: u64, external: ExternalAccess) -> Self {
        Self {
            packer,
            runtime,
            file,
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

    /// Calls the packer for the content, or `act` with the external file.
    fn request_or_act(
        &self,
        request: impl FnOnce() -> PackRequest,
        act: impl FnOnce(&dyn SharedFile) -> Result<()>,
    ) -> Result<()> {
        if self.content.get().is_some() {
            return act(self.content_to_change()?);
        }
        if !self.is_external(request())? {
            return Ok(());
        }
        self.is_announced.store(true, Ordering::Relaxed);
        act(self.content()?)
    }

    /// As [`Self::content`], for changes: fails on files of another job, and announces the change to the packer.
    fn content_to_change(&self) -> Result<&dyn SharedFile> {
        if !self.is_announced.load(Ordering::Relaxed) {
            self.is_external(PackRequest::Expect { file: self.file, size: 0 })?;
            self.is_announced.store(true, Ordering::Relaxed);
        }
        self.content()
    }

    /// Whether the caller must repeat the request on the external file; otherwise the packer has served it.
    fn is_external(&self, request: PackRequest) -> Result<bool> {
        match self.packer.call(request)? {
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
            if let Err(fault) = closed.await {
                log::warn!("closing a packed file: {fault}");
            }
        });
    }
}

impl SharedFile for PackedFile {
    fn stat(&self) -> Result<FileStat> {
        let stat = self.packer.stat(PackRequest::StatOpen { file: self.file })?;
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
            let request =
                PackRequest::Read { file: self.file, offset: offset + filled as u64, length: length as u32 };
            let bytes = match self.packer.call(request)? {
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
        self.request_or_act(|| PackRequest::Expect { file: self.file, size }, |_| Ok(()))
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        if self.content.get().is_some() {
            return self.content_to_change()?.write_at(bytes, offset);
        }
        let mut offset = offset;
        for part in bytes.chunks(self.packer.bytes_max()) {
            let request =
                || PackRequest::Write { file: self.file, offset: Some(offset), bytes: part.to_vec() };
            self.request_or_act(request, |content| content.write_at(part, offset))?;
            offset += part.len() as u64;
        }
        Ok(())
    }

    fn append(&self, bytes: &[u8]) -> Result<()> {
        bytes.chunks(self.packer.bytes_max()).try_for_each(|part| {
            let request = || PackRequest::Write { file: self.file, offset: None, bytes: part.to_vec() };
            self.request_or_act(request, |content| content.append(part))
        })
    }

    fn truncate(&self, size: u64) -> Result<()> {
        self.request_or_act(
            || PackRequest::Truncate { file: self.file, size },
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
        let synced = self.content.get();
        synced.map_or(Ok(()), |content| content.sync())?;
        // The packer makes the name durable as well.
        let is_external = self.is_external(PackRequest::Sync { file: Some(self.file) })?;
        if is_external && synced.is_none() { self.content()?.sync() } else { Ok(()) }
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
        let request = PackRequest::Change { of: Changed::Open(self.file), change: change.clone() };
        if self.is_external(request)? { self.content()?.change(&times) } else { Ok(()) }
    }

    fn writer_sets_times(&self) -> bool {
        self.content.get().is_none()
    }
}
