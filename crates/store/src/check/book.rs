//! What an examination finds, and the changes that would put it right.

use crate::ledger::kv::Changes;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::PathBuf;
use tameike_core::{InodeId, UnitId};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Nothing is wrong: said so that nobody wonders.
    Note,
    /// Wrong, but derived from what is right: a repair loses nothing.
    Wrong,
    /// Something is lost; a repair cuts it aside, so that the rest can be used.
    Lost,
}

impl Severity {
    /// One word, for programs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Wrong => "wrong",
            Self::Lost => "lost",
        }
    }
}

/// Parts of a store, in the order in which they stand on each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// What says that this is a store, and of which version.
    Format,
    /// The key-value store.
    Table,
    /// The log.
    Log,
    /// Names and inodes of the job-shared and node-local views.
    Names,
    /// Units and their bytes.
    Extents,
    /// The journal of the cache view.
    Journal,
    /// Files of the node-local view.
    Local,
}

impl Part {
    /// One word, for people and programs.
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

/// Bytes or names that are lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Of which file: its path where the store knows it.
    pub file: Option<String>,
    /// Its number.
    pub inode: Option<InodeId>,
    /// Which bytes of it; none where it is not about bytes.
    pub bytes: Option<Range<u64>>,
    /// Whether the cache view may have lost something.
    pub cached: bool,
}

impl Loss {
    /// Bytes of a file, or (`None`) the file.
    pub fn of(inode: InodeId, file: Option<String>, bytes: Option<Range<u64>>) -> Self {
        Self { file, inode: Some(inode), bytes, cached: inode.is_cached() }
    }

    /// Nobody knows what.
    pub fn unknown() -> Self {
        Self { file: None, inode: None, bytes: None, cached: true }
    }

    /// All that the store held.
    pub(super) fn everything() -> Self {
        Self::unknown()
    }
}

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Where.
    pub part: Part,
    /// How bad it is.
    pub severity: Severity,
    /// What, for a person.
    pub words: String,
    /// What is lost; empty unless [`Severity::Lost`].
    pub lost: Vec<Loss>,
}

/// Something that a repair copies before it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Aside {
    /// A record of the table.
    Record(Vec<u8>, Vec<u8>),
    /// Bytes of the extents file (`device`, in bytes) at their place in a unit.
    Bytes { unit: UnitId, start: u32, device: Range<u64> },
    /// A file or directory of the node-local view, by its path in the store's directory.
    File(PathBuf),
}

/// A block that gets a place of its own: blocks of the extents file, from and to.
pub(crate) type Copy = (u64, u64);

/// Takes down what is found.
#[derive(Debug, Default)]
pub struct Book {
    pub(super) findings: Vec<Finding>,
    pub(super) aside: Vec<Aside>,
    pub(super) copies: Vec<Copy>,
    changes: Changes,
    /// Files whose units are cut aside in the next round.
    condemned: BTreeSet<InodeId>,
    repairs: bool,
}

impl Book {
    fn put(&mut self, part: Part, severity: Severity, words: String, lost: Vec<Loss>) {
        let finding = Finding { part, severity, words, lost };
        if !self.findings.contains(&finding) {
            self.findings.push(finding);
        }
        self.repairs |= severity > Severity::Note;
    }

    /// Nothing is wrong.
    pub fn note(&mut self, part: Part, words: impl Into<String>) {
        self.put(part, Severity::Note, words.into(), Vec::new());
    }

    /// Derived records are wrong; the changes given afterwards put them right.
    pub fn wrong(&mut self, part: Part, words: impl Into<String>) {
        self.put(part, Severity::Wrong, words.into(), Vec::new());
    }

    /// Something is lost; the changes given afterwards cut it off from the rest.
    pub fn lost(&mut self, part: Part, words: impl Into<String>, lost: Vec<Loss>) {
        self.put(part, Severity::Lost, words.into(), lost);
    }

    /// A repair sets this key.
    pub fn set(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.changes.insert(key, Some(value));
    }

    /// A repair removes this key.
    pub fn remove(&mut self, key: Vec<u8>) {
        self.changes.insert(key, None);
    }

    /// A repair removes this record, and keeps a copy of it aside.
    pub fn remove_aside(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.aside.push(Aside::Record(key.clone(), value));
        self.remove(key);
    }

    /// A repair removes all units of a file, and keeps their bytes aside.
    pub fn remove_units(&mut self, inode: InodeId) {
        self.condemned.insert(inode);
    }

    pub(crate) fn is_condemned(&self, inode: InodeId) -> bool {
        self.condemned.contains(&inode)
    }

    pub(crate) fn set_aside(&mut self, aside: Aside) {
        self.aside.push(aside);
    }

    pub(crate) fn copy(&mut self, copy: Copy) {
        self.copies.push(copy);
    }

    /// The changes to make before the next round.
    pub fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    /// Whether a file waits for its units to be cut aside.
    pub(super) fn waits(&mut self) -> bool {
        !self.condemned.is_empty()
    }

    /// They are.
    pub(crate) fn acquit(&mut self) {
        self.condemned.clear();
    }

    /// Whether there is something to repair.
    pub(super) fn has_repairs(&self) -> bool {
        self.repairs
    }

    pub(super) fn sort(&mut self) {
        self.findings.sort_by_key(|finding| finding.part);
    }
}
