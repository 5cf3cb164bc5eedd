//! Metadata operations across homes, and their steps.

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

/// A metadata operation that may concern several homes. The home of `entry` (for a rename: of `from`) coordinates it:
/// it logs the intent, sends idempotent steps to other homes, then logs the end.
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

/// One step of a [`NameOperation`]. On the coordinator it is part of one atomic change; at another home it is a
/// separate command, applied once. A step whose condition fails changes nothing; `EAGAIN` means that the coordinator
/// must plan the operation again from the current names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// Adds to the link count of an inode (which must not be 0).
    AddLink {
        /// The inode.
        inode: InodeId,
    },
    /// Drops one link of an inode; without links and opens it is removed with its data.
    DropLink {
        /// The inode.
        inode: InodeId,
    },
    /// Seals an empty directory against new entries (`ENOTEMPTY` otherwise), permanently unless undone.
    Seal {
        /// The directory.
        dir: InodeId,
        /// Whether the sender assumes that the directory is sharded.
        sharded: bool,
    },
    /// Sets the target of an entry, which must be `replaces` now (`EAGAIN` otherwise).
    Attach {
        /// The name.
        entry: EntryName,
        /// Whether the sender assumes that its directory is sharded.
        sharded: bool,
        /// The new target.
        target: Target,
        /// The current target.
        replaces: Option<Target>,
    },
    /// Removes an entry, whose target must be `target` now (`EAGAIN` otherwise).
    Detach {
        /// The name.
        entry: EntryName,
        /// Whether the sender assumes that its directory is sharded.
        sharded: bool,
        /// The current target.
        target: Target,
    },
    /// Records the new parent of a renamed directory.
    SetParent {
        /// The renamed directory.
        dir: InodeId,
        /// Its new parent.
        parent: InodeId,
    },
    /// Fails with `EINVAL` if `dir` is `ancestor` or below it. Only for homes with all directories of a view.
    NotBelow {
        /// A directory.
        dir: InodeId,
        /// The directory that must not contain it.
        ancestor: InodeId,
    },
    /// Takes the lock of the tree's shape (`EAGAIN` if another operation has it). It serializes renames of directories
    /// between parents, so that no two create a cycle together.
    LockTree,
    /// Releases the lock of the tree's shape.
    UnlockTree,
    /// Adds entries that moved here because their directory is being sharded.
    Receive {
        /// The directory.
        dir: InodeId,
        /// Names with their targets.
        entries: Vec<(serde_bytes::ByteBuf, Target)>,
    },
    /// Undoes step `number` of the same operation if it was applied and can be undone, and prevents a later
    /// application. The reply is [`MetaReply::UndoOutcome`](super::MetaReply::UndoOutcome).
    Undo {
        /// Number of the step in its operation.
        number: u32,
    },
    /// Sets the change time of an inode that got another name to that of the operation.
    Touch {
        /// The inode.
        target: Target,
    },
}
