//! Change detection on stale mounts: late attributes of the job's own flushes, and changes by other programs.

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

/// Creates a file that the job has written and not flushed. Returns its stamp from before the write.
fn written(bed: &Bed, content: &[u8]) -> Stamp {
    bed.shared.create(FILE, 0o644).expect("create");
    let before = seen(bed);
    bed.machine.rest(Duration::from_secs(1));
    bed.write("file", 0, content);
    bed.machine.rest(Duration::from_secs(1));
    before
}

fn flush(bed: &Bed) {
    bed.run(bed.client(0).write_back(FILE)).expect("flush");
}

/// Lets all mounts show this stamp.
fn show_stale(bed: &Bed, stamp: Stamp) {
    bed.cluster.nodes().iter().for_each(|node| bed.mount(node.id).show_stale(stamp, u32::MAX));
}

fn show_current(bed: &Bed) {
    bed.cluster.nodes().iter().for_each(|node| bed.mount(node.id).show_current());
}

/// Delays the closes of all mounts until `release`.
fn delay_closes(bed: &Bed) {
    bed.cluster.nodes().iter().for_each(|node| bed.mount(node.id).delay_closes());
}

/// Sends the delayed closes to the server.
fn release(bed: &Bed) {
    let closed = bed.cluster.nodes().iter().map(|node| bed.mount(node.id).release()).sum::<usize>();
    assert!(closed > 0, "no close was delayed");
}

/// Generation and size of the file as an open on a node returns them.
fn opened(bed: &Bed, node: u32) -> (Generation, u64) {
    let file = bed.run(bed.client(node).open(FILE, false)).expect("open");
    (file.generation, file.size)
}

fn size(bed: &Bed, node: u32) -> u64 {
    bed.run(bed.client(node).size(FILE)).expect("stat")
}

fn note(bed: &Bed) -> String {
    bed.drain_completely(false).files[0].note.clone()
}

fn overwrite(bed: &Bed, content: &[u8]) {
    bed.shared.open(FILE, Access::Write).expect("open").write_at(content, 0).expect("write");
}

/// Regression: the close of a home sets the mtime of its write after the flush has set the mtime of the file. The coordinator took that for
/// a change by another program, and the homes dropped and fetched their units.
#[test]
fn a_close_after_the_flush_is_not_a_change_by_another_program() {
    let bed = Bed::with_stale_mounts(60, 2);
    let content = bytes(1, 2 * UNIT_SIZE);
    written(&bed, &content);
    delay_closes(&bed);
    flush(&bed);
    let (before, left) = (opened(&bed, 0), seen(&bed));
    release(&bed);
    assert_ne!(seen(&bed).mtime, left.mtime, "the closes change the mtime");
    let reads = bed.control.reads();
    assert_eq!(opened(&bed, 1), before);
    assert_eq!(bed.read(0, "file"), content);
    assert_eq!(bed.control.reads(), reads, "no unit is fetched again");
    bed.machine.rest(Duration::from_secs(3600));
    assert_eq!(opened(&bed, 0), before, "an hour later");
    assert_eq!(note(&bed), "");
}

/// The same without a stat or open before the end of the drain, or for an hour.
#[test]
fn a_close_after_the_flush_leaves_no_note_in_the_receipt() {
    for pause in [0, 3600] {
        let bed = Bed::with_stale_mounts(61, 2);
        written(&bed, &bytes(1, UNIT_SIZE));
        delay_closes(&bed);
        bed.write("file", UNIT_SIZE as u64, b"more");
        flush(&bed);
        release(&bed);
        bed.machine.rest(Duration::from_secs(pause));
        assert_eq!(note(&bed), "", "after {pause} s");
    }
}

/// Regression: the coordinator trusted stale attributes from before the flush. The file got its old size, and its units were fetched again.
#[test]
fn stale_attributes_are_not_a_change_by_another_program() {
    let bed = Bed::with_stale_mounts(62, 2);
    let (content, length) = (bytes(2, 2 * UNIT_SIZE), 2 * UNIT_SIZE as u64);
    let before = written(&bed, &content);
    let began = bed.machine.runtime().now();
    flush(&bed);
    let known = opened(&bed, 0);
    let amid = Timestamp { nanoseconds: began.nanoseconds + 2_000_000, ..began };
    let half = Stamp { size: UNIT_SIZE as u64, mtime: amid, ctime: amid, ..before };
    for old in [before, half, Stamp { size: UNIT_SIZE as u64, ..before }] {
        show_stale(&bed, old);
        assert_eq!(size(&bed, 0), length, "{old:?}");
        assert_eq!(opened(&bed, 1), known, "{old:?}");
        assert_eq!(size(&bed, 1), length, "{old:?}");
        assert_eq!(note(&bed), "");
        show_current(&bed);
        assert_eq!(opened(&bed, 1), known, "{old:?}");
        assert_eq!(bed.read(0, "file"), content);
    }
    show_stale(&bed, half);
    bed.machine.rest(Duration::from_secs(20));
    assert_eq!(size(&bed, 1), UNIT_SIZE as u64, "attributes are not stale for so long");
    assert_ne!(opened(&bed, 1).0, known.0);
}

