//! Check of the names and inodes of one node, as far as the node alone can judge.
//!
//! - Each record decodes, and belongs on the node.
//! - An entry whose inode is kept here has one, of the same kind.
//! - The counts of a directory match its entries here.
//! - The link count of an inode is at least its names here, and equal if no other node can have names of it.
//! - A directory has one name and is below a root.
//! - Contents and extended attributes have an inode.
//!
//! Pending operations, orphans and truncations are noted; the next start of the node completes them. Open files are
//! known in memory only: after the end of an agent none is open.

mod pending;
mod rules;
mod tree;

use super::key;
use super::record::{self, InodeRecord, ShardRecord, Share};
use crate::check::{Findings, Loss, Part};
use crate::table::{Table, for_each, prefix};
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use tameike_core::wire::meta::Target;
use tameike_core::{DirOffset, FileKind, InodeId, Result, View};
use tree::ParentEntry;

/// Maximum number of parent directories in a path of a message.
const PATH_NAMES_MAX: usize = 64;

/// An inode, as the rules need it.
#[derive(Clone, Debug)]
struct Known {
    record: InodeRecord,
    /// Number of entries on this node.
    names: u32,
}

#[derive(Default)]
pub(crate) struct Names {
    share: Option<Share>,
    inodes: BTreeMap<InodeId, Known>,
    entries: u64,
    /// Entries and directories among them, by directory.
    children: BTreeMap<InodeId, (u64, u64)>,
    /// Entries of directories.
    parent_entries: BTreeMap<InodeId, Vec<ParentEntry>>,
    truncated: BTreeSet<InodeId>,
    orphans: BTreeSet<InodeId>,
    /// An operation is pending on this or another node: link counts may be ahead of names.
    busy: bool,
}

/// Decodes a record; reports a damaged one as lost and removes it.
fn decode_or_lose<T: DeserializeOwned>(
    what: &str,
    inode: Option<InodeId>,
    (key, value): (&[u8], &[u8]),
    findings: &mut Findings,
) -> Option<T> {
    match record::decode(key, value) {
        Ok(record) => Some(record),
        Err(fault) => {
            let name = inode.map(|inode| format!(" of {inode}")).unwrap_or_default();
            let loss = Loss { file: None, inode, bytes: None, cached: false };
            findings.lost(Part::Names, format!("{what}{name} is lost: {fault}"), vec![loss]);
            findings.remove_aside(key.to_vec(), value.to_vec());
            None
        }
    }
}

/// Decodes a key that consists of an inode number; removes the record of any other key.
fn only_inode(what: &str, key: &[u8], value: &[u8], findings: &mut Findings) -> Option<InodeId> {
    let inode = key::number(key).filter(|_| key.len() == 9).map(InodeId);
    if inode.is_none() {
        lose_key(what, key, value, findings);
    }
    inode
}

fn lose_key(what: &str, key: &[u8], value: &[u8], findings: &mut Findings) {
    let loss = Loss { file: None, inode: None, bytes: None, cached: false };
    findings.lost(Part::Names, format!("{what} is lost: its key is damaged"), vec![loss]);
    findings.remove_aside(key.to_vec(), value.to_vec());
}

impl Names {
    /// Checks all records of the metadata shard.
    pub(crate) fn examine(table: &dyn Table, findings: &mut Findings) -> Result<Self> {
        let mut names = Self::default();
        let shard = names.read_shard(table, findings)?;
        names.read_pending(table, findings)?;
        names.read_inodes(table, shard, findings)?;
        names.read_entries(table, findings)?;
        names.examine_tree(findings)?;
        names.examine_children(table, findings)?;
        names.examine_belongings(table, findings)?;
        names.examine_links(table, findings)?;
        names.examine_orphans(table, findings)?;
        Ok(names)
    }

    /// Returns true if the inode record, if it exists, is on this node.
    pub(crate) fn keeps(&self, inode: InodeId) -> bool {
        self.share.as_ref().is_some_and(|share| share.keeps(inode))
    }

    /// Returns true if all names of the inode are on this node.
    fn has_all_names(&self, inode: InodeId) -> bool {
        let alone = self.share.as_ref().is_some_and(Share::is_whole) || inode.pinned_node().is_some();
        alone && !self.busy && self.keeps(inode)
    }

