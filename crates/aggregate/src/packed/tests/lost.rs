//! The file system has lost what it had of the container in memory, and another life of the packer comes.

use super::{Bed, LIMIT, errno, made};
use std::collections::BTreeMap;
use std::path::Path;
use std::{fs, mem};
use tameike_core::Errno;
use tameike_core::attr::AttrChange;
use tameike_core::wire::meta::RenameMode;
use tameike_core::wire::pack::{PackReply, PackRequest};
use tameike_io::os::process::monotonic;
use tameike_io::shared::{Access, SharedFs, Special};
use tempfile::TempDir;

/// What the disk has of the container.
type OnDisk = BTreeMap<std::path::PathBuf, Vec<u8>>;

fn on_disk(bed: &Bed) -> OnDisk {
    let container = fs::read_dir(bed.dir.path().join(".tameike-packed")).expect("a container");
    container
        .map(|name| name.expect("a name").path())
        .map(|path| (path.clone(), fs::read(path).expect("read")))
        .collect()
}

/// The packer dies, and of the container only this is left.
fn lose(mut bed: Bed, left: &OnDisk) -> Bed {
    let fresh = || tempfile::tempdir().expect("a directory");
    let (dir, device) = (mem::replace(&mut bed.dir, fresh()), mem::replace(&mut bed.device, fresh()));
    drop(bed);
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

/// S34: "Names that the file system took and lost, as an fsync tells, are put again by `recover`, from the device of the packer."
#[test]
fn names_that_the_file_system_has_lost_come_back() {
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
        // Its bytes are flushed again by who has them.
        assert_eq!(bed.one.stat(b"dir/written").expect("it is there").size, 4, "life {life}");
        // They are safe.
        let left = on_disk(&bed);
        bed = lose(bed, &left);
    }
}

#[test]
fn what_others_have_made_of_lost_names_stays() {
    let bed = Bed::new();
    drop(bed.one.create(b"first", 0o644).expect("made"));
    bed.one.open(b"first", Access::Write).expect("opened").sync().expect("synced");
    drop(bed.one.create(b"second", 0o644).expect("made"));
    bed.one.unlink(b"first").expect("removed");
    let left = on_disk(&bed);
    let bed = lose(bed, &left);
    // Nothing was lost, and nothing comes twice.
    assert_eq!(on_disk(&bed), left);
    assert_eq!(errno(bed.one.stat(b"first")), Some(Errno::ENOENT));
    bed.one.unlink(b"second").expect("removed");
    bed.packer.finish(true).expect("finished");
    let left = on_disk(&bed);
    let bed = lose(bed, &left);
    assert_eq!(errno(bed.one.stat(b"second")), Some(Errno::ENOENT));
}

/// Another job comes, on a device of its own, before the one that was cut off is recovered.
#[test]
fn what_another_job_has_done_meanwhile_stays() {
    let mut bed = Bed::new();
    for path in [&b"removed"[..], b"renamed", b"made"] {
        drop(bed.one.create(path, 0o644).expect("made"));
    }
    bed.one.unlink(b"made").expect("removed");
    let fresh = || tempfile::tempdir().expect("a directory");
    let (dir, device) = (mem::replace(&mut bed.dir, fresh()), mem::replace(&mut bed.device, fresh()));
    drop(bed);
    let mut other = Bed::over(dir, fresh());
    other.one.unlink(b"removed").expect("removed");
    other.one.rename(b"renamed", b"now", RenameMode::Replace).expect("renamed");
    drop(other.one.create(b"made", 0o600).expect("made"));
    other.packer.finish(true).expect("finished");
    let dir = mem::replace(&mut other.dir, fresh());
    drop(other);
    let bed = Bed::over(dir, device);
    assert_eq!(names_in(&bed, b""), ["made", "now"]);
    assert_eq!(mode_and_number(&bed, b"made").0, 0o600);
}

/// A file that got another name, and whose content is damaged where it always was, is not there as zeros.
#[test]
fn content_that_was_safe_and_cannot_be_read_is_not_replaced_by_nothing() {
    let bed = Bed::new();
    let (content, damaged) = ([7; 50_000], [8; 50_000]);
    for (path, bytes) in [(&b"damaged"[..], damaged), (b"whole", content)] {
        let file = bed.one.create(path, 0o644).expect("made");
        file.write_at(&bytes, 0).and_then(|()| file.sync()).expect("safe");
    }
    // What comes next says what was safe before.
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
    assert_eq!(errno(bed.one.stat(b"new")), Some(Errno::ENOENT));
    let read = |path: &[u8]| {
        let mut bytes = vec![0; content.len()];
        let count = bed.one.open(path, Access::Read)?.read_at(&mut bytes, 0)?;
        bytes.truncate(count);
        Ok(bytes)
    };
    assert_eq!(errno(read(b"damaged")), Some(Errno::EIO));
    // Its old name is kept beside.
    assert_eq!(read(b"newer").expect("read"), content);
    assert_eq!(read(b"whole").expect("read"), content);
}

/// What is noted does not grow with the job: the container is synced before.
#[test]
fn little_is_noted_at_a_time() {
    let bed = Bed::new();
    let noted = |bed: &Bed| -> u64 {
        let sizes = fs::read_dir(bed.device.path())
            .expect("a directory")
            .map(|name| name.expect("a name").metadata());
        sizes.map(|metadata| metadata.expect("there").len()).sum()
    };
    drop(bed.one.create(b"first", 0o644).expect("made"));
    let (end, mut number, mut largest) = (monotonic() + LIMIT, 0, 0);
    // Four turns of the two files.
    while number < 4 * (4 << 20) / 300 {
        assert!(monotonic() < end, "only {number} files in time");
        let path = format!("{}{number}", "long".repeat(60));
        let told = bed.packer.serve(made(path.as_bytes(), Some(monotonic())));
        let Ok(PackReply::Stat(stat)) = told else { panic!("{told:?}") };
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
fn another_container_is_none_of_what_is_noted() {
    let bed = Bed::new();
    drop(bed.one.create(b"old", 0o644).expect("made"));
    drop(bed.one.create(b"older", 0o644).expect("made"));
    let (mut bed, fresh) = (bed, tempfile::tempdir().expect("a directory"));
    let device = mem::replace(&mut bed.device, fresh);
    drop(bed);
    let other = Bed::over(TempDir::new().expect("a directory"), device);
    drop(other.one.create(b"new", 0o644).expect("made"));
    assert_eq!(errno(other.one.stat(b"old")), Some(Errno::ENOENT));
    assert_eq!(errno(other.one.stat(b"older")), Some(Errno::ENOENT));
}
