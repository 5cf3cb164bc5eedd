//! Going through a tree of files.

use tameike_core::{Fault, FileKind, Result};
use tameike_io::shared::{FileStat, SharedFs, join};

/// A path of a tree, and what is there.
pub struct Item {
    pub path: Vec<u8>,
    pub stat: FileStat,
}

/// Gives everything below a directory to `found`, until that does not take more: a directory before what is in it. What cannot be looked at
/// goes to `note`.
pub fn walk(
    fs: &dyn SharedFs,
    dir: &[u8],
    mut found: impl FnMut(Item) -> bool,
    note: &dyn Fn(&[u8], &Fault),
) {
    let mut dirs = vec![dir.to_vec()];
    while let Some(dir) = dirs.pop() {
        let names = match names_in(fs, &dir) {
            Ok(names) => names,
            Err(fault) => {
                note(&dir, &fault);
                continue;
            }
        };
        for name in names {
            let path = join(&dir, &name);
            let stat = match fs.stat(&path) {
                Ok(stat) => stat,
                Err(fault) => {
                    note(&path, &fault);
                    continue;
                }
            };
            if stat.kind == FileKind::Directory {
                dirs.push(path.clone());
            }
            if !found(Item { path, stat }) {
                return;
            }
        }
    }
}

fn names_in(fs: &dyn SharedFs, dir: &[u8]) -> Result<Vec<Vec<u8>>> {
    let (open, mut names, mut after) = (fs.open_dir(dir)?, Vec::new(), 0);
    loop {
        let some = open.read(after)?;
        let Some(last) = some.last() else { break };
        after = last.next;
        names.extend(some.into_iter().map(|named| named.name).filter(|name| name != b"." && name != b".."));
    }
    Ok(names)
}
