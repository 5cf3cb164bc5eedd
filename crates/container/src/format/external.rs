//! External content: files whose entries are in the container, and whose content is a file beside the subfiles.
//!
//! Such an entry has no content; in place of a link's target it has an [`Identity`] (`DESIGN.md`, *Packed files*).

use super::entry::Node;
use std::ops::Range;
use std::sync::Arc;
use tameike_core::{Errno, Fault, FaultKind, FileKind, Result, Timestamp};
use tameike_io::shared::{Access, FileStat, SharedFile, SharedFs};

/// A callback that receives bytes of a file, and their offset in it.
pub type Show<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<()>;

/// Prefix of the names of files with external content.
pub const PREFIX: &str = "out.";
/// Bytes per call of [`Show`].
const SHOWN_SIZE: usize = 256 << 10;

/// The file name of the external content of a packed file.
pub fn name(number: u64) -> Vec<u8> {
    format!("{PREFIX}{number:016x}").into_bytes()
}

/// Returns true for names of files with external content.
pub fn is_name(name: &[u8]) -> bool {
    let digits = std::str::from_utf8(name).ok().and_then(|name| name.strip_prefix(PREFIX));
    digits
        .and_then(|digits| u64::from_str_radix(digits, 16).ok())
        .is_some_and(|number| self::name(number) == name)
}

/// What the entry of a packed file has in place of a link's target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Number of the file while it is packed.
    pub number: u64,
    /// Time of the last change of content or attributes.
    pub ctime: Timestamp,
    /// Location of the content.
    pub location: ContentLocation,
}

/// Location of the content of a packed file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentLocation {
    /// In the container.
    Internal,
    /// In an external file.
    External,
    /// In an external file, complete: the next packer may promote it to the file's own path in the shared directory.
    Promotable,
}

impl ContentLocation {
    /// The last byte of an encoded identity.
    fn encode(self) -> &'static [u8] {
        match self {
            Self::Internal => &[],
            Self::External => &[1],
            Self::Promotable => &[2],
        }
    }
}

impl Identity {
    /// Encodes the identity for an entry.
    pub fn encode(&self) -> Vec<u8> {
        let Timestamp { seconds, nanoseconds } = self.ctime;
        let (seconds, nanoseconds) = (seconds.to_le_bytes(), nanoseconds.to_le_bytes());
        [&self.number.to_le_bytes()[..], &seconds, &nanoseconds, self.location.encode()].concat()
    }

    /// Decodes the identity of a regular file's entry.
    pub fn decode(node: &Node) -> Option<Self> {
        let (number, rest) = node.target.split_first_chunk::<8>()?;
        let (seconds, rest) = rest.split_first_chunk::<8>()?;
        let (nanoseconds, location) = rest.split_first_chunk::<4>()?;
        let location = [ContentLocation::External, ContentLocation::Promotable]
            .into_iter()
            .find(|known| known.encode() == location);
        let ctime = Timestamp {
            seconds: i64::from_le_bytes(*seconds),
            nanoseconds: u32::from_le_bytes(*nanoseconds),
        };
        let is_file = node.kind == FileKind::File;
        is_file.then_some(Self {
            number: u64::from_le_bytes(*number),
            ctime,
            location: location.unwrap_or(ContentLocation::Internal),
        })
    }

    /// As [`Self::decode`], if the content is external.
    pub fn decode_external(node: &Node) -> Option<Self> {
        Self::decode(node).filter(|identity| identity.location != ContentLocation::Internal && node.size == 0)
    }
}

/// Open external content.
pub struct ExternalContent {
    file: Arc<dyn SharedFile>,
    size: u64,
}

impl ExternalContent {
    /// Opens the file, and updates `node` with its size and times. Fails with `ENOENT` if the content was promoted to the file's own path,
    /// and with `EIO` if it is lost.
    pub fn open(fs: &dyn SharedFs, identity: &Identity, node: &mut Node) -> Result<Self> {
        let name = name(identity.number);
        let file = fs.open(&name, Access::Read).map_err(|fault| match identity.location {
            _ if fault.kind() != FaultKind::Missing => fault.context(String::from_utf8_lossy(&name)),
            ContentLocation::Promotable => {
                let why = "its content has moved to the file's own path in the shared directory: read it there";
                Fault::new(Errno::ENOENT, why)
            }
            ContentLocation::Internal | ContentLocation::External => Fault::io(format!(
                "its content is not in {}: either it has moved to the file's own path in the shared directory, or it is lost; \
                 `tameike recover` restores what the job still has",
                String::from_utf8_lossy(&name)
            )),
        })?;
        let FileStat { size, atime, mtime, .. } = file.stat()?;
        (node.size, node.atime, node.mtime) = (size, atime, mtime);
        Ok(Self { file, size })
    }

    /// Passes a range of the content to `show`. Fails with `EIO` if the file became shorter.
    pub fn visit(&self, range: Range<u64>, show: Show<'_>) -> Result<()> {
        let end = range.end.min(self.size);
        let mut buffer = vec![0; SHOWN_SIZE.min(end.saturating_sub(range.start) as usize)];
        for at in (range.start..end).step_by(SHOWN_SIZE) {
            let bytes = &mut buffer[..SHOWN_SIZE.min((end - at) as usize)];
            if self.file.read_at(bytes, at)? < bytes.len() {
                return Err(Fault::io("it became shorter while it was read"));
            }
            show(at, bytes)?;
        }
        Ok(())
    }
}
