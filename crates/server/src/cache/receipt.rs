//! The receipt of one file: what is on the shared file system, and how we know.
//!
//! Its memory does not grow with the file, and its time not with the holes of the file.

use super::CacheService;
use super::record::Record;
use crate::unit::digest::{self, Sum};
use std::fmt::Write as _;
use std::ops::Range;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::receipt::{FileOutcome, FileReceipt};
use tameike_core::wire::unit::{FLUSH_UNITS_MAX, UnitDigest};
use tameike_core::{Errno, InodeId, Result};
use tameike_io::shared::{Access, Seek, SharedFile, open_same};

/// What the shared file was found to hold.
struct Content {
    sum: Sum,
    /// Units whose digest was lost with an agent, and was read from the shared file instead.
    unproven: u64,
    /// Units that read back differently.
    different: u64,
    first_different: Option<u64>,
}

impl Content {
    fn differs(&mut self, unit: u64) {
        self.different += 1;
        self.first_different.get_or_insert(unit);
    }
}

impl CacheService {
    /// The receipt of a file that the job has written.
    pub(super) async fn account(&self, inode: InodeId, record: Record, verify: bool) -> Result<FileReceipt> {
        let mut receipt = FileReceipt {
            path: record.shown_path(),
            size: record.size,
            written: record.written,
            checksum: String::new(),
            note: String::new(),
            outcome: FileOutcome::Synced,
        };
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
        let (path, stat) = self.locate(inode, &record).await?;
        receipt.path = String::from_utf8_lossy(&path).into_owned();
        let content = self.content(inode, &path, &record, verify).await?;
        receipt.checksum = checksum(&content.sum);
        let changed = !record.has_content_of(&stat.stamp());
        if changed {
            receipt.note = "another program changed the file after it was flushed".to_owned();
        }
        receipt.outcome = match content.first_different {
            None if verify && content.unproven == 0 => FileOutcome::Verified,
            None => FileOutcome::Synced,
            Some(first) => FileOutcome::Missing(format!(
                "{} of its units read back differently from what was written, the first at byte {}{}",
                content.different,
                first * UNIT_SIZE as u64,
                if changed { ": another program changed the file after it was flushed" } else { "" },
            )),
        };
        if content.unproven > 0 && receipt.note.is_empty() {
            receipt.note = format!(
                "{} units were flushed by an agent that stopped or did not answer; their checksum is that of what was read back",
                content.unproven
            );
        }
        Ok(receipt)
    }

    /// Goes through the digests of the units that were flushed, page by page: completes and (`verify`) compares
    /// them by reading the shared file.
    async fn content(&self, inode: InodeId, path: &[u8], record: &Record, verify: bool) -> Result<Content> {
        let size = record.size;
        let mut content = Content { sum: Sum::new(size), unproven: 0, different: 0, first_different: None };
        let units = digest::unit_count(size);
        let mut next = 0;
        loop {
            let page = self.journal.digests(inode, next, units, FLUSH_UNITS_MAX)?;
            let is_last = page.len() < FLUSH_UNITS_MAX;
            for known in self.prove(inode, path, size, page, verify, &mut content).await? {
                if record.proof_lost {
                    self.add_lost(inode, path, size, next..known.index, &mut content).await?;
                }
                content.sum.add(&known);
                next = known.index + 1;
            }
            if is_last {
                break;
            }
        }
        if record.proof_lost {
            self.add_lost(inode, path, size, next..units, &mut content).await?;
        }
        Ok(content)
    }

    /// The digests of these units for a file of `size` bytes. A unit whose file has got another size since it
    /// was flushed is compared with what was written then, and digested anew.
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
        known.extend(self.digest_units(inode, path, size, units).await?);
        known.sort_by_key(|digest| digest.index);
        Ok(known)
    }

    /// Compares units with what they read as now.
    async fn compare(
        &self,
        inode: InodeId,
        path: &[u8],
        size: u64,
        known: &[UnitDigest],
        content: &mut Content,
    ) -> Result<()> {
        let units = known.iter().map(|digest| digest.index).collect();
        let found = self.digest_units(inode, path, size, units).await?;
        let different = known.iter().zip(found).filter(|(known, now)| *known != now);
        different.for_each(|(known, _)| content.differs(known.index));
        Ok(())
    }

    /// Adds what the shared file has in units whose digests were lost, or that the job never wrote. Holes are
    /// not read: nothing was written there, and a file may have more of them than can be read in a lifetime.
    async fn add_lost(
        &self,
        inode: InodeId,
        path: &[u8],
        size: u64,
        mut units: Range<u64>,
        content: &mut Content,
    ) -> Result<()> {
        while !units.is_empty() {
            let (shared, path_then, range) = (self.parts.shared.clone(), path.to_vec(), units.clone());
            let look = move || {
                let (file, _) = open_same(&*shared, &path_then, inode, Access::Read)?;
                units_with_data(&*file, range)
            };
            let found = self.parts.runtime.block(look).await?;
            let Some(last) = found.last() else { return Ok(()) };
            units.start = last + 1;
            content.unproven += found.len() as u64;
            for digest in self.digest_units(inode, path, size, found).await? {
                content.sum.add(&digest);
            }
        }
        Ok(())
    }
}

/// The first of these units that have data in the file, as many as one request names.
fn units_with_data(file: &dyn SharedFile, units: Range<u64>) -> Result<Vec<u64>> {
    const UNIT: u64 = UNIT_SIZE as u64;
    let mut found = Vec::new();
    let mut next = units.start;
    while next < units.end && found.len() < FLUSH_UNITS_MAX {
        let data = match file.seek(Seek::Data, next * UNIT) {
            Ok(start) => start / UNIT..file.seek(Seek::Hole, start)?.div_ceil(UNIT),
            Err(fault) if fault.errno == Errno::ENXIO => break,
            // A file system that cannot tell: all may be data.
            Err(fault) if matches!(fault.errno, Errno::EINVAL | Errno::EOPNOTSUPP) => next..units.end,
            Err(fault) => return Err(fault),
        };
        let data = data.start.max(next)..data.end.min(units.end);
        next = data.end.max(next + 1);
        found.extend(data.take(FLUSH_UNITS_MAX - found.len()));
    }
    Ok(found)
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
