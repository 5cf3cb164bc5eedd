//! Finds files on the shared file system: the paths of a record are hints, and the inode number decides.
//!
//! A mount may show an old name for a second after another node has changed it, where its daemon caches names besides the kernel
//! (decision 0023).

use super::file_table::FileTable;
use super::record::Record;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tameike_core::receipt::{GONE, TAKEN};
use tameike_core::{Errno, Fault, FaultKind, FileKind, InodeId, Result};
use tameike_io::Runtime;
use tameike_io::shared::{FileStat, SharedFs, retry_revalidated, revalidate_path};

/// How long mounts and their daemons may show an old name.
pub(super) const STALE_NAME_TIME: Duration = Duration::from_millis(1300);
/// Pause before a missing file is looked up again during that time.
pub(super) const STALE_NAME_PAUSE: Duration = Duration::from_millis(100);

/// Finds the files of one coordinator.
pub(super) struct Locator {
    runtime: Runtime,
    shared: Arc<dyn SharedFs>,
    files: Arc<FileTable>,
    /// When a node last reported a change of a name.
    names_changed: Mutex<Option<Duration>>,
}

impl Locator {
    pub(super) fn new(runtime: Runtime, shared: Arc<dyn SharedFs>, files: Arc<FileTable>) -> Self {
        Self { runtime, shared, files, names_changed: Mutex::default() }
    }

    /// Records that a node has changed a name, or is about to.
    pub(super) fn note_name_change(&self) {
        *self.names_changed.lock() = Some(self.runtime.clock.monotonic());
    }

    /// Until when a mount of this host may show names from before the changes reported so far.
    pub(super) fn stale_until(&self) -> Duration {
        self.names_changed.lock().map_or(Duration::ZERO, |changed| changed + STALE_NAME_TIME)
    }

    /// As [`Self::locate_fresh`]. Looks up a missing file again while this host may be shown an old name.
    pub(super) async fn locate_with_retry(
        &self,
        inode: InodeId,
        record: &Record,
    ) -> Result<(Vec<u8>, FileStat)> {
        // The time of this call counts: later changes of names do not prolong it.
        let until = self.stale_until();
        loop {
            let found = self.locate_fresh(inode, record).await;
            let is_missing = found.as_ref().is_err_and(|fault| fault.kind() == FaultKind::Missing);
            let is_late = || self.runtime.clock.monotonic() >= until;
            if !is_missing || is_late() || self.is_removed(inode)? {
                return found;
            }
            self.runtime.sleep(STALE_NAME_PAUSE).await;
        }
    }

    fn is_removed(&self, inode: InodeId) -> Result<bool> {
        Ok(self.files.get(inode)?.is_some_and(|file| file.state().record.removed))
    }

    /// As [`Self::locate`], with attributes that do not come from a cache of this host.
    pub(super) async fn locate_fresh(&self, inode: InodeId, record: &Record) -> Result<(Vec<u8>, FileStat)> {
        self.search(inode, record, true).await
    }

    /// Finds a file on the shared file system. Returns its path and attributes. Fails with `ENOENT` if it is at none of its paths, with
    /// `ESTALE` if another file is.
    pub(super) async fn locate(&self, inode: InodeId, record: &Record) -> Result<(Vec<u8>, FileStat)> {
        self.search(inode, record, false).await
    }

    /// A file that is renamed during the search may be at none of its paths. A client reports a new path before it renames: so a file is
    /// missing only if two searches with the same paths miss it.
    async fn search(&self, inode: InodeId, record: &Record, is_fresh: bool) -> Result<(Vec<u8>, FileStat)> {
        let (mut paths, mut missed) = (record.paths.clone(), None);
        loop {
            let (shared, known) = (self.shared.clone(), paths.clone());
            let search = move || {
                if is_fresh {
                    known.iter().for_each(|path| shared.revalidate(path));
                }
                find(&*shared, inode, known.iter().map(|path| path.as_slice()))
            };
            match self.runtime.block(search).await {
                Err(fault) if fault.kind() == FaultKind::Missing && missed.as_ref() != Some(&paths) => {}
                found => return found,
            }
            let file = self.files.get(inode)?;
            let reported = file.map_or_else(|| paths.clone(), |file| file.state().record.paths.clone());
            missed = Some(std::mem::replace(&mut paths, reported));
        }
    }

    /// Checks that a file is at a path.
    pub(super) async fn check_at(&self, inode: InodeId, path: &[u8]) -> Result<()> {
        let (shared, path) = (self.shared.clone(), path.to_vec());
        let check = move || {
            revalidate_path(&*shared, &path);
            find(&*shared, inode, std::iter::once(path.as_slice())).map(drop)
        };
        self.runtime.block(check).await
    }
}

fn find<'a>(
    shared: &dyn SharedFs,
    inode: InodeId,
    paths: impl Iterator<Item = &'a [u8]> + Clone,
) -> Result<(Vec<u8>, FileStat)> {
    let mut taken = false;
    for path in paths.clone() {
        let stat = || {
            let stat = shared.stat(path)?;
            let is_same = stat.inode_id() == inode && stat.kind == FileKind::File;
            if is_same { Ok(stat) } else { Err(Errno::ESTALE.into()) }
        };
        match retry_revalidated(shared, path, stat) {
            Ok(stat) => return Ok((path.to_vec(), stat)),
            Err(fault) if fault.errno == Errno::ESTALE => taken = true,
            Err(fault) if fault.kind() == FaultKind::Missing => {}
            Err(fault) => return Err(fault),
        }
    }
    let path = String::from_utf8_lossy(paths.clone().next().unwrap_or_default());
    Err(if taken {
        Fault::new(Errno::ESTALE, format!("{path}: {TAKEN}"))
    } else {
        Fault::new(Errno::ENOENT, format!("{path} {GONE}"))
    })
}
