use super::*;
use crate::disk::tests::wait;
use crate::os::system::System;
use std::path::PathBuf;
use std::time::Duration;
use tameike_core::limits::UNIT_SIZE;

const BLOCK: u32 = 4096;
const UNIT: u32 = UNIT_SIZE as u32;
const SIZE: u64 = 64 << 20;

/// A file on a disk, and what its direct I/O needs.
struct Bed {
    system: System,
    slab: Arc<Slab>,
    file: FileDisk,
    path: PathBuf,
    _directory: tempfile::TempDir,
}

impl Bed {
    /// `None` if this machine permits no io_uring.
    fn new(frames: u32) -> Option<Self> {
        if let Err(why) = available() {
            eprintln!("skipped: {why}");
            return None;
        }
        let system = System::start(2).expect("threads");
        // Never in memory, unlike the default directory for temporary files.
        let directory = tempfile::tempdir_in("/var/tmp").expect("a directory");
        let path = directory.path().join("extents");
        let file = FileDisk::open(&path, SIZE, system.runtime().clone()).expect("a file");
        let slab = Slab::new(frames).expect("a slab");
        Some(Self { system, slab, file, path, _directory: directory })
    }

    fn disk(&self, depth: u32) -> UringDisk {
        self.try_disk(depth).expect("a disk with direct I/O")
    }

    fn try_disk(&self, depth: u32) -> std::result::Result<UringDisk, String> {
        let direct = Direct { reactor: self.system.reactor().clone(), slab: self.slab.clone() };
        UringDisk::with_depth(&self.file, &direct, self.system.runtime(), depth)
    }

    fn payload(&self, byte: u8, range: Range<u32>) -> Payload {
        filled(&self.slab, byte, range)
    }

    /// Writes `units` units, so that later writes to them find allocated space.
    fn occupy(&self, disk: &dyn Disk, units: u32) {
        for number in 0..units {
            wait(disk.write(place(number), self.payload(7, 0..UNIT))).expect("written");
        }
    }

    fn is_direct(&self) -> bool {
        let flags = rustix::fs::fcntl_getfl(self.file.descriptor()).expect("its flags");
        flags.contains(rustix::fs::OFlags::DIRECT)
    }
}

fn filled(slab: &Arc<Slab>, byte: u8, range: Range<u32>) -> Payload {
    let mut frame = slab.pool(1).try_take().expect("a frame");
    frame.fill(byte);
    Payload::new(Arc::new(frame), range)
}

fn place(number: u32) -> u64 {
    // Far apart, so that each lies in a separate hole.
    u64::from(number) * 3 * u64::from(UNIT) / 2 / u64::from(BLOCK) * u64::from(BLOCK)
}

/// More calls than the ring takes at once, in registered frames and in others.
#[test]
fn calls_beyond_the_depth_are_queued_and_none_is_lost() {
    const CALLS: u32 = 40;
    let Some(bed) = Bed::new(CALLS) else { return };
    for slab in [bed.slab.clone(), Slab::new(CALLS).expect("another slab")] {
        let disk = bed.disk(4);
        let part = |number: u32| (number % 7) * BLOCK..UNIT - (number % 5) * BLOCK;
        let writes: Vec<_> = (0..CALLS)
            .map(|number| disk.write(place(number), filled(&slab, number as u8 + 1, part(number))))
            .collect();
        writes.into_iter().for_each(|write| wait(write).expect("written"));
        wait(disk.sync()).expect("synced");
        let reads: Vec<_> = (0..CALLS)
            .map(|number| disk.read(place(number), slab.pool(1).try_take().expect("a frame"), part(number)))
            .collect();
        for (number, read) in (0..CALLS).zip(reads) {
            let (frame, result) = wait(read);
            result.expect("read");
            let bytes = &frame[part(number).start as usize..part(number).end as usize];
            assert!(bytes.iter().all(|&byte| byte == number as u8 + 1), "call {number}");
        }
        drop(disk);
        assert_eq!(slab.usage().0, 0, "all frames are free");
    }
}

/// Kernel workers of a ring would wake up every few seconds, so no operation may create them: neither writes to holes, nor reads
/// of holes, nor syncs.
#[test]
fn blocking_requests_use_the_pool_and_no_kernel_workers() {
    let Some(bed) = Bed::new(4) else { return };
    let disk = bed.disk(4);
    for number in 0..20 {
        wait(disk.write(place(number), bed.payload(number as u8, 0..UNIT))).expect("written");
        let frame = bed.slab.pool(1).try_take().expect("a frame");
        let (frame, result) = wait(disk.read(SIZE - u64::from(BLOCK), frame, 0..BLOCK));
        result.expect("a hole is read");
        assert!(frame[..BLOCK as usize].iter().all(|&byte| byte == 0));
        wait(disk.sync()).expect("synced");
    }
    let threads = std::fs::read_dir("/proc/self/task").expect("threads");
    let names = threads.map(|thread| std::fs::read_to_string(thread.expect("one").path().join("comm")));
    let names: Vec<_> = names.map_while(Result::ok).collect();
    assert!(names.iter().any(|name| name.starts_with("tameike-reactor")), "{names:?}");
    assert!(names.iter().all(|name| !name.starts_with("iou-wrk")), "{names:?}");
}

#[test]
fn frames_of_dropped_calls_are_freed() {
    const CALLS: u32 = 16;
    let Some(bed) = Bed::new(CALLS) else { return };
    let disk = bed.disk(4);
    bed.occupy(&disk, CALLS);
    let pool = bed.slab.pool(CALLS);
    for round in 0..10 {
        for number in 0..CALLS {
            let mut frame = wait(Box::pin({
                let pool = pool.clone();
                async move { pool.take().await }
            }));
            if number % 2 == 0 {
                frame.fill(round);
                drop(disk.write(place(number), Payload::new(Arc::new(frame), 0..UNIT)));
            } else {
                drop(disk.read(place(number), frame, 0..UNIT));
            }
        }
    }
    drop(disk);
    assert_eq!(bed.slab.usage().0, 0);
}

