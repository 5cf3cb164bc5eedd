//! Check of node-local files, which are plain files on the node's disk: reads each to its end. Their file system may or
//! may not keep checksums.

use super::Counts;
use super::findings::{Aside, Findings, Loss, Part};
use crate::directory::LOCAL;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use tameike_core::Errno;

/// Read size, in bytes.
const PIECE: usize = 1 << 20;

/// Reads a file to its end and returns its size.
pub(super) type ReadFile<'a> = &'a dyn Fn(&Path) -> io::Result<u64>;

pub(super) fn read_file(path: &Path) -> io::Result<u64> {
    let (mut file, mut piece, mut size) = (std::fs::File::open(path)?, vec![0; PIECE], 0);
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(size),
            count => size += count as u64,
        }
    }
}

/// Reads all files of the node-local view.
pub(super) fn check_files(dir: &Path, read: ReadFile<'_>, counts: &mut Counts, findings: &mut Findings) {
    let root = dir.join(LOCAL);
    // A job that did not use the view has no such directory.
    let mut left: Vec<_> = root.exists().then(|| root.clone()).into_iter().collect();
    while let Some(path) = left.pop() {
        let examined = path.read_dir().and_then(|entries| {
            for entry in entries {
                let entry = entry?;
                let kind = entry.file_type()?;
                if kind.is_dir() {
                    left.push(entry.path());
                } else if kind.is_file() {
                    examine_file(&root, &entry.path(), read, counts, findings);
                }
            }
            Ok(())
        });
        if let Err(error) = examined {
            report(&root, &path, &error, findings);
        }
    }
}

fn examine_file(root: &Path, path: &Path, read: ReadFile<'_>, counts: &mut Counts, findings: &mut Findings) {
    match read(path) {
        Ok(size) => {
            counts.local_files += 1;
            counts.local_bytes += size;
        }
        Err(error) => report(root, path, &error, findings),
    }
}

/// Reports an error: files that the disk cannot read are lost, files without read permission are skipped.
fn report(root: &Path, path: &Path, error: &io::Error, findings: &mut Findings) {
    let below = path.strip_prefix(root).unwrap_or(path);
    let name = format!("node-local:/{}", below.display());
    if error.raw_os_error() != Some(Errno::EIO.0) {
        return findings.note(Part::Local, format!("{name} was skipped: {error}"));
    }
    let loss = Loss { file: Some(name.clone()), inode: None, bytes: None, cached: false };
    findings.lost(
        Part::Local,
        format!("{name} cannot be read ({error}): all or part of it is lost"),
        vec![loss],
    );
    let inside: PathBuf = Path::new(LOCAL).join(below);
    findings.save(Aside::File(inside));
}
