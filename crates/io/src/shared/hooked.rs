//! A tree whose owner is called before each change, and after each change of the content of a file.

use super::{
    Access, Allocate, FileStat, OpenFileCache, Pin, Seek, SharedDir, SharedFile, SharedFs, Special,
    TreeSpace, WholeFile, XattrMode, join,
};
use std::sync::Arc;
use tameike_core::attr::AttrChange;
use tameike_core::wire::meta::RenameMode;
use tameike_core::{FileKind, Result};

/// Guard of a change, dropped when the change has ended.
pub type Change = Box<dyn Send + Sync>;

/// The calls around changes.
pub trait Hooks: Send + Sync {
    /// A change begins, which ends when the result is dropped. An error refuses it.
    fn begin(&self) -> Result<Change> {
        Ok(Box::new(()))
    }

    /// The content of the file at a path has changed. An error is that of the change.
    fn changed(&self, path: &[u8], part: Written<'_>) -> Result<()> {
        let _ = (path, part);
        Ok(())
    }
}

/// A change of content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written<'a> {
    /// These bytes were written at this offset.
    Bytes(&'a [u8], u64),
    /// The file was created, or got this size.
    Size(u64),
}

/// A tree with hooks.
pub struct Hooked {
    inner: Arc<dyn SharedFs>,
    hooks: Arc<dyn Hooks>,
    /// The path of this tree below that of the hooks.
    prefix: Vec<u8>,
}

impl Hooked {
    /// Calls these hooks for all changes of a tree that are made through the result.
    pub fn new(inner: Arc<dyn SharedFs>, hooks: Arc<dyn Hooks>) -> Self {
        Self { inner, hooks, prefix: Vec::new() }
    }

    fn path(&self, path: &[u8]) -> Vec<u8> {
        if self.prefix.is_empty() { path.to_vec() } else { join(&self.prefix, path) }
    }

    fn file(&self, path: &[u8], inner: Arc<dyn SharedFile>) -> Arc<dyn SharedFile> {
        Arc::new(HookedFile { inner, hooks: self.hooks.clone(), path: self.path(path) })
    }

    fn within<T>(&self, change: impl FnOnce(&dyn SharedFs) -> Result<T>) -> Result<T> {
        let _change = self.hooks.begin()?;
        change(&*self.inner)
    }

    fn created(&self, path: &[u8], file: Result<Arc<dyn SharedFile>>) -> Result<Arc<dyn SharedFile>> {
        let file = self.file(path, file?);
        self.hooks.changed(&self.path(path), Written::Size(0))?;
        Ok(file)
    }
}

impl SharedFs for Hooked {
    fn stat(&self, path: &[u8]) -> Result<FileStat> {
        self.inner.stat(path)
    }

    fn pin(&self, path: &[u8]) -> Result<(FileStat, Pin)> {
        self.inner.pin(path)
    }

    fn open_dir(&self, path: &[u8]) -> Result<Arc<dyn SharedDir>> {
        self.inner.open_dir(path)
    }

    fn read_link(&self, path: &[u8]) -> Result<Vec<u8>> {
        self.inner.read_link(path)
    }

    fn open(&self, path: &[u8], access: Access) -> Result<Arc<dyn SharedFile>> {
        Ok(self.file(path, self.inner.open(path, access)?))
    }

    fn open_whole(&self, path: &[u8]) -> Result<WholeFile> {
        let whole = self.inner.open_whole(path)?;
        Ok(WholeFile { file: self.file(path, whole.file), ..whole })
    }

    fn below(&self, dir: &[u8]) -> Result<Arc<dyn SharedFs>> {
        let (inner, hooks) = (self.inner.below(dir)?, self.hooks.clone());
        Ok(Arc::new(Self { inner, hooks, prefix: self.path(dir) }))
    }

    fn create(&self, path: &[u8], mode: u16) -> Result<Arc<dyn SharedFile>> {
        self.created(path, self.within(|inner| inner.create(path, mode)))
    }

