//! zip archives: uncompressed, with 64-bit sizes where necessary.

use super::{Archive, Item};
use std::io::{self, Write};
use tameike_core::{FileKind, Timestamp};
use time::{OffsetDateTime, PrimitiveDateTime};
use zip::write::{SimpleFileOptions, StreamWriter};
use zip::{CompressionMethod, DateTime, ZipWriter};

/// Larger files need 64-bit sizes.
const SMALL_MAX: u64 = u32::MAX as u64;

/// The earliest time of a file header: the beginning of 1980.
const FIRST: i64 = 315_532_800;

/// A zip archive that is being written.
pub struct Zip<W: Write>(ZipWriter<StreamWriter<W>>);

impl<W: Write> Zip<W> {
    pub fn new(out: W) -> Self {
        Self(ZipWriter::new_stream(out))
    }
}

impl<W: Write> Archive for Zip<W> {
    fn refuses(&self, item: &Item) -> Option<&'static str> {
        match item.node.kind {
            _ if std::str::from_utf8(&item.path).is_err() => {
                Some("a zip archive cannot contain names that are not UTF-8")
            }
            FileKind::Symlink if std::str::from_utf8(&item.node.target).is_err() => {
                Some("a zip archive cannot contain link targets that are not UTF-8")
            }
            FileKind::File | FileKind::Directory | FileKind::Symlink => None,
            _ => Some("a zip archive can contain files, directories and symbolic links only"),
        }
    }

    fn loses(&self, item: &Item) -> Option<&'static str> {
        (extended(item.node.mtime).is_none() && !Moment::of(item.node.mtime).is_exact)
            .then_some("with another time, as a zip archive cannot represent theirs")
    }

    fn put(&mut self, item: Item) -> io::Result<()> {
        let Item { path, node, mut content } = item;
        let path = String::from_utf8_lossy(&path);
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .last_modified_time(Moment::of(node.mtime).nearest)
            .unix_permissions(node.mode.into())
            .large_file(node.size > SMALL_MAX)
            .into_full_options();
        let options = match extended(node.mtime) {
            Some(mtime) => options.with_extended_timestamp(Some(mtime), None, None)?,
            None => options,
        };
        match node.kind {
            FileKind::Directory => self.0.add_directory(path, options)?,
            FileKind::Symlink => self.0.add_symlink(path, String::from_utf8_lossy(&node.target), options)?,
            _ => {
                self.0.start_file(path, options)?;
                io::copy(&mut content, &mut self.0)?;
            }
        }
        Ok(())
    }

    fn end(self) -> io::Result<()> {
        self.0.finish()?.into_inner().flush()
    }
}

/// Seconds since 1970 for the "extended timestamp" field of 32 bits. Programs disagree on its sign, so only the years 1970 to 2038 are
/// unambiguous.
fn extended(time: Timestamp) -> Option<u32> {
    i32::try_from(time.seconds).ok().and_then(|seconds| u32::try_from(seconds).ok())
}

/// Time of a file header, in UTC: even seconds from 1980 to 2107.
struct Moment {
    /// The nearest time before, or the earliest one.
    nearest: DateTime,
    /// `nearest` is exact to the second.
    is_exact: bool,
}

impl Moment {
    fn of(time: Timestamp) -> Self {
        let civil = OffsetDateTime::from_unix_timestamp(time.seconds).ok();
        let civil = civil.map(|moment| PrimitiveDateTime::new(moment.date(), moment.time()));
        match civil.and_then(|civil| DateTime::try_from(civil).ok()) {
            Some(nearest) => Self { nearest, is_exact: time.seconds % 2 == 0 },
            None => {
                let last = DateTime::from_date_and_time(2107, 12, 31, 23, 59, 58).ok();
                let nearest = last.filter(|_| time.seconds >= FIRST).unwrap_or(DateTime::DEFAULT);
                Self { nearest, is_exact: false }
            }
        }
    }
}
