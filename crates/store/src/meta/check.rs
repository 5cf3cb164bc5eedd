//! Check of the names and inodes of one node, as far as the node alone can judge.
//!
//! - Each record decodes, and belongs to its home.
//! - An entry whose inode is kept here has one, of the same kind.
//! - The counts of a directory at a home match its entries there.
//! - The link count of an inode is at least its names here, and equal if no other node can have names of it.
//! - A directory has one name and is below a root.
//! - Contents and extended attributes have an inode.
//!
//! Pending operations, orphans and truncations are noted; the next start of the node completes them. Open files are
//! known in memory only: after the end of an agent none is open.

mod pending;
mod rules;
#[cfg(test)]
mod tests;
mod tree;

use super::key;
use super::record::{self, InodeRecord, ShardRecord, Share};
use crate::check::{Findings, Loss, Part};
use crate::table::{HomeTable, ReadTable, for_each, homes, key_of_home, prefix};
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use tameike_core::wire::codec;
use tameike_core::wire::meta::Target;
use tameike_core::{DirOffset, FileKind, HomeId, InodeId, Result, View};
use tree::ParentEntry;

/// Number of starts by which a home without a record of them is repaired to be ahead of its inodes.
const STARTS_UNKNOWN: u16 = 256;
/// Maximum number of parent directories in a path of a message.
const PATH_NAMES_MAX: usize = 64;

/// An inode, as the rules need it.
#[derive(Clone, Debug)]
struct Known {
    home: HomeId,
    record: InodeRecord,
    /// Number of entries on this node.
    names: u32,
}

#[derive(Default)]
pub(crate) struct Names {
    /// The homes that have records here.
    homes: Vec<HomeId>,
    /// Their parts of the names and inodes, as far as known.
    shares: BTreeMap<HomeId, Share>,
    inodes: BTreeMap<InodeId, Known>,
    entries: u64,
    /// Entries and directories among them, by home and directory.
    children: BTreeMap<(HomeId, InodeId), (u64, u64)>,
    /// Entries of directories.
    parent_entries: BTreeMap<InodeId, Vec<ParentEntry>>,
    truncated: BTreeSet<InodeId>,
    orphans: BTreeSet<InodeId>,
    /// An operation is pending here or elsewhere: link counts may be ahead of names.
    busy: bool,
}

/// The start of its home in which an inode was created.
fn start_of(inode: InodeId) -> u16 {
    ((inode.0 & InodeId::COUNTER_MAX) >> 32) as u16
}

/// A record of a home.
#[derive(Clone, Copy)]
struct Found<'a> {
    home: HomeId,
    /// Its key in the table of the home.
    key: &'a [u8],
    value: &'a [u8],
}

impl Found<'_> {
    /// Its key in the table of the node.
    fn full_key(self) -> Vec<u8> {
        key_of_home(self.home, self.key)
    }

    /// Removes it, and saves it.
    fn set_aside(self, findings: &mut Findings) {
        findings.remove_aside(self.full_key(), self.value.to_vec());
    }
}

/// Decodes a record; reports a damaged one as lost and removes it.
fn decode_or_lose<T: DeserializeOwned>(
    what: &str,
    inode: Option<InodeId>,
    found: Found<'_>,
    findings: &mut Findings,
) -> Option<T> {
    match record::decode(found.key, found.value) {
        Ok(record) => Some(record),
        Err(fault) => {
            let name = inode.map(|inode| format!(" of {inode}")).unwrap_or_default();
            let loss = Loss { file: None, inode, bytes: None, cached: false };
            findings.lost(Part::Names, format!("{what}{name} is lost: {fault}"), vec![loss]);
            found.set_aside(findings);
            None
        }
    }
}

/// Decodes a key that consists of an inode number; removes the record of any other key.
fn only_inode(what: &str, found: Found<'_>, findings: &mut Findings) -> Option<InodeId> {
    let inode = key::number(found.key).filter(|_| found.key.len() == 9).map(InodeId);
    if inode.is_none() {
        lose_key(what, found, findings);
    }
    inode
}

