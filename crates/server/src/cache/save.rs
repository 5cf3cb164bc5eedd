//! Saves dirty files that are gone from the shared directory.
//!
//! Another program has removed such a file, or replaced it: its bytes have no place there, and its journal would remain for ever.

use super::base::Base;
use super::record::Record;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use tameike_core::receipt::{FileOutcome, FileReceipt, Receipt};
use tameike_core::wire::unit::{UnitReply, UnitRequest};
use tameike_core::{Errno, Fault, FaultKind, InodeId, MapEpoch, Result};
use tameike_io::shared::{PosixTree, SharedFs, Special};

/// Permissions of saved files and directories: the file's own are gone with it.
const FILE_MODE: u16 = 0o600;
const DIR_MODE: u16 = 0o700;

/// Lists and saves dirty files.
pub(super) struct Saver {
    base: Base,
}

impl Saver {
    pub(super) fn new(base: Base) -> Self {
        Self { base }
    }

    /// The files that are still dirty, each with the reason.
    pub(super) fn undrained(&self) -> Receipt {
        let mut receipt = Receipt::default();
        match self.all_dirty() {
            Ok(dirty) => {
                let missing = |(_, record): (InodeId, Record)| {
                    let why = match record.failure.as_str() {
                        "" => "the drain ended before it was flushed",
                        why => why,
                    };
                    record.receipt(FileOutcome::Missing(why.to_owned()))
                };
                receipt.files.extend(dirty.into_iter().map(missing));
            }
            Err(fault) => receipt.faults.push(fault.to_string()),
        }
        receipt
    }

    /// Writes the dirty bytes of files that are gone below `dir`, and drops them. The receipt has the saved files, and the errors of others.
    pub(super) async fn save_orphaned(&self, dir: &Path) -> Receipt {
        let mut receipt = Receipt::default();
        let dirty = match self.all_dirty() {
            Ok(dirty) => dirty,
            Err(fault) => return Receipt { faults: vec![fault.to_string()], ..receipt },
        };
        for (inode, record) in dirty {
            let found = self.base.locator.locate_with_retry(inode, &record).await;
            if !found.is_err_and(|fault| fault.kind() == FaultKind::Missing) {
                continue;
            }
            match self.save(inode, &record, dir).await {
                Ok(saved) => receipt.files.push(saved),
                Err(fault) => receipt.faults.push(format!("saving {}: {fault}", record.shown_path())),
            }
        }
        receipt
    }

    fn all_dirty(&self) -> Result<Vec<(InodeId, Record)>> {
        let mut dirty = Vec::new();
        self.base.journal.for_each(|inode, record| {
            dirty.extend((record.dirty && !record.removed).then_some((inode, record)));
            Ok(())
        })?;
        Ok(dirty)
    }

    async fn save(&self, inode: InodeId, record: &Record, dir: &Path) -> Result<FileReceipt> {
        let Some(file) = self.base.files.get(inode)? else { return Err(Errno::ESTALE.into()) };
        let _flush = file.flush.lock().await;
        let path = record.paths.first().map(|path| path.to_vec()).unwrap_or_default();
        let (homes, is_begun) = (&self.base.homes, AtomicBool::new(false));
        let attempt = |epoch| {
            // The pages of an earlier attempt may be from before a failed fsync: it is made again from nothing.
            let is_ours = is_begun.swap(true, Ordering::Relaxed);
            let (root, size, at) = (dir.to_owned(), record.size, path.clone());
            let made = self.base.runtime.block(move || make_file(&root, &at, size, is_ours));
            let path = &path;
            async move {
                made.await?;
                self.save_units(epoch, inode, (dir, path), record).await
            }
        };
        let written = homes.chosen_again(attempt).await?;
        // As if the job had removed it: late writes are dropped, and no receipt has it again.
        self.base.files.update(&file, |state| {
            (state.record.removed, state.record.dirty) = (true, false);
            state.record.failure.clear();
        })?;
        self.base.journal.sync(false).await?;
        homes.ask_all(|| homes.all(inode), &UnitRequest::Truncate { inode, size: 0 }).await?;
        self.base.queue.remove(inode);
        let note = format!(
            "{} is gone from the shared directory: {written} bytes that the journal held of it are here, and zeros for the rest",
            record.shown_path()
        );
        let path = dir.join(OsStr::from_bytes(&path)).display().to_string();
        Ok(FileReceipt { path, written, note, ..record.receipt(FileOutcome::Synced) })
    }

    /// Has the homes of a file write its dirty units to another file. Returns the number of written bytes.
    async fn save_units(
        &self,
        epoch: MapEpoch,
        inode: InodeId,
        (dir, path): (&Path, &[u8]),
        record: &Record,
    ) -> Result<u64> {
        let mut written = 0;
        for node in self.base.homes.all(inode) {
            let request = UnitRequest::Save {
                inode,
                dir: dir.as_os_str().as_bytes().to_vec(),
                path: path.to_vec(),
                generation: record.generation,
            };
            match self.base.homes.ask(epoch, node, request).await? {
                UnitReply::Flushed { written: more, .. } => written += more,
                other => {
                    return Err(Fault::new(Errno::EPROTO, format!("{node} answered a save with {other:?}")));
                }
            }
        }
        Ok(written)
    }
}

/// Creates a file of this size, and the directories above it. Replaces one that `is_ours`, and fails if there is another one.
fn make_file(dir: &Path, path: &[u8], size: u64, is_ours: bool) -> Result<()> {
    let tree = PosixTree::open(dir)?;
    if is_ours {
        tree.unlink(path)?;
    }
    let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(end, _)| end);
    for end in ends {
        match tree.make(&path[..end], &Special::Directory(DIR_MODE)) {
            Err(fault) if fault.errno != Errno::EEXIST => return Err(fault),
            _ => {}
        }
    }
    let file = tree.create(path, FILE_MODE)?;
    file.truncate(size)?;
    file.sync()?;
    tree.sync_dir(tameike_io::shared::split(path).map_or(&b""[..], |(above, _)| above))
}
