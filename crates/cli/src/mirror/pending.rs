//! What a mirror lacks: changed paths, and directories to compare.
//!
//! Changes of a path are combined. A path that the sender has taken stays here until the mirror has it durably, so a broken connection
//! loses nothing. An agent's change counts as acknowledged when all paths that it concerns are on the mirror.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;
use tameike_core::changes::{Change, Changes, Content};
use tameike_core::{Fault, InodeId};
use tameike_io::shared::self_and_ancestors;

/// Renames that are remembered, to find the path of a file that was renamed while it was written.
const MOVES_MAX: usize = 32 << 10;
/// Time after which a path is tried again that the mirror could not take.
const RETRY_TIME: Duration = Duration::from_secs(2);

/// A change of an agent: its node, and the number.
type Numbered = (u32, u64);

/// A changed path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// What has changed of the content, by the file that had the path.
    pub content: Vec<(InodeId, Content)>,
    /// Another file may have the path than before: its content is unknown, and a directory must be compared.
    pub is_replaced: bool,
    /// The path is another name of a file that has changed.
    pub is_other_name: bool,
    /// Time of the first change.
    pub since: Duration,
    of: Vec<Numbered>,
    /// How often the mirror could not take it.
    pub attempts: u32,
}

impl Entry {
    fn merge(&mut self, other: Self) {
        for (inode, content) in other.content {
            match self.content.iter_mut().find(|(known, _)| *known == inode) {
                Some((_, known)) => known.merge(content),
                None => self.content.push((inode, content)),
            }
        }
        self.is_replaced |= other.is_replaced;
        self.is_other_name &= other.is_other_name;
        self.since = self.since.min(other.since);
        self.of.extend(other.of);
        self.attempts = self.attempts.max(other.attempts);
    }
}

/// A directory that is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Walk {
    /// Its path.
    pub path: Vec<u8>,
    /// The mirror got it by a rename: names that the source lacks are removed.
    pub is_renamed: bool,
    since: Duration,
    of: Vec<Numbered>,
}

/// Paths that the sender has taken together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Its number.
    pub number: u64,
    /// Renames, in order.
    pub renames: Vec<(Vec<u8>, Vec<u8>)>,
    /// The paths, sorted.
    pub paths: Vec<(Vec<u8>, Entry)>,
}

/// See the module.
#[derive(Default)]
pub struct Pending {
    paths: BTreeMap<Vec<u8>, Entry>,
    renames: Vec<(Vec<u8>, Vec<u8>)>,
    walks: Vec<Walk>,
    taken: VecDeque<Batch>,
    last_batch: u64,
    /// The last path that was taken, so that changes of early paths do not delay others.
    cursor: Vec<u8>,
    failed: BTreeMap<Vec<u8>, (Entry, Fault, Duration)>,
    nodes: BTreeMap<u32, Outstanding>,
    moves: [HashMap<Vec<u8>, Vec<u8>>; 2],
}

/// The changes of one agent.
#[derive(Default)]
struct Outstanding {
    received: u64,
    /// Number of entries and directories that each change concerns.
    counts: BTreeMap<u64, u32>,
}

impl Pending {
    /// Takes changes of an agent.
    pub fn deliver(&mut self, node: u32, changes: Changes, now: Duration) {
        for numbered in changes.changes {
            let since = now.saturating_sub(Duration::from_millis(numbered.age_ms));
            let of = vec![(node, numbered.number)];
            let outstanding = self.nodes.entry(node).or_default();
            outstanding.received = outstanding.received.max(numbered.number);
            match numbered.change {
                Change::Everything => self.add_walk(Vec::new(), false, since, of),
                Change::Path { path, inode, content } => {
                    let content = inode.map(|inode| (inode, content)).into_iter().collect();
                    self.add(path, Entry { content, since, of, ..Entry::default() });
                }
                Change::Renamed { from, to } => {
                    let entry = Entry { is_replaced: true, since, of, ..Entry::default() };
                    self.add(from.clone(), entry.clone());
                    self.add(to.clone(), entry);
                    self.note_move(from.clone(), to.clone());
                    self.renames.push((from, to));
                }
            }
        }
    }

    /// Any path may have changed: compares the whole trees.
    pub fn add_everything(&mut self, now: Duration) {
        self.add_walk(Vec::new(), false, now, Vec::new());
    }

    /// The changes of an agent that has failed will not be acknowledged.
    pub fn forget_node(&mut self, node: u32) {
        self.nodes.remove(&node);
    }

    /// Adds a changed path.
    pub fn add(&mut self, path: Vec<u8>, entry: Entry) {
        self.count(&entry.of);
        if let Some((failed, ..)) = self.failed.remove(&path) {
            self.merge(path.clone(), failed);
        }
        self.merge(path, entry);
    }

