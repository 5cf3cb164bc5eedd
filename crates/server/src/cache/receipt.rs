//! The receipt of one file: what is on the shared file system, and how we know.

use super::CacheService;
use super::record::Record;
use crate::unit::digest;
use std::fmt::Write as _;
use tameike_core::receipt::{FileOutcome, FileReceipt};
use tameike_core::wire::unit::UnitDigest;
use tameike_core::{InodeId, Result};

/// What the shared file was found to hold.
struct Content {
    digests: Vec<UnitDigest>,
    /// Units whose digest was lost with an agent, and was read from the shared file instead.
    unproven: usize,
    /// Units that read back differently.
    different: Vec<u64>,
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
        receipt.checksum = checksum(&content.digests, record.size);
        let changed = !record.has_content_of(&stat.stamp());
        if changed {
            receipt.note = "another program changed the file after it was flushed".to_owned();
        }
        receipt.outcome = match content.different.as_slice() {
            [] if verify && content.unproven == 0 => FileOutcome::Verified,
            [] => FileOutcome::Synced,
            [first, ..] => FileOutcome::Missing(format!(
                "{} of its units read back differently from what was written, the first at byte {}{}",
                content.different.len(),
                first * tameike_core::limits::UNIT_SIZE as u64,
                if changed { ": another program changed the file after it was flushed" } else { "" },
            )),
        };
        if content.unproven > 0 && receipt.note.is_empty() {
            receipt.note = format!(
                "{} units were flushed by an agent that stopped; their checksum is that of what was read back",
                content.unproven
            );
        }
        Ok(receipt)
    }

    /// Digests of the units that were flushed, completed and (`verify`) compared by reading the shared file.
    async fn content(&self, inode: InodeId, path: &[u8], record: &Record, verify: bool) -> Result<Content> {
        let size = record.size;
        let mut digests = self.journal.digests(inode)?;
        digests.retain(|digest| digest.index < digest::unit_count(size));
        let (mut known, outgrown): (Vec<_>, Vec<_>) =
            digests.into_iter().partition(|known| digest::fits(known, size));
        let mut different = if verify { self.compare(inode, path, size, &known).await? } else { Vec::new() };
        different.extend(self.renew(inode, path, size, outgrown, &mut known).await?);
        let mut unproven = 0;
        if record.proof_lost {
            let has = |index: &u64| known.binary_search_by_key(index, |digest| digest.index).is_ok();
            let lost: Vec<_> = (0..digest::unit_count(size)).filter(|index| !has(index)).collect();
            unproven = lost.len();
            known.extend(self.digest_units(inode, path, size, lost).await?);
            known.sort_by_key(|digest| digest.index);
        }
        Ok(Content { digests: known, unproven, different })
    }

    /// Which of these units read differently now.
    async fn compare(
        &self,
        inode: InodeId,
        path: &[u8],
        size: u64,
        known: &[UnitDigest],
    ) -> Result<Vec<u64>> {
        let units = known.iter().map(|digest| digest.index).collect();
        let found = self.digest_units(inode, path, size, units).await?;
        Ok(known
            .iter()
            .zip(found)
            .filter(|(known, now)| *known != now)
            .map(|(known, _)| known.index)
            .collect())
    }

    /// Units whose file has got another size since they were flushed: what was written then is compared, and
    /// the digest for the new size is taken. Gives the units that read differently.
    async fn renew(
        &self,
        inode: InodeId,
        path: &[u8],
        size: u64,
        outgrown: Vec<UnitDigest>,
        known: &mut Vec<UnitDigest>,
    ) -> Result<Vec<u64>> {
        let mut different = Vec::new();
        for digest in &outgrown {
            let old_size = digest::size_when_made(digest);
            different.extend(self.compare(inode, path, old_size, std::slice::from_ref(digest)).await?);
        }
        let units = outgrown.iter().map(|digest| digest.index).collect();
        known.extend(self.digest_units(inode, path, size, units).await?);
        known.sort_by_key(|digest| digest.index);
        Ok(different)
    }
}

fn checksum(digests: &[UnitDigest], size: u64) -> String {
    let (mut text, value) = match digest::of_file(digests, size) {
        Some(value) => (String::new(), value),
        None => ("units:".to_owned(), digest::of_some_units(digests)),
    };
    for byte in value {
        let _ = write!(text, "{byte:02x}");
    }
    text
}