/// A dropped disk frees its frames only when the kernel no longer uses them, whether the reactor is running, or has ended, which
/// cancels its requests.
#[test]
fn a_dropped_disk_waits_for_the_kernel() {
    const CALLS: u32 = 24;
    for stopped in [false, true] {
        let Some(bed) = Bed::new(CALLS) else { return };
        let disk = bed.disk(8);
        bed.occupy(&disk, CALLS);
        let read = |number| disk.read(place(number), bed.slab.pool(1).try_take().expect("a frame"), 0..UNIT);
        let mut reads = (0..CALLS).map(read).collect::<Vec<_>>().into_iter();
        let first = wait(reads.next().expect("a call"));
        drop((first, reads));
        if stopped {
            bed.system.stop();
        }
        drop(disk);
        assert_eq!(bed.slab.usage().0, 0, "stopped: {stopped}");
        let others: Vec<_> = (0..CALLS).map(|_| bed.payload(8, 0..UNIT)).collect();
        // By now the device has completed everything.
        std::fs::read(&bed.path).expect("the file");
        assert!(others.iter().all(|bytes| bytes.iter().all(|&byte| byte == 8)), "stopped: {stopped}");
    }
}

#[test]
fn a_read_of_a_truncated_file_fails() {
    let Some(bed) = Bed::new(2) else { return };
    let disk = bed.disk(4);
    wait(disk.write(0, bed.payload(7, 0..UNIT))).expect("written");
    let file = std::fs::File::options().write(true).open(&bed.path).expect("opens");
    for left in [u64::from(UNIT) / 2, 0] {
        file.set_len(left).expect("a truncation");
        let (_, result) = wait(disk.read(0, bed.slab.pool(1).try_take().expect("a frame"), 0..UNIT));
        let fault = result.expect_err("the file is truncated");
        assert!(fault.to_string().contains(&format!("ends at byte {left}")), "{fault}");
    }
}

#[test]
fn without_a_ring_the_file_uses_the_page_cache() {
    let Some(bed) = Bed::new(1) else { return };
    let refused = bed.try_disk(0).err().expect("a ring of depth 0 is refused");
    assert!(refused.contains("cannot create an io_uring"), "{refused}");
    assert!(!bed.is_direct());
    wait(bed.file.write(0, bed.payload(7, 0..BLOCK))).expect("written");
    let disk = bed.disk(1);
    assert!(bed.is_direct());
    // What was written through the page cache is visible to direct reads.
    let (frame, result) = wait(disk.read(0, bed.slab.pool(1).try_take().expect("a frame"), 0..BLOCK));
    result.expect("read");
    assert!(frame[..BLOCK as usize].iter().all(|&byte| byte == 7));
}

/// Makes the kernel refuse the calling thread an io_uring, as in containers.
fn refuse_io_uring() -> std::io::Result<()> {
    const NUMBER_OF_CALL: u32 = 0;
    let step = |code: u32, k: u32, on_equal: u8, on_other: u8| libc::sock_filter {
        code: code as u16,
        jt: on_equal,
        jf: on_other,
        k,
    };
    let mut steps = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, NUMBER_OF_CALL, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, libc::SYS_io_uring_setup as u32, 0, 1),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0, 0),
        step(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    rustix::thread::set_no_new_privs(true)?;
    // SAFETY: the program is whole, and is copied by the kernel before the call returns.
    match unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[test]
fn without_io_uring_all_calls_use_the_page_cache() {
    let Some(bed) = Bed::new(2) else { return };
    let refused = move || {
        refuse_io_uring().expect("a thread may install a filter");
        let why = available().expect_err("io_uring is refused");
        assert!(why.contains("Operation not permitted"), "{why}");
        let direct = Direct { reactor: bed.system.reactor().clone(), slab: bed.slab.clone() };
        let disk = crate::disk::open(&bed.path, SIZE, bed.system.runtime(), Some(&direct)).expect("a disk");
        crate::disk::tests::keeps_what_is_written(&*disk);
        assert!(bed.try_disk(4).is_err() && !bed.is_direct());
    };
    // A separate thread, since the filter stays with it.
    let thread = crate::os::process::start_thread("refused", refused).expect("a thread");
    thread.join().expect("the thread succeeds");
}

/// A completion wakes the reactor once; then it sleeps.
#[test]
#[expect(clippy::disallowed_methods, reason = "nothing is to happen, in real time")]
fn an_idle_disk_causes_no_wakeups() {
    let Some(bed) = Bed::new(8) else { return };
    let disk = bed.disk(4);
    // The first writes to holes go to the pool.
    bed.occupy(&disk, 8);
    bed.occupy(&disk, 8);
    let (resolver, thread) = promise();
    let sleep = bed.system.runtime().sleep(Duration::from_millis(1));
    bed.system.runtime().spawn(async move {
        sleep.await;
        resolver.resolve(rustix::thread::gettid().as_raw_nonzero().get());
    });
    let status = format!("/proc/self/task/{}/status", wait(thread.boxed()));
    let switches = || {
        let status = std::fs::read_to_string(&status).expect("the thread runs");
        status.lines().find(|line| line.starts_with("voluntary_ctxt_switches")).expect("Linux").to_owned()
    };
    std::thread::sleep(Duration::from_millis(50));
    let before = switches();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(switches(), before);
}
