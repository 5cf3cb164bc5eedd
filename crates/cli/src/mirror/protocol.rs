//! The protocol between the sender of a mirror and `tameike receive`, over the standard input and output of the latter.
//!
//! A frame is two lengths (u32, little-endian), a message (postcard), and bytes of a file:
//!
//! ```text
//! | message size | data size | message | data |
//! ```
//!
//! The receiver first writes [`MAGIC`], as login scripts of a site may print before it. The sender's first order is `Hello`. The receiver
//! executes orders one by one, and answers those that say so. Orders name paths relative to the mirror; the root is empty. An order can be
//! repeated: the mirror is then as after the first.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use tameike_core::limits::{MESSAGE_SIZE_MAX, TREE_PATH_SIZE_MAX};
use tameike_core::wire::codec::{decode, encode};
use tameike_core::{Errno, Fault, FileKind, Result, Timestamp, name};

/// What the receiver writes first.
pub const MAGIC: &[u8; 8] = b"\x01TMKMIR\n";
/// Version of the protocol.
pub const VERSION: u16 = 1;
/// Largest data of a frame, and size of a block that is hashed.
pub const BLOCK_SIZE: usize = 1 << 20;
/// Directory of the mirror for files that are not complete yet.
pub const INCOMING: &[u8] = b".tameike-incoming";
/// Prefix of temporary names of the packer in the shared directory.
const TEMPORARY: &[u8] = b".tameike-moved-";
/// Extended attribute of a mirror's root: a directory that was empty, or that `tameike mirror` has made equal to another one.
pub const MARK: &[u8] = b"user.tameike.mirror";
/// Prefix of the extended attributes that are mirrored.
pub const USER_XATTRS: &[u8] = b"user.";
/// Time without an order after which the receiver ends: the connection is broken, and another receiver waits.
pub const SILENCE_LIMIT_S: u64 = 60;
/// Interval of `Ping` orders when there are no others.
pub const PING_INTERVAL_S: u64 = 5;
/// Hashes of blocks in one reply.
pub const HASHES_MAX: u32 = 256;
/// Bytes of one hash.
pub const HASH_SIZE: usize = 32;

/// Attributes of a file that are mirrored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    /// Kind of the file.
    pub kind: FileKind,
    /// Permission bits.
    pub mode: u16,
    /// Owner, as far as the user of the receiver may set it.
    pub uid: u32,
    /// Group, likewise.
    pub gid: u32,
    /// Device number of a device file.
    pub rdev: u32,
    /// Size of a regular file.
    pub size: u64,
    /// Time of the last change of content.
    pub mtime: Timestamp,
    /// Extended attributes with the prefix `user.`, sorted.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// A file in a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// The name.
    pub name: Vec<u8>,
    /// The attributes, without extended ones.
    pub attributes: Attributes,
    /// Hash of the extended attributes; 0 if there are none.
    pub xattrs_hash: u64,
    /// Target of a symbolic link.
    pub target: Vec<u8>,
}

