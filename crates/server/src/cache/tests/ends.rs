//! Mounts that remember where a file ended before others wrote behind that, as those of Gfarm do for a second.

use super::bed::{Bed, bytes};
use super::faulty::Plan;
use std::time::Duration;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::receipt::{FileReceipt, Receipt};
use tameike_core::wire::cache::Stamp;
use tameike_core::wire::meta::RenameMode;
use tameike_core::wire::unit::{SpaceChange, UnitRequest};
use tameike_core::{Errno, InodeId, Layout, NodeId, Result, UnitId};
use tameike_io::shared::Access;

const FILE: &[u8] = b"file";
const UNIT: u64 = UNIT_SIZE as u64;
/// A read that waited for bytes to show took longer.
const AT_ONCE: Duration = Duration::from_millis(50);

fn home(bed: &Bed, index: u64) -> NodeId {
    bed.cluster.unit_home(Layout::Striped, UnitId { inode: inode(bed, FILE), index })
}

fn coordinator(bed: &Bed) -> NodeId {
    bed.cluster.inode_home(inode(bed, FILE))
}

fn inode(bed: &Bed, path: &[u8]) -> InodeId {
    bed.shared.stat(path).expect("stat").inode_id()
}

fn seen(bed: &Bed) -> Stamp {
    bed.shared.stat(FILE).expect("stat").stamp()
}

/// A bed with an empty file whose coordinator has none of its first two units.
fn apart(seed: u64) -> Bed {
    let bed = Bed::late(seed, 3);
    for number in 0..100 {
        // Those that do not fit stay, so that the next one has another number.
        bed.shared.create(FILE, 0o644).expect("create");
        if !(0..2).any(|index| home(&bed, index) == coordinator(&bed)) {
            return bed;
        }
        let other = format!("other{number}");
        bed.shared.rename(FILE, other.as_bytes(), RenameMode::Replace).expect("rename");
    }
    panic!("every coordinator has one of the first two units");
}

/// A file with this content, flushed, and how it was before that.
fn flushed(bed: &Bed, content: &[u8]) -> Stamp {
    if bed.shared.stat(FILE).is_err() {
        bed.shared.create(FILE, 0o644).expect("create");
    }
    let before = seen(bed);
    write(bed, 0, content);
    let receipt = bed.drain(false);
    assert!(receipt.is_complete(), "{receipt:?}");
    before
}

fn write(bed: &Bed, offset: u64, content: &[u8]) {
    let (client, content) = (bed.client(0), content.to_vec());
    bed.run(async move { client.write(FILE, offset, &content).await.expect("write") });
}

/// Reads the start of the file from homes that hold nothing clean of it, as after a change; and how long that took.
fn revalidate_content(bed: &Bed, length: u64) -> (Result<Vec<u8>>, Duration) {
    let (client, clock) = (bed.client(0), bed.machine.runtime().clock);
    let began = clock.monotonic();
    let content = bed.run(async move {
        let mut file = client.open(FILE, false).await.expect("open");
        (file.size, file.generation) = (length, file.generation.next());
        client.read_from(file, FILE, Vec::new()).await
    });
    (content, clock.monotonic() - began)
}

fn b3(content: &[u8]) -> String {
    blake3::hash(content).to_hex().to_string()
}

/// Bytes behind the remembered end, which another node had flushed, read as zeros.
#[test]
fn a_remembered_end_of_the_shared_file_hides_no_bytes() {
    let bed = Bed::late(44, 2);
    let content = bytes(2, 5000);
    let file = bed.shared.create(FILE, 0o644).expect("create");
    file.write_at(&content[..1000], 0).expect("write");
    let before = seen(&bed);
    file.write_at(&content[1000..], 1000).expect("write");
    bed.mount(home(&bed, 0)).remember(before, 1);
    let (read, time) = revalidate_content(&bed, 5000);
    assert_eq!(read.expect("read"), content);
    assert!(time < AT_ONCE, "{time:?}");
}

/// Once was not enough where the file system itself remembers, and not only the kernel.
#[test]
fn what_a_node_has_flushed_is_waited_for() {
    let bed = Bed::late(45, 2);
    let content = bytes(3, 5000);
    let before = flushed(&bed, &content);
    bed.mount(home(&bed, 0)).remember(before, 4);
    let (read, time) = revalidate_content(&bed, 5000);
    assert_eq!(read.expect("read"), content);
    assert!(time > Duration::from_millis(300) && time < Duration::from_secs(2), "{time:?}");
}

