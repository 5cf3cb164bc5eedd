//! The metadata shard of a node: a deterministic state machine over a [`Table`].
//!
//! A [`LogCommand`] holds everything that could differ between two runs (times, numbers given out, which
//! inodes are open), so that [`apply`] on equal tables gives equal tables, byte for byte. The caller logs what
//! was applied and undoes the table's changes when [`apply`] fails (`Ledger::execute` does both), so that an
//! error changes nothing.
//!
//! This room does no I/O and never waits. It knows one node's part of the name space: which node a record
//! belongs to, who has an inode open and which names are in the middle of an operation is the service's care.

pub(crate) mod check;
mod content;
mod directory;
mod inode;
mod key;
mod operation;
pub mod query;
pub mod record;
#[cfg(test)]
mod tests;
mod xattr;

pub use directory::born;

use crate::table::Table;
use record::{Decision, InodeRecord, Intent, ShardRecord, Share, Truncation};
use serde::{Deserialize, Serialize};
use tameike_core::wire::codec;
use tameike_core::wire::meta::{Command, Target};
use tameike_core::{
    Attr, Errno, FileKind, Generation, InodeId, Layout, OperationId, Result, Timestamp, View,
};

/// A record of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogCommand {
    /// The service starts: a new incarnation. Roots that do not exist yet are made.
    Start {
        /// Roots that this node keeps.
        roots: Vec<InodeId>,
        /// Which inodes it is the home of; `None` without a device.
        share: Option<Share>,
        /// Owner of new roots.
        uid: u32,
        /// Group of new roots.
        gid: u32,
        /// Time of the start.
        now: Timestamp,
    },
    /// A command of the wire.
    Wire {
        /// The command.
        command: Command,
        /// Counter of the inode that the command may make.
        birth: u64,
        /// Inodes of the command that are open: without links they stay until [`LogCommand::Forget`].
        held: Vec<InodeId>,
    },
    /// An operation over several nodes begins.
    Begin {
        /// Its sequence number.
        sequence: u64,
        /// What to do about it after a crash.
        intent: Intent,
    },
    /// An operation is decided. It is also ended, when nothing remains to be done elsewhere.
    Decide {
        /// The operation.
        operation: OperationId,
        /// What is done.
        decision: Decision,
        /// As in [`LogCommand::Wire`].
        held: Vec<InodeId>,
        /// Time of the request.
        now: Timestamp,
    },
    /// An operation is ended.
    End {
        /// Its sequence number.
        sequence: u64,
    },
    /// All entries of a directory that goes wide are at their new homes.
    Widened {
        /// Sequence number of the operation, which is ended.
        sequence: u64,
        /// The directory.
        dir: InodeId,
        /// Place of this node among the burst-buffer nodes.
        place: u16,
        /// Number of burst-buffer nodes.
        count: u16,
    },
    /// The inline content is in a unit now, if it still has this generation (`EAGAIN` otherwise).
    Spilled {
        /// Which file.
        inode: InodeId,
        /// Version of the content that was written to the unit.
        generation: Generation,
    },
    /// All homes have cut a file's units.
    Truncated {
        /// Which file.
        inode: InodeId,
        /// What they have done.
        truncation: Truncation,
    },
    /// Nobody has this inode open any more: it is removed if it has no links.
    Forget {
        /// Which inode.
        inode: InodeId,
    },
    /// The inline content is about to be written to a unit: from now on there may be one, though the file is inline.
    Spilling {
        /// Which file.
        inode: InodeId,
    },
    /// Files were read at these times.
    Accessed {
        /// Which files, and when.
        files: Vec<(InodeId, Timestamp)>,
    },
}

/// What a command did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// What it says.
    Done,
    /// Started.
    Started {
        /// Number of this start.
        incarnation: u16,
    },
    /// Made an inode and its name.
    Created {
        /// The inode.
        target: Target,
        /// Its attributes.
        attr: Attr,
    },
    /// The name to be created exists.
    Found {
        /// What it says.
        target: Target,
    },
    /// Changed an inode.
    Changed {
        /// Its attributes.
        attr: Attr,
    },
    /// Set bytes aside.
    Reserved {
        /// Where they begin.
        offset: u64,
        /// Attributes of the file.
        attr: Attr,
    },
    /// Nothing done: the directory is not as wide as the sender believes.
    Width {
        /// What it is.
        wide: bool,
    },
    /// A step was taken back if possible.
    Settled {
        /// Whether it was applied and stands.
        applied: bool,
    },
}

/// What a command did, and what the service now has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// What the command did.
    pub outcome: Outcome,
    /// Files whose units must be cut; logged in the same change.
    pub truncations: Vec<(InodeId, Truncation)>,
    /// A directory that got an entry, and how many it has on this node now.
    pub grown: Option<(InodeId, u64)>,
    /// Inodes made less inodes removed, by view.
    pub inodes: [i64; View::ALL.len()],
}

