//! A container as a tar archive, which any system unpacks.

use crate::Tally;
use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use tameike_core::{Errno, Fault, FileKind, Result};
use tameike_store::container::{Container, FileReader, IndexEntry, Node};
use tar::{Builder, EntryType, Header};

/// Names of extended attributes in a tar archive begin so, as GNU tar and libarchive write them.
const XATTR_PREFIX: &str = "SCHILY.xattr.";

/// Writes all of a container as a tar archive (POSIX.1-2001 where names or attributes need it, GNU's long names). A file that is damaged is
/// left out, and told of in `tally`.
///
/// # Errors
/// `EIO` when the archive cannot be written, or the index is damaged.
pub fn export_tar(container: &Container, out: impl Write, tally: &Tally) -> Result<()> {
    let mut archive = Builder::new(out);
    for entry in container.walk()? {
        let entry = entry?;
        let faults = container.check(&entry)?;
        if let Some(fault) = faults.first() {
            tally.note(&entry.path, fault);
            continue;
        }
        let reader = container.open_entry(&entry)?;
        match append(&mut archive, &entry, reader) {
            Ok(()) => {
                tally.add_file();
                tally.add_bytes(entry.node.map_or(0, |node| node.size));
            }
            Err(error) => return Err(Fault::new(Errno::EIO, format!("write the archive: {error}"))),
        }
    }
    let mut out =
        archive.into_inner().map_err(|error| Fault::new(Errno::EIO, format!("end the archive: {error}")))?;
    out.flush().map_err(|error| Fault::new(Errno::EIO, format!("write the archive: {error}")))
}

fn append<W: Write>(archive: &mut Builder<W>, entry: &IndexEntry, reader: FileReader) -> io::Result<()> {
    let node = reader.node().clone();
    let path = Path::new(OsStr::from_bytes(&entry.path));
    let Some(kind) = entry_type(node.kind) else { return Ok(()) };
    let xattrs: Vec<_> = node
        .xattrs
        .iter()
        .filter_map(|xattr| {
            Some((format!("{XATTR_PREFIX}{}", std::str::from_utf8(&xattr.name).ok()?), &xattr.value[..]))
        })
        .collect();
    if !xattrs.is_empty() {
        archive.append_pax_extensions(xattrs.iter().map(|(name, value)| (&name[..], *value)))?;
    }
    let mut header = header_of(&node, kind)?;
    match node.kind {
        FileKind::Symlink => {
            archive.append_link(&mut header, path, Path::new(OsStr::from_bytes(&node.target)))
        }
        FileKind::File => archive.append_data(&mut header, path, Content { reader, at: 0 }),
        _ => archive.append_data(&mut header, path, io::empty()),
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

/// The bytes of a file, one after the other.
struct Content {
    reader: FileReader,
    at: u64,
}

impl Read for Content {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read_at(buffer, self.at).map_err(io::Error::other)?;
        self.at += count as u64;
        Ok(count)
    }
}
