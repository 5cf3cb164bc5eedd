//! Paths of files in directories that nodes rename.
//!
//! A node reports the rename of a directory before it happens, and its end. Until the end, files below may be at their old paths or at the new
//! ones, also if a directory above or below is renamed at the same time. A report on a file may name an old path until later: its node or its program
//! may have been stopped since it found the file. Paths are hints, as the inode number decides. But a record keeps few of them, so paths at which the
//! file cannot be must not displace others:
//!
//! - A path that a node reports comes first, then those to which unfinished renames move it, then a few of finished ones.
//! - A renamed directory adds the new path of a file before its old one. The end of the rename drops the old one, or after a failure prefers it.
//! - A rename that had ended when another one was reported is not applied after that one.

use super::record::{PATHS_MAX, Record};
use parking_lot::Mutex;
use serde_bytes::ByteBuf;
use std::collections::VecDeque;
use std::time::Duration;

/// Time for which a report may have a path from before a rename: a program or its node may be stopped for a while.
const REPORTS_TIME: Duration = Duration::from_secs(60);
/// Renames that are kept at most.
const RENAMES_MAX: usize = 256;
/// Further paths of a reported file, at most: half of those of a record.
const OTHERS_MAX: usize = PATHS_MAX / 2;
/// Those of them that follow from renames that had ended before the report.
const ENDED_MAX: usize = 3;
/// Paths that one search considers.
const STEPS_MAX: usize = 128;

/// A rename, and its place in the order of reports.
#[derive(Clone, Copy)]
pub(super) struct Reported<'a> {
    pub(super) from: &'a [u8],
    pub(super) to: &'a [u8],
    number: u64,
}

struct Rename {
    time: Duration,
    number: u64,
    /// The number of the report of its end.
    ended: Option<u64>,
    from: Vec<u8>,
    to: Vec<u8>,
}

impl Rename {
    /// Whether it had ended when the report with this number came.
    fn is_before(&self, number: u64) -> bool {
        self.ended.is_some_and(|ended| ended < number)
    }
}

/// The new path of a file below a renamed directory; `None` for others.
fn moved(path: &[u8], from: &[u8], to: &[u8]) -> Option<Vec<u8>> {
    let rest = path.strip_prefix(from).filter(|rest| rest.starts_with(b"/"))?;
    Some([to, rest].concat())
}

/// A path at which a file may be.
struct Step {
    path: Vec<u8>,
    /// The number of the last rename that leads to it.
    since: u64,
    /// Whether a rename that has ended has moved it on.
    is_left: bool,
}

#[derive(Default)]
struct Order {
    renames: VecDeque<Rename>,
    reports: u64,
}

impl Order {
    /// The paths that follow from one by those renames that are `meant`, the path itself first.
    fn follow(&self, path: Vec<u8>, since: u64, meant: impl Fn(&Rename) -> bool) -> Vec<Step> {
        let mut steps = vec![Step { path, since, is_left: false }];
        let mut place = 0;
        while place < steps.len() && steps.len() < STEPS_MAX {
            let since = steps[place].since;
            let next = |rename: &&Rename| meant(rename) && !rename.is_before(since);
            for rename in self.renames.iter().rev().filter(next) {
                let Some(path) = moved(&steps[place].path, &rename.from, &rename.to) else { continue };
                steps[place].is_left |= rename.ended.is_some() && rename.number > since;
                let since = since.max(rename.number);
                if !steps.iter().any(|step| step.path == path && step.since <= since) {
                    steps.push(Step { path, since, is_left: false });
                }
            }
            place += 1;
        }
        steps
    }

    /// The other paths of a file that a node reports at this one.
    fn others(&self, path: &[u8], now: Duration) -> Vec<Vec<u8>> {
        let is_recent = |rename: &Rename| rename.time + REPORTS_TIME > now;
        let mut found: Vec<Vec<u8>> = Vec::new();
        let add = |found: &mut Vec<Vec<u8>>, steps: Vec<Step>, most: usize| {
            for step in steps.into_iter().filter(|step| !step.is_left && step.path != path) {
                if found.len() < most && !found.contains(&step.path) {
                    found.push(step.path);
                }
            }
        };
        let pending = |rename: &Rename| is_recent(rename) && rename.ended.is_none();
        add(&mut found, self.follow(path.to_vec(), 0, pending), OTHERS_MAX);
        let most = OTHERS_MAX.min(found.len() + ENDED_MAX);
        add(&mut found, self.follow(path.to_vec(), 0, is_recent), most);
        found
    }
}

