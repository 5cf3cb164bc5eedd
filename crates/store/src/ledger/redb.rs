//! The key-value store in one file, based on redb (`docs/decisions/0002-redb-and-postcard-for-metadata.md`).
//!
//! After a disk error, redb refuses all further calls, reads included, until the file is reopened. This module reopens
//! it, so that a full disk stops changes only while it is full.

use super::copy_on_write::CopyOnWrite;
use super::kv::{Changes, Kv, Snapshot};
use parking_lot::{Condvar, Mutex, RwLock};
use redb::{Builder, Database, DatabaseError, ReadOnlyTable, ReadableDatabase, TableDefinition};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};
use tameike_core::{Errno, Fault, Result};
use tameike_io::disk::file::preallocate;

type Bytes = &'static [u8];
type Opener = Box<dyn Fn(&Builder) -> Result<Database, DatabaseError> + Send + Sync>;

const TABLE: TableDefinition<'static, Bytes, Bytes> = TableDefinition::new("ledger");

/// A key-value store in one file.
pub struct RedbKv {
    /// `None` if the file could not be reopened.
    state: RwLock<Option<Open>>,
    opener: Opener,
    path: PathBuf,
    cache_bytes: usize,
    /// Space preallocated beyond the file's size, in bytes.
    spare_bytes: u64,
}

struct Open {
    /// The table as of the last commit, kept because opening it for each read would cost more than the read.
    snapshot: Arc<Committed>,
    database: Database,
    snapshots: Arc<Snapshots>,
}

/// Counts the snapshots of one opening of the file: redb keeps the file open while any is left.
#[derive(Default)]
struct Snapshots {
    count: Mutex<usize>,
    gone: Condvar,
}

impl Snapshots {
    fn take(self: &Arc<Self>, table: ReadOnlyTable<Bytes, Bytes>, path: &Path) -> Arc<Committed> {
        *self.count.lock() += 1;
        let counted = Counted(self.clone());
        Arc::new(Committed { table, _counted: counted, path: path.to_owned() })
    }

    fn wait_until_gone(&self) {
        let mut count = self.count.lock();
        while *count > 0 {
            self.gone.wait(&mut count);
        }
    }
}

struct Counted(Arc<Snapshots>);

impl Drop for Counted {
    fn drop(&mut self) {
        let mut count = self.0.count.lock();
        *count -= 1;
        if *count == 0 {
            self.0.gone.notify_all();
        }
    }
}

/// The table as of one commit. Field order matters: the table drops before the count falls.
struct Committed {
    table: ReadOnlyTable<Bytes, Bytes>,
    _counted: Counted,
    path: PathBuf,
}

impl Snapshot for Committed {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let value = self.table.get(key).map_err(|error| fault("read", &self.path, error))?;
        Ok(value.map(|value| value.value().to_vec()))
    }

    fn scan(&self, start: &[u8], end: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        if start >= end {
            return Ok(Vec::new());
        }
        let read = || {
            let entries = self.table.range(start..end)?.take(limit);
            entries
                .map(|entry| entry.map(|(key, value)| (key.value().to_vec(), value.value().to_vec())))
                .collect::<Result<_, redb::StorageError>>()
        };
        read().map_err(|error| fault("read", &self.path, error))
    }
}

/// Stands for the table while its file cannot be opened.
struct Closed(PathBuf);

impl Closed {
    fn fault(&self) -> Fault {
        Fault::io(format!("read the table {}: its disk has failed", self.0.display()))
    }
}

impl Snapshot for Closed {
    fn get(&self, _: &[u8]) -> Result<Option<Vec<u8>>> {
        Err(self.fault())
    }
    fn scan(&self, _: &[u8], _: &[u8], _: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        Err(self.fault())
    }
}

impl Open {
    fn new(opener: &Opener, path: &Path, cache_bytes: usize) -> Result<Self, redb::Error> {
        let database = opener(Builder::new().set_cache_size(cache_bytes))?;
        // Creates the table only if it is missing, so that a store on a full disk can still be read.
        let table = match read_table(&database) {
            Err(redb::Error::TableDoesNotExist(_)) => {
                let write = begin_write(&database)?;
                write.open_table(TABLE)?;
                write.commit()?;
                read_table(&database)?
            }
            found => found?,
        };
        let snapshots = Arc::<Snapshots>::default();
        Ok(Self { snapshot: snapshots.take(table, path), database, snapshots })
    }

