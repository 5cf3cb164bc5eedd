use super::file::{FileDisk, FileLock, FileLog};
use super::memory::{Faults, MemoryDisk, MemoryLog};
use super::*;
use crate::os::runtime::{Clock, Executor, Random};
use crate::{Runtime, Slab};
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tameike_core::{Errno, Timestamp};

struct Still;

impl Clock for Still {
    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }
    fn wall(&self) -> Timestamp {
        Timestamp::default()
    }
}

impl Random for Still {
    fn fill(&self, bytes: &mut [u8]) {
        bytes.fill(0);
    }
}

impl Executor for Still {
    fn spawn(&self, _: BoxFuture<'static, ()>) {
        unreachable!("disks spawn nothing");
    }
    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        unreachable!("disks do not sleep");
    }
    fn block(&self, job: Box<dyn FnOnce() + Send>) {
        job();
    }
}

fn runtime() -> Runtime {
    Runtime { clock: Arc::new(Still), random: Arc::new(Still), executor: Arc::new(Still) }
}

fn wait<T>(mut future: BoxFuture<'static, T>) -> T {
    for _ in 0..10 {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
    }
    panic!("the call does not end");
}

/// Directories on a disk and in memory.
fn directories() -> [tempfile::TempDir; 2] {
    [tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap()]
}

fn keeps_what_is_written(disk: &dyn Disk) {
    let pool = Slab::new(2).unwrap().pool(2);
    let mut frame = pool.try_take().unwrap();
    frame[100..200].fill(7);
    let payload = Payload::new(Arc::new(frame), 100..200);
    wait(disk.write(5000, payload)).unwrap();
    wait(disk.sync()).unwrap();
    let mut frame = pool.try_take().unwrap();
    frame.fill(1);
    let (frame, result) = wait(disk.read(4999, frame, 10..112));
    result.unwrap();
    assert_eq!((frame[9], frame[10], frame[11], frame[110], frame[111], frame[112]), (1, 0, 7, 7, 0, 1));
    wait(disk.discard(8192..16384)).unwrap();
}

#[test]
fn every_disk_keeps_what_is_written() {
    keeps_what_is_written(&MemoryDisk::new(1 << 20, Faults::default()));
    for directory in directories() {
        let path = directory.path().join("extents");
        keeps_what_is_written(&FileDisk::open(&path, 1 << 20, runtime()).unwrap());
        let larger = FileDisk::open(&path, 1 << 10, runtime()).unwrap();
        assert_eq!(larger.size(), 1 << 20, "a file never shrinks");
    }
}

#[test]
fn a_discarded_range_takes_no_space() {
    use std::os::unix::fs::MetadataExt;
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("extents");
    let disk = FileDisk::open(&path, 1 << 20, runtime()).unwrap();
    let pool = Slab::new(1).unwrap().pool(1);
    wait(disk.write(0, Payload::new(Arc::new(pool.try_take().unwrap()), 0..1 << 20))).unwrap();
    let blocks = || std::fs::metadata(&path).unwrap().blocks();
    assert_eq!(blocks(), 2048);
    wait(disk.discard(0..1 << 19)).unwrap();
    assert_eq!(blocks(), 1024);
}

fn appends_and_cuts(log: &dyn AppendFile) {
    wait(log.append(b"one".to_vec())).unwrap();
    wait(log.append(b"two".to_vec())).unwrap();
    wait(log.truncate(4)).unwrap();
    wait(log.append(b"three".to_vec())).unwrap();
    wait(log.sync()).unwrap();
    assert_eq!(wait(log.read_all()).unwrap(), b"onetthree");
}

#[test]
fn every_log_appends_and_cuts() {
    appends_and_cuts(&MemoryLog::new(Faults::default()));
    for directory in directories() {
        let path = directory.path().join("log");
        appends_and_cuts(&FileLog::open(&path, runtime()).unwrap());
        let again = FileLog::open(&path, runtime()).unwrap();
        wait(again.append(b"!".to_vec())).unwrap();
        assert_eq!(wait(again.read_all()).unwrap(), b"onetthree!");
    }
}

#[test]
fn a_failing_log_tears_one_append_and_then_refuses_all() {
    let faults = Faults::default();
    let log = MemoryLog::new(faults.clone());
    faults.after(1);
    wait(log.append(b"whole".to_vec())).unwrap();
    assert_eq!(wait(log.append(b"torn".to_vec())).unwrap_err().errno, Errno::EIO);
    assert_eq!(wait(log.append(b"dead".to_vec())).unwrap_err().errno, Errno::EIO);
    faults.none();
    assert_eq!(wait(log.read_all()).unwrap(), b"wholeto");
    log.lose_power(|| false);
    assert_eq!(wait(log.read_all()).unwrap(), b"");
}

#[test]
fn a_lock_is_held_by_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lock");
    let held = FileLock::take(&path).unwrap();
    let refused = FileLock::take(&path).err().unwrap();
    assert_eq!(refused.errno, Errno::EBUSY);
    assert!(refused.message.contains("lock"), "{refused}");
    drop(held);
    FileLock::take(&path).unwrap();
    assert!(FileLock::take(Path::new("/nowhere/lock")).err().unwrap().message.contains("/nowhere/lock"));
}