/// An order to the receiver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// The first order. Reply: `Hello`.
    Hello {
        /// [`VERSION`] of the sender.
        version: u16,
        /// The user has asked that the directory becomes equal to another one, whatever is in it.
        makes_mirror: bool,
    },
    /// Make a file that is not regular, or set the attributes of one that is there. Other files with the path are removed.
    Make {
        path: Vec<u8>,
        attributes: Attributes,
        /// Target of a symbolic link.
        target: Vec<u8>,
    },
    /// Replace a regular file by one with the data of the frame.
    Put { path: Vec<u8>, attributes: Attributes },
    /// Begin a file that will replace another one, or continue it.
    Stage { path: Vec<u8>, size: u64 },
    /// Write the data of the frame.
    Write { path: Vec<u8>, is_staged: bool, offset: u64 },
    /// Make a range read as zeros.
    Clear { path: Vec<u8>, is_staged: bool, offset: u64, length: u64 },
    /// Replace a regular file by the staged one.
    Publish { path: Vec<u8>, attributes: Attributes },
    /// Set size and attributes of a regular file.
    Finish { path: Vec<u8>, attributes: Attributes },
    /// Set the attributes of a file of this kind, not the size.
    Change { path: Vec<u8>, attributes: Attributes },
    /// Remove a file, with everything below.
    Remove { path: Vec<u8> },
    /// Rename a file if it is there.
    Rename { from: Vec<u8>, to: Vec<u8> },
    /// Hash blocks of a regular file. Reply: `Hashes`.
    Hashes { path: Vec<u8>, is_staged: bool, first: u64, count: u32 },
    /// List a directory. Replies: `List`, until one is the last.
    List { path: Vec<u8> },
    /// Hash a regular file. Reply: `Checksum`.
    Checksum { path: Vec<u8> },
    /// Make all changes durable. Replies: any number of `Faults`, then `Committed`.
    Commit { number: u64 },
    /// Nothing: the sender exists.
    Ping,
    /// The sender has no more orders: remove what is staged. Reply: `Ended`.
    End,
}

/// A reply of the receiver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The receiver is ready.
    Hello {
        /// [`VERSION`] of the receiver.
        version: u16,
        /// The directory is a mirror: names that the source lacks can be removed.
        is_mirror: bool,
        /// Names of staged files of an earlier connection.
        staged: Vec<Vec<u8>>,
    },
    /// The data has the BLAKE3 hashes of the blocks that the file has; a last block may be short.
    Hashes,
    /// A part of a listing; empty if there is no such directory.
    List { items: Vec<Item>, has_more: bool },
    /// BLAKE3 and size of a file; `None` if there is no such regular file.
    Checksum { file: Option<(u64, [u8; 32])> },
    /// Paths of which an order has failed since the last commit.
    Faults { faults: Vec<(Vec<u8>, Fault)> },
    /// All changes before the order are durable, except those of the paths in the preceding `Faults`.
    Committed { number: u64 },
    /// Everything is done.
    Ended,
    /// The receiver ends.
    Failed(Fault),
}

/// Name of the staged file for a path.
pub fn staged_name(path: &[u8]) -> Vec<u8> {
    blake3::hash(path).to_hex().as_bytes()[..HASH_SIZE].to_vec()
}

/// Whether a name is never mirrored: one of a temporary file.
pub fn is_excluded(name: &[u8]) -> bool {
    name == INCOMING || name.starts_with(TEMPORARY)
}

/// Whether a path is never mirrored.
pub fn is_excluded_path(path: &[u8]) -> bool {
    path.split(|&byte| byte == b'/').any(is_excluded)
}

/// Hash of extended attributes, for comparisons.
pub fn xattrs_hash(xattrs: &[(Vec<u8>, Vec<u8>)]) -> u64 {
    if xattrs.is_empty() {
        return 0;
    }
    let mut hasher = blake3::Hasher::new();
    for part in xattrs.iter().flat_map(|(name, value)| [name, value]) {
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
    }
    let mut first = [0; 8];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_le_bytes(first)
}

/// Checks a path of an order. Only some orders may name the root.
///
/// # Errors
/// `EINVAL` if a component is empty, `.`, `..`, or has a NUL, or if it is a name of the receiver.
pub fn check_path(path: &[u8], may_be_root: bool) -> Result<()> {
    if path.is_empty() && may_be_root {
        return Ok(());
    }
    let refused = |why: &str| {
        let shown = String::from_utf8_lossy(path).escape_debug().to_string();
        Err(Fault::new(Errno::EINVAL, format!("the path {shown:?} {why}")))
    };
    if path.len() > TREE_PATH_SIZE_MAX {
        return refused("is too long");
    }
    if path.split(|&byte| byte == b'/').any(|part| name::check(part).is_err()) {
        return refused("is not one below the mirror");
    }
    if is_excluded_path(path) {
        return refused("is a temporary name");
    }
    Ok(())
}