    fn commit(&self, changes: &Changes) -> Result<ReadOnlyTable<Bytes, Bytes>, redb::Error> {
        let write = begin_write(&self.database)?;
        {
            let mut table = write.open_table(TABLE)?;
            for (key, value) in changes {
                match value {
                    Some(value) => table.insert(key.as_slice(), value.as_slice())?,
                    None => table.remove(key.as_slice())?,
                };
            }
        }
        write.commit()?;
        read_table(&self.database)
    }
}

/// Begins a write whose commit is durable and needs no scan of the file after a crash.
fn begin_write(database: &Database) -> Result<redb::WriteTransaction, redb::Error> {
    let mut write = database.begin_write()?;
    write.set_quick_repair(true);
    Ok(write)
}

fn read_table(database: &Database) -> Result<ReadOnlyTable<Bytes, Bytes>, redb::Error> {
    Ok(database.begin_read()?.open_table(TABLE)?)
}

fn fault(doing: &str, path: &Path, error: impl Into<redb::Error>) -> Fault {
    let doing = format!("{doing} the table {}", path.display());
    match error.into() {
        redb::Error::Io(error) => Fault::from_os(doing, &error),
        // Not damage: a killed process holds the file until the kernel has closed its last descriptor.
        redb::Error::DatabaseAlreadyOpen => {
            Fault::new(Errno::EBUSY, format!("{doing}: a process has it open"))
        }
        error => Fault::io(format!("{doing}: {error}")),
    }
}

fn check_integrity(database: &mut Database, path: &Path) -> Result<()> {
    let whole = database.check_integrity().map_err(|error| fault("check", path, error))?;
    if whole { Ok(()) } else { Err(Fault::io(format!("the table {} is damaged", path.display()))) }
}

/// Installs the panic hook that prints nothing for silenced threads.
static SILENCE_HOOK: Once = Once::new();

thread_local! {
    static IS_SILENCED: Cell<bool> = const { Cell::new(false) };
}

/// Runs a check of a file that may be damaged, because redb panics on some damage.
fn catch_panics<T>(path: &Path, check: impl FnOnce() -> Result<T>) -> Result<T> {
    // The fault below replaces the message of the panic. Panics of other threads still print.
    SILENCE_HOOK.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !IS_SILENCED.get() {
                hook(info);
            }
        }));
    });
    IS_SILENCED.set(true);
    let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check));
    IS_SILENCED.set(false);
    checked.unwrap_or_else(|_| Err(Fault::io(format!("the table {} is damaged", path.display()))))
}

impl RedbKv {
    /// Opens or creates the file. `cache_bytes` bounds the memory for its pages. The file has `spare_bytes`
    /// preallocated beyond its size, so that a full disk does not stop the next commit.
    ///
    /// # Errors
    /// Those of the system; `EIO` if the file is not such a store.
    pub fn open(path: &Path, cache_bytes: usize, spare_bytes: u64) -> Result<Self> {
        let file = path.to_owned();
        let opener: Opener = Box::new(move |builder| builder.create(&file));
        let kv = Self { spare_bytes, ..Self::with_opener(path, cache_bytes, opener)? };
        kv.preallocate();
        Ok(kv)
    }

    fn with_opener(path: &Path, cache_bytes: usize, opener: Opener) -> Result<Self> {
        let kv =
            Self { state: RwLock::new(None), opener, path: path.to_owned(), cache_bytes, spare_bytes: 0 };
        kv.reopen()?;
        Ok(kv)
    }

    fn preallocate(&self) {
        if self.spare_bytes > 0
            && let Err(fault) = preallocate(&self.path, self.spare_bytes)
        {
            log::warn!("{fault}");
        }
    }

    /// Reads the whole file and verifies its checksums. A missing file is valid.
    ///
    /// # Errors
    /// `EIO` if it is damaged, `EBUSY` if a process has it open.
    pub fn verify(path: &Path) -> Result<()> {
        if !path.exists() {
            return Ok(());
        }
        catch_panics(path, || {
            let mut database = Database::builder().open(path).map_err(|error| fault("open", path, error))?;
            check_integrity(&mut database, path)
        })
    }