fn lose_key(what: &str, found: Found<'_>, findings: &mut Findings) {
    let loss = Loss { file: None, inode: None, bytes: None, cached: false };
    findings.lost(Part::Names, format!("{what} is lost: its key is damaged"), vec![loss]);
    found.set_aside(findings);
}

impl Names {
    /// Checks the records of all homes.
    pub(crate) fn examine(table: &dyn ReadTable, findings: &mut Findings) -> Result<Self> {
        let mut names = Self { homes: homes(table)?, ..Self::default() };
        let shards = names.read_shards(table, findings)?;
        names.read_pending(table, findings)?;
        names.read_inodes(table, &shards, findings)?;
        names.derive_shards(findings)?;
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
        self.shares.values().any(|share| share.keeps(inode))
    }

    /// Returns true if the inode record, if it exists, is at this home.
    fn is_kept_at(&self, home: HomeId, inode: InodeId) -> bool {
        self.shares.get(&home).is_some_and(|share| share.keeps(inode))
    }

    /// Returns true if this node has all homes.
    fn is_whole(&self) -> bool {
        self.shares.values().next().is_some_and(|share| share.count as usize == self.shares.len())
    }

    /// Returns true if all names of the inode are on this node.
    fn has_all_names(&self, inode: InodeId) -> bool {
        let alone = self.is_whole() || inode.pinned_node().is_some();
        alone && !self.busy && self.keeps(inode)
    }

