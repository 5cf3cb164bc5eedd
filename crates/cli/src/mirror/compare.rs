//! Compares directories of source and mirror, and files by checksum.

use super::pending::Walk;
use super::protocol::{Attributes, Item, Order, Reply};
use super::session::Session;
use super::source::{checksum, list};
use std::collections::BTreeMap;
use std::time::Duration;
use tameike_core::receipt::{FileOutcome, FileReceipt};
use tameike_core::{Errno, Fault, FaultKind, FileKind, Result, Timestamp};
use tameike_io::os::process::monotonic;
use tameike_io::shared::{FileStat, join};

/// Checksums that the receiver computes ahead.
const CHECKSUMS_AT_ONCE: usize = 16;

/// What a comparison has found so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// Regular files of the source.
    pub files: u64,
    /// Files, directories and links that differed, and names that the source lacks.
    pub differing: u64,
    /// Names that the source lacks and that were not removed, as the mirror was not empty when it became one.
    pub surplus: u64,
}

/// Paths in a directory that was compared.
#[derive(Default)]
struct Found {
    differing: Vec<Vec<u8>>,
    /// Directories to compare next.
    dirs: Vec<Vec<u8>>,
    /// Regular files that look equal.
    equal: Vec<Vec<u8>>,
}

/// How a file of the source and one of the mirror differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Difference {
    None,
    /// Only the owner, which the user of the receiver may not be able to set.
    Owner,
    /// The attributes, but not those that change with the content.
    Attributes,
    Content,
}

fn difference(here: &Item, there: Option<&Item>) -> Difference {
    let Some(there) = there else { return Difference::Content };
    let content = |item: &Item| {
        let Attributes { kind, size, mtime, rdev, .. } = item.attributes;
        (kind, if kind == FileKind::Directory { Timestamp::default() } else { mtime }, size, rdev)
    };
    let owner = |item: &Item| (item.attributes.uid, item.attributes.gid);
    let others = |item: &Item| {
        // The system does not change the mode of a symbolic link.
        let mode = if item.attributes.kind == FileKind::Symlink { 0 } else { item.attributes.mode };
        (mode, item.attributes.mtime, item.xattrs_hash)
    };
    if content(here) != content(there) || here.target != there.target {
        Difference::Content
    } else if others(here) != others(there) {
        Difference::Attributes
    } else if owner(here) != owner(there) {
        Difference::Owner
    } else {
        Difference::None
    }
}

