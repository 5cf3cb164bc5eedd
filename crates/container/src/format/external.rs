//! Files of which a container has all but the content: that is in a file beside the subfiles.
//!
//! Their entries have no bytes, and in the place of a link's target what packed files have there (`DESIGN.md`, *Packed files*).

use super::entry::Node;
use std::ops::Range;
use std::sync::Arc;
use tameike_core::{Errno, Fault, FaultKind, FileKind, Result, Timestamp};
use tameike_io::shared::{Access, FileStat, SharedFile, SharedFs};

/// A callback that receives bytes of a file, and their offset in it.
pub type Show<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<()>;

/// Beginning of the names of files that have content.
pub const PREFIX: &str = "out.";
/// Bytes that are shown at once.
const SHOWN_SIZE: usize = 256 << 10;

/// The file that has the content of a packed file, in the container's directory.
pub fn name(number: u64) -> Vec<u8> {
    format!("{PREFIX}{number:016x}").into_bytes()
}

/// Whether a name is that of such a file.
pub fn is_name(name: &[u8]) -> bool {
    let digits = std::str::from_utf8(name).ok().and_then(|name| name.strip_prefix(PREFIX));
    digits
        .and_then(|digits| u64::from_str_radix(digits, 16).ok())
        .is_some_and(|number| self::name(number) == name)
}

/// What the entry of a packed file has in the place of a link's target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its number, for as long as it is packed.
    pub number: u64,
    /// Last change of anything.
    pub ctime: Timestamp,
    /// Where its content is.
    pub place: Place,
}

/// Where the content of a packed file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the container.
    Inside,
    /// In a file of its own.
    Outside,
    /// There, and all of it: whoever packs next may bring it to its place in the shared directory.
    Leaving,
}

impl Place {
    /// Ends an identity.
    fn encode(self) -> &'static [u8] {
        match self {
            Self::Inside => &[],
            Self::Outside => &[1],
            Self::Leaving => &[2],
        }
    }
}

impl Identity {
    /// As entries have it.
    pub fn encode(&self) -> Vec<u8> {
        let Timestamp { seconds, nanoseconds } = self.ctime;
        let (seconds, nanoseconds) = (seconds.to_le_bytes(), nanoseconds.to_le_bytes());
        [&self.number.to_le_bytes()[..], &seconds, &nanoseconds, self.place.encode()].concat()
    }

    /// What an entry tells of a regular file.
    pub fn told(node: &Node) -> Option<Self> {
        let (number, rest) = node.target.split_first_chunk::<8>()?;
        let (seconds, rest) = rest.split_first_chunk::<8>()?;
        let (nanoseconds, place) = rest.split_first_chunk::<4>()?;
        let place = [Place::Outside, Place::Leaving].into_iter().find(|known| known.encode() == place);
        let ctime = Timestamp {
            seconds: i64::from_le_bytes(*seconds),
            nanoseconds: u32::from_le_bytes(*nanoseconds),
        };
        let is_file = node.kind == FileKind::File;
        is_file.then_some(Self {
            number: u64::from_le_bytes(*number),
            ctime,
            place: place.unwrap_or(Place::Inside),
        })
    }

    /// The same of a file whose content is outside.
    pub fn told_outside(node: &Node) -> Option<Self> {
        Self::told(node).filter(|identity| identity.place != Place::Inside && node.size == 0)
    }
}

/// Content that is outside.
pub struct OutsideContent {
    file: Arc<dyn SharedFile>,
    size: u64,
}

impl OutsideContent {
    /// Opens it, as it is now, and tells its node what is.
    ///
    /// # Errors
    /// `ENOENT` when the file has come to its place in the shared directory, `EIO` when its content is lost, and what the file system says.
    pub fn open(fs: &dyn SharedFs, identity: &Identity, node: &mut Node) -> Result<Self> {
        let name = name(identity.number);
        let file = fs.open(&name, Access::Read).map_err(|fault| match identity.place {
            _ if fault.kind() != FaultKind::Missing => fault.context(String::from_utf8_lossy(&name)),
            Place::Leaving => {
                let why =
                    "it is no more in the container, but at its place in the directory that this belongs to";
                Fault::new(Errno::ENOENT, why)
            }
            Place::Inside | Place::Outside => Fault::io(format!(
                "its content is not in {}: it has come to its place since the container was opened, or is lost, and `tameike recover` brings what its job still has",
                String::from_utf8_lossy(&name)
            )),
        })?;
        let FileStat { size, atime, mtime, .. } = file.stat()?;
        (node.size, node.atime, node.mtime) = (size, atime, mtime);
        Ok(Self { file, size })
    }

    /// Shows what is in a range of it.
    ///
    /// # Errors
    /// `EIO` when it has become shorter, and what the file system and `show` say.
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
