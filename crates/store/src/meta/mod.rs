//! Metadata shard of a home: a deterministic state machine of names and inodes over the records of the home in a [`Table`].
//!
//! A [`LogCommand`] contains everything that could differ between two runs (times, inode counters, open inodes), so
//! that [`apply`] on equal tables gives equal tables, byte for byte. `Ledger::execute` logs a command that succeeded,
//! and undoes the changes of one that failed.
//!
//! This module does no I/O and never waits. It knows one home's part of the name space. The metadata service knows the
//! home of each record, the open inodes, and the names that pending operations change.

mod call;
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

pub use directory::new_inode_id;

use crate::table::{HomeTable, Table};
use record::{CallRecord, Decision, InodeRecord, Intent, ShardRecord, Share, Truncation};
use serde::{Deserialize, Serialize};
use tameike_core::wire::call::NumberedCall;
use tameike_core::wire::codec;
use tameike_core::wire::meta::{Command, Target};
use tameike_core::{
    Attr, Errno, FileKind, Generation, HomeId, InodeId, Layout, OperationId, Result, Timestamp, View,
};

/// A record of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LogCommand {
    /// The service starts: a new incarnation. Creates missing roots.
    Start {
        /// Roots that this home keeps.
        roots: Vec<InodeId>,
        /// The part of the names and inodes that the home has.
        share: Share,
        /// Owner of new roots.
        uid: u32,
        /// Group of new roots.
        gid: u32,
        /// Time of the start.
        now: Timestamp,
    },
    /// A command that arrived as a message.
    Wire {
        /// The command.
        command: Command,
        /// Counter for the inode number if the command creates one.
        inode_counter: u64,
        /// Open inodes of the command: without links they stay until [`LogCommand::Forget`].
        held: Vec<InodeId>,
        /// Its call, if that may be repeated.
        call: Option<NumberedCall>,
    },
    /// An operation across homes begins.
    Begin {
        /// Its sequence number.
        sequence: u64,
        /// Its plan, for recovery after a crash.
        intent: Intent,
    },
    /// An operation is decided. It also ends, if no step at another home remains.
    Decide {
        /// The operation.
        operation: OperationId,
        /// The steps that follow.
        decision: Decision,
        /// As in [`LogCommand::Wire`].
        held: Vec<InodeId>,
        /// Time of the request.
        now: Timestamp,
        /// As in [`LogCommand::Wire`].
        call: Option<NumberedCall>,
    },
    /// An operation ends.
    End {
        /// Its sequence number.
        sequence: u64,
    },
    /// All entries of a directory that is being sharded are at their new homes.
    Sharded {
        /// Sequence number of the operation, which ends.
        sequence: u64,
        /// The directory.
        dir: InodeId,
    },
    /// A unit has the inline content now, if the generation is still this one (else `EAGAIN`).
    Spilled {
        /// The file.
        inode: InodeId,
        /// Generation of the content that was written to the unit.
        generation: Generation,
    },
    /// All homes have truncated a file's units.
    Truncated {
        /// The file.
        inode: InodeId,
        /// The truncation that they did.
        truncation: Truncation,
    },
    /// No process has this inode open any more: it is removed if it has no links.
    Forget {
        /// The inode.
        inode: InodeId,
    },
    /// The inline content is about to be written to a unit: from now on the file may have a unit although it is inline.
    Spilling {
        /// The file.
        inode: InodeId,
    },
    /// Files were read at these times.
    Accessed {
        /// The files with their times.
        files: Vec<(InodeId, Timestamp)>,
    },
}

/// Result of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Success without a value.
    Done,
    /// The service has started.
    Started {
        /// Number of this start.
        incarnation: u16,
    },
    /// Created an inode and its entry.
    Created {
        /// The inode.
        target: Target,
        /// Its attributes.
        attr: Attr,
    },
    /// The entry to be created exists.
    Found {
        /// Its target.
        target: Target,
    },
    /// Changed an inode.
    Changed {
        /// Its attributes.
        attr: Attr,
    },
    /// Reserved bytes for an append.
    Reserved {
        /// Offset of the first one.
        offset: u64,
        /// Attributes of the file.
        attr: Attr,
    },
    /// No effect: the directory is sharded and the sender assumes that it is not, or vice versa.
    Sharding {
        /// Whether it is sharded.
        sharded: bool,
    },
    /// A step was undone, unless it cannot be.
    UndoOutcome {
        /// Whether it was applied and remains.
        applied: bool,
    },
}

