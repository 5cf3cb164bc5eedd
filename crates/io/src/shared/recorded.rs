//! A tree that records its changes for a mirror.
//!
//! [`Recorded`] passes every call to another tree. After a call that may have changed a file, whether it succeeded or not, the change is
//! in the [`ChangeLog`]. So what is not in the log was not changed, and a reader that comes after the record sees the change.

use super::change_log::ChangeLog;
use super::{
    Access, Allocate, FileStat, OpenFileCache, Pin, Seek, SharedDir, SharedFile, SharedFs, Special,
    TreeSpace, WholeFile, XattrMode, join,
};
use std::sync::{Arc, OnceLock};
use tameike_core::attr::AttrChange;
use tameike_core::changes::Content;
use tameike_core::wire::meta::RenameMode;
use tameike_core::{FileKind, InodeId, Result};

/// A tree that records its changes.
pub struct Recorded {
    inner: Arc<dyn SharedFs>,
    log: Arc<ChangeLog>,
    /// The path of the tree below the recorded one.
    prefix: Vec<u8>,
}

impl Recorded {
    /// Records the changes of a tree, whose root has the path `prefix` below that of the log.
    pub fn new(inner: Arc<dyn SharedFs>, log: Arc<ChangeLog>, prefix: &[u8]) -> Self {
        Self { inner, log, prefix: prefix.to_vec() }
    }

    fn path(&self, path: &[u8]) -> Vec<u8> {
        if path.is_empty() { self.prefix.clone() } else { join(&self.prefix, path) }
    }

    /// Records a change of a name or of attributes, after it was made.
    fn after<T>(&self, path: &[u8], done: Result<T>) -> Result<T> {
        self.log.record(&self.path(path), None, Content::Unchanged);
        done
    }

    fn file(&self, path: &[u8], file: Arc<dyn SharedFile>) -> Arc<dyn SharedFile> {
        let (log, path) = (self.log.clone(), self.path(path));
        Arc::new(RecordedFile { inner: file, log, path, inode: OnceLock::new() })
    }
}

