//! Every named limit of the product, and the relations between them that must hold.

use std::time::Duration;

/// Size of one unit of file data, of one frame, and of the largest payload of a message, in bytes.
pub const UNIT_SIZE: usize = 1 << 20;
/// Device block, and the span covered by one checksum of an extent, in bytes.
pub const BLOCK_SIZE: usize = 4096;
/// Checksums of a full unit.
pub const BLOCKS_PER_UNIT: usize = UNIT_SIZE / BLOCK_SIZE;
/// Slots of the name space; a slot is the smallest thing that moves between nodes.
pub const SLOT_COUNT: u16 = 4096;
/// Most nodes of a job: a pinned inode names its node in 14 bits.
pub const NODES_MAX: u32 = 1 << 14;
/// Files up to this size live in their inode record, in bytes.
pub const INLINE_SIZE_MAX: usize = 4096;
/// Longest name of a directory entry, in bytes.
pub const NAME_SIZE_MAX: usize = 255;
/// Longest target of a symbolic link, and longest path in one call of the system, in bytes.
pub const PATH_SIZE_MAX: usize = 4096;
/// Longest path from the root of the shared directory, or of the node-local one, in bytes: a program in a deep
/// directory may name what is below it by a path of [`PATH_SIZE_MAX`] again.
pub const TREE_PATH_SIZE_MAX: usize = 4 * PATH_SIZE_MAX;
/// Largest value of an extended attribute, in bytes.
pub const XATTR_SIZE_MAX: usize = 64 << 10;
/// Entries of a narrow directory beyond which it goes wide. One node serves and lists that many well; the directory
/// splits of GIGA+ (Patil and Gibson, FAST 2011) begin at the same number.
pub const NARROW_ENTRIES_MAX: u64 = 8000;
/// Directories of one directory whose entries are on the node that made them: one for each rank of a node of today. Further
/// ones that this node makes there are spread over all nodes.
pub const NEAR_DIRECTORIES_MAX: u32 = 64;
/// Pairs of a directory and a node for which a home counts these. Beyond it, all counts begin anew.
pub const DIRECTORY_MAKERS_MAX: usize = 1 << 14;
/// Most entries in one answer to a directory read.
pub const READDIR_ENTRIES_MAX: u32 = 512;
/// Largest encoded message without its payload, in bytes.
pub const MESSAGE_SIZE_MAX: usize = 256 << 10;
/// Largest file, in bytes: offsets are signed in POSIX.
pub const FILE_SIZE_MAX: u64 = i64::MAX as u64;
/// Directories above one another.
pub const DIRECTORY_DEPTH_MAX: u32 = 1 << 16;
/// Links to one inode.
pub const LINKS_MAX: u32 = 65_000;
/// How long a node that was granted the lease of a file's name may answer for it, counted from when it asked. Another
/// node's change waits that long for a holder that cannot be told.
pub const NAME_LEASE: Duration = Duration::from_secs(5);
/// Leases of names and sights of directories that one node grants at the same time.
pub const LEASES_MAX: usize = 1 << 16;
/// Names that one view of a node holds leases of.
pub const HELD_NAMES_MAX: usize = 1 << 14;
/// How long a kernel shows a directory's name, and how long an agent and then a kernel show its attributes, without
/// asking.
pub const DIRECTORY_LIFETIME: Duration = Duration::from_millis(100);
/// How long after a home's answer a directory may still be shown: twice its lifetime, and as much again for the
/// answer's way.
pub const DIRECTORY_SIGHT: Duration = Duration::from_millis(400);
/// Files of which one home knows who may have bytes of them in memory.
pub const HELD_FILES_MAX: usize = 1 << 14;
/// Holders of one file that its home knows: of a file that more nodes have, a sample.
pub const HOLDERS_KEPT_MAX: usize = 32;
/// Of them, those that come with an answer to an open.
pub const HOLDERS_TOLD_MAX: usize = 8;
/// How long a holder is waited for: its file's homes have the bytes, too.
pub const HOLDER_PATIENCE: Duration = Duration::from_millis(500);
/// Most reports of requests to holders in one message.
pub const HOLDERS_ASKED_MAX: usize = 64;
/// Locks that are held of one file and waited for, by all programs together.
pub const LOCKS_PER_FILE_MAX: usize = 1 << 14;
/// Pieces of one unit beyond which its extents are rewritten as one.
pub const PIECES_MAX: usize = 64;

const _: () = assert!(UNIT_SIZE.is_multiple_of(BLOCK_SIZE));
const _: () = assert!(UNIT_SIZE.is_power_of_two() && UNIT_SIZE <= u32::MAX as usize);
const _: () = assert!(2 * DIRECTORY_LIFETIME.as_millis() < DIRECTORY_SIGHT.as_millis());
const _: () = assert!(SLOT_COUNT.is_power_of_two());
const _: () = assert!(NODES_MAX.is_power_of_two() && NODES_MAX <= 1 << 14);
const _: () = assert!(INLINE_SIZE_MAX <= UNIT_SIZE);
const _: () = assert!(XATTR_SIZE_MAX + PATH_SIZE_MAX < MESSAGE_SIZE_MAX);
const _: () = assert!(3 * TREE_PATH_SIZE_MAX < MESSAGE_SIZE_MAX);
const _: () = assert!(READDIR_ENTRIES_MAX as usize * (NAME_SIZE_MAX + 160) < MESSAGE_SIZE_MAX);
