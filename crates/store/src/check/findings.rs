//! Findings of a check, and the changes that repair them.

use crate::ledger::kv::Changes;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::PathBuf;
use tameike_core::{InodeId, UnitId};

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Nothing is wrong.
    Note,
    /// Derived data is wrong; a repair loses nothing.
    Wrong,
    /// Data is lost; a repair removes its records, so that the rest is usable.
    Lost,
}

impl Severity {
    /// One word, for scripts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Wrong => "wrong",
            Self::Lost => "lost",
        }
    }
}

/// Parts of a store, in order of their dependencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The file `format`: identity and version of the store.
    Format,
    /// The key-value store.
    Table,
    /// The log.
    Log,
    /// Names and inodes of the job-shared and node-local views.
    Names,
    /// Units and their data.
    Extents,
    /// The journal of the cache view.
    Journal,
    /// Files of the node-local view.
    Local,
}

impl Part {
    /// One word, for people and scripts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Format => "format",
            Self::Table => "table",
            Self::Log => "log",
            Self::Names => "names",
            Self::Extents => "extents",
            Self::Journal => "journal",
            Self::Local => "local",
        }
    }
}

/// Lost bytes or names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Path of the file, if the store knows it.
    pub file: Option<String>,
    /// Inode number of the file.
    pub inode: Option<InodeId>,
    /// The lost bytes, if bytes are lost.
    pub bytes: Option<Range<u64>>,
    /// Whether the loss may concern the cache view.
    pub cached: bool,
}

impl Loss {
    /// The loss of bytes of a file, or of the whole file (`None`).
    pub fn of(inode: InodeId, file: Option<String>, bytes: Option<Range<u64>>) -> Self {
        Self { file, inode: Some(inode), bytes, cached: inode.is_cached() }
    }

    /// A loss of unknown extent.
    pub fn unknown() -> Self {
        Self { file: None, inode: None, bytes: None, cached: true }
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The part of the store.
    pub part: Part,
    /// Its severity.
    pub severity: Severity,
    /// Description for people.
    pub message: String,
    /// The losses; empty unless [`Severity::Lost`].
    pub lost: Vec<Loss>,
}

/// Something that a repair saves in `lost+found` before it removes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Aside {
    /// A record of the table.
    Record(Vec<u8>, Vec<u8>),
    /// Bytes of the extents file (`device`, in bytes), and their offset in a unit.
    Bytes { unit: UnitId, start: u32, device: Range<u64> },
    /// A file or directory of the node-local view: its path in the store's directory.
    File(PathBuf),
}

/// A copy of one block of the extents file: source and target block.
pub(crate) type Copy = (u64, u64);

/// Collects findings and repairs.
#[derive(Debug, Default)]
pub struct Findings {
    pub(crate) findings: Vec<Finding>,
    pub(super) aside: Vec<Aside>,
    pub(super) copies: Vec<Copy>,
    changes: Changes,
    /// Files whose units the next round removes.
    units_to_remove: BTreeSet<InodeId>,
    repairs: bool,
}

impl Findings {
    fn put(&mut self, part: Part, severity: Severity, message: String, lost: Vec<Loss>) {
        let finding = Finding { part, severity, message, lost };
        if !self.findings.contains(&finding) {
            self.findings.push(finding);
        }
        self.repairs |= severity > Severity::Note;
    }

    /// Adds an informational finding.
    pub fn note(&mut self, part: Part, message: impl Into<String>) {
        self.put(part, Severity::Note, message.into(), Vec::new());
    }

    /// Adds a finding about wrong derived data; changes added with it repair the data.
    pub fn wrong(&mut self, part: Part, message: impl Into<String>) {
        self.put(part, Severity::Wrong, message.into(), Vec::new());
    }

    /// Adds a finding about lost data; changes added with it remove its records.
    pub fn lost(&mut self, part: Part, message: impl Into<String>, lost: Vec<Loss>) {
        self.put(part, Severity::Lost, message.into(), lost);
    }

    /// Repair: sets a key.
    pub fn set(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.changes.insert(key, Some(value));
    }

    /// Repair: removes a key.
    pub fn remove(&mut self, key: Vec<u8>) {
        self.changes.insert(key, None);
    }

    /// Repair: removes a record, and saves it.
    pub fn remove_aside(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.aside.push(Aside::Record(key.clone(), value));
        self.remove(key);
    }

    /// Repair: removes all units of a file, and saves their bytes.
    pub fn remove_units(&mut self, inode: InodeId) {
        self.units_to_remove.insert(inode);
    }

    pub(crate) fn removes_units_of(&self, inode: InodeId) -> bool {
        self.units_to_remove.contains(&inode)
    }

    pub(crate) fn save(&mut self, aside: Aside) {
        self.aside.push(aside);
    }

    pub(crate) fn copy(&mut self, copy: Copy) {
        self.copies.push(copy);
    }

    /// Takes the changes that must be made before the next round.
    pub fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    /// Returns true if units of a file are still to be removed.
    pub(super) fn has_units_to_remove(&mut self) -> bool {
        !self.units_to_remove.is_empty()
    }

    /// Forgets the files whose units were removed.
    pub(crate) fn end_unit_removal(&mut self) {
        self.units_to_remove.clear();
    }

    pub(super) fn has_repairs(&self) -> bool {
        self.repairs
    }

    pub(super) fn sort(&mut self) {
        self.findings.sort_by_key(|finding| finding.part);
    }
}
