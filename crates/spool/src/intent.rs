//! Intent record of a rename, so that the next packer completes it after a crash.

use super::find;
use super::tree::{Tree, spool_fault};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use tameike_container::session::Session;
use tameike_core::Result;

const INTENT: &str = "renaming";

/// A rename in progress. The file has both paths, separated by a zero byte.
pub struct Intent(PathBuf);

impl Intent {
    /// Writes the record.
    pub fn begin(dir: &Path, from: &[u8], to: &[u8]) -> Result<Self> {
        let path = dir.join(INTENT);
        // Renamed into place, so that a reader never sees a part of it.
        let temporary = dir.join("renaming.new");
        let written = std::fs::write(&temporary, [from, b"\0", to].concat())
            .and_then(|()| std::fs::rename(&temporary, &path));
        written.map_err(spool_fault)?;
        Ok(Self(path))
    }

    /// Removes the record, after the rename or its failure.
    pub fn end(self) -> Result<()> {
        std::fs::remove_file(self.0).map_err(spool_fault)
    }

    /// Completes a rename that a crashed packer has begun: the container follows the tree.
    pub fn recover(dir: &Path, tree: &Tree, session: &Session) -> Result<()> {
        let path = dir.join(INTENT);
        let text = match std::fs::read(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            text => text.map_err(spool_fault)?,
        };
        let mut names = text.split(|byte| *byte == 0);
        if let (Some(from), Some(to)) = (names.next(), names.next())
            && tree.lookup(from)?.is_none()
            && tree.lookup(to)?.is_some()
            && find(session, from)?.is_some()
        {
            session.rename(from, to)?;
            session.write_out()?;
        }
        Self(path).end()
    }
}
