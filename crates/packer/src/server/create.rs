//! The packer makes files. The entry of each is with the file system before its maker is answered.

use super::open_files::Open;
use super::packer::{Packer, State};
use super::store::Store;
use std::time::Duration;
use tameike_container::format::external::{Identity, Place};
use tameike_container::session::draft::Draft;
use tameike_container::{Content, IndexEntry, Node, check_path};
use tameike_core::wire::pack::{PackReply, PackedStat};
use tameike_core::{Errno, FileKind, Result};
use tameike_io::os::process::{monotonic, random_bytes, wall};
use tameike_io::shared::split;

/// What is to be made.
pub struct NewFile<'a> {
    pub path: &'a [u8],
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
}

/// A file that was made, and is there once its entry is with the file system.
struct Made {
    stat: PackedStat,
    entry: IndexEntry,
}

/// Where making a file has come to.
enum Creating {
    Made(Made),
    /// It is not made, and that is why.
    Not(PackReply),
}

impl Packer {
    /// Makes a file. `looked`: since when its maker knows that nothing is there.
    pub(crate) fn create(&self, file: &NewFile<'_>, looked: Option<Duration>) -> Result<PackReply> {
        let creating = self.begin_create(&mut self.state.lock(), file, looked)?;
        let made = match creating {
            Creating::Made(made) => made,
            Creating::Not(reply) => return Ok(reply),
        };
        self.write_with_others(made.entry.address);
        self.with_store(|store| store.end_create(&made))?;
        Ok(PackReply::Stat(made.stat))
    }

    /// In the time since its maker has looked at its directory, this may have gone; and since its maker has looked at its name, another agent
    /// may have made something there.
    fn begin_create(
        &self,
        state: &mut State,
        file: &NewFile<'_>,
        looked: Option<Duration>,
    ) -> Result<Creating> {
        let path = file.path;
        let (dir, _) = split(path).ok_or(Errno::EEXIST)?;
        if let Some(store) = &mut state.store
            && store.stat(path).is_ok()
        {
            return Err(Errno::EEXIST.into());
        }
        if !self.packs(state, dir) {
            return Ok(Creating::Not(PackReply::Declined));
        }
        let now = monotonic();
        if state.named.may_have(path, looked, now) {
            return Ok(Creating::Not(PackReply::Look(now)));
        }
        self.check_dir_of(path, &state.named)?;
        self.store(state)?.create(file).map(Creating::Made)
    }
}

impl Store {
    /// Makes a file that must not exist, and opens it. It is there once its entry is [with the file system](Self::end_create).
    ///
    /// # Errors
    /// `EEXIST`, and what the file system says.
    fn create(&mut self, file: &NewFile<'_>) -> Result<Made> {
        let NewFile { path, mode, uid, gid } = *file;
        check_path(path)?;
        if self.stat(path).is_ok() {
            return Err(Errno::EEXIST.into());
        }
        self.begin()?;
        let (number, now) = (u64::from_le_bytes(random_bytes()?), wall());
        let identity = Identity { number, ctime: now, place: Place::Inside };
        let node = Node {
            kind: FileKind::File,
            mode: mode & 0o7777,
            uid,
            gid,
            rdev: 0,
            atime: now,
            mtime: now,
            target: identity.encode(),
            xattrs: Vec::new(),
            size: 0,
            content: Content::Here,
        };
        let entry = self.put(path, Some(node.clone()))?;
        let draft = Draft::of(path.to_vec(), node, Vec::new(), 0);
        let open = Open { draft, identity, opens: 1, put_at: Some(entry.address) };
        let stat = open.stat();
        self.open.insert(number, open);
        self.paths.insert(path.to_vec(), number);
        self.in_making += 1;
        Ok(Made { stat, entry })
    }

    /// Has the entry of a file that was made be with the file system.
    ///
    /// # Errors
    /// What that says; then the file is not there, unless somebody has changed it meanwhile.
    fn end_create(&mut self, made: &Made) -> Result<()> {
        let Made { stat, entry } = made;
        self.in_making -= 1;
        let Err(fault) = self.write_entry(entry.address) else { return Ok(()) };
        if self.entry(&entry.path).is_ok_and(|now| now.version == entry.version) {
            self.undo(&[(entry.clone(), None)]);
            self.lose(&entry.path);
        }
        self.drop_open(stat.number);
        Err(fault)
    }
}
