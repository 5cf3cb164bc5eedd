//! The tar archive: POSIX.1-2001 where names or attributes need it, GNU's long names.

use super::{Archive, Item};
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use tameike_core::FileKind;
use tameike_store::container::Node;
use tar::{Builder, EntryType, Header};

/// Names of extended attributes in a tar archive begin so, as GNU tar and libarchive write them.
const XATTR_PREFIX: &str = "SCHILY.xattr.";

/// A tar archive that is being written.
pub struct Tar<W: Write>(Builder<W>);

impl<W: Write> Tar<W> {
    pub fn new(out: W) -> Self {
        Self(Builder::new(out))
    }
}

impl<W: Write> Archive for Tar<W> {
    fn put(&mut self, item: Item) -> io::Result<()> {
        let Item { path, node, content } = item;
        let Some(kind) = entry_type(node.kind) else { return Ok(()) };
        let path = Path::new(OsStr::from_bytes(&path));
        let xattrs: Vec<_> = node
            .xattrs
            .iter()
            .filter_map(|xattr| {
                Some((format!("{XATTR_PREFIX}{}", std::str::from_utf8(&xattr.name).ok()?), &xattr.value[..]))
            })
            .collect();
        if !xattrs.is_empty() {
            self.0.append_pax_extensions(xattrs.iter().map(|(name, value)| (&name[..], *value)))?;
        }
        let mut header = header_of(&node, kind)?;
        match node.kind {
            FileKind::Symlink => {
                self.0.append_link(&mut header, path, Path::new(OsStr::from_bytes(&node.target)))
            }
            _ => self.0.append_data(&mut header, path, content),
        }
    }

    fn end(self) -> io::Result<()> {
        self.0.into_inner()?.flush()
    }
}

/// What tar calls a kind; it has no sockets.
fn entry_type(kind: FileKind) -> Option<EntryType> {
    match kind {
        FileKind::File => Some(EntryType::Regular),
        FileKind::Directory => Some(EntryType::Directory),
        FileKind::Symlink => Some(EntryType::Symlink),
        FileKind::Fifo => Some(EntryType::Fifo),
        FileKind::CharacterDevice => Some(EntryType::Char),
        FileKind::BlockDevice => Some(EntryType::Block),
        FileKind::Socket => None,
    }
}

fn header_of(node: &Node, kind: EntryType) -> io::Result<Header> {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(node.mode.into());
    header.set_uid(node.uid.into());
    header.set_gid(node.gid.into());
    header.set_mtime(u64::try_from(node.mtime.seconds).unwrap_or(0));
    header.set_size(if kind == EntryType::Regular { node.size } else { 0 });
    if matches!(kind, EntryType::Char | EntryType::Block) {
        // As the kernel encodes them for FUSE: minor in the lowest 8 and the upper 12 bits, major between.
        header.set_device_major(node.rdev >> 8 & 0xfff)?;
        header.set_device_minor(node.rdev & 0xff | node.rdev >> 12 & 0xf_ff00)?;
    }
    Ok(header)
}
