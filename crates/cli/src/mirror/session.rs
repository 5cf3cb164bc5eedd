//! One connection to the mirror: brings changed paths there, batch by batch, and compares directories.
//!
//! A path gets the state that the source has when it is sent, whatever has changed it. So the mirror has nothing that the source did not
//! have before, and a change during the transfer is recorded and sent again. A batch ends with a commit; several commits are in flight.

use super::connection::{Answer, Connection, Greeting};
use super::known::{Known, remove_below};
use super::pending::{Batch, Entry, Pending};
use super::protocol::{Attributes, Order, Reply, is_excluded_path};
use super::source::attributes_of;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use tameike_core::changes::Content;
use tameike_core::{Errno, Fault, FaultKind, FileKind, InodeId, Result};
use tameike_io::os::process::monotonic;
use tameike_io::shared::{FileStat, SharedFs, retry_revalidated, split};

/// Paths in a batch.
const PATHS_MAX: usize = 512;
/// Bytes after which a batch ends.
const BYTES_MAX: u64 = 32 << 20;
/// Commits in flight.
pub const COMMITS_MAX: usize = 4;
/// Time for which a reply is waited for at a time.
const ANSWER_STEP: Duration = Duration::from_millis(500);

/// A batch whose commit is in flight.
struct InFlight {
    number: u64,
    /// Files that the mirror has completely when it is committed.
    learned: Vec<(Vec<u8>, InodeId)>,
    /// Paths that could not be read.
    faults: Vec<(Vec<u8>, Fault)>,
}

/// See the module.
pub struct Session<'a> {
    pub source: &'a dyn SharedFs,
    pub pending: &'a Mutex<Pending>,
    pub known: &'a mut Known,
    pub connection: Connection,
    /// Names that the source lacks can be removed in comparisons.
    pub is_mirror: bool,
    pub(super) staged: BTreeSet<Vec<u8>>,
    /// Directories that the mirror has.
    dirs: BTreeMap<Vec<u8>, ()>,
    /// Directories whose times the current batch changes.
    touched: BTreeSet<Vec<u8>>,
    in_flight: VecDeque<InFlight>,
    /// Of the commit whose replies arrive.
    arrived_faults: Vec<(Vec<u8>, Fault)>,
    pub(super) learned: Vec<(Vec<u8>, InodeId)>,
    /// Bytes of files that were sent.
    pub bytes: u64,
    /// The mirror has made a batch durable.
    pub has_committed: bool,
}

impl<'a> Session<'a> {
    pub fn new(
        source: &'a dyn SharedFs,
        pending: &'a Mutex<Pending>,
        known: &'a mut Known,
        (connection, greeting): (Connection, Greeting),
    ) -> Self {
        let (dirs, touched, in_flight, arrived_faults, learned) = Default::default();
        Self {
            source,
            pending,
            known,
            connection,
            is_mirror: greeting.is_mirror,
            staged: greeting.staged.into_iter().collect(),
            dirs,
            touched,
            in_flight,
            arrived_faults,
            learned,
            bytes: 0,
            has_committed: false,
        }
    }

    /// Number of commits in flight.
    pub fn commits(&self) -> usize {
        self.in_flight.len()
    }

    /// Takes replies that have arrived, or waits for one.
    pub fn take_commits(&mut self, limit: Duration) -> Result<()> {
        let mut limit = limit;
        while self.next_answer(limit)?.is_some() {
            limit = Duration::ZERO;
        }
        Ok(())
    }

    /// Returns the next reply to a question; handles those to commits. `None` if there is none in time, or after a commit.
    fn next_answer(&mut self, limit: Duration) -> Result<Option<Answer>> {
        match self.connection.answer(limit)? {
            Some((Reply::Faults { faults }, _)) => self.arrived_faults.extend(faults),
            Some((Reply::Committed { number }, _)) => self.take_commit(number)?,
            other => return Ok(other),
        }
        Ok(None)
    }

    fn take_commit(&mut self, number: u64) -> Result<()> {
        let commit = self.in_flight.pop_front().filter(|commit| commit.number == number);
        let commit = commit.ok_or_else(|| Fault::new(Errno::EPROTO, "a commit was answered out of order"))?;
        let mut faults = std::mem::take(&mut self.arrived_faults);
        faults.extend(commit.faults);
        for (path, inode) in commit.learned {
            if !faults.iter().any(|(failed, _)| *failed == path) {
                self.known.learn(path, inode);
            }
        }
        for (path, _) in &faults {
            self.known.forget(path);
            remove_below(&mut self.dirs, path);
        }
        self.pending.lock().complete(number, faults, monotonic());
        self.has_committed = true;
        Ok(())
    }