    fn create_by_umask(&self, path: &[u8]) -> Result<Arc<dyn SharedFile>> {
        self.created(path, self.within(|inner| inner.create_by_umask(path)))
    }

    fn make(&self, path: &[u8], special: &Special) -> Result<FileStat> {
        self.within(|inner| inner.make(path, special))
    }

    fn unlink(&self, path: &[u8]) -> Result<()> {
        self.within(|inner| inner.unlink(path))
    }

    fn rmdir(&self, path: &[u8]) -> Result<()> {
        self.within(|inner| inner.rmdir(path))
    }

    fn rename(&self, from: &[u8], to: &[u8], mode: RenameMode) -> Result<()> {
        self.within(|inner| inner.rename(from, to, mode))
    }

    fn link(&self, from: &[u8], to: &[u8]) -> Result<()> {
        self.within(|inner| inner.link(from, to))
    }

    fn open_file_cache(&self) -> Option<&OpenFileCache> {
        self.inner.open_file_cache()
    }

    fn check_names(&self, dir: &[u8]) -> Result<()> {
        self.inner.check_names(dir)
    }

    fn check_write(&self, path: &[u8]) -> Result<()> {
        self.inner.check_write(path)
    }

    fn shown_group(&self, owner: (u32, u32)) -> u32 {
        self.inner.shown_group(owner)
    }

    fn change(&self, path: &[u8], change: &AttrChange) -> Result<()> {
        self.within(|inner| inner.change(path, change))
    }

    fn change_made(&self, path: &[u8], kind: FileKind, change: &AttrChange) -> Result<()> {
        self.within(|inner| inner.change_made(path, kind, change))
    }

    fn xattr(&self, path: &[u8], name: &[u8]) -> Result<Vec<u8>> {
        self.inner.xattr(path, name)
    }

    fn xattrs(&self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.inner.xattrs(path)
    }

    fn set_xattr(&self, path: &[u8], name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.within(|inner| inner.set_xattr(path, name, value, mode))
    }

    fn remove_xattr(&self, path: &[u8], name: &[u8]) -> Result<()> {
        self.within(|inner| inner.remove_xattr(path, name))
    }

    fn space(&self) -> Result<TreeSpace> {
        self.inner.space()
    }

    fn revalidate(&self, path: &[u8]) {
        self.inner.revalidate(path);
    }

    fn sync_dir(&self, path: &[u8]) -> Result<()> {
        self.inner.sync_dir(path)
    }

    fn syncs_name_of(&self, stat: &FileStat) -> bool {
        self.inner.syncs_name_of(stat)
    }

    fn shares_syncs(&self) -> bool {
        self.inner.shares_syncs()
    }

    fn sync_name(&self, path: &[u8]) -> Result<()> {
        self.inner.sync_name(path)
    }
}

struct HookedFile {
    inner: Arc<dyn SharedFile>,
    hooks: Arc<dyn Hooks>,
    path: Vec<u8>,
}

impl HookedFile {
    fn within<T>(&self, change: impl FnOnce(&dyn SharedFile) -> Result<T>) -> Result<T> {
        let _change = self.hooks.begin()?;
        change(&*self.inner)
    }
}

impl SharedFile for HookedFile {
    fn stat(&self) -> Result<FileStat> {
        self.inner.stat()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.inner.read_at(buffer, offset)
    }

    fn read_some(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.inner.read_some(buffer, offset)
    }

    fn advise_exact(&self, is_exact: bool) {
        self.inner.advise_exact(is_exact);
    }

    fn prefetch(&self, offset: u64, length: u64) {
        self.inner.prefetch(offset, length);
    }

    fn expect_size(&self, size: u64) -> Result<()> {
        self.within(|inner| inner.expect_size(size))
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.within(|inner| inner.write_at(bytes, offset))?;
        self.hooks.changed(&self.path, Written::Bytes(bytes, offset))
    }

