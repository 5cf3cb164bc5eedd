//! What a renaming is about to do, told in the spool, so that who follows a packer that was killed ends it.

use super::lookup::find;
use super::tree::{Tree, told};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use tameike_container::session::Session;
use tameike_core::Result;

const INTENT: &str = "renaming";

/// A renaming that was begun. Both names are in the file, with a zero byte between them.
pub struct Intent(PathBuf);

impl Intent {
    /// Tells of it.
    pub fn begin(dir: &Path, from: &[u8], to: &[u8]) -> Result<Self> {
        let path = dir.join(INTENT);
        // It is there as a whole or not at all.
        let beside = dir.join("renaming.new");
        let told_whole = std::fs::write(&beside, [from, b"\0", to].concat())
            .and_then(|()| std::fs::rename(&beside, &path));
        told_whole.map_err(|error| told(&error))?;
        Ok(Self(path))
    }

    /// It is done, or will not be.
    pub fn end(self) -> Result<()> {
        std::fs::remove_file(self.0).map_err(|error| told(&error))
    }

    /// Ends one that a packer has left: the container follows the tree.
    pub fn recover(dir: &Path, tree: &Tree, session: &Session) -> Result<()> {
        let path = dir.join(INTENT);
        let text = match std::fs::read(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            text => text.map_err(|error| told(&error))?,
        };
        let mut names = text.split(|byte| *byte == 0);
        if let (Some(from), Some(to)) = (names.next(), names.next())
            && tree.look(from)?.is_none()
            && tree.look(to)?.is_some()
            && find(session, from)?.is_some()
        {
            session.rename(from, to)?;
            session.write_out()?;
        }
        Self(path).end()
    }
}
