//! Iteration over the paths of a container: index and added entries, merged.

use super::Container;
use super::path_key::PathKey;
use crate::format::entry::split_path;
use crate::index::{IndexEntry, Merge};
use std::collections::BTreeMap;
use std::ops::Bound;
use tameike_core::{FileKind, Result};
use tameike_io::shared::join;

/// Entries, ordered by directory and name.
pub type Walk<'a> = Box<dyn Iterator<Item = Result<IndexEntry>> + 'a>;

impl Container {
    /// All entries, by directory and name.
    pub fn walk(&self) -> Result<Walk<'_>> {
        self.walk_from(b"")
    }

    /// The entries of a directory, by name; none if the directory does not exist.
    pub fn children(&self, dir: &[u8]) -> Result<Walk<'_>> {
        self.children_after(dir, b"")
    }

    /// As [`Self::children`], for names that sort after `name`.
    pub fn children_after(&self, dir: &[u8], name: &[u8]) -> Result<Walk<'_>> {
        // No other name sorts in between.
        let first = join(dir, &[name, b"\0"].concat());
        let dir = dir.to_vec();
        let is_there = move |entry: &Result<IndexEntry>| {
            entry.as_ref().map_or(true, |entry| split_path(&entry.path).0 == dir)
        };
        Ok(Box::new(self.walk_from(&first)?.take_while(is_there)))
    }

    /// All entries below a directory, a directory before its contents; none if the directory does not exist.
    pub fn below(&self, dir: &[u8]) -> Result<Walk<'_>> {
        if dir.is_empty() {
            return self.walk();
        }
        let below = join(dir, b"");
        // No directory sorts in between.
        let deeper = self.walk_from(&join(&[&below[..], b"\0"].concat(), b"\0"))?;
        let is_there = move |entry: &Result<IndexEntry>| {
            entry.as_ref().map_or(true, |entry| split_path(&entry.path).0.starts_with(&below))
        };
        Ok(Box::new(self.children(dir)?.chain(deeper.take_while(is_there))))
    }

    /// All entries, depth first: a directory, its files, then its subdirectories recursively. The directories are kept in memory.
    pub fn walk_deep(&self) -> Result<Walk<'_>> {
        let mut dirs = BTreeMap::from([(DeepKey::of(b""), None)]);
        for entry in self.walk()? {
            let entry = entry?;
            // The directory may have no entry.
            dirs.entry(DeepKey::of(split_path(&entry.path).0)).or_insert(None);
            if is_dir(&entry) {
                dirs.insert(DeepKey::of(&entry.path), Some(entry));
            }
        }
        let in_dir = |(dir, own): (DeepKey, Option<IndexEntry>)| -> Walk<'_> {
            let files: Walk<'_> = match self.children(&dir.path()) {
                Ok(children) => Box::new(children.filter(|entry| !entry.as_ref().is_ok_and(is_dir))),
                Err(fault) => Box::new(std::iter::once(Err(fault))),
            };
            Box::new(own.into_iter().map(Ok).chain(files))
        };
        Ok(Box::new(dirs.into_iter().flat_map(in_dir)))
    }

    /// Names of subdirectories of `dir` that contain something, with or without an entry.
    pub fn directories_in(&self, dir: &[u8]) -> Result<Vec<Vec<u8>>> {
        let below = if dir.is_empty() { Vec::new() } else { join(dir, b"") };
        let (mut names, mut from) = (Vec::new(), [&below[..], b"\0"].concat());
        loop {
            let next = self.walk_from(&join(&from, b"\0"))?.next().transpose()?;
            let Some(found) = next.map(|entry| split_path(&entry.path).0.to_vec()) else { break };
            let Some(rest) = found.strip_prefix(&below[..]) else { break };
            let name = rest.split(|&byte| byte == b'/').next().unwrap_or_default();
            if names.last().is_none_or(|last| last != name) {
                names.push(name.to_vec());
            }
            // Skip the entries in it, then those below it.
            let behind = if rest == name { b'\0' } else { b'/' + 1 };
            from = [&below[..], name, &[behind]].concat();
        }
        names.sort();
        names.dedup();
        Ok(names)
    }

    fn walk_from(&self, path: &[u8]) -> Result<Walk<'_>> {
        let from = Bound::Included(PathKey::of(path));
        let added = self.added.range((from, Bound::Unbounded)).map(|(_, entry)| Ok(entry.clone()));
        let mut sources: Vec<Walk<'_>> = vec![Box::new(added)];
        if let Some(index) = &self.index {
            sources.push(Box::new(index.iter_from(path)?));
        }
        let is_there = |entry: &Result<IndexEntry>| entry.as_ref().map_or(true, |entry| entry.node.is_some());
        Ok(Box::new(Merge::new(sources)?.filter(is_there)))
    }

    /// Removals since the index was written; all removals if there is no index.
    pub fn removed(&self) -> impl Iterator<Item = &IndexEntry> {
        self.added.values().filter(|entry| entry.node.is_none())
    }
}

fn is_dir(entry: &IndexEntry) -> bool {
    entry.node.is_some_and(|node| node.kind == FileKind::Directory)
}

/// The path of a directory, in depth-first order: the separator sorts before all bytes of names.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct DeepKey(Vec<u8>);

impl DeepKey {
    fn of(path: &[u8]) -> Self {
        Self(path.iter().map(|&byte| if byte == b'/' { 0 } else { byte }).collect())
    }

    fn path(&self) -> Vec<u8> {
        self.0.iter().map(|&byte| if byte == 0 { b'/' } else { byte }).collect()
    }
}
