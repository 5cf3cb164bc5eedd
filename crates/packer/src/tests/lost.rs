//! Tests of a new incarnation of the packer after the file system has lost pages of the container.

use super::{Bed, LIMIT, as_left, errno, made};
use crate::{PackHandler, count_journaled};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::{fs, mem};
use tameike_container::{Codec, Tally, compact};
use tameike_core::attr::AttrChange;
use tameike_core::wire::meta::RenameMode;
use tameike_core::wire::pack::{PackReply, PackRequest};
use tameike_core::{Errno, Result};
use tameike_io::os::process::monotonic;
use tameike_io::shared::{Access, PosixTree, SharedFs, Special};
use tempfile::TempDir;

static CONTENT: [u8; 50_000] = [7; 50_000];

/// The files of the container on the disk.
type OnDisk = BTreeMap<std::path::PathBuf, Vec<u8>>;

fn on_disk(bed: &Bed) -> OnDisk {
    let container = fs::read_dir(bed.dir.path().join(".tameike-packed")).expect("a container");
    container
        .map(|name| name.expect("a name").path())
        .map(|path| (path.clone(), fs::read(path).expect("read")))
        .collect()
}

/// The shared directory and the device of a packer that fails.
pub(super) fn left_by(mut bed: Bed) -> (TempDir, TempDir) {
    let fresh = || tempfile::tempdir().expect("a directory");
    (mem::replace(&mut bed.dir, fresh()), mem::replace(&mut bed.device, fresh()))
}

/// Fails the packer, and leaves only this of the container.
fn lose(bed: Bed, left: &OnDisk) -> Bed {
    let (dir, device) = left_by(bed);
    restore(dir.path(), left);
    Bed::over(dir, device)
}

fn restore(dir: &Path, left: &OnDisk) {
    let container = dir.join(".tameike-packed");
    for name in fs::read_dir(&container).expect("a container") {
        fs::remove_file(name.expect("a name").path()).expect("removed");
    }
    left.iter().for_each(|(path, bytes)| fs::write(path, bytes).expect("written"));
}

fn mode_and_number(bed: &Bed, path: &[u8]) -> (u16, u64) {
    let stat = bed.one.stat(path).expect("it is there");
    (stat.mode, stat.inode)
}

fn names_in(bed: &Bed, dir: &[u8]) -> Vec<String> {
    let dir = bed.one.open_dir(dir).expect("it is there");
    let (mut names, mut after) = (Vec::new(), 0);
    loop {
        let read = dir.read(after).expect("read");
        let Some(last) = read.last() else { break };
        after = last.next;
        names.extend(read.iter().map(|named| String::from_utf8_lossy(&named.name).into_owned()));
    }
    names.retain(|name| !name.starts_with('.'));
    names.sort();
    names
}

/// S34b.
#[test]
fn lost_names_are_recovered() {
    let bed = Bed::new();
    bed.one.make(b"dir", &Special::Directory(0o755)).expect("made");
    for path in [&b"dir/old"[..], b"dir/gone", b"dir/stays", b"dir/replaced"] {
        bed.one.create(path, 0o644).expect("made").write_at(path, 0).expect("written");
    }
    bed.one.open(b"dir/old", Access::Write).expect("opened").sync().expect("synced");
    let left = on_disk(&bed);
    bed.one.rename(b"dir/old", b"dir/new", RenameMode::Replace).expect("renamed");
    bed.other.unlink(b"dir/gone").expect("removed");
    bed.other
        .change(b"dir/stays", &AttrChange { mode: Some(0o600), ..AttrChange::default() })
        .expect("changed");
    drop(bed.one.create(b"dir/empty", 0o640).expect("made"));
    bed.one.create(b"dir/written", 0o644).expect("made").write_at(b"lost", 0).expect("written");
    bed.one.rename(b"dir/empty", b"dir/replaced", RenameMode::Replace).expect("renamed");
    let paths = [&b"dir/new"[..], b"dir/stays", b"dir/replaced", b"dir/written"];
    let before = paths.map(|path| mode_and_number(&bed, path));

    let mut bed = lose(bed, &left);
    for life in 0..2 {
        assert_eq!(paths.map(|path| mode_and_number(&bed, path)), before, "life {life}");
        let names = names_in(&bed, b"dir");
        assert_eq!(names, ["new", "replaced", "stays", "written"], "life {life}");
        let mut read = [0; 16];
        let file = bed.one.open(b"dir/new", Access::Read).expect("opened");
        let count = file.read_at(&mut read, 0).expect("read");
        assert_eq!(&read[..count], b"dir/old", "life {life}");
        // The homes flush its bytes again.
        assert_eq!(bed.one.stat(b"dir/written").expect("it is there").size, 4, "life {life}");
        // They are durable.
        let left = on_disk(&bed);
        bed = lose(bed, &left);
    }
}

