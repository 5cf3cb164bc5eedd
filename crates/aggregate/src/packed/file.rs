//! An open file that is packed.

use super::{Way, stat_of, way};
use tameike_core::attr::AttrChange;
use tameike_core::wire::pack::{Changed, PACKED_BYTES_MAX, PackReply, PackRequest};
use tameike_core::{Errno, Result};
use tameike_io::Runtime;
use tameike_io::shared::{Allocate, FileStat, Seek, SharedFile};

/// A file that the packer has open for this node.
pub struct PackedFile {
    way: Way,
    runtime: Runtime,
    file: u64,
}

impl PackedFile {
    /// One that the packer has just opened.
    pub fn new(way: Way, runtime: Runtime, file: u64) -> Self {
        Self { way, runtime, file }
    }

    fn size(&self) -> Result<u64> {
        Ok(self.stat()?.size)
    }
}

impl Drop for PackedFile {
    fn drop(&mut self) {
        let (way, file) = (self.way.clone(), self.file);
        // Whoever drops it may be one who must not wait.
        let closed = self.runtime.block(move || way.done(PackRequest::Close { file }));
        self.runtime.spawn(async move {
            if let Err(fault) = closed.await {
                log::warn!("closing a packed file: {fault}");
            }
        });
    }
}

impl SharedFile for PackedFile {
    fn stat(&self) -> Result<FileStat> {
        self.way.stat(PackRequest::Look { file: self.file }).map(|stat| stat_of(&stat))
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            let length = (buffer.len() - filled).min(self.way.bytes_max());
            let request =
                PackRequest::Read { file: self.file, offset: offset + filled as u64, length: length as u32 };
            let bytes = match self.way.ask(request)? {
                PackReply::Bytes(bytes) if bytes.len() <= length => bytes,
                other => return Err(way::out_of_turn(&other)),
            };
            buffer[filled..filled + bytes.len()].copy_from_slice(&bytes);
            filled += bytes.len();
            if bytes.len() < length {
                break;
            }
        }
        Ok(filled)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let mut offset = offset;
        for part in bytes.chunks(self.way.bytes_max()) {
            let request = PackRequest::Write { file: self.file, offset: Some(offset), bytes: part.to_vec() };
            self.way.done(request)?;
            offset += part.len() as u64;
        }
        Ok(())
    }

    fn append(&self, bytes: &[u8]) -> Result<()> {
        bytes.chunks(self.way.bytes_max()).try_for_each(|part| {
            self.way.done(PackRequest::Write { file: self.file, offset: None, bytes: part.to_vec() })
        })
    }

    fn truncate(&self, size: u64) -> Result<()> {
        self.way.done(PackRequest::Truncate { file: self.file, size })
    }

    fn allocate(&self, how: Allocate, offset: u64, length: u64) -> Result<()> {
        let end = offset.checked_add(length).ok_or(Errno::EFBIG)?;
        let size = self.size()?;
        if matches!(how, Allocate::Punch | Allocate::Zero) {
            let zeros = vec![0; PACKED_BYTES_MAX];
            let within = end.min(size);
            for at in (offset..within).step_by(PACKED_BYTES_MAX) {
                self.write_at(&zeros[..(within - at).min(PACKED_BYTES_MAX as u64) as usize], at)?;
            }
        }
        // Space is set aside for nobody in a container.
        let grows = matches!(how, Allocate::Extend | Allocate::Zero) && end > size;
        if grows { self.truncate(end) } else { Ok(()) }
    }

    fn seek(&self, what: Seek, offset: u64) -> Result<u64> {
        let size = self.size()?;
        match what {
            _ if offset >= size => Err(Errno::ENXIO.into()),
            Seek::Data => Ok(offset),
            Seek::Hole => Ok(size),
        }
    }

    fn sync(&self) -> Result<()> {
        self.way.done(PackRequest::Sync { file: Some(self.file) })
    }

    fn forget_pages(&self) -> Result<()> {
        self.way.done(PackRequest::Forget)
    }

    fn look_anew(&self) -> Result<()> {
        Ok(())
    }

    fn read_anew(&self) -> Result<()> {
        Ok(())
    }

    fn change(&self, change: &AttrChange) -> Result<()> {
        self.way.done(PackRequest::Change { of: Changed::Open(self.file), change: change.clone() })
    }
}
