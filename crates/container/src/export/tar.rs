//! tar archives: POSIX.1-2001, with extended header records where a header does not suffice, and GNU long names.

use super::{Archive, Item};
use crate::{Node, Xattr};
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use tameike_core::{FileKind, Timestamp};
use tar::{Builder, EntryType, Header};

/// Prefix of keys of extended attributes, as of GNU tar and libarchive.
const XATTR_PREFIX: &str = "SCHILY.xattr.";

/// A tar archive that is being written.
pub struct Tar<W: Write>(Builder<W>);

impl<W: Write> Tar<W> {
    pub fn new(out: W) -> Self {
        Self(Builder::new(out))
    }
}

impl<W: Write> Archive for Tar<W> {
    fn refuses(&self, item: &Item) -> Option<&'static str> {
        (item.node.kind == FileKind::Socket).then_some("a tar archive cannot contain sockets")
    }

    fn loses(&self, item: &Item) -> Option<&'static str> {
        let is_lost = item.node.xattrs.iter().any(|xattr| xattr_key(xattr).is_none());
        is_lost.then_some("without an extended attribute whose name a tar archive cannot represent")
    }

    fn put(&mut self, item: Item) -> io::Result<()> {
        let Item { path, node, content } = item;
        let Some(kind) = entry_type(node.kind) else { return Ok(()) };
        let path = Path::new(OsStr::from_bytes(&path));
        let times = [("mtime", decimal(node.mtime)), ("atime", decimal(node.atime))];
        let times = times.iter().map(|(key, time)| (*key, time.as_bytes()));
        let xattrs: Vec<_> =
            node.xattrs.iter().filter_map(|xattr| Some((xattr_key(xattr)?, &xattr.value[..]))).collect();
        let xattrs = xattrs.iter().map(|(key, value)| (&key[..], *value));
        self.0.append_pax_extensions(times.chain(xattrs))?;
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

/// Key of an extended attribute's record; `None` if it cannot be represented.
fn xattr_key(xattr: &Xattr) -> Option<String> {
    // A key ends at the first `=`.
    let name = std::str::from_utf8(&xattr.name).ok().filter(|name| !name.contains('='))?;
    Some(format!("{XATTR_PREFIX}{name}"))
}

/// Seconds since 1970, as a decimal number. Times before 1970 are negative with a fraction that counts backwards.
fn decimal(time: Timestamp) -> String {
    let Timestamp { seconds, nanoseconds } = time;
    match nanoseconds {
        0 => seconds.to_string(),
        _ if seconds < 0 => {
            let (whole, part) = (seconds.unsigned_abs() - 1, 1_000_000_000_u32.saturating_sub(nanoseconds));
            format!("-{whole}.{part:09}")
        }
        _ => format!("{seconds}.{nanoseconds:09}"),
    }
}

/// tar's entry type; `None` for sockets.
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
    // A time before 1970 is in the extended header only.
    header.set_mtime(u64::try_from(node.mtime.seconds).unwrap_or(0));
    header.set_size(if kind == EntryType::Regular { node.size } else { 0 });
    if matches!(kind, EntryType::Char | EntryType::Block) {
        // FUSE encoding: minor in the lowest 8 and the upper 12 bits, major in between.
        header.set_device_major(node.rdev >> 8 & 0xfff)?;
        header.set_device_minor(node.rdev & 0xff | node.rdev >> 12 & 0xf_ff00)?;
    }
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_decimal_numbers() {
        let time = |seconds, nanoseconds| decimal(Timestamp { seconds, nanoseconds });
        assert_eq!([time(0, 0), time(5, 25)], ["0", "5.000000025"]);
        assert_eq!([time(-5, 0), time(-5, 250_000_000), time(-1, 1)], ["-5", "-4.750000000", "-0.999999999"]);
        assert_eq!(time(i64::MIN, 999_999_999), "-9223372036854775807.000000001");
    }
}
