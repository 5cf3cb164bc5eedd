//! Mounts with a stale file size after another client has extended the file. Gfarm mounts have one for a second.

use super::bed::{Bed, bytes, checksum};
use super::faulty::Plan;
use std::time::Duration;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::cache::Stamp;
use tameike_core::wire::meta::RenameMode;
use tameike_core::wire::unit::{SpaceChange, UnitRequest};
use tameike_core::{Errno, InodeId, Layout, NodeId, Result, UnitId};
use tameike_io::shared::Access;

const FILE: &[u8] = b"file";
const UNIT: u64 = UNIT_SIZE as u64;
/// A read that waits for the shared file's size takes longer.
const AT_ONCE: Duration = Duration::from_millis(50);

fn home(bed: &Bed, index: u64) -> NodeId {
    bed.cluster.primary(bed.cluster.unit_home(Layout::Striped, UnitId { inode: inode(bed, FILE), index }))
}

fn coordinator(bed: &Bed) -> NodeId {
    bed.cluster.primary(bed.cluster.inode_home(inode(bed, FILE)))
}

fn inode(bed: &Bed, path: &[u8]) -> InodeId {
    bed.shared.stat(path).expect("stat").inode_id()
}

fn seen(bed: &Bed) -> Stamp {
    bed.shared.stat(FILE).expect("stat").stamp()
}

/// Creates an empty file whose coordinator is not the home of its first two units.
pub(super) fn bed_with_remote_coordinator(seed: u64) -> Bed {
    let bed = Bed::with_stale_mounts(seed, 3);
    for number in 0..100 {
        // Keep the other files, so that the next one gets another inode number.
        bed.shared.create(FILE, 0o644).expect("create");
        if !(0..2).any(|index| home(&bed, index) == coordinator(&bed)) {
            return bed;
        }
        let other = format!("other{number}");
        bed.shared.rename(FILE, other.as_bytes(), RenameMode::Replace).expect("rename");
    }
    panic!("every coordinator has one of the first two units");
}

/// Creates and flushes a file with this content. Returns its stamp from before that.
fn flushed(bed: &Bed, content: &[u8]) -> Stamp {
    if bed.shared.stat(FILE).is_err() {
        bed.shared.create(FILE, 0o644).expect("create");
    }
    let before = seen(bed);
    bed.write("file", 0, content);
    bed.drain_completely(false);
    before
}

/// Reads the start of the file after the homes have dropped its clean units. Returns the result and the duration.
fn read_refetched(bed: &Bed, length: u64) -> (Result<Vec<u8>>, Duration) {
    let (client, clock) = (bed.client(0), bed.machine.runtime().clock);
    let began = clock.monotonic();
    let mut file = bed.run(client.open(FILE, false)).expect("open");
    (file.size, file.generation) = (length, file.generation.next());
    let content = bed.run(client.read_from(file, FILE, Vec::new()));
    (content, clock.monotonic() - began)
}

/// Expects that a read of the start of the file returns these bytes in less than `most`.
fn expect_refetched(bed: &Bed, expected: &[u8], most: Duration, what: &str) {
    let (read, time) = read_refetched(bed, expected.len() as u64);
    assert_eq!(read.expect("read"), expected, "{what}");
    assert!(time < most, "{what}: {time:?}");
}

/// Regression: bytes behind the stale size, which another node had flushed, read as zeros.
#[test]
fn a_stale_size_of_the_shared_file_hides_no_bytes() {
    let bed = Bed::with_stale_mounts(44, 2);
    let content = bytes(2, 5000);
    let file = bed.shared.create(FILE, 0o644).expect("create");
    file.write_at(&content[..1000], 0).expect("write");
    let before = seen(&bed);
    file.write_at(&content[1000..], 1000).expect("write");
    bed.mount(home(&bed, 0)).show_stale(before, 1);
    expect_refetched(&bed, &content, AT_ONCE, "after one revalidation");
}