/// The last renames of directories, in the order of their reports.
#[derive(Default)]
pub(super) struct Renames(Mutex<Order>);

impl Renames {
    /// Notes a rename that a node is about to make.
    pub(super) fn note<'a>(&self, from: &'a [u8], to: &'a [u8], now: Duration) -> Reported<'a> {
        let mut order = self.0.lock();
        order.reports += 1;
        let number = order.reports;
        let renames = &mut order.renames;
        renames
            .retain(|rename| rename.time + REPORTS_TIME > now && (&*rename.from, &*rename.to) != (from, to));
        if renames.len() >= RENAMES_MAX {
            renames.pop_front();
        }
        renames.push_back(Rename { time: now, number, ended: None, from: from.to_vec(), to: to.to_vec() });
        Reported { from, to, number }
    }

    /// Notes the end of a rename. One that has failed is forgotten.
    pub(super) fn end(&self, from: &[u8], to: &[u8], is_renamed: bool, now: Duration) {
        let mut order = self.0.lock();
        order.reports += 1;
        let number = order.reports;
        let is_it = |rename: &Rename| (&*rename.from, &*rename.to) == (from, to);
        if !is_renamed {
            order.renames.retain(|rename| !is_it(rename));
        } else if let Some(rename) = order.renames.iter_mut().find(|rename| is_it(rename)) {
            (rename.ended, rename.time) = (Some(number), now);
        }
    }

    /// How many renames and ends were noted: if the number is the same after a change of paths, the change has considered all of them.
    pub(super) fn reports(&self) -> u64 {
        self.0.lock().reports
    }

    /// Puts the path at which a node reports a file before the others, with those to which renames may have moved it.
    pub(super) fn add_seen(&self, record: &mut Record, path: &[u8], now: Duration) {
        record.prefer_path(path);
        let mut others = self.0.lock().others(path, now);
        others.retain(|other| !record.paths.iter().any(|known| known.as_slice() == other));
        record.paths.splice(1..1, others.into_iter().map(ByteBuf::from));
        record.paths.truncate(PATHS_MAX);
    }

    /// Adds the new paths of a file for a rename that a node is about to make, each before the old one.
    pub(super) fn add_moved(&self, record: &mut Record, rename: Reported<'_>) {
        let order = self.0.lock();
        let mut paths: Vec<ByteBuf> = Vec::new();
        for path in &record.paths {
            let new = moved(path, rename.from, rename.to);
            let meanwhile = |other: &Rename| !other.is_before(rename.number);
            let steps = new.map(|new| order.follow(new, rename.number, meanwhile)).unwrap_or_default();
            // Where others move it on from there. A path that is known keeps its place: the file may have been there before.
            let further = steps.iter().skip(1).rev().map(|step| &step.path);
            let further = further.filter(|path| !record.paths.iter().any(|known| known == *path));
            let added = further.chain(steps.first().map(|step| &step.path)).cloned().map(ByteBuf::from);
            let added = added.chain([path.clone()]);
            for path in added {
                if !paths.contains(&path) {
                    paths.push(path);
                }
            }
        }
        paths.truncate(PATHS_MAX);
        record.paths = paths;
    }
}

/// Changes the paths of a file after the rename of its directory, or its own, has ended: drops old paths whose new one is preferred, or
/// after a failure puts new ones that are preferred to their old one behind the others.
pub(super) fn end_rename(record: &mut Record, from: &[u8], to: &[u8], is_renamed: bool) {
    let known = std::mem::take(&mut record.paths);
    let place = |path: &[u8]| known.iter().position(|known| known.as_slice() == path);
    let is_before = |first: &[u8], second: &[u8]| {
        place(first).zip(place(second)).is_some_and(|(first, second)| first < second)
    };
    let (old, new) = if is_renamed { (from, to) } else { (to, from) };
    let is_left = |path: &&ByteBuf| {
        let other = if path.as_slice() == old { Some(new.to_vec()) } else { moved(path, old, new) };
        other.is_some_and(|other| if is_renamed { is_before(&other, path) } else { is_before(path, &other) })
    };
    let (left, kept): (Vec<_>, Vec<_>) = known.iter().partition(is_left);
    record.paths = kept.into_iter().chain(left.into_iter().filter(|_| !is_renamed)).cloned().collect();
}

#[cfg(test)]
mod tests;