    /// Verifies the file as [`RedbKv::verify`] does and opens its content without changing the file: commits stay in
    /// memory.
    pub(crate) fn open_copy_on_write(path: &Path, cache_bytes: usize) -> Result<Self> {
        let file = CopyOnWrite::open(path).map_err(|error| fault("open", path, redb::Error::Io(error)))?;
        catch_panics(path, || {
            let mut database = Database::builder()
                .create_with_backend(file.clone())
                .map_err(|error| fault("open", path, error))?;
            check_integrity(&mut database, path)?;
            drop(database);
            let opener: Opener = Box::new(move |builder| builder.create_with_backend(file.clone()));
            Self::with_opener(path, cache_bytes, opener)
        })
    }

    fn fault(&self, doing: &str, error: impl Into<redb::Error>) -> Fault {
        fault(doing, &self.path, error)
    }

    fn reopen(&self) -> Result<()> {
        let state = &mut *self.state.write();
        // Must close the old one with all its snapshots first: it holds a lock on the file.
        if let Some(Open { snapshot, database, snapshots }) = state.take() {
            drop((snapshot, database));
            snapshots.wait_until_gone();
        }
        let open = Open::new(&self.opener, &self.path, self.cache_bytes);
        *state = Some(open.map_err(|error| self.fault("open", error))?);
        Ok(())
    }
}

impl Kv for RedbKv {
    fn snapshot(&self) -> Arc<dyn Snapshot> {
        match &*self.state.read() {
            Some(open) => open.snapshot.clone(),
            None => Arc::new(Closed(self.path.clone())),
        }
    }

    fn commit(&self, changes: &Changes) -> Result<()> {
        if self.state.read().is_none() {
            self.reopen()?;
        }
        // The shared lock lets readers continue during the commit.
        let committed = self.state.read().as_ref().map(|open| open.commit(changes));
        match committed {
            Some(Ok(table)) => {
                if let Some(open) = &mut *self.state.write() {
                    open.snapshot = open.snapshots.take(table, &self.path);
                }
                self.preallocate();
                Ok(())
            }
            Some(Err(error)) => {
                let fault = self.fault("change", error);
                if let Err(fault) = self.reopen() {
                    log::error!("{fault}");
                }
                Err(fault)
            }
            None => Err(Fault::io(format!("change the table {}: it is not open", self.path.display()))),
        }
    }

    fn size_bytes(&self) -> Result<u64> {
        let status = std::fs::metadata(&self.path)
            .map_err(|error| Fault::from_os(format!("stat {}", self.path.display()), &error))?;
        Ok(status.len())
    }
}

#[cfg(test)]
mod tests {
    use super::super::kv::MemoryKv;
    use super::*;
    use parking_lot::Mutex;
    use std::collections::BTreeSet;
    use std::io::{Error, ErrorKind};
    use std::sync::Arc;
    use tameike_core::Errno;

    fn changes(round: u8) -> Changes {
        let size = |key: u8| usize::from(key) * usize::from(round);
        let value = |key: u8| (!key.wrapping_mul(round).is_multiple_of(3)).then(|| vec![round; size(key)]);
        (0..50u8).map(|key| (vec![key % 7, key], value(key))).collect()
    }

