//! All limits of the product, and the relations between them, which the compiler checks.

use std::time::Duration;

/// Size of one unit of file data, of one frame, and of the largest payload of a message, in bytes.
pub const UNIT_SIZE: usize = 1 << 20;
/// Device block, and the span of one checksum of an extent, in bytes.
pub const BLOCK_SIZE: usize = 4096;
/// Number of checksums of a full unit.
pub const BLOCKS_PER_UNIT: usize = UNIT_SIZE / BLOCK_SIZE;
/// Number of slots of the name space; a slot is the smallest part that can move between nodes.
pub const SLOT_COUNT: u16 = 4096;
/// Largest number of nodes of a job: a pinned inode has 14 bits for its node.
pub const NODES_MAX: u32 = 1 << 14;
/// Number of homes for each node with a device that a job begins with, at least: a job that gets more nodes moves whole homes to them, and
/// data stays evenly spread as long as each node has many.
pub const HOMES_PER_NODE: usize = 16;
/// Largest number of homes of a job.
pub const HOMES_MAX: usize = 1 << 16;
/// Largest number of replicas of names and data.
pub const REPLICAS_MAX: u32 = 3;
/// Largest number of nodes with a device of a job with replicas: its home map must fit a message.
pub const REPLICATED_NODES_MAX: usize = 1024;
/// Largest file whose content is in its inode record, in bytes.
pub const INLINE_SIZE_MAX: usize = 4096;
/// Longest name of a directory entry, in bytes.
pub const NAME_SIZE_MAX: usize = 255;
/// Longest target of a symbolic link, and longest path of a system call, in bytes.
pub const PATH_SIZE_MAX: usize = 4096;
/// Longest path from the root of the shared or node-local directory, in bytes. It exceeds [`PATH_SIZE_MAX`] because a
/// program may use a long path relative to a deep directory.
pub const TREE_PATH_SIZE_MAX: usize = 4 * PATH_SIZE_MAX;
/// Largest value of an extended attribute, in bytes.
pub const XATTR_SIZE_MAX: usize = 64 << 10;
/// Number of entries beyond which a directory is sharded. One node serves and lists that many well; GIGA+ (Patil and
/// Gibson, FAST 2011) splits directories at the same number.
pub const UNSHARDED_ENTRIES_MAX: u64 = 8000;
/// Number of subdirectories of one directory whose entries stay on the node that created them: one per rank of a
/// current node. The entries of further ones are distributed over all nodes.
pub const LOCAL_SUBDIRECTORIES_MAX: u32 = 64;
/// Number of (directory, node) pairs for which a home counts these. Beyond it, all counts restart.
pub const DIRECTORY_MAKERS_MAX: usize = 1 << 12;
/// Largest number of entries in a reply to a directory read.
pub const READDIR_ENTRIES_MAX: u32 = 512;
/// Largest encoded message without its payload, in bytes.
pub const MESSAGE_SIZE_MAX: usize = 320 << 10;
/// Largest file, in bytes: offsets are signed in POSIX.
pub const FILE_SIZE_MAX: u64 = i64::MAX as u64;
/// Largest depth of directories.
pub const DIRECTORY_DEPTH_MAX: u32 = 1 << 16;
/// Largest number of links to an inode.
pub const LINKS_MAX: u32 = 65_000;
/// Time for which the authority of the home map grants a node of a job with replicas the right to serve homes, from the node's last answer on.
pub const MAP_LEASE: Duration = Duration::from_millis(1500);
/// Interval at which the authority renews these leases.
pub const MAP_LEASE_INTERVAL: Duration = Duration::from_millis(400);
/// Time for which a call waits for another primary of a home with replicas, whose node cannot be reached.
pub const FAILOVER_TIME_MAX: Duration = Duration::from_secs(60);
/// Lifetime of a dentry lease, from the request on. A node that changes the name waits that long for a holder that it
/// cannot reach.
pub const NAME_LEASE: Duration = Duration::from_secs(5);
/// Largest number of leases of names and directories that the homes of one node grant at a time, about.
pub const LEASES_MAX: usize = 1 << 16;
/// Largest number of names of which one view of a node holds leases.
pub const DENTRY_LEASES_MAX: usize = 1 << 14;
/// Lifetime of a directory's name in the kernel, and of its attributes in an agent and then in the kernel, without
/// revalidation.
pub const DIRECTORY_LIFETIME: Duration = Duration::from_millis(100);
/// Time after a home's reply for which a directory may still be cached: twice its lifetime, plus as much for the delay
/// of the reply.
pub const DIRECTORY_CACHE_TIME: Duration = Duration::from_millis(400);
/// Largest number of files whose holders one home knows.
pub const HELD_FILES_MAX: usize = 1 << 14;
/// Largest number of holders of a file that its home knows; of more nodes, a sample.
pub const HOLDERS_KEPT_MAX: usize = 32;
/// Number of holders in a reply to an open.
pub const HOLDERS_SENT_MAX: usize = 8;
/// Time limit for a holder's reply. It is short, since the homes have the bytes as well.
pub const HOLDER_TIMEOUT: Duration = Duration::from_millis(500);
/// Largest number of reports about holders in one message.
pub const HOLDER_REPORTS_MAX: usize = 64;
/// Largest number of nodes that are added to a running job, or restarted.
pub const ARRIVED_NODES_MAX: usize = 256;
/// Largest number of locks of one file, held and waiting, by all programs.
pub const LOCKS_PER_FILE_MAX: usize = 1 << 14;
/// Number of extents of one unit beyond which it is rewritten as one.
pub const PIECES_MAX: usize = 64;

const _: () = assert!(UNIT_SIZE.is_multiple_of(BLOCK_SIZE));
const _: () = assert!(UNIT_SIZE.is_power_of_two() && UNIT_SIZE <= u32::MAX as usize);
const _: () = assert!(2 * DIRECTORY_LIFETIME.as_millis() < DIRECTORY_CACHE_TIME.as_millis());
const _: () = assert!(SLOT_COUNT.is_power_of_two());
const _: () = assert!(4 * HOMES_MAX <= MESSAGE_SIZE_MAX);
// For each home, two bytes for each replica, two more, and four for the epoch of its primary; and a host name with an address for each node
// that has arrived.
const _: () = assert!(
    REPLICATED_NODES_MAX.next_power_of_two() * HOMES_PER_NODE * (2 * (REPLICAS_MAX as usize + 1) + 4)
        + ARRIVED_NODES_MAX * (NAME_SIZE_MAX + 128)
        <= MESSAGE_SIZE_MAX
);
const _: () = assert!(HOMES_MAX.is_power_of_two() && HOMES_MAX >= NODES_MAX as usize);
const _: () = assert!(NODES_MAX.is_power_of_two() && NODES_MAX <= 1 << 14);
const _: () = assert!(INLINE_SIZE_MAX <= UNIT_SIZE);
const _: () = assert!(XATTR_SIZE_MAX + PATH_SIZE_MAX < MESSAGE_SIZE_MAX);
const _: () = assert!(3 * TREE_PATH_SIZE_MAX < MESSAGE_SIZE_MAX);
const _: () = assert!(READDIR_ENTRIES_MAX as usize * (NAME_SIZE_MAX + 160) < MESSAGE_SIZE_MAX);