#[test]
fn what_a_node_has_flushed_and_does_not_find_is_no_zeros() {
    let bed = Bed::late(46, 2);
    let content = bytes(4, 5000);
    let before = flushed(&bed, &content);
    let mount = bed.mount(home(&bed, 0));
    mount.remember(before, u32::MAX);
    let (read, time) = revalidate_content(&bed, 5000);
    assert_eq!(read.expect_err("nothing shows").errno, Errno::EIO);
    assert!(time < Duration::from_secs(4), "{time:?}");
    mount.forget();
    assert_eq!(revalidate_content(&bed, 5000).0.expect("read"), content, "it was there all the time");
}

/// Nobody has flushed bytes there: nobody waits for them.
#[test]
fn holes_and_what_is_behind_the_end_are_zeros_at_once() {
    let bed = Bed::late(47, 2);
    let content = bytes(5, 1000);
    flushed(&bed, &content);
    write(&bed, 300_000, &content);
    let sparse = [&content[..], &vec![0; 299_000], &content].concat();
    let check = |expected: &[u8], what: &str| {
        let (read, time) = revalidate_content(&bed, expected.len() as u64);
        assert_eq!(read.expect("read"), expected, "{what}");
        assert!(time < AT_ONCE, "{what}: {time:?}");
    };
    check(&sparse, "dirty, behind the end of the shared file");
    assert!(bed.drain(true).is_complete());
    check(&sparse, "a hole of the shared file");
    check(&[&sparse[..], &[0; 5000]].concat(), "behind all ends");
    let client = bed.client(0);
    bed.run(async move { client.truncate(FILE, 500).await.expect("cut") });
    check(&[&content[..500], &[0; 4500]].concat(), "behind a cut");
    assert!(bed.drain(true).is_complete());
    check(&[&content[..500], &[0; 4500]].concat(), "behind a cut that was flushed");
}

/// A file that others have cut is not one that shows late: its end is believed soon, then at once.
#[test]
fn what_others_have_cut_is_not_waited_for_long() {
    let bed = Bed::late(48, 2);
    let content = bytes(6, 5000);
    flushed(&bed, &content);
    bed.machine.rest(Duration::from_secs(5));
    bed.shared.open(FILE, Access::Write).expect("open").truncate(100).expect("cut");
    let expected = [&content[..100], &[0; 4900]].concat();
    for most in [Duration::from_millis(500), AT_ONCE] {
        let (read, time) = revalidate_content(&bed, 5000);
        assert_eq!(read.expect("read"), expected);
        assert!(time < most, "{time:?}");
    }
}

/// The clock of whoever cuts may be behind: what is gone for a minute is not waited for any more.
#[test]
fn what_does_not_show_for_a_minute_is_gone() {
    let bed = Bed::late(53, 2);
    let content = bytes(14, 5000);
    let before = flushed(&bed, &content);
    bed.mount(home(&bed, 0)).remember(Stamp { size: 100, ..before }, u32::MAX);
    assert_eq!(revalidate_content(&bed, 5000).0.expect_err("nothing shows").errno, Errno::EIO);
    bed.machine.rest(Duration::from_secs(60));
    for most in [Duration::from_millis(500), AT_ONCE] {
        let (read, time) = revalidate_content(&bed, 5000);
        assert_eq!(read.expect("read"), [&content[..100], &[0; 4900]].concat());
        assert!(time < most, "{time:?}");
    }
}

/// A read that came between a cut of the shared file and that of the units waited for bytes that were cut, the units waited for the
/// read, and it failed.
#[test]
fn who_waits_for_bytes_hears_of_a_cut() {
    let bed = Bed::late(54, 2);
    let content = bytes(15, 5000);
    let before = flushed(&bed, &content);
    let home = home(&bed, 0);
    bed.mount(home).remember(before, u32::MAX);
    let (client, runtime, inode) = (bed.client(1), bed.machine.runtime(), inode(&bed, FILE));
    bed.machine.runtime().spawn(async move {
        runtime.sleep(Duration::from_millis(50)).await;
        client.unit(home, UnitRequest::Truncate { inode, size: 0 }, None).await.expect("cut");
    });
    let (read, time) = revalidate_content(&bed, 5000);
    assert_eq!(read.expect("read"), vec![0; 5000]);
    assert!(time < Duration::from_millis(500), "{time:?}");
}