    /// Calls `show` for all records of a prefix, of all homes.
    fn for_each(
        &self,
        table: &dyn ReadTable,
        prefix: u8,
        mut show: impl FnMut(Found<'_>) -> Result<()>,
    ) -> Result<()> {
        for &home in &self.homes {
            for_each(&HomeTable::new(home, table), prefix, |key, value| show(Found { home, key, value }))?;
        }
        Ok(())
    }

    /// Returns true if the file may have units: it exists as far as this node knows, or is being truncated.
    pub(crate) fn expects_units(&self, inode: InodeId) -> bool {
        !self.keeps(inode) || self.inodes.contains_key(&inode) || self.truncated.contains(&inode)
    }

    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.inodes.len() as u64, self.entries)
    }

    /// The path of a file in its view, from the topmost directory that this node knows. Reads all entries.
    pub(crate) fn path(&self, table: &dyn ReadTable, inode: InodeId) -> Option<String> {
        let mut above = BTreeMap::new();
        let read = self.for_each(table, prefix::ENTRY, |Found { key, value, .. }| {
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

    fn read_shards(
        &mut self,
        table: &dyn ReadTable,
        findings: &mut Findings,
    ) -> Result<BTreeMap<HomeId, ShardRecord>> {
        let mut shards = BTreeMap::new();
        for &home in &self.homes {
            let (key, table) = (key::shard(), HomeTable::new(home, table));
            let Some(value) = table.get(&key)? else { continue };
            let what = format!("the record of the part of the names that {home} has");
            let found = Found { home, key: &key, value: &value };
            let Some(shard) = decode_or_lose::<ShardRecord>(&what, None, found, findings) else { continue };
            self.shares.insert(home, shard.share.clone());
            shards.insert(home, shard);
        }
        Ok(shards)
    }

    fn read_inodes(
        &mut self,
        table: &dyn ReadTable,
        shards: &BTreeMap<HomeId, ShardRecord>,
        findings: &mut Findings,
    ) -> Result<()> {
        let (mut newest, mut inodes) = (BTreeMap::<HomeId, u16>::new(), BTreeMap::new());
        self.for_each(table, prefix::INODE, |found| {
            let Some(inode) = only_inode("an inode", found, findings) else { return Ok(()) };
            let Some(record) =
                decode_or_lose::<InodeRecord>("the inode record", Some(inode), found, findings)
            else {
                return Ok(());
            };
            let home = found.home;
            if self.shares.get(&home).is_some_and(|share| !share.keeps(inode)) {
                findings.wrong(
                    Part::Names,
                    format!("{inode} is at the wrong home, where no lookup would find it"),
                );
                found.set_aside(findings);
                return Ok(());
            }
            let start = start_of(inode);
            newest.entry(home).and_modify(|newest| *newest = start.max(*newest)).or_insert(start);
            inodes.insert(inode, Known { home, record, names: 0 });
            Ok(())
        })?;
        self.inodes = inodes;
        for (home, newest) in newest {
            let Some(shard) = shards.get(&home).filter(|shard| shard.incarnation < newest) else { continue };
            let message = format!(
                "{home} counts {} starts, but has inodes of start {newest}: inode numbers could be allocated twice",
                shard.incarnation
            );
            findings.wrong(Part::Names, message);
            let repaired = ShardRecord { incarnation: newest, ..shard.clone() };
            findings.set(key_of_home(home, &key::shard()), codec::encode(&repaired)?);
        }
        Ok(())
    }

    /// Repairs missing records of homes: another home knows the number of all homes, and inodes the start in which they were created.
    fn derive_shards(&mut self, findings: &mut Findings) -> Result<()> {
        let Some(count) = self.shares.values().next().map(|share| share.count) else { return Ok(()) };
        for &home in self.homes.iter().filter(|home| !self.shares.contains_key(home)) {
            let own = self.inodes.iter().filter(|(_, known)| known.home == home).map(|(inode, _)| *inode);
            let pinned: BTreeSet<_> = own.clone().filter_map(InodeId::pinned_node).collect();
            let newest = own.map(start_of).max().unwrap_or_default();
            let message = format!("the record of the part of the names that {home} has is missing");
            findings.wrong(Part::Names, message);
            // Nodes that were added to the job are among those of the inodes.
            let share = Share { home, count, pinned: pinned.into_iter().collect(), founders: u32::MAX };
            // Starts after that of the newest inode may have begun operations.
            let shard = ShardRecord { incarnation: newest.saturating_add(STARTS_UNKNOWN), share };
            findings.set(key_of_home(home, &key::shard()), codec::encode(&shard)?);
        }
        Ok(())
    }

    fn read_entries(&mut self, table: &dyn ReadTable, findings: &mut Findings) -> Result<()> {
        for home in self.homes.clone() {
            for_each(&HomeTable::new(home, table), prefix::ENTRY, |key, value| {
                self.read_entry(Found { home, key, value }, findings);
                Ok(())
            })?;
        }
        Ok(())
    }

    fn read_entry(&mut self, found: Found<'_>, findings: &mut Findings) {
        let (Some(dir), Some((offset, name))) =
            (key::number(found.key).map(InodeId), key::offset_and_name(found.key))
        else {
            return lose_key("a name", found, findings);
        };
        let shown = String::from_utf8_lossy(name).into_owned();
        let what = format!("the name {shown:?} in directory {dir}");
        let Some(target) = decode_or_lose::<Target>(&what, None, found, findings) else { return };
        if offset != DirOffset::of(dir, name) {
            return lose_key(&what, found, findings);
        }
        if let Some(why) = self.invalid_reason(dir, target) {
            let loss = Loss::of(target.inode, Some(shown), None);
            findings.lost(Part::Names, format!("{what} is dangling: {why}"), vec![loss]);
            return found.set_aside(findings);
        }
        self.entries += 1;
        let counts = self.children.entry((found.home, dir)).or_default();
        counts.0 += 1;
        counts.1 += u64::from(target.kind == FileKind::Directory);
        if target.kind == FileKind::Directory {
            let entry = ParentEntry { dir, home: found.home, key: found.key.to_vec() };
            self.parent_entries.entry(target.inode).or_default().push(entry);
        }
        if let Some(known) = self.inodes.get_mut(&target.inode) {
            known.names += 1;
        }
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
