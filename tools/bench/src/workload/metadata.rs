//! Empty files: created, looked at by another rank, and removed; as the program mdtest does.

use super::{Site, Work, timed};
use crate::outcome::{Context, Outcome};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Creates and closes this rank's files, which must not be there.
pub fn create(site: &Site) -> Outcome<Work> {
    each(site, site.rank, |path| {
        File::create_new(path).context(|| format!("create {}", path.display()))?;
        Ok(())
    })
}

/// Looks at each file of `rank`: there, a file, and empty.
pub fn stat(site: &Site, rank: u32) -> Outcome<Work> {
    each(site, rank, |path| {
        let metadata = std::fs::symlink_metadata(path).context(|| format!("stat {}", path.display()))?;
        match metadata.is_file() && metadata.len() == 0 {
            true => Ok(()),
            false => Err(format!("WRONG ATTRIBUTES of {}: not an empty file", path.display())),
        }
    })
}

/// Removes this rank's files; afterwards none of them may be listed.
pub fn unlink(site: &Site) -> Outcome<Work> {
    let work = each(site, site.rank, |path| {
        std::fs::remove_file(path).context(|| format!("unlink {}", path.display()))
    })?;
    let (directory, prefix) = (site.directory(site.rank), format!("file-{}-", site.rank));
    let doing = || format!("list {}", directory.display());
    for entry in std::fs::read_dir(&directory).context(doing)? {
        let name = entry.context(doing)?.file_name();
        if name.as_encoded_bytes().starts_with(prefix.as_bytes()) {
            return Err(format!("WRONG LISTING of {}: {} was unlinked", directory.display(), name.display()));
        }
    }
    Ok(work)
}

fn each(site: &Site, rank: u32, mut call: impl FnMut(&Path) -> Outcome<()>) -> Outcome<Work> {
    let paths: Vec<PathBuf> = (0..site.plan.files).map(|index| site.file(rank, index)).collect();
    let (seconds, ()) = timed(|| paths.iter().try_for_each(|path| call(path)))?;
    Ok(Work { seconds, operations: paths.len() as u64, bytes: 0 })
}
