//! Signs of the job's own flushes that come late, and changes by others, on a file system that shows late what was done to it.

use super::bed::{Bed, bytes};
use super::faulty::Plan;
use std::time::Duration;
use tameike_core::attr::{AttrChange, SetTime};
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::cache::{CacheRequest, Stamp};
use tameike_core::{Errno, Generation, Timestamp};
use tameike_io::shared::Access;

const FILE: &[u8] = b"file";
const CHANGED: &str = "another program changed the file while the job wrote it";

fn seen(bed: &Bed) -> Stamp {
    bed.shared.stat(FILE).expect("stat").stamp()
}

/// A file that the job has written and not flushed, and how it is shown.
fn written(bed: &Bed, content: &[u8]) -> Stamp {
    bed.shared.create(FILE, 0o644).expect("create");
    let (before, client, content) = (seen(bed), bed.client(0), content.to_vec());
    bed.machine.rest(Duration::from_secs(1));
    bed.run(async move { client.write(FILE, 0, &content).await.expect("write") });
    bed.machine.rest(Duration::from_secs(1));
    before
}

fn flush(bed: &Bed) {
    let client = bed.client(0);
    bed.run(async move { client.write_back(FILE).await.expect("flush") });
}

/// All nodes show the file so.
fn remember(bed: &Bed, stamp: Stamp) {
    bed.cluster.nodes().iter().for_each(|node| bed.mount(node.id).remember(stamp, u32::MAX));
}

fn forget(bed: &Bed) {
    bed.cluster.nodes().iter().for_each(|node| bed.mount(node.id).forget());
}

/// What nodes close from now on the server hears of later.
fn close_late(bed: &Bed) {
    bed.cluster.nodes().iter().for_each(|node| bed.mount(node.id).close_late());
}

/// It hears of what was closed.
fn release(bed: &Bed) {
    let closed = bed.cluster.nodes().iter().map(|node| bed.mount(node.id).release()).sum::<usize>();
    assert!(closed > 0, "nothing was held back");
}

/// The version of the content, and the size, as a node finds them that opens the file.
fn opened(bed: &Bed, node: u32) -> (Generation, u64) {
    let client = bed.client(node);
    let file = bed.run(async move { client.open(FILE, false).await.expect("open") });
    (file.generation, file.size)
}

fn size(bed: &Bed, node: u32) -> u64 {
    let client = bed.client(node);
    bed.run(async move { client.size(FILE).await.expect("stat") })
}

fn note(bed: &Bed) -> String {
    let receipt = bed.drain(false);
    assert!(receipt.is_complete(), "{receipt:?}");
    receipt.files[0].note.clone()
}

fn overwrite(bed: &Bed, content: &[u8]) {
    bed.shared.open(FILE, Access::Write).expect("open").write_at(content, 0).expect("write");
}

fn read(bed: &Bed) -> Vec<u8> {
    let client = bed.client(0);
    bed.run(async move { client.read(FILE).await.expect("read") })
}

/// A home's close brings the time of its write after the flush has set the time of the file. That was taken for a change by others:
/// what the homes had was dropped and read again.
#[test]
fn a_close_after_the_flush_is_not_a_change_by_others() {
    let bed = Bed::late(60, 2);
    let content = bytes(1, 2 * UNIT_SIZE);
    written(&bed, &content);
    close_late(&bed);
    flush(&bed);
    let (before, left) = (opened(&bed, 0), seen(&bed));
    release(&bed);
    assert_ne!(seen(&bed).mtime, left.mtime, "the closes bring another time");
    let reads = bed.control.reads();
    assert_eq!(opened(&bed, 1), before);
    assert_eq!(read(&bed), content);
    assert_eq!(bed.control.reads(), reads, "nothing is read again");
    bed.machine.rest(Duration::from_secs(3600));
    assert_eq!(opened(&bed, 0), before, "nor an hour later");
    assert_eq!(note(&bed), "");
}

/// The same, when nobody has looked before the drain is over, or for an hour.
#[test]
fn a_close_after_the_flush_is_not_noted_in_the_receipt() {
    for pause in [0, 3600] {
        let bed = Bed::late(61, 2);
        written(&bed, &bytes(1, UNIT_SIZE));
        close_late(&bed);
        let client = bed.client(0);
        bed.run(async move { client.write(FILE, UNIT_SIZE as u64, b"more").await.expect("write") });
        flush(&bed);
        release(&bed);
        bed.machine.rest(Duration::from_secs(pause));
        assert_eq!(note(&bed), "", "after {pause} s");
    }
}

/// What a mount remembers of the time before the flush was taken for the truth: the file got its old size, and its bytes were read
/// again.
#[test]
fn what_a_mount_remembers_is_not_a_change_by_others() {
    let bed = Bed::late(62, 2);
    let (content, length) = (bytes(2, 2 * UNIT_SIZE), 2 * UNIT_SIZE as u64);
    let before = written(&bed, &content);
    let began = bed.machine.runtime().now();
    flush(&bed);
    let known = opened(&bed, 0);
    let amid = Timestamp { nanoseconds: began.nanoseconds + 2_000_000, ..began };
    let half = Stamp { size: UNIT_SIZE as u64, mtime: amid, ctime: amid, ..before };
    for old in [before, half, Stamp { size: UNIT_SIZE as u64, ..before }] {
        remember(&bed, old);
        assert_eq!(size(&bed, 0), length, "{old:?}");
        assert_eq!(opened(&bed, 1), known, "{old:?}");
        assert_eq!(size(&bed, 1), length, "{old:?}");
        assert_eq!(note(&bed), "");
        forget(&bed);
        assert_eq!(opened(&bed, 1), known, "{old:?}");
        assert_eq!(read(&bed), content);
    }
    remember(&bed, half);
    bed.machine.rest(Duration::from_secs(20));
    assert_eq!(size(&bed, 1), UNIT_SIZE as u64, "nothing is remembered for so long");
    assert_ne!(opened(&bed, 1).0, known.0);
}

