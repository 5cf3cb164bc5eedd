use super::file::{FileDisk, FileLock, FileLog};
use super::memory::{Faults, MemoryDisk, MemoryLog};
use super::*;
use crate::os::runtime::{Clock, Executor, Random};
use crate::os::system::System;
use crate::{Runtime, Slab};
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
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

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Blocks until another thread completes the future.
pub(super) fn wait<T>(mut future: BoxFuture<'static, T>) -> T {
    const LIMIT: Duration = Duration::from_secs(60);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    for _ in 0..10 {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        std::thread::park_timeout(LIMIT);
    }
    panic!("the call does not end");
}

/// Directories on a disk and in memory.
fn directories() -> [tempfile::TempDir; 2] {
    [tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap()]
}

/// The common test of every disk. Its first 64 KiB must be unwritten.
pub(super) fn keeps_what_is_written(disk: &dyn Disk) {
    let pool = Slab::new(2).unwrap().pool(2);
    let mut frame = pool.try_take().unwrap();
    frame[4096..12288].fill(7);
    let payload = Payload::new(Arc::new(frame), 4096..12288);
    wait(disk.write(20480, payload)).unwrap();
    wait(disk.sync()).unwrap();
    let mut frame = pool.try_take().unwrap();
    frame.fill(1);
    let (frame, result) = wait(disk.read(16384, frame, 8192..24576));
    result.unwrap();
    assert!(frame[..8192].iter().chain(&frame[24576..]).all(|&byte| byte == 1));
    assert!(frame[8192..12288].iter().chain(&frame[20480..24576]).all(|&byte| byte == 0));
    assert!(frame[12288..20480].iter().all(|&byte| byte == 7));
    wait(disk.allocate(0..65536)).unwrap();
    let (frame, result) = wait(disk.read(20480, frame, 0..4096));
    result.unwrap();
    assert!(frame[..4096].iter().all(|&byte| byte == 7), "written bytes are kept");
    wait(disk.discard(8192..16384)).unwrap();
}

#[test]
fn every_disk_keeps_writes() {
    keeps_what_is_written(&MemoryDisk::new(1 << 20, Faults::default()));
    for directory in directories() {
        let path = directory.path().join("extents");
        keeps_what_is_written(&FileDisk::open(&path, 1 << 20, runtime()).unwrap());
        let larger = FileDisk::open(&path, 1 << 10, runtime()).unwrap();
        assert_eq!(larger.size(), 1 << 20, "a file never shrinks");
    }
}

#[test]
fn every_disk_keeps_direct_writes() {
    let system = System::start(2).unwrap();
    let direct = Direct { reactor: system.reactor().clone(), slab: Slab::new(2).unwrap() };
    for directory in directories() {
        let path = directory.path().join("extents");
        let open = |size| open(&path, size, system.runtime(), Some(&direct)).unwrap();
        keeps_what_is_written(&*open(1 << 20));
        assert_eq!(open(1 << 10).size(), 1 << 20, "a file never shrinks");
    }
}

#[test]
fn other_processes_read_a_disk_in_memory_and_cannot_write() {
    use std::os::unix::fs::FileExt;
    for directory in directories() {
        let is_in_memory = super::file::in_memory(directory.path()).unwrap();
        let disk = FileDisk::open(&directory.path().join("extents"), 1 << 20, runtime()).unwrap();
        let shown = disk.memory().map(std::fs::File::from);
        assert_eq!(shown.is_some(), is_in_memory);
        let Some(shown) = shown else { continue };
        let pool = Slab::new(1).unwrap().pool(1);
        let mut frame = pool.try_take().unwrap();
        frame[..4096].fill(7);
        wait(disk.write(8192, Payload::new(Arc::new(frame), 0..4096))).unwrap();
        let mut found = [0; 4096];
        shown.read_exact_at(&mut found, 8192).unwrap();
        assert_eq!(found, [7; 4096]);
        assert!(shown.write_at(b"x", 8192).is_err() && shown.set_len(0).is_err());
    }
}

#[test]
fn a_disk_refuses_pieces_of_blocks() {
    let slab = Slab::new(1).unwrap();
    let disk = MemoryDisk::new(1 << 20, Faults::default());
    for (offset, range) in [(512, 0..4096), (0, 512..4608), (0, 0..5000)] {
        let frame = slab.pool(1).try_take().unwrap();
        let call = AssertUnwindSafe(|| drop(disk.read(offset, frame, range.clone())));
        assert!(std::panic::catch_unwind(call).is_err(), "{offset}, {range:?}");
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
    wait(disk.allocate(0..1 << 18)).unwrap();
    assert_eq!(blocks(), 1536);
}

fn appends_and_truncates(log: &dyn AppendFile) {
    wait(log.append(b"one".to_vec())).unwrap();
    wait(log.append(b"two".to_vec())).unwrap();
    wait(log.truncate(4)).unwrap();
    wait(log.append(b"three".to_vec())).unwrap();
    wait(log.sync()).unwrap();
    assert_eq!(wait(log.read_all()).unwrap(), b"onetthree");
}

#[test]
fn every_log_appends_and_truncates() {
    appends_and_truncates(&MemoryLog::new(Faults::default()));
    for directory in directories() {
        let path = directory.path().join("log");
        appends_and_truncates(&FileLog::open(&path, runtime(), 1 << 20).unwrap());
        let again = FileLog::open(&path, runtime(), 0).unwrap();
        wait(again.append(b"!".to_vec())).unwrap();
        assert_eq!(wait(again.read_all()).unwrap(), b"onetthree!");
    }
}

/// On a full disk the log could not grow, and nothing was freed any more, as that takes a record of it.
#[test]
fn a_log_on_a_disk_preallocates_space() {
    use std::os::unix::fs::MetadataExt;
    const ROOM: u64 = 1 << 20;
    for directory in directories() {
        let path = directory.path().join("log");
        let log = FileLog::open(&path, runtime(), ROOM).unwrap();
        let in_memory = super::file::in_memory(directory.path()).unwrap();
        for size in [0, 7, 0] {
            wait(log.truncate(size)).unwrap();
            let found = std::fs::metadata(&path).unwrap();
            assert_eq!(found.len(), size);
            assert_eq!(found.blocks() * 512 >= ROOM, !in_memory, "{} blocks", found.blocks());
            wait(log.append(b"content".to_vec())).unwrap();
        }
        assert_eq!(wait(log.read_all()).unwrap(), b"content");
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
fn a_lock_has_one_holder() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lock");
    let held = FileLock::take(&path).unwrap();
    let refused = FileLock::take(&path).err().unwrap();
    assert_eq!(refused.errno, Errno::EBUSY);
    assert!(refused.to_string().contains("lock"), "{refused}");
    drop(held);
    FileLock::take(&path).unwrap();
    assert!(FileLock::take(Path::new("/nowhere/lock")).err().unwrap().to_string().contains("/nowhere/lock"));
}
