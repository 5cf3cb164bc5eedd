//! The zip archive, of files as they are: with 64 bits where sizes need them.

use super::{Archive, Item};
use std::io::{self, Write};
use tameike_core::{FileKind, Timestamp};
use time::{OffsetDateTime, PrimitiveDateTime};
use zip::write::{SimpleFileOptions, StreamWriter};
use zip::{CompressionMethod, DateTime, ZipWriter};

/// Larger files have their sizes in 64 bits.
const SMALL_MAX: u64 = u32::MAX as u64;

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
                Some("a zip archive has no name that is not UTF-8")
            }
            FileKind::Symlink if std::str::from_utf8(&item.node.target).is_err() => {
                Some("a zip archive has no target that is not UTF-8")
            }
            FileKind::File | FileKind::Directory | FileKind::Symlink => None,
            _ => Some("a zip archive has files, directories and links alone"),
        }
    }

    fn put(&mut self, item: Item) -> io::Result<()> {
        let Item { path, node, mut content } = item;
        let path = String::from_utf8_lossy(&path);
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .last_modified_time(moment(node.mtime))
            .unix_permissions(node.mode.into())
            .large_file(node.size > SMALL_MAX);
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

/// The nearest time that a zip archive can tell, in UTC: from 1980 to 2107.
fn moment(time: Timestamp) -> DateTime {
    let civil = OffsetDateTime::from_unix_timestamp(time.seconds).ok();
    let civil = civil.map(|moment| PrimitiveDateTime::new(moment.date(), moment.time()));
    civil.and_then(|civil| DateTime::try_from(civil).ok()).unwrap_or(DateTime::DEFAULT)
}