#[test]
fn later_changes_of_lost_names_stay() {
    let bed = Bed::new();
    drop(bed.one.create(b"first", 0o644).expect("made"));
    bed.one.open(b"first", Access::Write).expect("opened").sync().expect("synced");
    drop(bed.one.create(b"second", 0o644).expect("made"));
    bed.one.unlink(b"first").expect("removed");
    let left = on_disk(&bed);
    let bed = lose(bed, &left);
    // Nothing was lost, and nothing is put twice.
    assert_eq!(on_disk(&bed), left);
    assert_eq!(errno(bed.one.stat(b"first")), Some(Errno::ENOENT));
    bed.one.unlink(b"second").expect("removed");
    bed.packer.finish(true).expect("finished");
    let left = on_disk(&bed);
    let bed = lose(bed, &left);
    assert_eq!(errno(bed.one.stat(b"second")), Some(Errno::ENOENT));
}

/// All entries were there, so that the next incarnation put none: it ended without an index, and so did the one after it.
#[test]
fn a_container_without_an_index_after_a_failure_gets_one() {
    let bed = Bed::new();
    make(&bed, b"file", &CONTENT);
    let left = on_disk(&bed);
    let bed = lose(bed, &left);
    assert!(!as_left(&bed).is_indexed());
    bed.packer.finish(true).expect("finished");
    assert!(as_left(&bed).is_indexed());
    let bed = Bed::over(left_by(bed).0, tempfile::tempdir().expect("a directory"));
    assert_eq!(read(&bed, b"file"), Ok(CONTENT.to_vec()));
}

/// Another job, with a device of its own.
fn job(dir: TempDir, act: impl FnOnce(&Bed)) -> TempDir {
    let other = Bed::over(dir, tempfile::tempdir().expect("a directory"));
    act(&other);
    other.packer.finish(true).expect("finished");
    left_by(other).0
}

/// As [`lose`], with another job in between.
fn let_another_come(bed: Bed, left: &OnDisk, meanwhile: impl FnOnce(&Bed)) -> Bed {
    let (dir, device) = left_by(bed);
    restore(dir.path(), left);
    Bed::over(job(dir, meanwhile), device)
}

fn make(bed: &Bed, path: &[u8], content: &[u8]) {
    let file = bed.one.create(path, 0o644).expect("made");
    file.write_at(content, 0).and_then(|()| file.sync()).expect("safe");
}

fn read(bed: &Bed, path: &[u8]) -> Result<Vec<u8>> {
    let file = bed.one.open(path, Access::Read)?;
    let mut bytes = vec![0; 1 << 20];
    let count = file.read_at(&mut bytes, 0)?;
    bytes.truncate(count);
    Ok(bytes)
}

#[test]
fn changes_of_another_job_in_between_stay() {
    let bed = Bed::new();
    for path in [&b"removed"[..], b"renamed", b"made"] {
        drop(bed.one.create(path, 0o644).expect("made"));
    }
    bed.one.unlink(b"made").expect("removed");
    let left = on_disk(&bed);
    let bed = let_another_come(bed, &left, |other| {
        other.one.unlink(b"removed").expect("removed");
        other.one.rename(b"renamed", b"now", RenameMode::Replace).expect("renamed");
        drop(other.one.create(b"made", 0o600).expect("made"));
    });
    assert_eq!(names_in(&bed, b""), ["made", "now"]);
    assert_eq!(mode_and_number(&bed, b"made").0, 0o600);
}

/// The entries are on the disk, and the content that they refer to is not. Another job has indexed what is there.
#[test]
fn a_file_with_lost_content_keeps_its_name_after_another_job() {
    let bed = Bed::new();
    make(&bed, b"old", b"safe");
    make(&bed, b"removed", &CONTENT);
    let safe = on_disk(&bed);
    let file = bed.one.create(b"new", 0o644).expect("made");
    file.write_at(&CONTENT, 0).expect("written");
    drop(file);
    bed.one.unlink(b"removed").expect("removed");
    drop(bed.one.create(b"next", 0o644).expect("made"));
    let mut left = on_disk(&bed);
    let holds_entries = |path: &std::path::PathBuf| path.ends_with("00010000.data");
    left.retain(|path, _| holds_entries(path));
    left.extend(safe.into_iter().filter(|(path, _)| !holds_entries(path)));
    let bed = let_another_come(bed, &left, |other| make(other, b"other", b"other"));
    assert_eq!(names_in(&bed, b""), ["new", "next", "old", "other"]);
    assert_eq!(bed.one.stat(b"new").expect("it is there").size, CONTENT.len() as u64);
}

