//! Creates the external files of packed files that grow too large for the container.

use super::store::Store;
use crate::external::{aside_of, external_path, is_at, remove};
use std::sync::Arc;
use tameike_container::format::external;
use tameike_core::wire::meta::RenameMode;
use tameike_core::wire::pack::PackedStat;
use tameike_core::{Errno, Fault, FaultKind, Result};
use tameike_io::shared::{SharedFile, SharedFs};

/// Makes the content of an open file external if it is to become larger than `size_max`, before it does. Returns whether the content is
/// external. If the content cannot be moved, it stays in the container.
pub fn make_external(
    store: &mut Store,
    plain: &dyn SharedFs,
    size_max: u64,
    file: u64,
    size: u64,
) -> Result<bool> {
    // A foreign container takes no changes.
    store.check()?;
    let PackedStat { size: now, is_external, .. } = store.stat_open(file)?;
    let Some(path) = store.path_of(file)? else { return Ok(is_external) };
    if !is_external && now.max(size) <= size_max {
        return Ok(false);
    }
    store.external.add_promotion(file)?;
    if is_external {
        store.cancel_promotion(file)?;
    } else {
        let content = create_external((plain, &*store.external.dir), &path, file)?;
        store.move_to_external(file, &*content)?;
    }
    Ok(true)
}

/// Creates the external file of the packed file at a path: beside that path, as permissions and the choice of disks go by directories,
/// then renamed into the container's directory. If the packer fails in between, the next attempt removes the file beside the path.
fn create_external(
    (plain, container): (&dyn SharedFs, &dyn SharedFs),
    path: &[u8],
    number: u64,
) -> Result<Arc<dyn SharedFile>> {
    const MODE: u16 = 0o600;
    let (aside, external, name) = (aside_of(path, number)?, external_path(number), external::name(number));
    remove(container, &name)?;
    let made = remove(plain, &aside).and_then(|()| plain.create(&aside, MODE)).and_then(|file| {
        let renamed = plain.rename(&aside, &external, RenameMode::Replace);
        if renamed.is_err() {
            let _ = plain.unlink(&aside);
        }
        renamed.map(|()| file)
    });
    match made {
        // A user who may rename files there has replaced the file, or the container's directory.
        Ok(file) if !is_at(container, &name, &*file)? => {
            match container.unlink(&name) {
                // A directory goes back.
                Err(fault) if fault.errno == Errno::EISDIR => {
                    plain.rename(&external, &aside, RenameMode::NoReplace)?;
                }
                Err(fault) if fault.kind() != FaultKind::Missing => return Err(fault),
                _ => {}
            }
            container.create(&name, MODE)
        }
        // Another file system, or a quota of its own, begins below the shared directory; or the directory takes no new files any more.
        Err(fault) if fault.errno == Errno::EXDEV || is_closed(&fault) => container.create(&name, MODE),
        made => made,
    }
}

/// Whether an error means that a directory is missing, or may not be written.
fn is_closed(fault: &Fault) -> bool {
    matches!(fault.kind(), FaultKind::Denied | FaultKind::Missing)
}
