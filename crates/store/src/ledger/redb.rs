//! The key-value store on one file, by redb.
//!
//! Why redb: `docs/decisions/0002-key-value-store.md`.

use super::kv::{Changes, Kv};
use parking_lot::RwLock;
use redb::{Database, ReadOnlyTable, ReadableDatabase, TableDefinition};
use std::path::{Path, PathBuf};
use tameike_core::{Fault, Result};

type Bytes = &'static [u8];

const TABLE: TableDefinition<'static, Bytes, Bytes> = TableDefinition::new("ledger");

/// A key-value store in one file.
pub struct RedbKv {
    database: Database,
    /// The table as of the last commit: opening it for each read would cost more than the read.
    snapshot: RwLock<ReadOnlyTable<Bytes, Bytes>>,
    path: PathBuf,
}

fn fault(doing: &str, path: &Path, error: impl Into<redb::Error>) -> Fault {
    let doing = format!("{doing} the table {}", path.display());
    match error.into() {
        redb::Error::Io(error) => Fault::from_os(doing, &error),
        error => Fault::io(format!("{doing}: {error}")),
    }
}

impl RedbKv {
    /// Opens the file, or makes it. `cache_bytes` bounds the memory for its pages.
    ///
    /// # Errors
    /// What the system says, and `EIO` for a file that is no such store.
    pub fn open(path: &Path, cache_bytes: usize) -> Result<Self> {
        let database = Database::builder()
            .set_cache_size(cache_bytes)
            .create(path)
            .map_err(|error| fault("open", path, error))?;
        let write = begin_write(&database).map_err(|error| fault("open", path, error))?;
        write.open_table(TABLE).map_err(|error| fault("open", path, error))?;
        write.commit().map_err(|error| fault("open", path, error))?;
        let snapshot = RwLock::new(look(&database).map_err(|error| fault("open", path, error))?);
        Ok(Self { database, snapshot, path: path.to_owned() })
    }

    fn try_commit(&self, changes: &Changes) -> Result<(), redb::Error> {
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
        *self.snapshot.write() = look(&self.database)?;
        Ok(())
    }
}

/// A write whose commit is safe against power loss and needs no scan of the file after a crash.
fn begin_write(database: &Database) -> Result<redb::WriteTransaction, redb::Error> {
    let mut write = database.begin_write()?;
    write.set_quick_repair(true);
    Ok(write)
}

fn look(database: &Database) -> Result<ReadOnlyTable<Bytes, Bytes>, redb::Error> {
    Ok(database.begin_read()?.open_table(TABLE)?)
}

impl Kv for RedbKv {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let value = self.snapshot.read().get(key).map_err(|error| fault("read", &self.path, error))?;
        Ok(value.map(|value| value.value().to_vec()))
    }

    fn scan(&self, start: &[u8], end: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        if start >= end {
            return Ok(Vec::new());
        }
        let range =
            self.snapshot.read().range(start..end).map_err(|error| fault("read", &self.path, error))?;
        range
            .take(limit)
            .map(|entry| match entry {
                Ok((key, value)) => Ok((key.value().to_vec(), value.value().to_vec())),
                Err(error) => Err(fault("read", &self.path, error)),
            })
            .collect()
    }

    fn commit(&self, changes: &Changes) -> Result<()> {
        self.try_commit(changes).map_err(|error| fault("change", &self.path, error))
    }

    fn size_bytes(&self) -> Result<u64> {
        let status = std::fs::metadata(&self.path)
            .map_err(|error| Fault::from_os(format!("look at {}", self.path.display()), &error))?;
        Ok(status.len())
    }
}

#[cfg(test)]
mod tests {
    use super::super::kv::MemoryKv;
    use super::*;

    #[test]
    fn a_file_keeps_what_memory_keeps() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("table");
        let model = MemoryKv::default();
        let mut kv = RedbKv::open(&path, 1 << 20).unwrap();
        for round in 0..20u8 {
            let changes: Changes = (0..50u8)
                .map(|key| {
                    let value = (key.wrapping_mul(round) % 3 != 0).then(|| vec![round; usize::from(key)]);
                    (vec![key % 7, key], value)
                })
                .collect();
            model.commit(&changes).unwrap();
            kv.commit(&changes).unwrap();
            if round % 5 == 0 {
                drop(kv);
                kv = RedbKv::open(&path, 1 << 20).unwrap();
            }
            assert_eq!(kv.scan(&[2], &[5, 3], 10).unwrap(), model.scan(&[2], &[5, 3], 10).unwrap());
            assert_eq!(kv.scan(&[3], &[2], 10).unwrap(), []);
            for key in changes.keys() {
                assert_eq!(kv.get(key).unwrap(), model.get(key).unwrap());
            }
        }
        assert!(kv.size_bytes().unwrap() > 0);
    }

    #[test]
    fn a_file_that_is_no_table_is_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("table");
        std::fs::write(&path, [7; 10_000]).unwrap();
        let fault = RedbKv::open(&path, 1 << 20).err().unwrap();
        assert!(fault.message.contains("table"), "{fault}");
    }
}
