//! Going through a tree of files, a directory at a time.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::vec::IntoIter;
use tameike_core::{Fault, FileKind, Result};
use tameike_io::shared::{NamedFile, SharedFs, join, split};

/// Parts for each thread that files are cut in, and most files of a part.
const PARTS: usize = 16;
const PART_SIZE_MAX: usize = 128;

/// A directory of a tree in which much is done: the way to it is gone once.
pub struct Within<'a> {
    fs: &'a dyn SharedFs,
    dir: Vec<u8>,
    own: Option<Arc<dyn SharedFs>>,
}

impl<'a> Within<'a> {
    pub fn new(fs: &'a dyn SharedFs, dir: &[u8]) -> Self {
        // Where it cannot be opened, what is done with each of its files tells why.
        let own = if dir.is_empty() { None } else { fs.below(dir).ok() };
        Self { fs, dir: dir.to_vec(), own }
    }

    /// The tree to go by for a path of this directory, and the path in it.
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

/// A path of a tree, and what its directory tells that it is.
pub struct Item {
    pub path: Vec<u8>,
    pub kind: FileKind,
}

/// Everything below a directory: a directory before what is in it, and all names of one together.
pub struct Walk<'a> {
    fs: &'a dyn SharedFs,
    /// Called with each directory that cannot be listed, and the fault.
    note: &'a (dyn Fn(&[u8], &Fault) + Sync),
    dirs: Vec<Vec<u8>>,
    /// The directory that `names` are of.
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

/// Has so many threads work on files, each on some of one directory at a time, which are one behind the other.
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