impl Session<'_> {
    /// Compares the next directory. With `checks_content`, files that look equal are compared by checksum.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn compare_next(&mut self, compared: &mut Compared, checks_content: bool) -> Result<()> {
        let Some(walk) = self.pending.lock().walk().cloned() else { return Ok(()) };
        self.source.revalidate(&walk.path);
        let here = match list(self.source, &walk.path) {
            // Its removal or replacement is recorded.
            Err(fault) if fault.kind() == FaultKind::Missing && !walk.path.is_empty() => Vec::new(),
            Err(fault) => {
                self.pending.lock().refuse_walk(&walk, fault, monotonic());
                return Ok(());
            }
            Ok(here) => here,
        };
        let there = self.list_mirror(&walk.path)?;
        let Found { mut differing, dirs, mut equal } = self.difference(&walk, here, there, compared);
        if walk.path.is_empty() {
            differing.push(Vec::new());
        }
        if checks_content {
            let receipts = self.verify(&equal, &mut || Ok(()))?;
            let bad = |(_, receipt): &(_, FileReceipt)| !receipt.is_complete();
            let (wrong, right): (Vec<_>, Vec<_>) = equal.into_iter().zip(receipts).partition(bad);
            compared.differing += wrong.len() as u64;
            wrong.iter().for_each(|(path, _)| self.known.forget(path));
            differing.extend(wrong.into_iter().map(|(path, _)| path));
            equal = right.into_iter().map(|(path, _)| path).collect();
        }
        for path in equal {
            if let Ok(stat) = self.source.stat(&path) {
                self.known.learn(path, stat.inode_id());
            }
        }
        self.pending.lock().end_walk(&walk, differing, dirs);
        Ok(())
    }

    /// Compares the files of a directory.
    fn difference(
        &mut self,
        walk: &Walk,
        here: Vec<(Item, FileStat)>,
        mut there: BTreeMap<Vec<u8>, Item>,
        compared: &mut Compared,
    ) -> Found {
        let Found { mut differing, mut dirs, mut equal } = Found::default();
        for (item, stat) in here {
            let path = join(&walk.path, &item.name);
            let other = there.remove(&item.name);
            let difference = difference(&item, other.as_ref());
            if stat.kind == FileKind::Directory {
                dirs.push(path.clone());
            } else if stat.kind == FileKind::File {
                compared.files += 1;
                if stat.nlink > 1 {
                    self.known.note_name(&path, stat.inode_id());
                }
                if difference == Difference::Content {
                    self.known.forget(&path);
                } else {
                    equal.push(path.clone());
                }
            }
            if matches!(difference, Difference::Attributes | Difference::Content) {
                compared.differing += 1;
            }
            if difference != Difference::None {
                differing.push(path);
            }
        }
        let surplus = there.into_keys().map(|name| join(&walk.path, &name));
        if self.is_mirror || walk.is_renamed {
            differing.extend(surplus.inspect(|_| compared.differing += 1));
        } else {
            compared.surplus += surplus.count() as u64;
        }
        Found { differing, dirs, equal }
    }

    fn list_mirror(&mut self, path: &[u8]) -> Result<BTreeMap<Vec<u8>, Item>> {
        let mut all = BTreeMap::new();
        let mut answer = self.ask(&Order::List { path: path.to_vec() })?.0;
        loop {
            let Reply::List { items, has_more } = answer else {
                return Err(Fault::new(Errno::EPROTO, "the receiver sent an unexpected reply"));
            };
            all.extend(items.into_iter().map(|item| (item.name.clone(), item)));
            if !has_more {
                return Ok(all);
            }
            answer = self.await_answer()?.0;
        }
    }

    /// Compares regular files by checksum. A path that is no regular file of the source gets no receipt of its own.
    ///
    /// # Errors
    /// The connection is broken, or `step` fails.
    pub fn verify(
        &mut self,
        paths: &[Vec<u8>],
        step: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Vec<FileReceipt>> {
        let mut receipts = Vec::with_capacity(paths.len());
        for part in paths.chunks(CHECKSUMS_AT_ONCE) {
            for path in part {
                self.connection.send(&Order::Checksum { path: path.clone() }, &[])?;
            }
            self.connection.flush()?;
            for path in part {
                let connection = &mut self.connection;
                let here = checksum(self.source, path, || connection.keep_alive());
                if self.connection.is_broken() {
                    return Err(here.err().unwrap_or_else(|| Errno::ECONNRESET.into()));
                }
                step()?;
                let Reply::Checksum { file: there } = self.await_answer()?.0 else {
                    return Err(Fault::new(Errno::EPROTO, "the receiver sent an unexpected reply"));
                };
                receipts.push(receipt(path, here, there));
            }
        }
        Ok(receipts)
    }

    /// Removes what is staged at the mirror, as nothing follows.
    pub fn end(&mut self) -> Result<()> {
        match self.ask(&Order::End)?.0 {
            Reply::Ended => Ok(()),
            _ => Err(Fault::new(Errno::EPROTO, "the receiver sent an unexpected reply")),
        }
    }

    /// Waits until all commits are answered.
    pub fn await_commits(&mut self) -> Result<()> {
        while self.commits() > 0 {
            self.take_commits(Duration::from_millis(200))?;
            self.connection.keep_alive()?;
        }
        Ok(())
    }
}

fn receipt(
    path: &[u8],
    here: Result<Option<(u64, [u8; 32])>>,
    there: Option<(u64, [u8; 32])>,
) -> FileReceipt {
    let (file, outcome) = match here {
        Ok(here) if here == there => (here, FileOutcome::Verified),
        Ok(here) => {
            let why = if there.is_none() { "the mirror lacks the file" } else { "the mirror's file differs" };
            (here, FileOutcome::Missing(why.to_owned()))
        }
        Err(fault) => (None, FileOutcome::Missing(fault.to_string())),
    };
    let (size, hash) = file.unwrap_or((0, [0; 32]));
    let checksum = file.map(|_| blake3::Hash::from_bytes(hash).to_hex().to_string()).unwrap_or_default();
    let path = String::from_utf8_lossy(path).into_owned();
    FileReceipt { path, size, written: size, checksum, note: String::new(), outcome }
}