/// One revalidation is not enough if the file system itself caches the size, and not only the kernel.
#[test]
fn a_read_waits_until_flushed_bytes_are_visible() {
    let bed = Bed::with_stale_mounts(45, 2);
    let content = bytes(3, 5000);
    let before = flushed(&bed, &content);
    bed.mount(home(&bed, 0)).show_stale(before, 4);
    let (read, time) = read_refetched(&bed, 5000);
    assert_eq!(read.expect("read"), content);
    assert!(time > Duration::from_millis(300) && time < Duration::from_secs(2), "{time:?}");
}

#[test]
fn flushed_bytes_that_stay_invisible_do_not_read_as_zeros() {
    let bed = Bed::with_stale_mounts(46, 2);
    let content = bytes(4, 5000);
    let before = flushed(&bed, &content);
    let mount = bed.mount(home(&bed, 0));
    mount.show_stale(before, u32::MAX);
    let (read, time) = read_refetched(&bed, 5000);
    assert_eq!(read.expect_err("the bytes stay invisible").errno, Errno::EIO);
    assert!(time < Duration::from_secs(4), "{time:?}");
    mount.show_current();
    let read = read_refetched(&bed, 5000).0.expect("read");
    assert_eq!(read, content, "the bytes are on the shared file system");
}

/// No node has flushed bytes there, so a read does not wait.
#[test]
fn holes_and_bytes_behind_the_end_read_as_zeros_at_once() {
    let bed = Bed::with_stale_mounts(47, 2);
    let content = bytes(5, 1000);
    flushed(&bed, &content);
    bed.write("file", 300_000, &content);
    let sparse = [&content[..], &vec![0; 299_000], &content].concat();
    let check = |expected: &[u8], what: &str| expect_refetched(&bed, expected, AT_ONCE, what);
    check(&sparse, "dirty, behind the end of the shared file");
    bed.drain_completely(true);
    check(&sparse, "a hole of the shared file");
    check(&[&sparse[..], &[0; 5000]].concat(), "behind the end of the file");
    bed.run(bed.client(0).truncate(FILE, 500)).expect("truncate");
    check(&[&content[..500], &[0; 4500]].concat(), "behind a truncate");
    bed.drain_completely(true);
    check(&[&content[..500], &[0; 4500]].concat(), "behind a flushed truncate");
}

/// After a truncate by another program, reads trust the size soon, later at once.
#[test]
fn a_read_does_not_wait_long_after_a_truncate_by_another_program() {
    let bed = Bed::with_stale_mounts(48, 2);
    let content = bytes(6, 5000);
    flushed(&bed, &content);
    bed.machine.rest(Duration::from_secs(5));
    bed.shared.open(FILE, Access::Write).expect("open").truncate(100).expect("truncate");
    let expected = [&content[..100], &[0; 4900]].concat();
    for most in [Duration::from_millis(500), AT_ONCE] {
        expect_refetched(&bed, &expected, most, "truncated");
    }
}

/// The clock of the truncating node may be behind. Reads stop waiting for bytes that have been invisible for a minute.
#[test]
fn bytes_that_are_invisible_for_a_minute_are_gone() {
    let bed = Bed::with_stale_mounts(53, 2);
    let content = bytes(14, 5000);
    let before = flushed(&bed, &content);
    bed.mount(home(&bed, 0)).show_stale(Stamp { size: 100, ..before }, u32::MAX);
    assert_eq!(read_refetched(&bed, 5000).0.expect_err("the bytes stay invisible").errno, Errno::EIO);
    bed.machine.rest(Duration::from_secs(60));
    for most in [Duration::from_millis(500), AT_ONCE] {
        expect_refetched(&bed, &[&content[..100], &[0; 4900]].concat(), most, "after a minute");
    }
}

/// Regression: a read between the truncates of the shared file and of the units waited for truncated bytes, the truncate of the units
/// waited for the read, and the read failed.
#[test]
fn a_truncate_ends_the_wait_for_its_bytes() {
    let bed = Bed::with_stale_mounts(54, 2);
    let content = bytes(15, 5000);
    let before = flushed(&bed, &content);
    let home = home(&bed, 0);
    bed.mount(home).show_stale(before, u32::MAX);
    let (client, runtime, inode) = (bed.client(1), bed.machine.runtime(), inode(&bed, FILE));
    bed.machine.runtime().spawn(async move {
        runtime.sleep(Duration::from_millis(50)).await;
        client.unit(home, UnitRequest::Truncate { inode, size: 0 }, None).await.expect("truncate");
    });
    expect_refetched(&bed, &[0; 5000], Duration::from_millis(500), "truncated");
}

