use super::*;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tameike_core::attr::AttrChange;
use tameike_core::{Errno, Result};
use tameike_io::shared::{Allocate, FileStat, Seek, SharedFile};

/// A file in memory that can be full.
#[derive(Default)]
struct Limited {
    bytes: Mutex<Vec<u8>>,
    is_full: AtomicBool,
}

impl SharedFile for Limited {
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        if self.is_full.load(Ordering::SeqCst) {
            return Err(Errno::ENOSPC.into());
        }
        let mut all = self.bytes.lock();
        let end = offset as usize + bytes.len();
        if all.len() < end {
            all.resize(end, 0);
        }
        all[offset as usize..end].copy_from_slice(bytes);
        Ok(())
    }

    fn stat(&self) -> Result<FileStat> {
        Err(Errno::ENOSYS.into())
    }
    fn read_at(&self, _: &mut [u8], _: u64) -> Result<usize> {
        Err(Errno::ENOSYS.into())
    }
    fn append(&self, _: &[u8]) -> Result<()> {
        Err(Errno::ENOSYS.into())
    }
    fn truncate(&self, _: u64) -> Result<()> {
        Err(Errno::ENOSYS.into())
    }
    fn allocate(&self, _: Allocate, _: u64, _: u64) -> Result<()> {
        Err(Errno::ENOSYS.into())
    }
    fn seek(&self, _: Seek, _: u64) -> Result<u64> {
        Err(Errno::ENOSYS.into())
    }
    fn sync(&self) -> Result<()> {
        Err(Errno::ENOSYS.into())
    }
    fn forget_pages(&self) -> Result<()> {
        Err(Errno::ENOSYS.into())
    }
    fn revalidate(&self) -> Result<()> {
        Err(Errno::ENOSYS.into())
    }
    fn change(&self, _: &AttrChange) -> Result<()> {
        Err(Errno::ENOSYS.into())
    }
}

#[test]
fn a_failed_write_is_retried_once_there_is_space() {
    let file = Arc::new(Limited::default());
    let behind = WriteBehind::new(file.clone()).expect("a thread");
    let mut block = vec![1; 100];
    let _ = behind.give(&mut block, 0).expect("given");
    assert!(block.is_empty());
    behind.settle().expect("written");
    file.is_full.store(true, Ordering::SeqCst);
    block = vec![2; 100];
    // The error is not known yet.
    let _ = behind.give(&mut block, 100).expect("given");
    let mut next = vec![3; 50];
    assert_eq!(behind.give(&mut next, 200).map(drop).expect_err("it is full").errno, Errno::ENOSPC);
    assert_eq!(next, [3; 50]);
    assert_eq!(behind.settle().expect_err("it still is").errno, Errno::ENOSPC);
    assert!(!behind.is_free());
    file.is_full.store(false, Ordering::SeqCst);
    let _ = behind.give(&mut next, 200).expect("given");
    drop(behind);
    let expected: Vec<u8> = [vec![1; 100], vec![2; 100], vec![3; 50]].concat();
    assert!(*file.bytes.lock() == expected);
}

#[test]
fn a_block_handed_to_the_caller_is_retried_after_a_failed_write() {
    let file = Arc::new(Limited::default());
    let behind = WriteBehind::without_thread(file.clone());
    let mut block = vec![1; 100];
    let given = behind.give(&mut block, 0).expect("given").expect("the caller writes");
    assert!(block.is_empty() && !behind.is_free() && file.bytes.lock().is_empty());
    given.write();
    behind.settle().expect("written");
    file.is_full.store(true, Ordering::SeqCst);
    block = vec![2; 100];
    behind.give(&mut block, 100).expect("given").expect("the caller writes").write();
    assert!(!behind.is_free());
    assert_eq!(behind.settle().expect_err("it is full").errno, Errno::ENOSPC);
    file.is_full.store(false, Ordering::SeqCst);
    behind.settle().expect("written");
    // A block that the caller drops is written by the next wait.
    block = vec![3; 100];
    drop(behind.give(&mut block, 200).expect("given"));
    behind.settle().expect("written");
    assert!(*file.bytes.lock() == [vec![1; 100], vec![2; 100], vec![3; 100]].concat());
}
