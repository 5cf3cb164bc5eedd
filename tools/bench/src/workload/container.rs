//! Many files in one container, which each rank opens with the container library.

use super::Site;
use crate::outcome::{Context, Outcome};
use std::sync::Arc;
use tameike_container::session::{
    Codec, OpenFlags, Permissions, Rank, Refresh, SUBFILES_MAX, Session, SessionOptions, block_size_of,
};
use tameike_io::shared::PosixTree;

/// An open container.
pub struct Container {
    session: Session,
    path: String,
}

impl Container {
    /// Opens the container of the run, for writing or for reading.
    pub fn open(site: &Site, writes: bool) -> Outcome<Self> {
        let path = site.root.display().to_string();
        let doing = || format!("open the container {path}");
        let tree = PosixTree::open(&site.root).context(doing)?;
        let size = site.plan.ranks;
        let options = SessionOptions {
            rank: Some(Rank { rank: site.rank, size, is_guess: false }),
            is_collective: false,
            create: writes,
            permissions: Permissions::ByUmask,
            is_read_only: !writes,
            refresh: Refresh::Automatic,
            block_size: writes.then(|| block_size_of(&site.root, size > SUBFILES_MAX)),
            subfiles: None,
            codec: Codec::None,
            streams: 0,
            umask: 0o022,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        };
        Ok(Self { session: Session::open(Arc::new(tree), options).context(doing)?, path })
    }

    /// Creates, writes and closes a file.
    pub fn write(&self, file: (u32, u32), content: &[u8]) -> Outcome<()> {
        let flags = OpenFlags { write: true, create: true, truncate: true, exclusive: false };
        let doing = || format!("write {file:?} in {}", self.path);
        let open = self.session.open_file(name(file).as_bytes(), flags, 0o644).context(doing)?;
        self.session.write(&open, content, None).context(doing)?;
        self.session.close(open).context(doing)
    }

    /// Reads until the end of the file or of `content`; returns the number of bytes.
    pub fn read(&self, file: (u32, u32), content: &mut [u8]) -> Outcome<usize> {
        let doing = || format!("read {file:?} in {}", self.path);
        let open = self.session.open_file(name(file).as_bytes(), OpenFlags::default(), 0).context(doing)?;
        let size = self.session.read_at(&open, content, 0).context(doing)?;
        self.session.close(open).context(doing)?;
        Ok(size)
    }

    /// Closes the container, which persists it.
    pub fn finish(self) -> Outcome<()> {
        self.session.finish().context(|| format!("close the container {}", self.path))
    }
}

fn name((rank, index): (u32, u32)) -> String {
    format!("{rank}/{index}")
}
