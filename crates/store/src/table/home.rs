//! The records of one home in the table of a node.

use super::{ReadTable, Table, prefix};
use tameike_core::{HomeId, Result};

/// Length of what a key has before the part that its home sees.
const PREFIX_SIZE: usize = 3;

/// The key in the node's table of a key of a home.
pub fn key_of_home(home: HomeId, key: &[u8]) -> Vec<u8> {
    let [high, low] = home.0.to_be_bytes();
    [&[prefix::HOME, high, low], key].concat()
}

/// The records of a home, as its state machine sees them.
pub struct HomeTable<T> {
    home: HomeId,
    table: T,
}

impl<T> HomeTable<T> {
    /// The records of a home in a table.
    pub fn new(home: HomeId, table: T) -> Self {
        Self { home, table }
    }
}

impl<T: ReadTable> ReadTable for HomeTable<T> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.table.get(&key_of_home(self.home, key))
    }

    fn scan(&self, start: &[u8], end: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let (start, end) = (key_of_home(self.home, start), key_of_home(self.home, end));
        let mut found = self.table.scan(&start, &end, limit)?;
        for (key, _) in &mut found {
            key.drain(..PREFIX_SIZE);
        }
        Ok(found)
    }
}

impl<T: Table> Table for HomeTable<T> {
    fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.table.put(key_of_home(self.home, &key), value);
    }

    fn delete(&mut self, key: Vec<u8>) {
        self.table.delete(key_of_home(self.home, &key));
    }
}

/// The homes that have records in a table, ascending.
///
/// # Errors
/// Those of the table.
pub fn homes(table: &dyn ReadTable) -> Result<Vec<HomeId>> {
    let (mut start, end, mut found) = (vec![prefix::HOME], [prefix::HOME + 1], Vec::new());
    while let Some((key, _)) = table.scan(&start, &end, 1)?.pop() {
        let number = key.get(1..PREFIX_SIZE).and_then(|bytes| bytes.try_into().ok());
        let Some(home) = number.map(u16::from_be_bytes) else {
            // A damaged key, which is shorter: the next longer one follows.
            start = [&key[..], &[0]].concat();
            continue;
        };
        found.push(HomeId(home));
        match home.checked_add(1) {
            Some(next) => start = key_of_home(HomeId(next), &[]),
            None => break,
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::super::memory::MemoryTable;
    use super::*;

    #[test]
    fn a_home_sees_its_records_only() {
        let mut table = MemoryTable::default();
        let all = [HomeId(0), HomeId(1), HomeId(255), HomeId(256), HomeId(u16::MAX)];
        for home in all {
            let mut own = HomeTable::new(home, &mut table);
            own.put(b"ia".to_vec(), home.0.to_be_bytes().to_vec());
            own.put(b"ib".to_vec(), Vec::new());
            own.delete(b"ib".to_vec());
        }
        table.put(b"k".to_vec(), Vec::new());
        assert_eq!(homes(&table).expect("in memory"), all);
        for home in all {
            let own = HomeTable::new(home, &table);
            let value = home.0.to_be_bytes().to_vec();
            assert_eq!(own.get(b"ia").expect("in memory"), Some(value.clone()));
            assert_eq!(own.scan(b"i", b"j", 9).expect("in memory"), [(b"ia".to_vec(), value)]);
            assert_eq!(own.scan(b"j", b"k", 9).expect("in memory"), []);
        }
        assert_eq!(homes(&MemoryTable::default()).expect("in memory"), []);
    }
}
