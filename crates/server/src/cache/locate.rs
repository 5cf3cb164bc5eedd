//! Where a file is on the shared file system, as a coordinator finds it.
//!
//! A mount may show what was under a name before other nodes changed it, for a second where its daemon remembers it besides the kernel
//! (decision 0023).

use super::CacheService;
use super::record::Record;
use std::time::Duration;
use tameike_core::receipt::{GONE, TAKEN};
use tameike_core::wire::cache::CacheRequest;
use tameike_core::{Errno, Fault, FileKind, InodeId, Result};
use tameike_io::shared::{FileStat, SharedFs, anew, is_missing, walk_anew};

/// How long mounts and their daemons may show what was under a name before a node changed it.
pub(super) const SHOWN_OLD_TIME: Duration = Duration::from_millis(1300);
/// Pause before a file is looked for again meanwhile.
pub(super) const SHOWN_OLD_PAUSE: Duration = Duration::from_millis(100);

impl CacheService {
    /// Where an open file is by now.
    pub(super) async fn find(&self, inode: InodeId) -> Result<Vec<u8>> {
        let record = self.known(inode)?.state().record.clone();
        if record.removed {
            // Whatever has its number now is another file.
            return Err(Fault::new(Errno::ESTALE, format!("{} was removed", record.shown_path())));
        }
        self.locate(inode, &record).await.map(|(path, _)| path)
    }

    /// Takes note of a node that tells of a name that it has changed, or is about to.
    pub(super) fn note_names(&self, request: &CacheRequest) {
        let names = matches!(
            request,
            CacheRequest::Renamed { .. }
                | CacheRequest::Removing { .. }
                | CacheRequest::Removed { .. }
                | CacheRequest::Open { made: true, .. }
        );
        if names {
            *self.named.lock() = Some(self.parts.runtime.clock.monotonic());
        }
    }

    /// Until when this machine may be shown names as they were before nodes changed them.
    pub(super) fn shown_old_until(&self) -> Duration {
        self.named.lock().map_or(Duration::ZERO, |named| named + SHOWN_OLD_TIME)
    }

    /// As [`Self::locate_anew`]; a file that is missing is looked for as long as this machine may be shown what was there before.
    pub(super) async fn locate_patiently(
        &self,
        inode: InodeId,
        record: &Record,
    ) -> Result<(Vec<u8>, FileStat)> {
        let until = self.shown_old_until();
        loop {
            let found = self.locate_anew(inode, record).await;
            let is_missing = found.as_ref().is_err_and(|fault| is_missing(fault.errno));
            let is_late = || self.parts.runtime.clock.monotonic() >= until;
            if !is_missing || is_late() || self.is_removed(inode)? {
                return found;
            }
            self.parts.runtime.sleep(SHOWN_OLD_PAUSE).await;
        }
    }

    fn is_removed(&self, inode: InodeId) -> Result<bool> {
        Ok(self.files.get(&self.journal, inode)?.is_some_and(|file| file.state().record.removed))
    }

    /// As [`Self::locate`], with attributes that this machine does not only remember.
    pub(super) async fn locate_anew(&self, inode: InodeId, record: &Record) -> Result<(Vec<u8>, FileStat)> {
        self.seek(inode, record, true).await
    }

    /// Finds the file on the shared file system: its path and what it is now.
    pub(super) async fn locate(&self, inode: InodeId, record: &Record) -> Result<(Vec<u8>, FileStat)> {
        self.seek(inode, record, false).await
    }

    /// The paths are looked at one after the other, and a file that is renamed meanwhile may be at none of them. As its new path is told
    /// before it gets there, it is missing only when it is missed twice under the same paths.
    async fn seek(&self, inode: InodeId, record: &Record, is_anew: bool) -> Result<(Vec<u8>, FileStat)> {
        let (mut paths, mut missed) = (record.paths.clone(), None);
        loop {
            let (shared, known) = (self.parts.shared.clone(), paths.clone());
            let look = move || {
                if is_anew {
                    known.iter().for_each(|path| shared.look_anew(path));
                }
                look(&*shared, inode, known.iter().map(|path| path.as_slice()))
            };
            match self.parts.runtime.block(look).await {
                Err(fault) if is_missing(fault.errno) && missed.as_ref() != Some(&paths) => {}
                found => return found,
            }
            let file = self.files.get(&self.journal, inode)?;
            let told = file.map_or_else(|| paths.clone(), |file| file.state().record.paths.clone());
            missed = Some(std::mem::replace(&mut paths, told));
        }
    }

    /// Whether the file is at this path.
    pub(super) async fn look_at(&self, inode: InodeId, path: &[u8]) -> Result<()> {
        let (shared, path) = (self.parts.shared.clone(), path.to_vec());
        let look = move || {
            walk_anew(&*shared, &path);
            look(&*shared, inode, std::iter::once(path.as_slice())).map(drop)
        };
        self.parts.runtime.block(look).await
    }
}

fn look<'a>(
    shared: &dyn SharedFs,
    inode: InodeId,
    paths: impl Iterator<Item = &'a [u8]> + Clone,
) -> Result<(Vec<u8>, FileStat)> {
    let mut taken = false;
    for path in paths.clone() {
        let look = || {
            let stat = shared.stat(path)?;
            let is_same = stat.inode_id() == inode && stat.kind == FileKind::File;
            if is_same { Ok(stat) } else { Err(Errno::ESTALE.into()) }
        };
        match anew(shared, path, look) {
            Ok(stat) => return Ok((path.to_vec(), stat)),
            Err(fault) if fault.errno == Errno::ESTALE => taken = true,
            Err(fault) if is_missing(fault.errno) => {}
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