    fn append(&self, bytes: &[u8]) -> Result<()> {
        let offset = self.within(|inner| {
            inner.append(bytes)?;
            Ok(inner.stat()?.size.saturating_sub(bytes.len() as u64))
        })?;
        self.hooks.changed(&self.path, Written::Bytes(bytes, offset))
    }

    fn truncate(&self, size: u64) -> Result<()> {
        self.within(|inner| inner.truncate(size))?;
        self.hooks.changed(&self.path, Written::Size(size))
    }

    fn allocate(&self, how: Allocate, offset: u64, length: u64) -> Result<()> {
        self.within(|inner| inner.allocate(how, offset, length))
    }

    fn seek(&self, what: Seek, offset: u64) -> Result<u64> {
        self.inner.seek(what, offset)
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    fn start_write_back(&self) {
        self.inner.start_write_back();
    }

    fn forget_pages(&self) -> Result<()> {
        self.inner.forget_pages()
    }

    fn revalidate(&self) -> Result<()> {
        self.inner.revalidate()
    }

    fn revalidate_content(&self) -> Result<()> {
        self.inner.revalidate_content()
    }

    fn change(&self, change: &AttrChange) -> Result<()> {
        self.within(|inner| inner.change(change))
    }

    fn set_xattr(&self, name: &[u8], value: &[u8]) -> Result<()> {
        self.within(|inner| inner.set_xattr(name, value))
    }

    fn check_write(&self) -> Result<()> {
        self.inner.check_write()
    }

    fn writer_sets_times(&self) -> bool {
        self.inner.writer_sets_times()
    }

    fn try_lock(&self, offset: u64, length: u64) -> Result<bool> {
        self.inner.try_lock(offset, length)
    }

    fn is_locked(&self, offset: u64, length: u64) -> Result<bool> {
        self.inner.is_locked(offset, length)
    }
}

#[cfg(test)]
mod tests {
    use super::super::PosixTree;
    use super::*;
    use parking_lot::Mutex;
    use tameike_core::Errno;

    #[derive(Default)]
    struct Log {
        refuses: Mutex<bool>,
        seen: Mutex<Vec<String>>,
    }

    impl Hooks for Log {
        fn begin(&self) -> Result<Change> {
            if *self.refuses.lock() { Err(Errno::EREMCHG.into()) } else { Ok(Box::new(())) }
        }

        fn changed(&self, path: &[u8], part: Written<'_>) -> Result<()> {
            self.seen.lock().push(format!("{} {part:?}", String::from_utf8_lossy(path)));
            Ok(())
        }
    }

    #[test]
    fn a_refused_change_is_not_made_and_others_are_reported() {
        let dir = tempfile::tempdir().expect("a directory");
        let log = Arc::new(Log::default());
        let tree = Hooked::new(Arc::new(PosixTree::open(dir.path()).expect("a tree")), log.clone());
        let file = tree.create(b"file", 0o644).expect("created");
        file.write_at(b"abc", 1).expect("written");
        file.append(b"d").expect("appended");
        file.truncate(2).expect("truncated");
        let expected = ["Size(0)", "Bytes([97, 98, 99], 1)", "Bytes([100], 4)", "Size(2)"];
        assert_eq!(*log.seen.lock(), expected.map(|part| format!("file {part}")));
        *log.refuses.lock() = true;
        let refused = [
            file.write_at(b"x", 0),
            file.truncate(0),
            tree.create(b"other", 0o644).map(drop),
            tree.unlink(b"file"),
            tree.rename(b"file", b"other", RenameMode::Replace),
            tree.make(b"other", &Special::Directory(0o755)).map(drop),
        ];
        assert!(refused.into_iter().all(|done| done.is_err_and(|fault| fault.errno == Errno::EREMCHG)));
        assert_eq!(std::fs::read(dir.path().join("file")).expect("it is there"), b"\0a");
        assert_eq!(
            (std::fs::read_dir(dir.path()).expect("a directory").count(), log.seen.lock().len()),
            (1, 4)
        );
    }
}
