//! Makes the receipt of one file: what the shared file system has, and how that is known.
//!
//! Memory does not grow with the file, and time not with its holes.

use super::base::Base;
use super::change_detection::Verdict;
use super::record::Record;
use crate::unit::digest::{self, Sum};
use std::fmt::Write as _;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::receipt::{FileOutcome, FileReceipt};
use tameike_core::wire::cache::Stamp;
use tameike_core::wire::unit::{FLUSH_UNITS_MAX, UnitDigest};
use tameike_core::{Errno, InodeId, Result};
use tameike_io::shared::FileStat;

const CHANGED_LATER: &str = "another program changed the file after it was flushed";
const RENUMBERED: &str = "it was packed, and is a file of its own by now";

/// The content that was found in a shared file.
struct Content {
    sum: Sum,
    /// Units that differ from what was flushed.
    different: u64,
    first_different: Option<u64>,
}

impl Content {
    fn differs(&mut self, unit: u64) {
        self.different += 1;
        self.first_different.get_or_insert(unit);
    }
}

/// Makes receipts.
pub(super) struct Accountant {
    base: Base,
}

impl Accountant {
    pub(super) fn new(base: Base) -> Self {
        Self { base }
    }

    /// The receipt of a file that the job has written.
    pub(super) async fn account(&self, inode: InodeId, record: Record, verify: bool) -> Result<FileReceipt> {
        let mut receipt = record.receipt(FileOutcome::Synced);
        if record.changed_by_others {
            receipt.note = "another program changed the file while the job wrote it".to_owned();
        }
        if record.dirty {
            let why = if record.failure.is_empty() {
                "it was written while it was drained"
            } else {
                &record.failure
            };
            receipt.outcome = FileOutcome::Missing(why.to_owned());
            return Ok(receipt);
        }
        let (path, stat) = match self.base.locator.locate_with_retry(inode, &record).await {
            Err(fault) if fault.errno == Errno::ESTALE => match self.find_renumbered(&record).await {
                Some(path) => {
                    receipt.path = String::from_utf8_lossy(&path).into_owned();
                    receipt.checksum = checksum(&self.content(inode, &path, &record, false).await?.sum);
                    receipt.note = RENUMBERED.to_owned();
                    return Ok(receipt);
                }
                None => return Err(fault),
            },
            found => found?,
        };
        receipt.path = String::from_utf8_lossy(&path).into_owned();
        if record.outdated {
            // The other program's content has replaced that of the job.
            receipt.note = CHANGED_LATER.to_owned();
            return Ok(receipt);
        }
        let content = self.content(inode, &path, &record, verify).await?;
        receipt.checksum = checksum(&content.sum);
        let changed = !record.matches_content(&stat.stamp()) && self.is_changed(inode, &stat.stamp())?;
        if changed {
            receipt.note = CHANGED_LATER.to_owned();
        }
        receipt.outcome = match content.first_different {
            None if record.writer_failed => FileOutcome::Interrupted(format!(
                "a program had it open for writing when its node or the job failed; the first {size} bytes of it are there",
                size = record.size
            )),
            None if verify => FileOutcome::Verified,
            None => FileOutcome::Synced,
            Some(first) => FileOutcome::Missing(format!(
                "{} of its units read back differently from what was written, the first at byte {}{}",
                content.different,
                first * UNIT_SIZE as u64,
                if changed { format!(": {CHANGED_LATER}") } else { String::new() },
            )),
        };
        Ok(receipt)
    }

    /// Finds a clean file by size and mtime if its inode number is of another device now, as that of a packed file is after its promotion.
    async fn find_renumbered(&self, record: &Record) -> Option<Vec<u8>> {
        let (shared, record) = (self.base.shared.clone(), record.clone());
        let find = move || {
            let is_it =
                |stat: FileStat| record.matches_content(&stat.stamp()) && stat.device != record.stamp.device;
            let path = record.paths.iter().find(|path| shared.stat(path).is_ok_and(is_it));
            path.map(|path| path.to_vec())
        };
        self.base.runtime.block(find).await
    }

    /// Whether a stamp that differs from the record shows a change by another program.
    fn is_changed(&self, inode: InodeId, seen: &Stamp) -> Result<bool> {
        let (file, now) = (self.base.files.get(inode)?, self.base.runtime.now());
        Ok(file.is_none_or(|file| file.state().judge(seen, now) == Verdict::Changed))
    }

    /// Reads the digests of the flushed units, page by page; completes them, and with `verify` compares them, by reading the shared file.
    async fn content(&self, inode: InodeId, path: &[u8], record: &Record, verify: bool) -> Result<Content> {
        let size = record.size;
        let mut content = Content { sum: Sum::new(size), different: 0, first_different: None };
        let units = digest::unit_count(size);
        let mut next = 0;
        loop {
            let page = self.base.journal.digests(inode, next, units, FLUSH_UNITS_MAX)?;
            let is_last = page.len() < FLUSH_UNITS_MAX;
            for known in self.prove(inode, path, size, page, verify, &mut content).await? {
                content.sum.add(&known);
                next = known.index + 1;
            }
            if is_last {
                break;
            }
        }
        Ok(content)
    }

    /// The digests of these units for a file of `size` bytes. A digest that was made for another size is checked by that size, and then made
    /// again.
    async fn prove(
        &self,
        inode: InodeId,
        path: &[u8],
        size: u64,
        page: Vec<UnitDigest>,
        verify: bool,
        content: &mut Content,
    ) -> Result<Vec<UnitDigest>> {
        let (mut known, outgrown): (Vec<_>, Vec<_>) =
            page.into_iter().partition(|known| digest::fits(known, size));
        if verify {
            self.compare(inode, path, size, &known, content).await?;
        }
        if outgrown.is_empty() {
            return Ok(known);
        }
        for digest in &outgrown {
            let then = digest::size_when_made(digest);
            self.compare(inode, path, then, std::slice::from_ref(digest), content).await?;
        }
        let units = outgrown.iter().map(|digest| digest.index).collect();
        known.extend(self.base.homes.digest(inode, path, size, units).await?);
        known.sort_by_key(|digest| digest.index);
        Ok(known)
    }

    /// Compares digests with those of the shared file.
    async fn compare(
        &self,
        inode: InodeId,
        path: &[u8],
        size: u64,
        known: &[UnitDigest],
        content: &mut Content,
    ) -> Result<()> {
        let units = known.iter().map(|digest| digest.index).collect();
        let found = self.base.homes.digest(inode, path, size, units).await?;
        let different = known.iter().zip(found).filter(|(known, now)| *known != now);
        different.for_each(|(known, _)| content.differs(known.index));
        Ok(())
    }
}

fn checksum(sum: &Sum) -> String {
    let (mut text, value) = match sum.whole() {
        Some(value) => (String::new(), value),
        None => ("units:".to_owned(), sum.some()),
    };
    for byte in value {
        let _ = write!(text, "{byte:02x}");
    }
    text
}
