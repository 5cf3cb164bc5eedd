//! Operations on names that may touch several nodes, and the steps they are made of.

use super::{EntryName, Target};
use crate::ids::InodeId;
use serde::{Deserialize, Serialize};

/// How a rename treats an existing target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RenameMode {
    /// Replace it.
    Replace,
    /// Fail with `EEXIST` (`RENAME_NOREPLACE`).
    NoReplace,
    /// Swap the two (`RENAME_EXCHANGE`).
    Exchange,
}

/// An operation on names that may touch several nodes. The node of `entry` (for a rename: of `from`)
/// coordinates it: it logs the intent, runs idempotent steps on the others, then logs the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NameOperation {
    /// Removes a name of anything but a directory.
    Unlink {
        /// The name.
        entry: EntryName,
    },
    /// Removes an empty directory.
    Rmdir {
        /// The name.
        entry: EntryName,
    },
    /// Gives an inode, not a directory, another name.
    Link {
        /// The new name.
        entry: EntryName,
        /// The inode.
        target: Target,
    },
    /// Gives an entry another name.
    Rename {
        /// The old name.
        from: EntryName,
        /// The new name.
        to: EntryName,
        /// What to do when the new name exists.
        mode: RenameMode,
    },
}

impl NameOperation {
    /// The name whose home coordinates the operation.
    pub fn coordinator(&self) -> &EntryName {
        match self {
            Self::Unlink { entry } | Self::Rmdir { entry } | Self::Link { entry, .. } => entry,
            Self::Rename { from, .. } => from,
        }
    }
}

/// One step of a [`NameOperation`]. On its coordinator's node it is part of one atomic change; on another
/// node it is a command of its own, applied once. A step whose condition does not hold changes nothing; it
/// fails with `EAGAIN` when the operation must be planned anew from what the names say now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// Adds to the link count of an inode (which must not be 0).
    AddLink {
        /// Which inode.
        inode: InodeId,
    },
    /// Takes one link from an inode; without links and opens it is removed with its data.
    DropLink {
        /// Which inode.
        inode: InodeId,
    },
    /// Closes an empty directory for new entries for ever (`ENOTEMPTY` otherwise), unless undone.
    Seal {
        /// The directory.
        dir: InodeId,
        /// Whether the sender believes the directory is wide.
        wide: bool,
    },
    /// Puts an entry in place of `replaces`, which must be what the name says now (`EAGAIN` otherwise).
    Attach {
        /// The name.
        entry: EntryName,
        /// Whether the sender believes its directory is wide.
        wide: bool,
        /// What it is to say.
        target: Target,
        /// What it says until now.
        replaces: Option<Target>,
    },
    /// Removes an entry, which must say `target` now (`EAGAIN` otherwise).
    Detach {
        /// The name.
        entry: EntryName,
        /// Whether the sender believes its directory is wide.
        wide: bool,
        /// What it says until now.
        target: Target,
    },
    /// Notes the directory that a moved directory is in now.
    SetParent {
        /// The moved directory.
        dir: InodeId,
        /// The directory it is in.
        parent: InodeId,
    },
    /// Fails with `EINVAL` when `dir` is `ancestor` or lies below it. Only where all directories live.
    NotBelow {
        /// A directory.
        dir: InodeId,
        /// The directory that must not be above it.
        ancestor: InodeId,
    },
    /// Takes the lock on the shape of the tree (`EAGAIN` when another operation has it). Directories move
    /// between parents one at a time, so that no two moves make a loop together.
    LockTree,
    /// Gives the lock on the shape of the tree back.
    UnlockTree,
    /// Puts entries that moved here when their directory went wide.
    Receive {
        /// The directory.
        dir: InodeId,
        /// Names and what they say.
        entries: Vec<(serde_bytes::ByteBuf, Target)>,
    },
    /// Takes step `number` of the same operation back if it was applied and can be, and sees to it that it
    /// is never applied later. Answered by [`MetaReply::Settled`].
    Undo {
        /// Number of the step in its operation.
        number: u32,
    },
    /// The inode has got another name: its time of last change of attributes is that of the operation.
    Touch {
        /// Which inode.
        target: Target,
    },
}