/// Regression: the digest of a partly dirty unit includes bytes of the shared file. Behind a stale size these were zeros, and the receipt's
/// checksum was wrong.
#[test]
fn a_stale_size_does_not_change_the_checksum() {
    let bed = Bed::with_stale_mounts(49, 2);
    let content = bytes(7, 5000);
    let before = flushed(&bed, &content);
    let mut expected = content;
    expected[..10].copy_from_slice(&bytes(8, 10));
    let client = bed.client(0);
    let mut file = bed.run(client.open(FILE, true)).expect("open");
    // A new generation drops the clean bytes.
    file.generation = file.generation.next();
    bed.run(client.write_uncommitted(file, 0, &bytes(8, 10))).expect("write");
    bed.run(client.close(file, 10)).expect("close");
    let mount = bed.mount(home(&bed, 0));
    mount.show_stale(before, 3);
    let receipt = bed.drain(false);
    let [file] = receipt.files.as_slice() else { panic!("{receipt:?}") };
    assert_eq!(file.checksum, checksum(&expected), "{receipt:?}");
    assert_eq!(bed.shared_content("file"), expected);
    mount.show_stale(before, 3);
    assert!(bed.drain(true).is_complete(), "the verification does not read zeros");
}

/// Regression: the first part of a flush wrote bytes behind the reported size. The second part then truncated the file to the end of its
/// own bytes, because the coordinator's mount had a stale size.
#[test]
fn a_flush_in_parts_truncates_no_part() {
    let bed = bed_with_remote_coordinator(50);
    let (client, before, content) = (bed.client(0), seen(&bed), bytes(9, 2 * UNIT_SIZE));
    let file = bed.run(client.open(FILE, true)).expect("open");
    bed.run(client.write_uncommitted(file, 0, &content)).expect("write");
    bed.control.set(Plan::Write(0, Errno::ENOSPC));
    bed.mount(coordinator(&bed)).show_stale(before, u32::MAX);
    assert!(!bed.drain(false).is_complete());
    assert_eq!(bed.control.failed(), 1);
    bed.drain_completely(false);
    assert_eq!(bed.shared_content("file").len() as u64, 2 * UNIT);
    assert_eq!(bed.shared_content("file"), content);
}

/// Regression: a flush that set the file's size truncated bytes that another program had just written behind it.
#[test]
fn a_flush_does_not_truncate_to_a_stale_size() {
    let bed = bed_with_remote_coordinator(51);
    flushed(&bed, &bytes(10, 1000));
    bed.mount(coordinator(&bed)).show_stale(seen(&bed), 1);
    let tail = bytes(11, 500);
    bed.shared.open(FILE, Access::Write).expect("open").write_at(&tail, 1000).expect("append");
    bed.write("file", 1000, &bytes(12, 200));
    bed.drain_completely(false);
    let expected = [&bytes(10, 1000)[..], &bytes(12, 200), &tail[200..]].concat();
    assert_eq!(bed.shared_content("file"), expected);
}

/// Regression: a truncate or hole behind the stale size was not applied to the shared file, and the old bytes reappeared.
#[test]
fn truncates_and_holes_behind_a_stale_size_are_applied() {
    for punches in [false, true] {
        let bed = bed_with_remote_coordinator(52);
        let content = bytes(13, 5000);
        let before = flushed(&bed, &content);
        bed.mount(coordinator(&bed)).show_stale(before, u32::MAX);
        let client = bed.client(0);
        match punches {
            true => bed.run(client.change_space(FILE, SpaceChange::Punch, 1000..4000, false)).expect("punch"),
            false => bed.run(client.truncate(FILE, 1000)).expect("truncate"),
        };
        bed.write("file", 4000, &content[4000..]);
        let expected = [&content[..1000], &[0; 3000], &content[4000..]].concat();
        assert_eq!(read_refetched(&bed, 5000).0.expect("read"), expected, "punches: {punches}");
        bed.drain_completely(true);
        assert_eq!(bed.shared_content("file"), expected, "punches: {punches}");
    }
}