/// Result of a command, with the work that follows for the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Result of the command.
    pub outcome: Outcome,
    /// Files whose units must be truncated; logged in the same change.
    pub truncations: Vec<(InodeId, Truncation)>,
    /// A directory that got an entry, and its number of entries at this home.
    pub grown: Option<(InodeId, u64)>,
    /// Inodes created minus inodes removed, by view.
    pub inodes: [i64; View::ALL.len()],
}

/// Applies `command` to the table of a home. After an error the table may be partly changed: the caller undoes the changes.
///
/// # Errors
/// The POSIX errno of the request; `EIO` if a record is damaged.
pub fn apply(table: &mut dyn Table, command: &LogCommand) -> Result<Applied> {
    let inodes = Default::default();
    let mut shard = Shard { table, held: &[], truncations: Vec::new(), grown: None, inodes };
    let outcome = shard.run(command)?;
    let Shard { truncations, grown, inodes, .. } = shard;
    Ok(Applied { outcome, truncations, grown, inodes })
}

/// The log record of a command of a home.
///
/// # Errors
/// `EINVAL` if it is too large.
pub fn log_record(home: HomeId, command: &LogCommand) -> Result<Vec<u8>> {
    codec::encode(&(home, command))
}

/// Applies a log record to the table of a node during replay.
///
/// # Errors
/// Those of [`apply`]; `EBADMSG` if `body` does not decode.
pub fn replay(table: &mut dyn Table, body: &[u8]) -> Result<()> {
    let (home, command) = codec::decode(body)?;
    apply(&mut HomeTable::new(home, table), &command).map(|_| ())
}

/// State of one command.
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
            LogCommand::Start { roots, share, uid, gid, now } => self.start(roots, share, (*uid, *gid), *now),
            LogCommand::Wire { command, inode_counter, held, call } => {
                self.held = held;
                let outcome = self.wire(command, *inode_counter)?;
                // Without an effect, nothing is logged.
                if !matches!(outcome, Outcome::Found { .. } | Outcome::Sharding { .. }) {
                    self.record_call(call.as_ref(), || CallRecord::Outcome(outcome.clone()))?;
                }
                Ok(outcome)
            }
            LogCommand::Begin { sequence, intent } => self.begin(*sequence, intent),
            LogCommand::Decide { operation, decision, held, now, call } => {
                self.held = held;
                let outcome = self.decide(*operation, decision, *now)?;
                let sequence = operation.sequence;
                self.record_call(call.as_ref(), || CallRecord::Decided { sequence })?;
                Ok(outcome)
            }
            LogCommand::End { sequence } => self.end(*sequence),
            LogCommand::Sharded { sequence, dir } => {
                self.finish_sharding(*dir)?;
                self.end(*sequence)
            }
            LogCommand::Spilled { inode, generation } => self.spilled(*inode, *generation),
            LogCommand::Truncated { inode, truncation } => self.truncated(*inode, *truncation),
            LogCommand::Forget { inode } => self.forget(*inode),
            LogCommand::Spilling { inode } => self.spilling(*inode),
            LogCommand::Accessed { files } => self.accessed(files),
        }
    }

    fn wire(&mut self, command: &Command, inode_counter: u64) -> Result<Outcome> {
        match command {
            Command::Create { entry, new, exclusive, opener: _, sharded, now } => {
                self.create(entry, new, *exclusive, *sharded, inode_counter, *now)
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
            Command::SetDirTime { dir, sharded, changed } => self.set_dir_time(*dir, *sharded, *changed),
        }
    }

    fn start(
        &mut self,
        roots: &[InodeId],
        share: &Share,
        owner: (u32, u32),
        now: Timestamp,
    ) -> Result<Outcome> {
        let shard: Option<ShardRecord> = record::get(self.table, &key::shard())?;
        let incarnation = shard.map_or(0, |shard| shard.incarnation).checked_add(1).ok_or(Errno::EDQUOT)?;
        record::put(self.table, key::shard(), &ShardRecord { incarnation, share: share.clone() })?;
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