    fn merge(&mut self, path: Vec<u8>, entry: Entry) {
        match self.paths.get_mut(&path) {
            Some(known) => known.merge(entry),
            None => drop(self.paths.insert(path, entry)),
        }
    }

    /// Sends a path again, as the mirror's file differs.
    pub fn send_again(&mut self, path: Vec<u8>, now: Duration) {
        self.add(path, Entry { is_replaced: true, since: now, ..Entry::default() });
    }

    /// Adds a path that another entry concerns as well.
    pub fn add_beside(
        &mut self,
        path: Vec<u8>,
        content: Vec<(InodeId, Content)>,
        of: &Entry,
        is_other_name: bool,
    ) {
        let (since, of) = (of.since, of.of.clone());
        self.add(path, Entry { content, is_other_name, since, of, ..Entry::default() });
    }

    /// Compares a directory with everything below.
    pub fn walk_beside(&mut self, path: Vec<u8>, of: &Entry) {
        self.add_walk(path, true, of.since, of.of.clone());
    }

    fn add_walk(&mut self, path: Vec<u8>, is_renamed: bool, since: Duration, of: Vec<Numbered>) {
        self.count(&of);
        self.walks.push(Walk { path, is_renamed, since, of });
    }

    fn count(&mut self, of: &[Numbered]) {
        for (node, number) in of {
            if let Some(outstanding) = self.nodes.get_mut(node) {
                *outstanding.counts.entry(*number).or_default() += 1;
            }
        }
    }

    fn release(&mut self, of: &[Numbered]) {
        for (node, number) in of {
            let Some(outstanding) = self.nodes.get_mut(node) else { continue };
            if let Some(count) = outstanding.counts.get_mut(number) {
                *count -= 1;
                if *count == 0 {
                    outstanding.counts.remove(number);
                }
            }
        }
    }

    /// The number up to which the mirror has all changes of an agent.
    pub fn acknowledged(&self, node: u32) -> u64 {
        let Some(outstanding) = self.nodes.get(&node) else { return 0 };
        outstanding.counts.keys().next().map_or(outstanding.received, |first| first - 1)
    }

    /// Takes up to `count` paths.
    pub fn take(&mut self, count: usize, now: Duration) -> Batch {
        let due: Vec<_> =
            self.failed.iter().filter(|(_, (.., at))| *at <= now).map(|(path, _)| path.clone()).collect();
        for path in due {
            if let Some((entry, ..)) = self.failed.remove(&path) {
                self.merge(path, entry);
            }
        }
        let mut paths = self.paths.split_off(&self.cursor);
        if paths.is_empty() {
            std::mem::swap(&mut paths, &mut self.paths);
        }
        let mut taken = Vec::new();
        while taken.len() < count
            && let Some(first) = paths.pop_first()
        {
            taken.push(first);
        }
        self.cursor = paths.first_key_value().map(|(path, _)| path.clone()).unwrap_or_default();
        self.paths.append(&mut paths);
        self.last_batch += 1;
        let renames = std::mem::take(&mut self.renames);
        let batch = Batch { number: self.last_batch, renames, paths: taken };
        if !batch.paths.is_empty() {
            self.taken.push_back(batch.clone());
        }
        batch
    }

    /// Returns the last paths of the last batch, beyond the first `count`, as the batch became too large.
    pub fn put_back(&mut self, number: u64, count: usize) {
        let Some(batch) = self.taken.back_mut().filter(|batch| batch.number == number) else { return };
        let rest = batch.paths.split_off(count.min(batch.paths.len()));
        if let Some((first, _)) = rest.first() {
            self.cursor.clone_from(first);
        }
        rest.into_iter().for_each(|(path, entry)| self.merge(path, entry));
    }

    /// The mirror has the paths of a batch, except those with a fault.
    pub fn complete(&mut self, number: u64, faults: Vec<(Vec<u8>, Fault)>, now: Duration) {
        let Some(at) = self.taken.iter().position(|batch| batch.number == number) else { return };
        let mut faults: BTreeMap<_, _> = faults.into_iter().collect();
        let batch = self.taken.remove(at).unwrap_or_default();
        for (path, mut entry) in batch.paths {
            match faults.remove(&path) {
                Some(fault) => {
                    entry.attempts = entry.attempts.saturating_add(1);
                    self.fail(path, entry, fault, now);
                }
                None => self.release(&entry.of),
            }
        }
        // Of directories that were needed or touched.
        for (path, fault) in faults {
            self.fail(path, Entry { since: now, attempts: 1, ..Entry::default() }, fault, now);
        }
    }

