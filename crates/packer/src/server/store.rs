//! The container of a shared directory as the packer has it: every change is with the file system before it is answered.

use super::crash_recovery::{Interrupted, sync_interrupted};
use super::journal::{Earlier, Journal, Whose};
use super::open_files::{Open, identity_of, packed_stat};
use super::ownership::{Taken, of_another_user, oldest_subfile, open_superblock, take};
use super::pending_promotions::PendingPromotions;
use crate::external::ContainerDir;
use crate::unless_missing;
use std::collections::BTreeMap;
use std::sync::Arc;
use tameike_container::Listing;
use tameike_container::format::subfile;
use tameike_container::{Container, Content, IndexEntry, LaneWriter, Node, check_path, split_path};
use tameike_core::wire::pack::{PACKED_NAMES_MAX, PackedStat};
use tameike_core::{Errno, Fault, FileKind, Result, Timestamp};
use tameike_io::os::process::wall;
use tameike_io::shared::{Access, SharedFile, SharedFs, join};

/// Attributes that are kept at hand.
const KNOWN_MAX: usize = 64 << 10;

/// The container.
pub struct Store {
    pub(crate) fs: Arc<dyn SharedFs>,
    pub(crate) container: Container,
    /// From the first change on.
    pub(crate) writer: Option<LaneWriter>,
    /// What is not safe yet; where only this job adds to the container.
    pub(crate) journal: Option<Journal>,
    /// Entries before this address are noted there.
    pub(crate) noted_end: u64,
    /// What an earlier life has noted and could not be brought back.
    pub(crate) not_back: Option<Fault>,
    pub(crate) open: BTreeMap<u64, Open>,
    /// Numbers of open files by their paths.
    pub(crate) paths: BTreeMap<Vec<u8>, u64>,
    pub(crate) known: BTreeMap<Vec<u8>, PackedStat>,
    /// Content has gone outside since the last sync.
    pub(crate) has_new_outside: bool,
    /// Which files this job is to bring to their places; where only this job adds to the container.
    pub(crate) owed: Option<PendingPromotions>,
    /// Files that are gone since so many changes, whose content is still outside.
    pub(crate) gone: Vec<(u64, u64)>,
    /// A job that has written files did not come to its end.
    pub(crate) was_cut_off: bool,
    pub(crate) version: u64,
    /// Changes so far, and how many of them are safe.
    pub(crate) changes: u64,
    pub(crate) safe: u64,
    /// Why nothing more is believed.
    pub(crate) failure: Option<Fault>,
    /// The file system did not take what was put last.
    pub(crate) was_refused: bool,
    /// As it is full.
    pub(crate) lacks_room: bool,
    /// Files that are made, and of which is not known yet whether they will be there.
    pub(crate) in_making: usize,
    /// Another job adds to it: here it is only read.
    pub(crate) is_foreign: bool,
    /// When it was looked at for what another job has added.
    looked: Timestamp,
    /// Keeps others from it.
    _lock: Option<Arc<dyn SharedFile>>,
}

impl Store {
    /// Opens the container whose directory `fs` is; it is made where there is none. What an earlier life of this packer has noted on its
    /// `device`, and the container lacks, is put again.
    ///
    /// # Errors
    /// `EBUSY` when another job has it, and what the file system and the device say.
    pub fn open(dir: ContainerDir, device: &dyn SharedFs, may_share: bool) -> Result<Self> {
        let ContainerDir { fs, why_not_own } = dir;
        let is_own = why_not_own.is_none();
        if let (Some(why), false) = (why_not_own, may_share) {
            let message = format!(
                "{why}: packed files would not be private there; remove it, or share another directory"
            );
            return Err(Fault::new(Errno::EPERM, message));
        }
        let superblock = open_superblock(&*fs, is_own)?;
        let (lock, failure) = match if is_own { take(&*fs)? } else { of_another_user() } {
            Taken::Ours(lock) => (lock, None),
            Taken::Foreign(errno, why) if !may_share => return Err(Fault::new(errno, why)),
            Taken::Foreign(_, why) => (None, Some(Fault::new(Errno::EROFS, why))),
        };
        let is_foreign = failure.is_some();
        let Interrupted { was_cut_off, is_doubtful } =
            if is_foreign { Interrupted::default() } else { sync_interrupted(&*fs)? };
        let container = Container::open(fs.clone())?;
        let (journal, earlier) = match is_foreign {
            true => (None, Earlier::default()),
            false => {
                let whose = Whose { container: superblock.container, oldest: oldest_subfile(&*fs)? };
                Journal::open(device, whose).map(|(journal, earlier)| (Some(journal), earlier))?
            }
        };
        let owed = if is_foreign { None } else { Some(PendingPromotions::open(device)?) };
        let (open, paths, known) = Default::default();
        let (version, changes, safe) = (0, 0, 0);
        let mut store = Self {
            fs,
            container,
            writer: None,
            journal,
            noted_end: 0,
            not_back: None,
            open,
            paths,
            known,
            has_new_outside: false,
            owed,
            gone: Vec::new(),
            was_cut_off,
            version,
            changes,
            safe,
            failure,
            was_refused: false,
            lacks_room: false,
            in_making: 0,
            is_foreign,
            looked: wall(),
            _lock: lock,
        };
        store.put_lost(earlier, is_doubtful);
        Ok(store)
    }

