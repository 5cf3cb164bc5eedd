//! Walk through a tree of files, directory by directory.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::vec::IntoIter;
use tameike_core::{Fault, FileKind, Result};
use tameike_io::shared::{NamedFile, SharedFs, join, split};

/// Work items per thread, and files per work item at most.
const PARTS: usize = 16;
const PART_SIZE_MAX: usize = 128;

/// A directory of a tree with many operations in it: its path is resolved once.
pub struct Within<'a> {
    fs: &'a dyn SharedFs,
    dir: Vec<u8>,
    own: Option<Arc<dyn SharedFs>>,
}

impl<'a> Within<'a> {
    pub fn new(fs: &'a dyn SharedFs, dir: &[u8]) -> Self {
        // If it cannot be opened, the operation on each file returns the reason.
        let own = if dir.is_empty() { None } else { fs.below(dir).ok() };
        Self { fs, dir: dir.to_vec(), own }
    }

    /// The tree and path by which to access `path`, which lies in this directory.
    pub fn at<'b>(&'b self, path: &'b [u8]) -> (&'b dyn SharedFs, &'b [u8]) {
        match &self.own {
            Some(own) => (&**own, &path[self.dir.len() + 1..]),
            None => (self.fs, path),
        }
    }

    fn names(&self) -> Result<Vec<NamedFile>> {
        let open = match &self.own {
            Some(own) => own.open_dir(b"")?,
            None => self.fs.open_dir(&self.dir)?,
        };
        let (mut names, mut after) = (Vec::new(), 0);
        loop {
            let some = open.read(after)?;
            let Some(last) = some.last() else { return Ok(names) };
            after = last.next;
            names.extend(some.into_iter().filter(|named| named.name != b"." && named.name != b".."));
        }
    }
}

/// A path of a tree, with its kind as the directory lists it.
pub struct Item {
    pub path: Vec<u8>,
    pub kind: FileKind,
}

/// Walks everything below a directory: a directory before its contents, and all names of one directory together.
pub struct Walk<'a> {
    fs: &'a dyn SharedFs,
    /// Called for each directory that cannot be listed.
    note: &'a (dyn Fn(&[u8], &Fault) + Sync),
    dirs: Vec<Vec<u8>>,
    /// Directory of `names`.
    within: Arc<Within<'a>>,
    names: IntoIter<NamedFile>,
}

impl<'a> Walk<'a> {
    pub fn new(fs: &'a dyn SharedFs, dir: &[u8], note: &'a (dyn Fn(&[u8], &Fault) + Sync)) -> Self {
        let within = Arc::new(Within { fs, dir: Vec::new(), own: None });
        Self { fs, note, dirs: vec![dir.to_vec()], within, names: Vec::new().into_iter() }
    }
}

impl<'a> Iterator for Walk<'a> {
    type Item = (Arc<Within<'a>>, Item);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(NamedFile { name, kind, .. }) = self.names.next() {
                let path = join(&self.within.dir, &name);
                if kind == FileKind::Directory {
                    self.dirs.push(path.clone());
                }
                return Some((self.within.clone(), Item { path, kind }));
            }
            let dir = self.dirs.pop()?;
            let within = Within::new(self.fs, &dir);
            match within.names() {
                Ok(names) => (self.within, self.names) = (Arc::new(within), names.into_iter()),
                Err(fault) => (self.note)(&dir, &fault),
            }
        }
    }
}

/// Calls `work` on `threads` threads with directories and consecutive files of each, in batches.
pub fn by_directory<T: Sync>(
    files: &[T],
    path_of: impl Fn(&T) -> &[u8],
    threads: usize,
    work: impl Fn(&[u8], &[T]) + Sync,
) {
    let threads = threads.max(1);
    let dir_of =
        |file: &T| -> Vec<u8> { split(path_of(file)).map_or_else(Vec::new, |(dir, _)| dir.to_vec()) };
    let part_size = (files.len() / (threads * PARTS)).clamp(1, PART_SIZE_MAX);
    let mut parts: Vec<(Vec<u8>, Range<usize>)> = Vec::new();
    for (at, file) in files.iter().enumerate() {
        let dir = dir_of(file);
        match parts.last_mut() {
            Some((last, range)) if *last == dir && range.len() < part_size => range.end = at + 1,
            _ => parts.push((dir, at..at + 1)),
        }
    }
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((dir, range)) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
                    work(dir, &files[range.clone()]);
                }
            });
        }
    });
}