    /// A directory cannot be compared.
    pub fn refuse_walk(&mut self, walk: &Walk, fault: Fault, now: Duration) {
        self.end_walk(walk, Vec::new(), Vec::new());
        let entry = Entry { since: now, attempts: u32::MAX, ..Entry::default() };
        self.fail(walk.path.clone(), entry, fault, now);
    }

    fn fail(&mut self, path: Vec<u8>, mut entry: Entry, fault: Fault, now: Duration) {
        // What the mirror has of it is unknown.
        entry.is_replaced = true;
        if self.paths.contains_key(&path) {
            return self.merge(path, entry);
        }
        if let Some((known, ..)) = self.failed.remove(&path) {
            entry.merge(known);
        }
        self.failed.insert(path, (entry, fault, now + RETRY_TIME));
    }

    /// Makes the changes pending again that were taken for a connection which has broken.
    pub fn restore(&mut self) {
        let mut renames = Vec::new();
        for batch in std::mem::take(&mut self.taken) {
            renames.extend(batch.renames);
            batch.paths.into_iter().for_each(|(path, entry)| self.merge(path, entry));
        }
        renames.append(&mut self.renames);
        self.renames = renames;
    }

    /// The directory to compare next; it stays until [`Self::end_walk`].
    pub fn walk(&self) -> Option<&Walk> {
        self.walks.last()
    }

    /// The directory that [`Self::walk`] has returned is compared: these paths below it differ, and these directories are to be compared.
    pub fn end_walk(&mut self, walk: &Walk, differing: Vec<Vec<u8>>, dirs: Vec<Vec<u8>>) {
        let Some(at) = self.walks.iter().rposition(|other| other == walk) else { return };
        self.walks.remove(at);
        for path in differing {
            self.add(path, Entry { since: walk.since, of: walk.of.clone(), ..Entry::default() });
        }
        for path in dirs {
            self.add_walk(path, walk.is_renamed, walk.since, walk.of.clone());
        }
        self.release(&walk.of);
    }

    fn note_move(&mut self, from: Vec<u8>, to: Vec<u8>) {
        if self.moves[0].len() >= MOVES_MAX {
            self.moves.swap(0, 1);
            self.moves[0].clear();
        }
        self.moves[0].insert(from, to);
    }

    /// The path that a file has got which had this one, if it or a directory above was renamed.
    pub fn moved_to(&self, path: &[u8]) -> Option<Vec<u8>> {
        self_and_ancestors(path).find_map(|dir| {
            let to = self.moves.iter().find_map(|moves| moves.get(dir))?;
            Some([to, &path[dir.len()..]].concat())
        })
    }

    /// Number of paths that the mirror lacks.
    pub fn count_paths(&self) -> usize {
        let taken: usize = self.taken.iter().map(|batch| batch.paths.len()).sum();
        self.paths.len() + self.failed.len() + taken
    }

    /// Number of paths that wait for the sender.
    pub fn count_waiting(&self) -> usize {
        self.paths.len()
    }

    /// Whether paths can be taken now.
    pub fn has_paths(&self, now: Duration) -> bool {
        !self.paths.is_empty() || self.failed.values().any(|(.., at)| *at <= now)
    }

    /// Whether directories are being compared.
    pub fn is_comparing(&self) -> bool {
        !self.walks.is_empty()
    }

    /// Whether the mirror has everything.
    pub fn is_empty(&self) -> bool {
        self.count_paths() == 0 && self.walks.is_empty()
    }

    /// Time of the oldest change that the mirror lacks.
    pub fn oldest(&self) -> Option<Duration> {
        let taken = self.taken.iter().flat_map(|batch| &batch.paths).map(|(_, entry)| entry.since);
        let failed = self.failed.values().map(|(entry, ..)| entry.since);
        let walks = self.walks.iter().map(|walk| walk.since);
        self.paths.values().map(|entry| entry.since).chain(taken).chain(failed).chain(walks).min()
    }

    /// The paths that the mirror could not take, with the number of attempts and the fault of the last one.
    pub fn failed(&self) -> impl Iterator<Item = (&[u8], u32, &Fault)> {
        self.failed.iter().map(|(path, (entry, fault, _))| (path.as_slice(), entry.attempts, fault))
    }

    /// The paths that the mirror lacks.
    pub fn lacking(&self) -> BTreeSet<&[u8]> {
        let taken = self.taken.iter().flat_map(|batch| &batch.paths).map(|(path, _)| path.as_slice());
        let others = self.paths.keys().chain(self.failed.keys()).map(Vec::as_slice);
        others.chain(taken).collect()
    }
}

#[cfg(test)]
mod tests;