impl SharedFs for Recorded {
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
        Ok(Arc::new(Self::new(self.inner.below(dir)?, self.log.clone(), &self.path(dir))))
    }

    fn create(&self, path: &[u8], mode: u16) -> Result<Arc<dyn SharedFile>> {
        let created = self.after(path, self.inner.create(path, mode))?;
        Ok(self.file(path, created))
    }

    fn create_by_umask(&self, path: &[u8]) -> Result<Arc<dyn SharedFile>> {
        let created = self.after(path, self.inner.create_by_umask(path))?;
        Ok(self.file(path, created))
    }

    fn make(&self, path: &[u8], special: &Special) -> Result<FileStat> {
        self.after(path, self.inner.make(path, special))
    }

    fn unlink(&self, path: &[u8]) -> Result<()> {
        self.after(path, self.inner.unlink(path))
    }

    fn rmdir(&self, path: &[u8]) -> Result<()> {
        self.after(path, self.inner.rmdir(path))
    }

    fn rename(&self, from: &[u8], to: &[u8], mode: RenameMode) -> Result<()> {
        let renamed = self.inner.rename(from, to, mode);
        let (from, to) = (self.path(from), self.path(to));
        self.log.record_rename(&from, &to);
        if mode == RenameMode::Exchange {
            self.log.record_rename(&to, &from);
        }
        renamed
    }

    fn link(&self, from: &[u8], to: &[u8]) -> Result<()> {
        let linked = self.inner.link(from, to);
        self.log.record(&self.path(from), None, Content::Unchanged);
        self.after(to, linked)
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
        self.after(path, self.inner.change(path, change))
    }

    fn change_made(&self, path: &[u8], kind: FileKind, change: &AttrChange) -> Result<()> {
        self.after(path, self.inner.change_made(path, kind, change))
    }

    fn xattr(&self, path: &[u8], name: &[u8]) -> Result<Vec<u8>> {
        self.inner.xattr(path, name)
    }

    fn xattrs(&self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.inner.xattrs(path)
    }

    fn set_xattr(&self, path: &[u8], name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.after(path, self.inner.set_xattr(path, name, value, mode))
    }

    fn remove_xattr(&self, path: &[u8], name: &[u8]) -> Result<()> {
        self.after(path, self.inner.remove_xattr(path, name))
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

/// An open file whose changes are recorded with the path of its open. A program may have renamed it since, which the inode number shows.
struct RecordedFile {
    inner: Arc<dyn SharedFile>,
    log: Arc<ChangeLog>,
    path: Vec<u8>,
    inode: OnceLock<InodeId>,
}

impl RecordedFile {
    fn inode(&self) -> Option<InodeId> {
        if let Some(inode) = self.inode.get() {
            return Some(*inode);
        }
        let inode = self.inner.stat().ok()?.inode_id();
        Some(*self.inode.get_or_init(|| inode))
    }

    /// Records a change of the content, after it was made.
    fn after<T>(&self, content: Content, done: Result<T>) -> Result<T> {
        self.log.record(&self.path, self.inode(), content);
        done
    }
}

impl SharedFile for RecordedFile {
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
        self.inner.expect_size(size)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let range = offset..offset.saturating_add(bytes.len() as u64);
        self.after(Content::range(range), self.inner.write_at(bytes, offset))
    }

    fn append(&self, bytes: &[u8]) -> Result<()> {
        // Others may append before this one does, but none removes what is there.
        let begin = self.inner.stat().map_or(0, |stat| stat.size);
        self.after(Content::range(begin..u64::MAX), self.inner.append(bytes))
    }

    fn truncate(&self, size: u64) -> Result<()> {
        let begin = self.inner.stat().map_or(0, |stat| stat.size.min(size));
        self.after(Content::range(begin..u64::MAX), self.inner.truncate(size))
    }

    fn allocate(&self, how: Allocate, offset: u64, length: u64) -> Result<()> {
        let range = offset..offset.saturating_add(length);
        self.after(Content::range(range), self.inner.allocate(how, offset, length))
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
        self.after(Content::Unchanged, self.inner.change(change))
    }

    fn set_xattr(&self, name: &[u8], value: &[u8]) -> Result<()> {
        self.after(Content::Unchanged, self.inner.set_xattr(name, value))
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
    use crate::os::process::monotonic;
    use crate::os::runtime::Clock;
    use std::time::Duration;
    use tameike_core::Timestamp;
    use tameike_core::changes::Change;

    struct Real;

    impl Clock for Real {
        fn monotonic(&self) -> Duration {
            monotonic()
        }

        fn wall(&self) -> Timestamp {
            Timestamp::default()
        }
    }

    fn tree() -> (tempfile::TempDir, Arc<ChangeLog>, Recorded) {
        let dir = tempfile::tempdir().expect("a directory");
        let log = Arc::new(ChangeLog::new(Arc::new(Real)));
        let tree = Recorded::new(Arc::new(PosixTree::open(dir.path()).expect("a tree")), log.clone(), b"");
        (dir, log, tree)
    }

    fn reported(log: &ChangeLog) -> Vec<(String, Content)> {
        let shown = |change| match change {
            Change::Everything => ("everything".to_owned(), Content::Whole),
            Change::Path { path, content, .. } => (String::from_utf8_lossy(&path).into_owned(), content),
            Change::Renamed { from, to } => (
                format!("{} > {}", String::from_utf8_lossy(&from), String::from_utf8_lossy(&to)),
                Content::Whole,
            ),
        };
        log.report(0).changes.into_iter().map(|numbered| shown(numbered.change)).collect()
    }

    #[test]
    fn each_change_is_recorded_and_reads_are_not() {
        let (_dir, log, tree) = tree();
        tree.make(b"sub", &Special::Directory(0o755)).expect("made");
        let file = tree.create(b"sub/file", 0o644).expect("created");
        file.write_at(b"abcdef", 10).expect("written");
        file.truncate(12).expect("truncated");
        assert_eq!(
            reported(&log),
            [
                ("sub".to_owned(), Content::Unchanged),
                ("sub/file".to_owned(), Content::Unchanged),
                ("sub/file".to_owned(), Content::range(10..u64::MAX)),
            ]
        );
        tree.stat(b"sub/file").expect("stat");
        let mut buffer = [0; 2];
        tree.open(b"sub/file", Access::Read).expect("open").read_at(&mut buffer, 10).expect("read");
        file.sync().expect("sync");
        assert_eq!(reported(&log), []);
        file.append(b"x").expect("appended");
        tree.rename(b"sub/file", b"moved", RenameMode::Replace).expect("renamed");
        let below = tree.below(b"sub").expect("a tree");
        below.create(b"other", 0o600).expect("created");
        assert_eq!(
            reported(&log),
            [
                ("sub/file".to_owned(), Content::range(12..u64::MAX)),
                ("sub/file > moved".to_owned(), Content::Whole),
                ("sub/other".to_owned(), Content::Unchanged),
            ]
        );
    }

    #[test]
    fn a_failed_change_is_recorded_too() {
        let (_dir, log, tree) = tree();
        assert!(tree.unlink(b"missing").is_err());
        assert!(tree.rename(b"missing", b"other", RenameMode::Replace).is_err());
        assert_eq!(
            reported(&log),
            [("missing".to_owned(), Content::Unchanged), ("missing > other".to_owned(), Content::Whole)]
        );
    }
}
