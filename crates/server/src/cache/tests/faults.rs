//! Fault injection at each call to the shared file system, once or from that call on. No data is lost, and no receipt claims success for
//! data that is not on the shared file system.

use super::bed::{Bed, bytes, checksum};
use super::faulty::Plan;
use tameike_core::Errno;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::receipt::FileReceipt;
use tameike_core::wire::cache::CacheRequest;

const UNIT: usize = UNIT_SIZE;

/// Prepares dirty files, and returns their expected content.
fn prepare(bed: &Bed) -> Vec<(&'static str, Vec<u8>)> {
    let old = bytes(9, UNIT + UNIT / 2);
    bed.write_shared("old", &old);
    std::fs::create_dir(bed.root.join("dir")).expect("mkdir");
    let client = bed.client(0);
    bed.run(async move {
        client.create(b"dir/new", &bytes(1, 2 * UNIT + 10)).await.expect("write");
        client.create(b"small", b"small content").await.expect("write");
        client.write(b"old", UNIT as u64 - 3, b"middle").await.expect("write");
        client.truncate(b"small", 5).await.expect("truncate");
        client.rename(b"small", b"dir/small").await.expect("rename");
    });
    let mut changed = old;
    changed[UNIT - 3..UNIT + 3].copy_from_slice(b"middle");
    vec![("dir/new", bytes(1, 2 * UNIT + 10)), ("dir/small", b"small".to_vec()), ("old", changed)]
}

fn check(bed: &Bed, files: &[FileReceipt], expected: &[(&str, Vec<u8>)]) {
    for (path, content) in expected {
        let receipt = files.iter().find(|file| file.path == *path);
        let receipt = receipt.unwrap_or_else(|| panic!("{path} is in no receipt: {files:?}"));
        if receipt.is_complete() {
            assert!(bed.shared_content(path) == *content, "{path} is reported as complete");
        }
    }
}

fn fail_everywhere(plan: impl Fn(u64) -> Plan, crash: bool) {
    [false, true].into_iter().for_each(|writers_end| fail_at_every_step(&plan, crash, writers_end));
}

fn fail_at_every_step(plan: impl Fn(u64) -> Plan, crash: bool, writers_end: bool) {
    for step in 0.. {
        let bed = Bed::new(100 + step, 2);
        if writers_end {
            bed.control.allow_writers_to_finish();
        }
        let expected = prepare(&bed);
        bed.control.set(plan(step));
        let first = bed.drain(true);
        if bed.control.failed() == 0 {
            assert!(step > 20, "the test has seen only {step} calls");
            assert!(first.is_complete(), "{first:?}");
            return;
        }
        bed.control.set(Plan::Good);
        check(&bed, &first.files, &expected);
        if crash {
            bed.crash();
        }
        let second = bed.drain(true);
        assert!(second.is_complete(), "step {step}: {first:?} then {second:?}");
        assert_eq!(second.files.len(), expected.len());
        for (path, content) in &expected {
            assert!(bed.shared_content(path) == *content, "step {step}: {path}");
        }
    }
}

#[test]
fn one_call_fails() {
    fail_everywhere(|step| Plan::Once(step, Errno::EIO), false);
}

#[test]
fn the_shared_directory_turns_read_only() {
    fail_everywhere(|step| Plan::From(step, Errno::EROFS), false);
}

#[test]
fn the_shared_directory_fills_up_and_the_agents_are_killed() {
    fail_everywhere(|step| Plan::From(step, Errno::ENOSPC), true);
}

#[test]
fn agents_killed_during_a_drain_complete_it_in_their_next_incarnation() {
    [false, true].into_iter().for_each(kill_at_every_step);
}

fn kill_at_every_step(writers_end: bool) {
    for steps in (0..600).step_by(9) {
        let bed = Bed::new(1000 + steps, 3);
        if writers_end {
            bed.control.allow_writers_to_finish();
        }
        let expected = prepare(&bed);
        bed.begin_drain();
        let ended = bed.machine.steps(steps);
        bed.crash();
        for (path, content) in &expected {
            assert!(bed.read(2, path) == *content, "after {steps} steps: {path} through the cache");
        }
        let receipt = bed.drain(true);
        assert!(receipt.is_complete(), "after {steps} steps: {receipt:?}");
        for (path, content) in &expected {
            assert!(bed.shared_content(path) == *content, "after {steps} steps: {path}");
            let file = receipt.files.iter().find(|file| file.path == *path).expect("a receipt");
            assert_eq!(file.checksum, checksum(content), "after {steps} steps: {file:?}");
        }
        if ended {
            return;
        }
    }
    panic!("the drain takes more steps than this test runs");
}

/// Regression: bytes that a failed fsync had left in kernel memory were truncated. The coordinator then took a flush with nothing to write
/// for a successful fsync, trusted the kernel again, and later writes never reached the disk.
#[test]
fn an_empty_flush_after_a_failed_fsync_does_not_restore_trust_in_the_kernel() {
    let bed = Bed::new(1300, 1);
    bed.create("file", &bytes(1, 70_000));
    bed.control.set(Plan::Fsync(Errno::EIO));
    assert!(!bed.drain(false).is_complete(), "an fsync fails");
    bed.run(bed.client(0).truncate(b"file", 0)).expect("truncate");
    assert!(bed.drain(false).is_complete(), "nothing is left");
    bed.write("file", 45_900, &bytes(2, 5000));
    bed.drain_completely(true);
    assert!(bed.shared_content("file") == [vec![0; 45_900], bytes(2, 5000)].concat());
}

/// Regression: a failed truncate reused its generation for the next write. Clients that had read under that generation kept the old
/// content.
#[test]
fn the_generation_of_a_failed_truncate_is_not_reused() {
    for step in 0.. {
        let bed = Bed::new(1100 + step, 2);
        bed.create("file", &bytes(3, 5000));
        bed.drain(false);
        let client = bed.client(0);
        let before = bed.run(client.open(b"file", true)).expect("open");
        bed.control.set(Plan::Once(step, Errno::EIO));
        let (inode, now) = (before.inode, client.runtime.now());
        let truncated = bed.run(client.state(inode, CacheRequest::Truncate { inode, size: 100, now }));
        bed.control.set(Plan::Good);
        assert!(truncated.is_err(), "step {step}");
        let client = bed.client(1);
        bed.run(client.write(b"file", 50, b"new")).expect("write");
        let after = bed.run(client.open(b"file", false)).expect("open");
        assert!(after.generation > before.generation.next(), "step {step}");
        if after.size == 100 {
            // The shared file is truncated already: the next open completes the truncate.
            assert!(step > 0, "a truncate calls the shared file system");
            return;
        }
        assert_eq!(after.size, 5000, "step {step}");
    }
}
