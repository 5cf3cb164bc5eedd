//! Attributes and contents of files, as both ends of a mirror read them.

use super::protocol::{Attributes, BLOCK_SIZE, HASH_SIZE, Item, MARK, USER_XATTRS, is_excluded, xattrs_hash};
use tameike_core::{Errno, FaultKind, FileKind, Result};
use tameike_io::shared::{Access, FileStat, SharedFile, SharedFs, join, xattrs_of};

/// Returns the attributes of a file with this stat, with its extended ones.
pub fn attributes_of(tree: &dyn SharedFs, path: &[u8], stat: &FileStat) -> Result<Attributes> {
    Ok(Attributes { xattrs: user_xattrs(tree, path, stat.kind)?, ..plain_attributes(stat) })
}

/// Returns the attributes that a stat shows.
pub fn plain_attributes(stat: &FileStat) -> Attributes {
    Attributes {
        kind: stat.kind,
        mode: stat.mode,
        uid: stat.uid,
        gid: stat.gid,
        rdev: stat.rdev,
        size: if stat.kind == FileKind::File { stat.size } else { 0 },
        mtime: stat.mtime,
        xattrs: Vec::new(),
    }
}

/// Returns the extended attributes that are mirrored, sorted; none if the file system does not support them.
pub fn user_xattrs(tree: &dyn SharedFs, path: &[u8], kind: FileKind) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    if !matches!(kind, FileKind::File | FileKind::Directory) {
        return Ok(Vec::new());
    }
    let mut xattrs = match xattrs_of(tree, path) {
        Err(fault) if matches!(fault.errno, Errno::ENODATA | Errno::EACCES | Errno::EPERM) => Vec::new(),
        xattrs => xattrs?,
    };
    xattrs.retain(|(name, _)| name.starts_with(USER_XATTRS) && name != MARK);
    xattrs.sort();
    Ok(xattrs)
}

/// Returns the files in a directory that are mirrored, sorted by name. A file that is removed meanwhile is left out.
pub fn list(tree: &dyn SharedFs, path: &[u8]) -> Result<Vec<(Item, FileStat)>> {
    let dir = tree.open_dir(path)?;
    let (mut items, mut after) = (Vec::new(), 0);
    loop {
        let part = dir.read(after)?;
        let Some(last) = part.last() else { break };
        after = last.next;
        for named in part {
            if matches!(named.name.as_slice(), b"." | b"..") || is_excluded(&named.name) {
                continue;
            }
            match item(tree, path, named.name) {
                Err(fault) if fault.kind() == FaultKind::Missing => {}
                found => items.push(found?),
            }
        }
    }
    items.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
    Ok(items)
}

fn item(tree: &dyn SharedFs, dir: &[u8], name: Vec<u8>) -> Result<(Item, FileStat)> {
    let path = join(dir, &name);
    let stat = tree.stat(&path)?;
    let target = if stat.kind == FileKind::Symlink { tree.read_link(&path)? } else { Vec::new() };
    let xattrs_hash = xattrs_hash(&user_xattrs(tree, &path, stat.kind)?);
    Ok((Item { name, attributes: plain_attributes(&stat), xattrs_hash, target }, stat))
}

/// Hashes the blocks of a file from `first` on, as far as it has them, each with BLAKE3.
pub fn hash_blocks(file: &dyn SharedFile, first: u64, count: u32) -> Result<Vec<u8>> {
    let mut hashes = Vec::new();
    let mut block = vec![0; BLOCK_SIZE];
    for number in first..first + u64::from(count) {
        let size = file.read_at(&mut block, number * BLOCK_SIZE as u64)?;
        if size == 0 {
            break;
        }
        hashes.extend_from_slice(blake3::hash(&block[..size]).as_bytes());
        if size < block.len() {
            break;
        }
    }
    Ok(hashes)
}

/// Returns size and BLAKE3 of a regular file, or `None` if there is none. Calls `step` for each block.
pub fn checksum(
    tree: &dyn SharedFs,
    path: &[u8],
    mut step: impl FnMut() -> Result<()>,
) -> Result<Option<(u64, [u8; HASH_SIZE])>> {
    let file = match tree.open(path, Access::Read) {
        Err(fault) if fault.kind() == FaultKind::Missing || fault.errno == Errno::EINVAL => return Ok(None),
        file => file?,
    };
    let (mut hasher, mut size) = (blake3::Hasher::new(), 0);
    let mut block = vec![0; BLOCK_SIZE];
    loop {
        let count = file.read_at(&mut block, size)?;
        hasher.update(&block[..count]);
        size += count as u64;
        if count < block.len() {
            return Ok(Some((size, *hasher.finalize().as_bytes())));
        }
        step()?;
    }
}