/// A change by others is noticed however soon or late after a flush it comes, and whatever it changes.
#[test]
fn a_change_by_others_after_a_flush_is_noticed() {
    for (pause, length) in [(1, 4), (1, 9000), (9, 4), (3600, 4), (3600, 9000)] {
        let bed = Bed::late(63, 2);
        let content = bytes(3, 5000);
        written(&bed, &content);
        close_late(&bed);
        flush(&bed);
        let known = opened(&bed, 0);
        release(&bed);
        bed.machine.rest(Duration::from_secs(pause));
        let other = bytes(4, length);
        overwrite(&bed, &other);
        let expected = [&other[..], content.get(length..).unwrap_or_default()].concat();
        assert_ne!(opened(&bed, 1).0, known.0, "{length} bytes after {pause} s");
        assert_eq!(read(&bed), expected, "{length} bytes after {pause} s");
        assert_ne!(note(&bed), "", "{length} bytes after {pause} s");
    }
}

/// S15c. It looks as what a mount remembers, until nothing is remembered any more.
#[test]
fn a_cut_by_others_during_a_flush_is_noticed_later() {
    let bed = Bed::late(64, 2);
    let content = bytes(5, 5000);
    written(&bed, &content);
    let began = bed.machine.runtime().now();
    flush(&bed);
    let known = opened(&bed, 0);
    bed.shared.open(FILE, Access::Write).expect("open").truncate(100).expect("cut");
    let amid = Timestamp { nanoseconds: began.nanoseconds + 2_000_000, ..began };
    remember(&bed, Stamp { size: 100, mtime: amid, ctime: amid, ..seen(&bed) });
    assert_eq!(opened(&bed, 1).0, known.0);
    bed.machine.rest(Duration::from_secs(11));
    assert_eq!(opened(&bed, 1).1, 100);
    assert_eq!(read(&bed), content[..100]);
}

/// A file of two units of which a flush has written the first.
fn half_flushed(seed: u64) -> Bed {
    let bed = Bed::late(seed, 2);
    written(&bed, &bytes(6, 2 * UNIT_SIZE));
    close_late(&bed);
    bed.control.set(Plan::Write(UNIT_SIZE as u64, Errno::ENOSPC));
    assert!(!bed.drain(false).is_complete());
    bed
}

/// A new name or mode changes the time of last change of attributes: the late sign of a flush that has left something is one all
/// the same.
#[test]
fn a_new_name_or_mode_after_a_part_of_a_flush_is_not_a_change_by_others() {
    let chmod = AttrChange { mode: Some(0o600), ..AttrChange::default() };
    for renames in [false, true] {
        let bed = half_flushed(65);
        release(&bed);
        bed.machine.rest(Duration::from_secs(1));
        let (client, change) = (bed.client(0), chmod.clone());
        bed.run(async move {
            match renames {
                true => client.rename(FILE, b"new").await.expect("rename"),
                false => client.shared.change(FILE, &change).expect("chmod"),
            }
        });
        bed.machine.rest(Duration::from_secs(1));
        assert_eq!(note(&bed), "", "renamed: {renames}");
    }
}

/// But what others write meanwhile is.
#[test]
fn a_change_by_others_after_a_part_of_a_flush_is_noticed() {
    let bed = half_flushed(66);
    release(&bed);
    bed.machine.rest(Duration::from_secs(1));
    overwrite(&bed, b"other");
    assert_eq!(note(&bed), CHANGED);
}

/// After a flush that has written all, a late sign and a new mode together may be a change whose time was set back: the content is read
/// again, and others are not blamed.
#[test]
fn a_new_mode_after_a_late_sign_has_the_content_read_again() {
    let bed = Bed::late(67, 2);
    let content = bytes(7, 5000);
    written(&bed, &content);
    close_late(&bed);
    flush(&bed);
    let known = opened(&bed, 0);
    release(&bed);
    bed.machine.rest(Duration::from_secs(1));
    let other = bytes(8, 5000);
    let time = seen(&bed).mtime;
    overwrite(&bed, &other);
    let set_back = AttrChange { mtime: Some(SetTime::To(time)), ..AttrChange::default() };
    bed.shared.change(FILE, &set_back).expect("set back");
    assert_ne!(opened(&bed, 1).0, known.0);
    assert_eq!(read(&bed), other);
    assert_eq!(note(&bed), "");
}

/// A program sets the time on the shared file before its node tells the coordinator, whose mount shows that later: the flush then took
/// it for a change by others.
#[test]
fn a_time_that_a_program_sets_and_that_shows_late_is_not_a_change_by_others() {
    for is_flushed in [false, true] {
        let bed = Bed::late(68, 2);
        let mut old = written(&bed, &bytes(9, 5000));
        if is_flushed {
            flush(&bed);
            old = seen(&bed);
        }
        remember(&bed, old);
        let mtime = Timestamp { seconds: 1_000_000, nanoseconds: 7 };
        let change = AttrChange { mtime: Some(SetTime::To(mtime)), ..AttrChange::default() };
        bed.shared.change(FILE, &change).expect("set");
        let (client, inode) = (bed.client(0), bed.shared.stat(FILE).expect("stat").inode_id());
        bed.run(
            async move { client.ask(inode, CacheRequest::SetMtime { inode, mtime }).await.expect("tell") },
        );
        forget(&bed);
        assert_eq!(note(&bed), "", "flushed before: {is_flushed}");
        assert_eq!(seen(&bed).mtime, mtime);
    }
}