/// Writes a frame.
pub fn write_frame<T: Serialize>(out: &mut impl Write, message: &T, data: &[u8]) -> Result<()> {
    let message = encode(message)?;
    let sizes = [message.len() as u32, data.len() as u32].map(u32::to_le_bytes).concat();
    let written =
        out.write_all(&sizes).and_then(|()| out.write_all(&message)).and_then(|()| out.write_all(data));
    written.map_err(|error| Fault::from_os("writing to the mirror", &error))
}

/// Reads a frame; `None` at the end of the stream before one.
pub fn read_frame<T: DeserializeOwned>(input: &mut impl Read) -> Result<Option<(T, Vec<u8>)>> {
    let failed = |error| Fault::from_os("reading from the mirror", &error);
    let mut sizes = [0; 8];
    match input.read(&mut sizes[..1]).map_err(failed)? {
        0 => return Ok(None),
        _ => input.read_exact(&mut sizes[1..]).map_err(failed)?,
    }
    let size =
        |at: usize| u32::from_le_bytes([sizes[at], sizes[at + 1], sizes[at + 2], sizes[at + 3]]) as usize;
    let (message_size, data_size) = (size(0), size(4));
    if message_size > MESSAGE_SIZE_MAX || data_size > BLOCK_SIZE {
        return Err(Fault::new(Errno::EPROTO, "a frame exceeds the largest size"));
    }
    let mut message = vec![0; message_size];
    input.read_exact(&mut message).map_err(failed)?;
    let mut data = vec![0; data_size];
    input.read_exact(&mut data).map_err(failed)?;
    Ok(Some((decode(&message)?, data)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_written() {
        let mut bytes = Vec::new();
        let orders = [Order::Ping, Order::Write { path: b"a".to_vec(), is_staged: true, offset: 7 }];
        write_frame(&mut bytes, &orders[0], b"").expect("written");
        write_frame(&mut bytes, &orders[1], b"data").expect("written");
        let mut input = bytes.as_slice();
        assert_eq!(read_frame(&mut input).expect("read"), Some((Order::Ping, Vec::new())));
        assert_eq!(read_frame(&mut input).expect("read"), Some((orders[1].clone(), b"data".to_vec())));
        assert_eq!(read_frame::<Order>(&mut input).expect("the end"), None);
        assert!(read_frame::<Order>(&mut &bytes[..bytes.len() - 1][..9]).is_ok());
        let huge = [u32::MAX.to_le_bytes(), 0_u32.to_le_bytes()].concat();
        assert_eq!(read_frame::<Order>(&mut huge.as_slice()).map_err(|f| f.errno), Err(Errno::EPROTO));
    }

    #[test]
    fn paths_that_could_leave_the_mirror_are_refused() {
        for good in ["a", "a/b.c", "...", ".tameike-packed/00000000.data"] {
            assert_eq!(check_path(good.as_bytes(), false), Ok(()), "{good}");
        }
        for bad in
            ["", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", "a\0", "a/.tameike-moved-1"]
        {
            assert!(check_path(bad.as_bytes(), false).is_err(), "{bad}");
        }
        assert!(check_path(&[b'a'; 300], false).is_err());
        assert!(check_path(INCOMING, false).is_err());
        assert_eq!(check_path(b"", true), Ok(()));
    }

    #[test]
    fn the_hash_of_attributes_depends_on_each_name_and_value() {
        let pair = |name: &str, value: &str| (name.as_bytes().to_vec(), value.as_bytes().to_vec());
        let hashes = [
            xattrs_hash(&[]),
            xattrs_hash(&[pair("user.a", "b")]),
            xattrs_hash(&[pair("user.ab", "")]),
            xattrs_hash(&[pair("user.a", ""), pair("user.b", "")]),
        ];
        assert!((1..hashes.len()).all(|at| !hashes[..at].contains(&hashes[at])), "{hashes:?}");
    }
}
