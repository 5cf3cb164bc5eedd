//! Content of files: sizes, generations, and the inline content of small files.

use super::record::{self, InodeRecord, Truncation};
use super::{Outcome, Shard, key, query};
use tameike_core::limits::{FILE_SIZE_MAX, INLINE_SIZE_MAX};
use tameike_core::{Errno, Fault, FileKind, Generation, InodeId, Result, Timestamp};

impl Shard<'_> {
    fn file(&self, inode: InodeId) -> Result<InodeRecord> {
        let record = self.inode(inode)?;
        match record.kind {
            FileKind::File => Ok(record),
            FileKind::Directory => Err(Errno::EISDIR.into()),
            _ => Err(Errno::EINVAL.into()),
        }
    }

    fn touch_content(&mut self, inode: InodeId, record: &mut InodeRecord, now: Timestamp) -> Result<()> {
        record.generation = record.generation.next();
        record.mtime = now;
        record.ctime = now;
        self.put_inode(inode, record)
    }

    fn put_content(&mut self, inode: InodeId, content: Vec<u8>) {
        if content.is_empty() {
            self.table.delete(key::content(inode));
        } else {
            self.table.put(key::content(inode), content);
        }
    }

    pub(super) fn commit(
        &mut self,
        inode: InodeId,
        end: u64,
        sparse: bool,
        now: Timestamp,
    ) -> Result<Outcome> {
        let mut record = self.file(inode)?;
        if end > FILE_SIZE_MAX {
            return Err(Errno::EFBIG.into());
        }
        if record.inline {
            if record.size > 0 || query::truncation(self.table, inode)?.is_some() {
                let problem =
                    format!("{inode} was written to units while its content is inline; spill it first");
                return Err(Fault::new(Errno::EINVAL, problem));
            }
            record.inline = false;
        }
        record.size = record.size.max(end);
        record.sparse |= sparse;
        self.touch_content(inode, &mut record, now)?;
        Ok(Outcome::Changed { attr: record.attr(inode) })
    }

    pub(super) fn write_inline(
        &mut self,
        inode: InodeId,
        offset: usize,
        data: &[u8],
        now: Timestamp,
    ) -> Result<Outcome> {
        let mut record = self.file(inode)?;
        let end = offset.saturating_add(data.len());
        if !record.inline || end > INLINE_SIZE_MAX {
            return Err(Errno::EFBIG.into());
        }
        let mut content = query::content(self.table, inode)?;
        content.resize(content.len().max(end), 0);
        content[offset..end].copy_from_slice(data);
        record.size = content.len() as u64;
        self.put_content(inode, content);
        self.touch_content(inode, &mut record, now)?;
        Ok(Outcome::Changed { attr: record.attr(inode) })
    }

    pub(super) fn reserve(&mut self, inode: InodeId, length: u64, now: Timestamp) -> Result<Outcome> {
        let mut record = self.file(inode)?;
        let offset = record.size;
        let size = offset.checked_add(length).filter(|&size| size <= FILE_SIZE_MAX).ok_or(Errno::EFBIG)?;
        if record.inline {
            self.resize_inline(inode, &mut record, size)?;
        }
        record.size = size;
        self.touch_content(inode, &mut record, now)?;
        Ok(Outcome::Reserved { offset, attr: record.attr(inode) })
    }

    /// Truncates or extends inline content. A file without content may become larger than inline files can be, unless a
    /// failed spill may have left a unit.
    pub(super) fn resize_inline(
        &mut self,
        inode: InodeId,
        record: &mut InodeRecord,
        size: u64,
    ) -> Result<()> {
        match usize::try_from(size) {
            Ok(size) if size <= INLINE_SIZE_MAX => {
                let mut content = query::content(self.table, inode)?;
                content.resize(size, 0);
                self.put_content(inode, content);
            }
            _ if record.size == 0 && query::truncation(self.table, inode)?.is_none() => {
                record.inline = false;
                self.table.delete(key::content(inode));
            }
            _ => return Err(Errno::EFBIG.into()),
        }
        Ok(())
    }

    /// Records that the file's units must be truncated with it, until the spill has succeeded.
    pub(super) fn spilling(&mut self, inode: InodeId) -> Result<Outcome> {
        let record = self.file(inode)?;
        if record.inline {
            let note = Truncation { layout: record.layout, size: 0 };
            record::put(self.table, key::truncation(inode), &note)?;
        }
        Ok(Outcome::Done)
    }

    pub(super) fn spilled(&mut self, inode: InodeId, generation: Generation) -> Result<Outcome> {
        let mut record = self.file(inode)?;
        if record.inline {
            if record.generation != generation {
                return Err(Errno::EAGAIN.into());
            }
            record.inline = false;
            self.table.delete(key::content(inode));
            self.table.delete(key::truncation(inode));
            self.put_inode(inode, &record)?;
        }
        Ok(Outcome::Changed { attr: record.attr(inode) })
    }
}