    /// Returns true if the file may have units: it exists as far as this node knows, or is being truncated.
    pub(crate) fn expects_units(&self, inode: InodeId) -> bool {
        !self.keeps(inode) || self.inodes.contains_key(&inode) || self.truncated.contains(&inode)
    }

    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.inodes.len() as u64, self.entries)
    }

    /// The path of a file in its view, from the topmost directory that this node knows. Reads all entries.
    pub(crate) fn path(&self, table: &dyn Table, inode: InodeId) -> Option<String> {
        let mut above = BTreeMap::new();
        let read = for_each(table, prefix::ENTRY, |key, value| {
            if let (Some(dir), Some((_, name)), Ok(Target { inode, .. })) =
                (key::number(key), key::offset_and_name(key), record::decode::<Target>(key, value))
            {
                above.insert(inode, (InodeId(dir), String::from_utf8_lossy(name).into_owned()));
            }
            Ok(())
        });
        read.ok()?;
        let (mut path, mut at) = (String::new(), inode);
        for _ in 0..PATH_NAMES_MAX {
            let Some((dir, name)) = above.get(&at) else { break };
            path = format!("/{name}{path}");
            at = *dir;
        }
        let is_root = self.inodes.get(&at).map_or(at == InodeId::ROOT, |known| known.record.parent == at);
        let view = if inode.view() == View::NodeLocal { "node-local" } else { "shared" };
        match (path.is_empty(), is_root) {
            (true, _) => None,
            (false, true) => Some(format!("{view}:{path}")),
            (false, false) => Some(format!("{view}:...{path}")),
        }
    }

    fn read_shard(&mut self, table: &dyn Table, findings: &mut Findings) -> Result<Option<ShardRecord>> {
        let Some(value) = table.get(&key::shard())? else { return Ok(None) };
        let shard: Option<ShardRecord> = decode_or_lose(
            "the record of which homes this node serves",
            None,
            (&key::shard(), &value),
            findings,
        );
        self.share = shard.as_ref().and_then(|shard| shard.share.clone());
        Ok(shard)
    }

    fn read_inodes(
        &mut self,
        table: &dyn Table,
        shard: Option<ShardRecord>,
        findings: &mut Findings,
    ) -> Result<()> {
        let mut newest = 0;
        for_each(table, prefix::INODE, |key, value| {
            let Some(inode) = only_inode("an inode", key, value, findings) else { return Ok(()) };
            let Some(record) =
                decode_or_lose::<InodeRecord>("the inode record", Some(inode), (key, value), findings)
            else {
                return Ok(());
            };
            if self.share.is_some() && !self.keeps(inode) {
                findings.wrong(
                    Part::Names,
                    format!("{inode} is on the wrong node, where no lookup would find it"),
                );
                findings.remove_aside(key.to_vec(), value.to_vec());
                return Ok(());
            }
            newest = newest.max(((inode.0 & InodeId::COUNTER_MAX) >> 32) as u16);
            self.inodes.insert(inode, Known { record, names: 0 });
            Ok(())
        })?;
        if let Some(shard) = shard.filter(|shard| shard.incarnation < newest) {
            let message = format!(
                "the node counts {} starts, but has inodes of start {newest}: inode numbers could be allocated twice",
                shard.incarnation
            );
            findings.wrong(Part::Names, message);
            let repaired = ShardRecord { incarnation: newest, ..shard };
            findings.set(key::shard(), tameike_core::wire::codec::encode(&repaired)?);
        }
        Ok(())
    }

    fn read_entries(&mut self, table: &dyn Table, findings: &mut Findings) -> Result<()> {
        for_each(table, prefix::ENTRY, |key, value| {
            let (Some(dir), Some((offset, name))) =
                (key::number(key).map(InodeId), key::offset_and_name(key))
            else {
                lose_key("a name", key, value, findings);
                return Ok(());
            };
            let shown = String::from_utf8_lossy(name).into_owned();
            let what = format!("the name {shown:?} in directory {dir}");
            let Some(target) = decode_or_lose::<Target>(&what, None, (key, value), findings) else {
                return Ok(());
            };
            if offset != DirOffset::of(dir, name) {
                lose_key(&what, key, value, findings);
                return Ok(());
            }
            if let Some(why) = self.invalid_reason(dir, target) {
                let loss = Loss::of(target.inode, Some(shown), None);
                findings.lost(Part::Names, format!("{what} is dangling: {why}"), vec![loss]);
                findings.remove_aside(key.to_vec(), value.to_vec());
                return Ok(());
            }
            self.entries += 1;
            let counts = self.children.entry(dir).or_default();
            counts.0 += 1;
            counts.1 += u64::from(target.kind == FileKind::Directory);
            if target.kind == FileKind::Directory {
                self.parent_entries
                    .entry(target.inode)
                    .or_default()
                    .push(ParentEntry { dir, key: key.to_vec() });
            }
            if let Some(known) = self.inodes.get_mut(&target.inode) {
                known.names += 1;
            }
            Ok(())
        })
    }

    /// The reason why an entry is invalid.
    fn invalid_reason(&self, dir: InodeId, target: Target) -> Option<String> {
        let Target { inode, kind } = target;
        let kind_of = |inode| self.inodes.get(&inode).map(|known| known.record.kind);
        match (self.keeps(dir), kind_of(dir)) {
            (true, None) => return Some(format!("its directory {dir} does not exist")),
            (true, Some(found)) if found != FileKind::Directory => {
                return Some(format!("{dir} is not a directory"));
            }
            _ => {}
        }
        match (self.keeps(inode), kind_of(inode)) {
            (true, None) => Some(format!("{inode} does not exist")),
            (true, Some(found)) if found != kind => Some(format!("{inode} is of another kind")),
            _ => None,
        }
    }
}