    #[test]
    fn a_file_and_memory_give_the_same_content() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("table");
        let model = MemoryKv::default();
        let mut kv = RedbKv::open(&path, 1 << 20, 0).unwrap();
        for round in 0..20u8 {
            let changes = changes(round);
            model.commit(&changes).unwrap();
            kv.commit(&changes).unwrap();
            if round % 5 == 0 {
                drop(kv);
                kv = RedbKv::open(&path, 1 << 20, 0).unwrap();
            }
            assert_eq!(
                kv.snapshot().scan(&[2], &[5, 3], 10).unwrap(),
                model.snapshot().scan(&[2], &[5, 3], 10).unwrap()
            );
            assert_eq!(kv.snapshot().scan(&[3], &[2], 10).unwrap(), []);
            for key in changes.keys() {
                assert_eq!(kv.snapshot().get(key).unwrap(), model.snapshot().get(key).unwrap());
            }
        }
        assert!(kv.size_bytes().unwrap() > 0);
    }

    #[test]
    fn the_file_has_preallocated_space() {
        use std::os::unix::fs::MetadataExt;
        const SPARE: u64 = 1 << 20;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("table");
        let kv = RedbKv::open(&path, 1 << 20, SPARE).unwrap();
        for round in 0..100 {
            let found = std::fs::metadata(&path).unwrap();
            assert!(found.blocks() * 512 >= found.len() + SPARE, "{} blocks", found.blocks());
            kv.commit(&changes(round)).unwrap();
        }
    }

    #[test]
    fn later_commits_do_not_change_a_snapshot() {
        let directory = tempfile::tempdir().unwrap();
        let kv = RedbKv::open(&directory.path().join("table"), 1 << 20, 0).unwrap();
        kv.commit(&changes(2)).unwrap();
        let before = kv.snapshot();
        kv.commit(&changes(5)).unwrap();
        for (snapshot, round) in [(before, 2), (kv.snapshot(), 5)] {
            for (key, value) in changes(round) {
                assert_eq!(snapshot.get(&key).unwrap(), value);
            }
        }
    }

    #[test]
    fn opening_another_kind_of_file_fails_with_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("table");
        std::fs::write(&path, [7; 10_000]).unwrap();
        let fault = RedbKv::open(&path, 1 << 20, 0).err().unwrap();
        assert!(fault.to_string().contains("table"), "{fault}");
    }

    /// A file in memory on a disk that can be full: pages written before can be written again.
    #[derive(Clone, Debug, Default)]
    struct Full {
        bytes: Arc<Mutex<Vec<u8>>>,
        written: Arc<Mutex<BTreeSet<usize>>>,
        full: Arc<Mutex<bool>>,
    }

    impl redb::StorageBackend for Full {
        fn len(&self) -> std::io::Result<u64> {
            Ok(self.bytes.lock().len() as u64)
        }
        fn read(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
            out.copy_from_slice(&self.bytes.lock()[offset as usize..][..out.len()]);
            Ok(())
        }
        fn set_len(&self, len: u64) -> std::io::Result<()> {
            self.bytes.lock().resize(len as usize, 0);
            Ok(())
        }
        fn sync_data(&self) -> std::io::Result<()> {
            Ok(())
        }
        fn write(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
            let end = offset as usize + data.len();
            let written = &mut *self.written.lock();
            for page in offset as usize / 4096..end.div_ceil(4096) {
                if written.insert(page) && *self.full.lock() {
                    written.remove(&page);
                    return Err(Error::from(ErrorKind::StorageFull));
                }
            }
            self.bytes.lock()[offset as usize..][..data.len()].copy_from_slice(data);
            Ok(())
        }
    }

    #[test]
    fn changes_fail_only_while_the_disk_is_full() {
        let disk = Full::default();
        let file = disk.clone();
        let opener: Opener = Box::new(move |builder| builder.create_with_backend(file.clone()));
        let kv = RedbKv::with_opener(Path::new("table"), 1 << 20, opener).unwrap();
        kv.commit(&changes(2)).unwrap();
        for round in [20, 200] {
            *disk.full.lock() = true;
            assert_eq!(kv.commit(&changes(round)).unwrap_err().errno, Errno::EIO);
            for (key, value) in changes(round / 10) {
                assert_eq!(kv.snapshot().get(&key).unwrap(), value, "reads still work");
            }
            *disk.full.lock() = false;
            kv.commit(&changes(round)).unwrap();
            for (key, value) in changes(round) {
                assert_eq!(kv.snapshot().get(&key).unwrap(), value);
            }
        }
    }

    #[test]
    fn a_table_that_is_open_elsewhere_is_busy_and_not_damaged() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("table");
        let kv = RedbKv::open(&path, 1 << 20, 0).expect("open");
        let verified = RedbKv::verify(&path);
        assert!(verified.is_err_and(|fault| fault.errno == Errno::EBUSY));
        drop(kv);
        assert_eq!(RedbKv::verify(&path), Ok(()));
    }
}
