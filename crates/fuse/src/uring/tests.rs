//! Rings exist for all queues, or for none.

use super::memory::Memory;
use super::*;
use crate::abi::{Header, Request};
use crate::{FrameWrite, Reply};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::thread::ThreadId;
use tameike_core::{Fault, Result};
use tameike_io::slab::{Frame, Slab};

const REQUEST_SIZE: u32 = UNIT_SIZE as u32;
/// Enough frames for any host: they take no memory until they are used.
const ENOUGH: u32 = 8192;

fn device() -> Device {
    Device::new(OwnedFd::from(std::fs::File::open("/dev/null").expect("a file")))
}

fn frames(count: u32) -> Pool {
    Slab::new(count).expect("memory").pool(count)
}

/// Reports its drop, with the number of its queue and the thread that drops it.
struct End(mpsc::Sender<(u16, ThreadId)>, u16);

impl Drop for End {
    fn drop(&mut self) {
        // The receiver may be dropped already.
        let _ = self.0.send((self.1, std::thread::current().id()));
    }
}

/// Regression: the kernel waits for all queues. One thread that could not start, after the others had registered, blocked all
/// programs in their calls.
#[test]
fn one_queue_that_fails_ends_the_others_before_they_serve() {
    let (report, reports) = mpsc::channel();
    let rings = Rings::prepare(3, |number| {
        let end = End(report.clone(), number);
        Ok(move || {
            if end.1 == 2 {
                return Err(io::Error::other("no more"));
            }
            Ok(move |_: &dyn Service| drop(end))
        })
    });
    assert_eq!(rings.err().map(|error| error.to_string()).as_deref(), Some("no more"));
    drop(report);
    let mut ended: Vec<_> = reports.iter().map(|(number, _)| number).collect();
    ended.sort_unstable();
    assert_eq!(ended, [0, 1, 2]);
}

#[test]
fn a_thread_that_cannot_start_ends_the_others() {
    let (report, reports) = mpsc::channel();
    let rings = Rings::prepare(2, |number| {
        let end = End(report.clone(), number);
        if number == 1 {
            return Err(Errno::AGAIN.into());
        }
        Ok(move || Ok(move |_: &dyn Service| drop(end)))
    });
    assert_eq!(rings.err().and_then(|error| error.raw_os_error()), Some(Errno::AGAIN.raw_os_error()));
    drop(report);
    let ended: Vec<_> = reports.iter().map(|(number, _)| number).collect();
    assert_eq!(ended, [1, 0]);
}

/// A service without requests.
struct Idle;

impl Service for Idle {
    fn serve(&self, _request: Request<'_>, _reply: Reply) {}

    fn serve_frame(&self, _header: Header, _write: FrameWrite, _reply: Reply) {}

    fn frame(&self) -> Option<Frame> {
        None
    }
}

/// Regression: the kernel may write a request into the memory of a queue until the queue's thread has ended, but it was freed
/// before.
#[test]
fn memory_of_a_queue_outlives_its_thread() {
    let (report, reports) = mpsc::channel();
    let rings = Rings::prepare(2, |number| {
        let used = End(report.clone(), number);
        Ok(move || Ok(move |_: &dyn Service| used))
    });
    let rings = rings.expect("threads");
    rings.start(&Arc::new(Idle));
    rings.join();
    drop(report);
    let threads: Vec<_> = reports.iter().map(|(_, thread)| thread).collect();
    assert_eq!(threads, [std::thread::current().id(); 2]);
}

/// Regression: if the system always uses huge pages, each blocked lock request took 2 MiB.
#[test]
fn added_memory_uses_small_pages() {
    let memory = Memory::mapped(UNIT_SIZE).expect("memory");
    let start = memory.vectors()[1].iov_base.addr();
    let maps = std::fs::read_to_string("/proc/self/smaps").expect("/proc is mounted");
    let lies_in = |line: &str| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let hexadecimal = |number| usize::from_str_radix(number, 16).ok();
        range.is_some_and(|(from, to)| {
            hexadecimal(from).is_some_and(|from| from <= start)
                && hexadecimal(to).is_some_and(|to| start < to)
        })
    };
    let flags = maps.lines().skip_while(|line| !lies_in(line)).find_map(|line| line.strip_prefix("VmFlags:"));
    let flags = flags.expect("its mapping");
    let has_large = std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists();
    assert!(!has_large || flags.split(' ').any(|flag| flag == "nh"), "{flags}");
}

#[test]
fn rings_use_a_part_of_the_frames_and_need_a_minimum() {
    let depths = [(2, 56), (2, 14), (2, 16), (8, 64), (8, 63), (64, 512), (1, 1000), (0, 1000)];
    let depths = depths.map(|(queues, frames)| depth(queues, frames));
    assert_eq!(depths, [Some(7), None, Some(2), Some(2), None, Some(2), Some(8), None]);
    assert!(Rings::new(&device(), REQUEST_SIZE, &frames(3)).is_err());
}

/// Makes the kernel refuse a system call to this thread and to threads that it starts later.
fn refuse(call: libc::c_long, error: Errno) {
    let statement = |code: u32, jump_true, jump_false, value| libc::sock_filter {
        code: code as u16,
        jt: jump_true,
        jf: jump_false,
        k: value,
    };
    let give_back = libc::BPF_RET | libc::BPF_K;
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call as u32),
        statement(give_back, 0, 0, libc::SECCOMP_RET_ERRNO | error.raw_os_error() as u32),
        statement(give_back, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the calls read the program behind the pointer, which is valid while they last, and bind this thread only.
    let bound = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    assert!(bound, "{}", io::Error::last_os_error());
}

/// The result of creating rings on a thread to which the kernel refuses a call.
fn without(call: libc::c_long, refusal: Errno) -> Result<Option<i32>> {
    let job = move || {
        refuse(call, refusal);
        let rings = Rings::new(&device(), REQUEST_SIZE, &frames(ENOUGH));
        rings.err().and_then(|error| error.raw_os_error())
    };
    process::start_thread("bound", job)?.join().map_err(|_| Fault::io("the thread failed"))
}

#[test]
fn without_io_uring_there_are_no_rings() {
    let calls = [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter];
    for (call, refusal) in calls.into_iter().flat_map(|call| [(call, Errno::PERM), (call, Errno::NOSYS)]) {
        assert_eq!(without(call, refusal).expect("a thread"), Some(refusal.raw_os_error()), "call {call}");
    }
}