    /// Sends an order and waits for its reply.
    pub fn ask(&mut self, order: &Order) -> Result<Answer> {
        self.connection.send(order, &[])?;
        self.connection.flush()?;
        self.await_answer()
    }

    /// Waits for the reply to an order that was sent.
    pub fn await_answer(&mut self) -> Result<Answer> {
        loop {
            if let Some(answer) = self.next_answer(ANSWER_STEP)? {
                return Ok(answer);
            }
            self.connection.keep_alive()?;
        }
    }

    /// Sends a batch of changed paths.
    ///
    /// # Errors
    /// The connection is broken. A path that cannot be read keeps its fault until the commit.
    pub fn send_batch(&mut self) -> Result<()> {
        let Batch { number, renames, paths } = self.pending.lock().take(PATHS_MAX, monotonic());
        let (begin, mut faults) = (self.bytes, Vec::new());
        for (from, to) in renames {
            self.rename(&from, &to)?;
        }
        for (at, (path, entry)) in paths.iter().enumerate() {
            if self.bytes - begin > BYTES_MAX {
                self.pending.lock().put_back(number, at);
                break;
            }
            self.send_readable(path, entry, &mut faults)?;
        }
        // A directory comes before those above it, whose times its creation changes.
        while let Some(dir) = self.touched.pop_last() {
            let sent = self.send_times(&dir);
            self.keep_fault(&dir, sent, &mut faults)?;
        }
        if paths.is_empty() {
            return Ok(());
        }
        self.connection.send(&Order::Commit { number }, &[])?;
        self.connection.flush()?;
        let learned = std::mem::take(&mut self.learned);
        self.in_flight.push_back(InFlight { number, learned, faults });
        Ok(())
    }

    fn send_readable(
        &mut self,
        path: &[u8],
        entry: &Entry,
        faults: &mut Vec<(Vec<u8>, Fault)>,
    ) -> Result<()> {
        let sent = match self.send_path(path, entry) {
            // It was removed or replaced meanwhile, which is recorded.
            Err(fault) if fault.kind() == FaultKind::Missing && !self.connection.is_broken() => {
                match self.source.stat(path) {
                    Ok(_) => Err(fault),
                    Err(_) => self.remove(path),
                }
            }
            sent => sent,
        };
        self.keep_fault(path, sent, faults)
    }