/// Applies `command`. On an error the table may be changed in part: the caller undoes the changes.
///
/// # Errors
/// The errno of POSIX for what the command asks; `EIO` when a record is damaged.
pub fn apply(table: &mut dyn Table, command: &LogCommand) -> Result<Applied> {
    let inodes = Default::default();
    let mut shard = Shard { table, held: &[], truncations: Vec::new(), grown: None, inodes };
    let outcome = shard.run(command)?;
    let Shard { truncations, grown, inodes, .. } = shard;
    Ok(Applied { outcome, truncations, grown, inodes })
}

/// Applies a record of the log again.
///
/// # Errors
/// As [`apply`]; and `EBADMSG` when `body` is not a record of this room.
pub fn replay(table: &mut dyn Table, body: &[u8]) -> Result<()> {
    apply(table, &codec::decode(body)?).map(|_| ())
}

/// One command at work.
struct Shard<'a> {
    table: &'a mut dyn Table,
    held: &'a [InodeId],
    truncations: Vec<(InodeId, Truncation)>,
    grown: Option<(InodeId, u64)>,
    inodes: [i64; View::ALL.len()],
}

impl<'a> Shard<'a> {
    fn run(&mut self, command: &'a LogCommand) -> Result<Outcome> {
        match command {
            LogCommand::Start { roots, share, uid, gid, now } => {
                self.start(roots, *share, (*uid, *gid), *now)
            }
            LogCommand::Wire { command, birth, held } => {
                self.held = held;
                self.wire(command, *birth)
            }
            LogCommand::Begin { sequence, intent } => self.begin(*sequence, intent),
            LogCommand::Decide { operation, decision, held, now } => {
                self.held = held;
                self.decide(*operation, decision, *now)
            }
            LogCommand::End { sequence } => self.end(*sequence),
            LogCommand::Widened { sequence, dir, place, count } => {
                self.widened(*dir, *place, *count)?;
                self.end(*sequence)
            }
            LogCommand::Spilled { inode, generation } => self.spilled(*inode, *generation),
            LogCommand::Truncated { inode, truncation } => self.truncated(*inode, *truncation),
            LogCommand::Forget { inode } => self.forget(*inode),
            LogCommand::Spilling { inode } => self.spilling(*inode),
            LogCommand::Accessed { files } => self.accessed(files),
        }
    }

    fn wire(&mut self, command: &Command, birth: u64) -> Result<Outcome> {
        match command {
            Command::Create { entry, new, exclusive, opener: _, wide, now } => {
                self.create(entry, new, *exclusive, *wide, birth, *now)
            }
            Command::SetAttr { inode, change, now } => self.set_attr(*inode, change, *now),
            Command::Commit { inode, end, sparse, now } => self.commit(*inode, *end, *sparse, *now),
            Command::WriteInline { inode, offset, data, now } => {
                self.write_inline(*inode, *offset as usize, data, *now)
            }
            Command::Reserve { inode, length, now } => self.reserve(*inode, *length, *now),
            Command::SetXattr { inode, name, value, create, replace, now } => {
                self.set_xattr(*inode, name, value, (*create, *replace), *now)
            }
            Command::RemoveXattr { inode, name, now } => self.remove_xattr(*inode, name, *now),
            Command::Step { operation, number, step, finished, now, .. } => {
                self.foreign_step(*operation, *number, step, *finished, *now)
            }
            Command::SetDirTime { dir, wide, changed } => self.set_dir_time(*dir, *wide, *changed),
        }
    }

    fn start(
        &mut self,
        roots: &[InodeId],
        share: Option<Share>,
        owner: (u32, u32),
        now: Timestamp,
    ) -> Result<Outcome> {
        let shard: Option<ShardRecord> = record::get(self.table, &key::shard())?;
        let incarnation = shard.map_or(0, |shard| shard.incarnation).checked_add(1).ok_or(Errno::EDQUOT)?;
        record::put(self.table, key::shard(), &ShardRecord { incarnation, share })?;
        for &root in roots {
            if query::inode(self.table, root)?.is_none() {
                self.put_inode(root, &root_record(root, owner, now))?;
            }
        }
        Ok(Outcome::Started { incarnation })
    }

    /// The record of an inode that must exist.
    fn inode(&self, inode: InodeId) -> Result<InodeRecord> {
        query::inode(self.table, inode)?.ok_or(Errno::ENOENT.into())
    }

    fn put_inode(&mut self, inode: InodeId, record: &InodeRecord) -> Result<()> {
        record::put(self.table, key::inode(inode), record)
    }
}

fn root_record(root: InodeId, (uid, gid): (u32, u32), now: Timestamp) -> InodeRecord {
    InodeRecord {
        kind: FileKind::Directory,
        mode: 0o755,
        links: 1,
        uid,
        gid,
        rdev: 0,
        size: 0,
        atime: now,
        mtime: now,
        ctime: now,
        generation: Generation::default(),
        layout: Layout::default(),
        inline: false,
        sparse: false,
        parent: root,
    }
}