    /// Whether another job adds to it.
    pub fn is_foreign(&self) -> bool {
        self.is_foreign
    }

    /// What another job has added is seen, a second later at most.
    ///
    /// # Errors
    /// What the file system says.
    pub fn look_again(&mut self) -> Result<()> {
        let now = wall();
        if self.is_foreign && now.seconds != self.looked.seconds {
            self.looked = now;
            self.known.clear();
            self.container.refresh()?;
        }
        Ok(())
    }

    /// What is at a path.
    ///
    /// # Errors
    /// `ENOENT` when there is nothing, `EIO` when that is damaged.
    pub fn stat(&mut self, path: &[u8]) -> Result<PackedStat> {
        if let Some(open) = self.paths.get(path).and_then(|number| self.open.get(number)) {
            return Ok(open.stat());
        }
        if let Some(known) = self.known.get(path) {
            return Ok(known.clone());
        }
        let entry = self.entry(path)?;
        let node = self.container.node(&entry)?;
        Ok(self.know(&entry, &node))
    }

    /// Keeps at hand what an entry tells.
    pub(crate) fn know(&mut self, entry: &IndexEntry, node: &Node) -> PackedStat {
        let stat = packed_stat(&identity_of(entry, node), node, node.size, 1);
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        self.known.insert(entry.path.clone(), stat.clone());
        stat
    }

    pub(crate) fn entry(&self, path: &[u8]) -> Result<IndexEntry> {
        let is_file = |entry: &IndexEntry| entry.node.is_some_and(|node| node.kind == FileKind::File);
        self.container.find(path)?.filter(is_file).ok_or_else(|| Errno::ENOENT.into())
    }

    /// Names of files in a directory after one, with their numbers.
    ///
    /// # Errors
    /// `EIO` when the index is damaged there.
    pub fn names(&mut self, dir: &[u8], after: &[u8]) -> Result<Vec<(Vec<u8>, u64)>> {
        let files = |entry: &Result<IndexEntry>| {
            entry.as_ref().map_or(true, |entry| entry.node.is_some_and(|node| node.kind == FileKind::File))
        };
        let entries = self.container.children_after(dir, after)?.filter(files).take(PACKED_NAMES_MAX);
        let entries: Result<Vec<_>> = entries.collect();
        let named =
            |entry: IndexEntry| Ok((split_path(&entry.path).1.to_vec(), self.stat(&entry.path)?.number));
        entries?.into_iter().map(named).collect()
    }

    /// Paths of all files below a directory.
    ///
    /// # Errors
    /// `EIO` when the index is damaged there.
    pub fn below(&self, dir: &[u8]) -> Result<Vec<Vec<u8>>> {
        let (mut dirs, mut paths) = (vec![dir.to_vec()], Vec::new());
        while let Some(dir) = dirs.pop() {
            for entry in self.container.children(&dir)? {
                paths.push(entry?.path);
            }
            let names = self.container.directories_in(&dir)?;
            dirs.extend(names.iter().map(|name| join(&dir, name)));
        }
        let files = paths.into_iter().map(|path| Ok(unless_missing(self.entry(&path))?.map(|_| path)));
        files.filter_map(Result::transpose).collect()
    }

    /// Whether anything is below a directory.
    ///
    /// # Errors
    /// As [`Self::below`].
    pub fn has_below(&self, dir: &[u8]) -> Result<bool> {
        let has_children = self.container.children(dir)?.next().transpose()?.is_some();
        Ok(has_children || !self.container.directories_in(dir)?.is_empty())
    }

    /// Removes a file. Who has it open keeps it until it is closed.
    ///
    /// # Errors
    /// `ENOENT`, and what the file system says.
    pub fn unlink(&mut self, path: &[u8]) -> Result<()> {
        let gone = self.stat(path)?;
        self.unname(path)?;
        self.drop_outside(&gone);
        Ok(())
    }

    /// Removes a name of a file.
    ///
    /// # Errors
    /// `ENOENT`, and what the file system says.
    pub(crate) fn unname(&mut self, path: &[u8]) -> Result<()> {
        let before = self.entry(path)?;
        self.begin()?;
        self.make_readable(&before)?;
        let gone = self.put(path, None)?;
        self.hand_over(&[(gone, Some(before))])?;
        self.lose(path);
        Ok(())
    }