    /// Keeps the fault of a path; one of the connection is returned.
    fn keep_fault(&self, path: &[u8], sent: Result<()>, faults: &mut Vec<(Vec<u8>, Fault)>) -> Result<()> {
        match sent {
            Err(fault) if self.connection.is_broken() => Err(fault),
            Err(fault) => {
                faults.push((path.to_vec(), fault));
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Sends the current state of a path.
    fn send_path(&mut self, path: &[u8], entry: &Entry) -> Result<()> {
        if is_excluded_path(path) {
            return Ok(());
        }
        // Another node has changed it: this one may have old attributes, or know that the name is missing.
        self.source.revalidate(path);
        let stat = match retry_revalidated(self.source, path, || self.source.stat(path)) {
            Err(fault) if fault.kind() == FaultKind::Missing => None,
            stat => Some(stat?),
        };
        self.follow_moved(path, entry, stat.as_ref());
        let Some(stat) = stat else { return self.remove(path) };
        self.ensure_parents(path)?;
        if stat.kind != FileKind::File {
            return self.send_special(path, &stat, entry);
        }
        let inode = stat.inode_id();
        let of_file = entry.content.iter().find(|(of, _)| *of == inode).map(|(_, content)| content.clone());
        let content = of_file.unwrap_or_default();
        if stat.nlink > 1 {
            self.follow_other_names(path, inode, &content, entry);
        }
        let is_known = !entry.is_replaced && self.known.is_known(path, inode);
        self.send_file(path, &stat, if is_known { content } else { Content::Whole }, is_known)
    }

    /// Content that has changed of a file that has another path now.
    fn follow_moved(&mut self, path: &[u8], entry: &Entry, stat: Option<&FileStat>) {
        if entry.is_other_name {
            return;
        }
        let here = stat.map(FileStat::inode_id);
        let moved = entry
            .content
            .iter()
            .filter(|(inode, content)| Some(*inode) != here && *content != Content::Unchanged);
        for (inode, content) in moved {
            let mut pending = self.pending.lock();
            let Some(to) = pending.moved_to(path).filter(|to| to != path) else { continue };
            if self.source.stat(&to).is_ok_and(|stat| stat.inode_id() == *inode) {
                pending.add_beside(to, vec![(*inode, content.clone())], entry, false);
            }
        }
    }

    fn follow_other_names(&mut self, path: &[u8], inode: InodeId, content: &Content, entry: &Entry) {
        let names = self.known.note_name(path, inode);
        if entry.is_other_name {
            return;
        }
        for name in names {
            if !self.source.stat(&name).is_ok_and(|stat| stat.inode_id() == inode) {
                self.known.forget_name(&name, inode);
                continue;
            }
            self.pending.lock().add_beside(name, vec![(inode, content.clone())], entry, true);
        }
    }

    fn send_special(&mut self, path: &[u8], stat: &FileStat, entry: &Entry) -> Result<()> {
        let attributes = attributes_of(self.source, path, stat)?;
        let target = if stat.kind == FileKind::Symlink { self.source.read_link(path)? } else { Vec::new() };
        let is_dir = stat.kind == FileKind::Directory;
        self.known.forget_file(path, is_dir);
        self.touch(path);
        self.connection.send(&Order::Make { path: path.to_vec(), attributes, target }, &[])?;
        if is_dir {
            self.dirs.insert(path.to_vec(), ());
            // Making its files will change the time.
            self.touched.insert(path.to_vec());
            if entry.is_replaced {
                self.pending.lock().walk_beside(path.to_vec(), entry);
            }
        }
        Ok(())
    }

    /// Notes that the name of a path at the mirror may change.
    pub(super) fn touch(&mut self, path: &[u8]) {
        if let Some((dir, _)) = split(path) {
            self.touched.insert(dir.to_vec());
        }
    }

    fn remove(&mut self, path: &[u8]) -> Result<()> {
        if path.is_empty() {
            return Err(Fault::new(Errno::ENOENT, "the directory that is mirrored is missing"));
        }
        self.known.forget(path);
        remove_below(&mut self.dirs, path);
        self.touch(path);
        self.connection.send(&Order::Remove { path: path.to_vec() }, &[])
    }

    /// Renames a directory or a large file at the mirror, which saves its transfer.
    fn rename(&mut self, from: &[u8], to: &[u8]) -> Result<()> {
        if is_excluded_path(from) || is_excluded_path(to) || self.source.stat(from).is_ok() {
            return Ok(());
        }
        let is_worthwhile = |stat: FileStat| {
            stat.kind == FileKind::Directory || stat.size > super::protocol::BLOCK_SIZE as u64
        };
        if !self.source.stat(to).is_ok_and(is_worthwhile) || self.ensure_parents(to).is_err() {
            return if self.connection.is_broken() { self.connection.flush() } else { Ok(()) };
        }
        for path in [from, to] {
            self.known.forget(path);
            remove_below(&mut self.dirs, path);
            self.touch(path);
        }
        self.connection.send(&Order::Rename { from: from.to_vec(), to: to.to_vec() }, &[])
    }

    /// Makes the directories above a path that the mirror may lack.
    fn ensure_parents(&mut self, path: &[u8]) -> Result<()> {
        let Some((dir, _)) = split(path) else { return Ok(()) };
        if dir.is_empty() || self.dirs.contains_key(dir) {
            return Ok(());
        }
        self.ensure_parents(dir)?;
        let stat = self.source.stat(dir)?;
        if stat.kind != FileKind::Directory {
            return Err(Errno::ENOTDIR.into());
        }
        let attributes = attributes_of(self.source, dir, &stat)?;
        self.touch(dir);
        self.touched.insert(dir.to_vec());
        self.dirs.insert(dir.to_vec(), ());
        self.connection.send(&Order::Make { path: dir.to_vec(), attributes, target: Vec::new() }, &[])
    }

    /// Sets the time of a directory again after changes in it.
    fn send_times(&mut self, dir: &[u8]) -> Result<()> {
        let attributes = match self.source.stat(dir).and_then(|stat| attributes_of(self.source, dir, &stat)) {
            // Its removal is recorded.
            Err(fault) if fault.kind() == FaultKind::Missing => return Ok(()),
            attributes => attributes?,
        };
        if attributes.kind != FileKind::Directory {
            return Ok(());
        }
        self.ensure_parents(dir)?;
        self.connection.send(&Order::Make { path: dir.to_vec(), attributes, target: Vec::new() }, &[])
    }

    /// Sends the order that ends a file.
    pub(super) fn send_end(&mut self, path: &[u8], attributes: Attributes, is_staged: bool) -> Result<()> {
        let path = path.to_vec();
        let order =
            if is_staged { Order::Publish { path, attributes } } else { Order::Finish { path, attributes } };
        self.connection.send(&order, &[])
    }
}