/// A renamed file whose content is damaged must not read as zeros.
#[test]
fn damaged_durable_content_is_not_replaced_by_zeros() {
    let bed = Bed::new();
    make(&bed, b"damaged", &[8; 50_000]);
    make(&bed, b"whole", &CONTENT);
    // The next entry shows what was durable before.
    drop(bed.one.create(b"next", 0o644).expect("made"));
    let mut left = on_disk(&bed);
    for (old, new) in [(&b"damaged"[..], &b"new"[..]), (b"whole", b"newer")] {
        bed.one.rename(old, new, RenameMode::Replace).expect("renamed");
    }
    let first = |bytes: &[u8]| bytes.windows(1000).position(|window| window == [8; 1000]);
    let damaged = left.values_mut().find_map(|bytes| Some((first(bytes)?, bytes)));
    let (at, bytes) = damaged.expect("it is on the disk");
    bytes[at + 500] ^= 1;
    let bed = lose(bed, &left);
    // Only this file has its old name.
    assert_eq!(names_in(&bed, b""), ["damaged", "newer", "next"]);
    assert_eq!(errno(read(&bed, b"damaged")), Some(Errno::EIO));
    assert_eq!(read(&bed, b"newer").expect("read"), CONTENT);
    let reply = bed.packer.finish(true).expect_err("lost names are reported");
    assert!(reply.to_string().contains("new among them"), "{reply}");
    assert!(count_journaled(&PosixTree::open(bed.device.path()).expect("a tree")).expect("counted") > 0);
}

/// Content at an address from before a compaction is not the file's.
#[test]
fn content_is_not_read_from_addresses_before_a_compaction() {
    let bed = Bed::new();
    make(&bed, b"old", &CONTENT);
    drop(bed.one.create(b"next", 0o644).expect("made"));
    let left = on_disk(&bed);
    bed.one.rename(b"old", b"new", RenameMode::Replace).expect("renamed");
    bed.one.unlink(b"next").expect("removed");
    let file = bed.one.create(b"written", 0o644).expect("made");
    file.write_at(&[9; 50_000], 0).expect("written");
    drop(file);
    let (dir, device) = left_by(bed);
    restore(dir.path(), &left);
    let dir = job(dir, |_| ());
    let container = PosixTree::open(&dir.path().join(".tameike-packed")).expect("a tree");
    let container: Arc<dyn SharedFs> = Arc::new(container);
    compact(&container, Codec::None, 1, &Tally::default()).expect("compacted");
    let dir = job(dir, |other| make(other, b"other", &[7; 60_000]));
    let bed = Bed::over(dir, device);
    assert_eq!(names_in(&bed, b""), ["next", "old", "other", "written"]);
    assert_eq!(read(&bed, b"old").expect("read"), CONTENT);
    // The homes have its bytes.
    assert_eq!(bed.one.stat(b"written").expect("it is there").size, 50_000);
    let reply = bed.packer.finish(true).expect_err("lost names are reported");
    assert!(reply.to_string().contains("3 names") && reply.to_string().contains("--discard"), "{reply}");
}

/// The journal does not grow with the job: the container is synced before.
#[test]
fn the_journal_stays_small() {
    let bed = Bed::new();
    let noted = |bed: &Bed| -> u64 {
        let sizes = fs::read_dir(bed.device.path())
            .expect("a directory")
            .map(|name| name.expect("a name").metadata());
        sizes.map(|metadata| metadata.expect("there").len()).sum()
    };
    drop(bed.one.create(b"first", 0o644).expect("made"));
    let (end, mut number, mut largest) = (monotonic() + LIMIT, 0, 0);
    // Four changes between the two files.
    while number < 4 * (4 << 20) / 300 {
        assert!(monotonic() < end, "only {number} files in time");
        let path = format!("{}{number}", "long".repeat(60));
        let reply = bed.packer.serve(made(path.as_bytes(), None));
        let Ok(PackReply::Opened { stat, .. }) = reply else { panic!("{reply:?}") };
        bed.packer.serve(PackRequest::Close { file: stat.number }).expect("closed");
        number += 1;
        largest = noted(&bed).max(largest);
    }
    assert!(largest < 5 << 20, "{largest} bytes are noted");
    let left = on_disk(&bed);
    let bed = lose(bed, &left);
    bed.one.stat(format!("{}{}", "long".repeat(60), number - 1).as_bytes()).expect("it is there");
}

#[test]
fn the_journal_is_not_applied_to_another_container() {
    let bed = Bed::new();
    drop(bed.one.create(b"old", 0o644).expect("made"));
    drop(bed.one.create(b"older", 0o644).expect("made"));
    let (_, device) = left_by(bed);
    let other = Bed::over(TempDir::new().expect("a directory"), device);
    drop(other.one.create(b"new", 0o644).expect("made"));
    assert_eq!(errno(other.one.stat(b"old")), Some(Errno::ENOENT));
    assert_eq!(errno(other.one.stat(b"older")), Some(Errno::ENOENT));
}
