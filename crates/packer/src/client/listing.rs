//! Merged listings: entries of the shared directory, by its cursors, then packed files.

use super::DEVICE;
use super::packer_client::unexpected_reply;
use crate::external::ASIDE;
use crate::{CONTAINER, PackerClient};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use tameike_core::wire::pack::{PackReply, PackRequest};
use tameike_core::{FileKind, InodeId, Result};
use tameike_io::shared::{FileStat, NamedFile, SharedDir};

/// Cursors of packed files follow this one. No file system has cursors there except for the last: ext4 never uses that hash value, other
/// file systems count.
const PACKED_AFTER: u64 = 0x7fff_ffff_0000_0000;
/// The largest cursor, which file systems return at the end.
const END: u64 = i64::MAX as u64;
/// Entries in one reply.
const NAMES_AT_ONCE: usize = 1024;

/// An open directory.
pub struct MergedDir {
    plain: Arc<dyn SharedDir>,
    packer: PackerClient,
    path: Vec<u8>,
    /// The packed files from the last read at the beginning of the directory.
    packed: Mutex<Option<Packed>>,
}

#[derive(Default)]
struct Packed {
    names: Vec<(Vec<u8>, u64)>,
    positions: BTreeMap<Vec<u8>, usize>,
    /// Whether the shared directory has returned the same name.
    shadowed: Vec<bool>,
}

impl MergedDir {
    /// The directory at `path`.
    pub fn new(plain: Arc<dyn SharedDir>, packer: PackerClient, path: Vec<u8>) -> Self {
        Self { plain, packer, path, packed: Mutex::default() }
    }

    fn fetch(&self) -> Result<Packed> {
        let mut names = Vec::new();
        loop {
            let after = names.last().map_or_else(Vec::new, |(name, _): &(Vec<u8>, u64)| name.clone());
            match self.packer.call(PackRequest::List { dir: self.path.clone(), after })? {
                PackReply::Names(more) if more.is_empty() => break,
                PackReply::Names(more) => {
                    names.extend(more.into_iter().map(|(name, file)| (name.into_vec(), file)));
                }
                other => return Err(unexpected_reply(&other)),
            }
        }
        let positions =
            names.iter().enumerate().map(|(position, (name, _))| (name.clone(), position)).collect();
        let shadowed = vec![false; names.len()];
        Ok(Packed { names, positions, shadowed })
    }

    fn packed_after(packed: &Packed, first: usize) -> Vec<NamedFile> {
        let rest = packed.names.iter().zip(&packed.shadowed).enumerate().skip(first);
        let named =
            rest.filter(|(_, (_, shadowed))| !**shadowed).map(|(position, ((name, file), _))| NamedFile {
                name: name.clone(),
                inode: InodeId::cached(DEVICE, *file),
                kind: FileKind::File,
                next: PACKED_AFTER + position as u64 + 1,
            });
        named.take(NAMES_AT_ONCE).collect()
    }
}

impl SharedDir for MergedDir {
    fn stat(&self) -> Result<FileStat> {
        self.plain.stat()
    }

    fn read(&self, after: u64) -> Result<Vec<NamedFile>> {
        let mut known = self.packed.lock();
        if after == 0 || known.is_none() {
            *known = Some(self.fetch()?);
        }
        let Some(packed) = known.as_mut() else { return Ok(Vec::new()) };
        if (PACKED_AFTER..END).contains(&after) && after > PACKED_AFTER {
            return Ok(Self::packed_after(packed, (after - PACKED_AFTER) as usize));
        }
        let mut cursor = after;
        loop {
            let mut names = self.plain.read(cursor)?;
            let Some(last) = names.last().map(|last| last.next) else {
                return Ok(Self::packed_after(packed, 0));
            };
            for named in &names {
                if let Some(&position) = packed.positions.get(&named.name) {
                    packed.shadowed[position] = true;
                }
            }
            names.retain(|named| !(self.path.is_empty() && named.name == CONTAINER));
            // It is about to be renamed.
            names.retain(|named| !named.name.starts_with(ASIDE));
            if !names.is_empty() {
                return Ok(names);
            }
            cursor = last;
        }
    }
}