/// A unit of which some bytes are dirty is digested with those that the shared file has: behind a remembered end these were zeros,
/// in the receipt's checksum.
#[test]
fn a_remembered_end_makes_no_wrong_checksum() {
    let bed = Bed::late(49, 2);
    let content = bytes(7, 5000);
    let before = flushed(&bed, &content);
    let mut expected = content;
    expected[..10].copy_from_slice(&bytes(8, 10));
    let client = bed.client(0);
    let dirty = bytes(8, 10);
    let mount = bed.mount(home(&bed, 0));
    let own = mount.clone();
    bed.run(async move {
        let mut file = client.open(FILE, true).await.expect("open");
        // What is clean goes, as after a change.
        file.generation = file.generation.next();
        client.put(file, 0, &dirty).await.expect("write");
        client.close(file, 10).await.expect("close");
        own.remember(before, 3);
    });
    let receipt = bed.drain(false);
    assert_eq!(only_file(&receipt).checksum, b3(&expected), "{receipt:?}");
    assert_eq!(bed.real("file"), expected);
    mount.remember(before, 3);
    assert!(bed.drain(true).is_complete(), "what is read back is not zeros either");
}

fn only_file(receipt: &Receipt) -> &FileReceipt {
    let [file] = receipt.files.as_slice() else { panic!("{receipt:?}") };
    file
}

/// A part of a flush has brought bytes behind the size that was told. The rest of it then gave the file the size of what it had
/// brought itself, as the coordinator's mount remembered that nothing was there yet.
#[test]
fn a_flush_in_parts_cuts_no_part() {
    let bed = apart(50);
    let (client, before, content) = (bed.client(0), seen(&bed), bytes(9, 2 * UNIT_SIZE));
    let written = content.clone();
    bed.run(async move {
        let file = client.open(FILE, true).await.expect("open");
        client.put(file, 0, &written).await.expect("write");
    });
    bed.control.set(Plan::Write(0, Errno::ENOSPC));
    bed.mount(coordinator(&bed)).remember(before, u32::MAX);
    assert!(!bed.drain(false).is_complete());
    assert_eq!(bed.control.failed(), 1);
    let receipt = bed.drain(false);
    assert!(receipt.is_complete(), "{receipt:?}");
    assert_eq!(bed.real("file").len() as u64, 2 * UNIT);
    assert_eq!(bed.real("file"), content);
}

/// Giving a file the size that the job knows cut what another program had written behind that a moment before.
#[test]
fn an_end_that_a_mount_remembers_is_not_where_a_flush_cuts() {
    let bed = apart(51);
    flushed(&bed, &bytes(10, 1000));
    bed.mount(coordinator(&bed)).remember(seen(&bed), 1);
    let tail = bytes(11, 500);
    bed.shared.open(FILE, Access::Write).expect("open").write_at(&tail, 1000).expect("append");
    write(&bed, 1000, &bytes(12, 200));
    assert!(bed.drain(false).is_complete());
    let expected = [&bytes(10, 1000)[..], &bytes(12, 200), &tail[200..]].concat();
    assert_eq!(bed.real("file"), expected);
}

/// A cut, or a hole, that lay behind the remembered end was not made on the shared file: what was there came back.
#[test]
fn an_end_that_a_mount_remembers_hides_nothing_that_is_to_go() {
    for punches in [false, true] {
        let bed = apart(52);
        let content = bytes(13, 5000);
        let before = flushed(&bed, &content);
        bed.mount(coordinator(&bed)).remember(before, u32::MAX);
        let client = bed.client(0);
        bed.run(async move {
            if punches {
                client.change_space(FILE, SpaceChange::Punch, 1000..4000, false).await.expect("punch");
            } else {
                client.truncate(FILE, 1000).await.expect("cut");
            }
        });
        write(&bed, 4000, &content[4000..]);
        let expected = [&content[..1000], &[0; 3000], &content[4000..]].concat();
        assert_eq!(revalidate_content(&bed, 5000).0.expect("read"), expected, "punches: {punches}");
        assert!(bed.drain(true).is_complete());
        assert_eq!(bed.real("file"), expected, "punches: {punches}");
    }
}