/// Any change by another program is detected, however soon or late after a flush.
#[test]
fn a_change_by_another_program_after_a_flush_is_detected() {
    for (pause, length) in [(1, 4), (1, 9000), (9, 4), (3600, 4), (3600, 9000)] {
        let bed = Bed::with_stale_mounts(63, 2);
        let content = bytes(3, 5000);
        written(&bed, &content);
        delay_closes(&bed);
        flush(&bed);
        let known = opened(&bed, 0);
        release(&bed);
        bed.machine.rest(Duration::from_secs(pause));
        let other = bytes(4, length);
        overwrite(&bed, &other);
        let expected = [&other[..], content.get(length..).unwrap_or_default()].concat();
        assert_ne!(opened(&bed, 1).0, known.0, "{length} bytes after {pause} s");
        assert_eq!(bed.read(0, "file"), expected, "{length} bytes after {pause} s");
        assert_ne!(note(&bed), "", "{length} bytes after {pause} s");
    }
}

/// S15c. The truncate looks like stale attributes until the mount's attributes cannot be stale any more.
#[test]
fn a_truncate_by_another_program_during_a_flush_is_detected_later() {
    let bed = Bed::with_stale_mounts(64, 2);
    let content = bytes(5, 5000);
    written(&bed, &content);
    let began = bed.machine.runtime().now();
    flush(&bed);
    let known = opened(&bed, 0);
    bed.shared.open(FILE, Access::Write).expect("open").truncate(100).expect("truncate");
    let amid = Timestamp { nanoseconds: began.nanoseconds + 2_000_000, ..began };
    show_stale(&bed, Stamp { size: 100, mtime: amid, ctime: amid, ..seen(&bed) });
    assert_eq!(opened(&bed, 1).0, known.0);
    bed.machine.rest(Duration::from_secs(11));
    assert_eq!(opened(&bed, 1).1, 100);
    assert_eq!(bed.read(0, "file"), content[..100]);
}

/// A file of two units of which a flush has written the first.
fn half_flushed(seed: u64) -> Bed {
    let bed = Bed::with_stale_mounts(seed, 2);
    written(&bed, &bytes(6, 2 * UNIT_SIZE));
    delay_closes(&bed);
    bed.control.set(Plan::Write(UNIT_SIZE as u64, Errno::ENOSPC));
    assert!(!bed.drain(false).is_complete());
    bed
}

/// A rename or chmod changes the ctime. Late attributes of a partial flush are recognised all the same.
#[test]
fn a_rename_or_chmod_after_a_partial_flush_is_not_a_change_by_another_program() {
    let chmod = AttrChange { mode: Some(0o600), ..AttrChange::default() };
    for renames in [false, true] {
        let bed = half_flushed(65);
        release(&bed);
        bed.machine.rest(Duration::from_secs(1));
        match renames {
            true => bed.run(bed.client(0).rename(FILE, b"new")).expect("rename"),
            false => bed.shared.change(FILE, &chmod).expect("chmod"),
        }
        bed.machine.rest(Duration::from_secs(1));
        assert_eq!(note(&bed), "", "renamed: {renames}");
    }
}

/// A write by another program after a partial flush is a change.
#[test]
fn a_change_by_another_program_after_a_partial_flush_is_detected() {
    let bed = half_flushed(66);
    release(&bed);
    bed.machine.rest(Duration::from_secs(1));
    overwrite(&bed, b"other");
    assert_eq!(note(&bed), CHANGED);
}

/// After a complete flush, late attributes together with a chmod may hide a change whose mtime was set back. The content is fetched again,
/// and the receipt notes no change by another program.
#[test]
fn a_chmod_after_late_attributes_invalidates_the_content() {
    let bed = Bed::with_stale_mounts(67, 2);
    let content = bytes(7, 5000);
    written(&bed, &content);
    delay_closes(&bed);
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
    assert_eq!(bed.read(0, "file"), other);
    assert_eq!(note(&bed), "");
}

/// Regression: a program sets the mtime on the shared file before its node notifies the coordinator, whose mount shows it later. The flush
/// took that for a change by another program.
#[test]
fn an_mtime_set_by_a_program_and_visible_late_is_not_a_change_by_another_program() {
    for is_flushed in [false, true] {
        let bed = Bed::with_stale_mounts(68, 2);
        let mut old = written(&bed, &bytes(9, 5000));
        if is_flushed {
            flush(&bed);
            old = seen(&bed);
        }
        show_stale(&bed, old);
        let mtime = Timestamp { seconds: 1_000_000, nanoseconds: 7 };
        let change = AttrChange { mtime: Some(SetTime::To(mtime)), ..AttrChange::default() };
        bed.shared.change(FILE, &change).expect("set");
        let (inode, _) = bed.client(0).identity(FILE);
        let request = CacheRequest::SetMtime { inode, mtime };
        bed.run(bed.client(0).request(inode, request)).expect("request");
        show_current(&bed);
        assert_eq!(note(&bed), "", "flushed before: {is_flushed}");
        assert_eq!(seen(&bed).mtime, mtime);
    }
}