    /// Who has open what was at a path keeps it without a name.
    pub(crate) fn lose(&mut self, path: &[u8]) {
        self.known.remove(path);
        if let Some(open) = self.paths.remove(path).and_then(|number| self.open.get_mut(&number)) {
            open.draft.path = None;
        }
    }

    /// Gives a file another name, in place of what has that name here.
    ///
    /// # Errors
    /// `ENOENT`, and what the file system says.
    pub fn rename(&mut self, from: &[u8], to: &[u8]) -> Result<()> {
        check_path(to)?;
        self.entry(from)?;
        self.begin()?;
        if let Some(number) = self.paths.get(from).copied() {
            self.publish(number)?;
        }
        let before = self.entry(from)?;
        if from == to {
            return Ok(());
        }
        let (moves, gone) = (self.stat(from)?, self.stat(to).ok());
        let replaced = self.entry(to).ok();
        if let Some(replaced) = &replaced {
            self.make_readable(replaced)?;
        }
        let node = self.node_of(&before)?;
        let came = self.put(to, Some(node))?;
        let went = match self.put(from, None) {
            Ok(went) => went,
            Err(fault) => {
                self.undo(&[(came, replaced)]);
                return Err(fault);
            }
        };
        self.hand_over(&[(went, Some(before)), (came, replaced)])?;
        self.lose(to);
        self.follow(from, to);
        // Of a directory that was renamed both may be names of one file.
        gone.filter(|gone| gone.number != moves.number).iter().for_each(|gone| self.drop_outside(gone));
        Ok(())
    }

    /// Who has open what was at a path goes on with it at another one.
    pub(crate) fn follow(&mut self, from: &[u8], to: &[u8]) {
        self.known.remove(from);
        let Some(number) = self.paths.remove(from) else { return };
        self.paths.insert(to.to_vec(), number);
        if let Some(open) = self.open.get_mut(&number) {
            open.draft.path = Some(to.to_vec());
        }
    }

    /// The next reads come from the file system.
    ///
    /// # Errors
    /// What it says.
    pub fn forget_pages(&mut self) -> Result<()> {
        self.write_pending()?;
        for number in Listing::of(&*self.fs)?.numbers {
            self.fs.open(&subfile::name(number), Access::Read)?.forget_pages()?;
        }
        Ok(())
    }

    /// All that programs have changed is safe. What the packer changes from now on loses nothing of that when it is lost: it is not noted.
    ///
    /// # Errors
    /// What the file system and the device say.
    pub fn end_journal(&mut self) -> Result<()> {
        let open: Vec<_> = self.open.keys().copied().collect();
        open.into_iter().try_for_each(|number| self.publish(number))?;
        self.sync()?;
        self.journal.take().map_or(Ok(()), |mut journal| journal.clear())?;
        self.not_back.take().map_or(Ok(()), Err)
    }

    /// Ends: all is safe, and the index is written.
    ///
    /// # Errors
    /// What the file system says; of the index, too, without which all is there and opening takes longer.
    pub fn finish(mut self) -> Result<()> {
        self.sync()?;
        self.drop_nameless();
        self.remove_gone(self.safe);
        if self.writer.is_some() {
            return self.end_writing();
        }
        // A life that was cut off has left it without. All is there, too, where there is no room for one. Who writes it has a lane:
        // nobody makes the container smaller meanwhile.
        if self.was_cut_off
            && !self.container.is_indexed()
            && let Err(fault) = self.begin().and_then(|()| self.end_writing())
        {
            log::warn!("a container of packed files has no index, and takes longer to open: {fault}");
        }
        Ok(())
    }

    fn end_writing(&mut self) -> Result<()> {
        let Some(writer) = self.writer.take() else { return Ok(()) };
        self.container.end_writer(writer)?;
        self.container.write_index()
    }

    /// What an entry tells, with its content as pieces that another entry can name.
    pub(crate) fn node_of(&mut self, entry: &IndexEntry) -> Result<Node> {
        self.make_readable(entry)?;
        self.node_in(entry)
    }

    /// What takes back a change of it must be able to read it.
    fn make_readable(&mut self, entry: &IndexEntry) -> Result<()> {
        self.writer.as_mut().map_or(Ok(()), |writer| writer.hand_over(entry.lane, entry.address))
    }

    pub(crate) fn node_in(&self, entry: &IndexEntry) -> Result<Node> {
        let mut node = self.container.node(entry)?;
        if node.content == Content::Here {
            node.content = Content::Extents(entry.own_extent(node.size).into_iter().collect());
        }
        Ok(node)
    }
}
