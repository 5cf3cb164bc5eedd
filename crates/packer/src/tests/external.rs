//! Tests of files that grow too large for the container.

use super::{Bed, as_left, errno};
use crate::count_pending_promotions;
use crate::external::ASIDE;
use crate::server::store::Store;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tameike_container::format::external::ContentLocation;
use tameike_core::attr::{AttrChange, SetTime, Timestamp};
use tameike_core::wire::meta::RenameMode;
use tameike_core::{Errno, Result};
use tameike_io::os::process;
use tameike_io::shared::{Access, Allocate, PosixTree, Seek, SharedFile, SharedFs, Special};

const SMALL: usize = 3000;
/// More than the container takes.
const LARGE: u64 = (1 << 20) + 5;

fn read(file: &Arc<dyn SharedFile>, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let count = file.read_at(&mut bytes, offset).expect("read");
    bytes.truncate(count);
    bytes
}

fn to(seconds: i64, nanoseconds: u32) -> Option<SetTime> {
    Some(SetTime::To(Timestamp { seconds, nanoseconds }))
}

/// Creates a small file that then gets one byte far behind its end.
fn grown(bed: &Bed, path: &[u8]) -> Result<Arc<dyn SharedFile>> {
    let file = bed.one.create(path, 0o640)?;
    file.write_at(&[1; SMALL], 0)?;
    file.write_at(&[2], LARGE - 1)?;
    Ok(file)
}

impl Bed {
    /// The external files.
    fn external(&self) -> Vec<fs::Metadata> {
        let container = fs::read_dir(self.dir.path().join(".tameike-packed")).expect("a container");
        let names = container.map(|name| name.expect("a name"));
        names
            .filter(|name| name.file_name().to_string_lossy().starts_with("out."))
            .map(|name| name.metadata().expect("it is there"))
            .collect()
    }

    fn pending_promotions(&self) -> u64 {
        count_pending_promotions(&PosixTree::open(self.device.path()).expect("a tree")).expect("counted")
    }

    /// Waits until no file is open: dropping one closes it in the background.
    fn wait_closed(&self) {
        let end = process::monotonic() + super::LIMIT;
        while self.packer.with_store(|store| Ok(store.has_open_files())).unwrap_or(false) {
            assert!(process::monotonic() < end, "a file stays open");
            std::thread::yield_now();
        }
    }

    /// Ends the job, and begins another one.
    fn again(self, drained: bool) -> (Self, Result<()>) {
        let finished = self.packer.finish(drained);
        (self.killed(), finished)
    }

    fn killed(self) -> Self {
        let (dir, device) = super::lost::left_by(self);
        Self::over(dir, device)
    }
}

#[test]
fn external_content_is_shared_by_all_open_files() {
    let bed = Bed::new();
    let before = bed.one.create(b"file", 0o640).expect("made");
    before.write_at(&[1; SMALL], 0).expect("written");
    let other = bed.other.open(b"file", Access::Write).expect("open");
    let number = bed.other.stat(b"file").expect("there").inode;
    assert!(bed.external().is_empty() && before.writer_sets_times());
    // The packer notifies the node that made it grow; the other one finds out.
    before.expect_size(LARGE).expect("expected");
    assert!(!before.writer_sets_times());
    assert_eq!(
        bed.external().iter().map(|file| (file.len(), file.mode() & 0o777)).collect::<Vec<_>>(),
        [(SMALL as u64, 0o600)]
    );
    before.write_at(&[2], LARGE - 1).expect("written");
    assert_eq!(
        (read(&other, 1, SMALL), read(&other, LARGE - 2, 9)),
        ([vec![1; SMALL - 1], vec![0]].concat(), vec![0, 2])
    );
    other.append(&[3]).expect("appended");
    let third = bed.other.open(b"file", Access::Read).expect("open");
    assert_eq!(read(&third, LARGE - 1, 9), [2, 3]);
    for stat in
        [bed.one.stat(b"file"), before.stat(), other.stat(), third.stat()].map(|stat| stat.expect("there"))
    {
        assert_eq!((stat.inode, stat.size, stat.mode, stat.nlink), (number, LARGE + 1, 0o640, 1));
    }
    assert_eq!(
        as_left(&bed).find(b"file").expect("no damage").and_then(|entry| entry.node).map(|node| node.size),
        Some(0)
    );
    other.truncate(10).expect("cut");
    assert_eq!((read(&before, 8, 9), third.seek(Seek::Hole, 0).expect("found")), (vec![1; 2], 10));
    before.allocate(Allocate::Punch, 9, 1).expect("punched");
    assert_eq!(read(&other, 8, 9), [1, 0]);
    [before, other, third].iter().for_each(|file| file.sync().expect("synced"));
}

/// Open files that do not know yet find out by each call.
#[test]
fn each_call_finds_out_that_content_became_external() {
    type Call = fn(&dyn SharedFile) -> Result<()>;
    let calls: [Call; 8] = [
        |file| file.read_at(&mut [0; 9], LARGE - 3).map(|count| assert_eq!(count, 3)),
        |file| file.write_at(&[4], LARGE),
        |file| file.append(&[4]),
        |file| file.truncate(LARGE + 1),
        |file| file.allocate(Allocate::Extend, 0, LARGE + 1),
        |file| file.seek(Seek::Data, LARGE - 1).map(drop),
        |file| file.sync(),
        |file| file.change(&AttrChange { mtime: to(5, 0), ..AttrChange::default() }),
    ];
    for (number, call) in calls.iter().enumerate() {
        let bed = Bed::new();
        let made = bed.one.create(b"file", 0o640).expect("made");
        let other = bed.other.open(b"file", Access::Write).expect("open");
        made.write_at(&[1], LARGE - 1).expect("written");
        assert!(other.writer_sets_times());
        call(&*other).unwrap_or_else(|fault| panic!("call {number}: {fault}"));
        assert!(!other.writer_sets_times() || number == 7, "call {number}");
        let (size, stat) = (bed.external()[0].len(), bed.one.stat(b"file").expect("there"));
        assert_eq!((stat.size, stat.mtime.seconds == 5), (size, number == 7), "call {number}");
        assert_eq!(size, if (1..5).contains(&number) { LARGE + 1 } else { LARGE }, "call {number}");
    }
}

#[test]
fn a_file_with_external_content_has_name_and_attributes_of_a_packed_one() {
    let bed = Bed::new();
    bed.one.make(b"dir", &Special::Directory(0o755)).expect("made");
    let file = grown(&bed, b"dir/first").expect("made");
    let change = AttrChange { mode: Some(0o604), mtime: to(77, 5), ..AttrChange::default() };
    file.change(&change).expect("changed");
    drop(file);
    let change = AttrChange { atime: to(99, 0), ..AttrChange::default() };
    bed.other.change(b"dir/first", &change).expect("changed");
    drop(grown(&bed, b"second").expect("made"));
    bed.wait_closed();
    bed.one.rename(b"dir/first", b"dir/new", RenameMode::Replace).expect("renamed");
    bed.one.rename(b"dir", b"moved", RenameMode::Replace).expect("renamed");
    let number = bed.one.stat(b"moved/new").expect("there").inode;
    bed.other.rename(b"moved/new", b"second", RenameMode::Replace).expect("replaced");
    let stat = bed.one.stat(b"second").expect("there");
    assert_eq!((stat.inode, stat.size, stat.mode), (number, LARGE, 0o604));
    assert_eq!((stat.mtime, stat.atime.seconds), (Timestamp { seconds: 77, nanoseconds: 5 }, 99));
    bed.one.sync_dir(b"").expect("synced");
    assert_eq!(bed.external().len(), 1, "the replaced external file is removed");
    let open = bed.other.open(b"second", Access::Write).expect("open");
    bed.one.unlink(b"second").expect("removed");
    open.write_at(&[9], 0).expect("written");
    assert_eq!((read(&open, 0, 2), bed.external().len()), (vec![9, 1], 1), "an open file keeps it");
    assert_eq!(open.stat().expect("open").nlink, 0);
    drop(open);
    let end = process::monotonic() + super::LIMIT;
    while !bed.external().is_empty() {
        bed.one.sync_dir(b"").expect("synced");
        assert!(process::monotonic() < end, "it stays");
        std::thread::yield_now();
    }
}

#[test]
fn external_files_are_promoted_at_the_end_of_the_job() {
    let bed = Bed::new();
    bed.one.make(b"dir", &Special::Directory(0o755)).expect("made");
    drop(grown(&bed, b"dir/large").expect("made"));
    drop(bed.one.create(b"dir/small", 0o644).expect("made"));
    let is_root = process::user() == 0;
    let owner = if is_root { (1234, 567) } else { (process::user(), process::group()) };
    let change = AttrChange { uid: Some(owner.0), gid: Some(owner.1), ..AttrChange::default() };
    bed.other.change(b"dir/large", &change).expect("changed");
    let (bed, finished) = bed.again(true);
    finished.expect("finished");
    let large = fs::metadata(bed.dir.path().join("dir/large")).expect("a file");
    assert_eq!((large.len(), large.mode() & 0o7777), (LARGE, 0o640));
    assert_eq!((large.uid(), large.gid()), owner);
    assert_eq!((bed.external().len(), bed.is_plain("dir/small")), (0, false));
    bed.one.unlink(b"dir/large").expect("removed");
    assert_eq!(errno(bed.one.stat(b"dir/large")), Some(Errno::ENOENT), "nothing is packed under the name");
    bed.one.stat(b"dir/small").expect("it is packed");
}

/// Files of an interrupted or undrained job wait for its recovery, and no other job promotes them; so does a file whose path is taken.
#[test]
fn a_promotion_that_failed_is_done_later() {
    let bed = Bed::new();
    drop(grown(&bed, b"large").expect("made"));
    let (bed, finished) = bed.killed().again(false);
    finished.expect("finished");
    let (dir, device) = super::lost::left_by(bed);
    let another = Bed::over(dir, tempfile::tempdir().expect("a directory"));
    drop(grown(&another, b"of another").expect("made"));
    let number = another.one.stat(b"large").expect("there").inode;
    another.packer.finish(true).expect("finished");
    assert_eq!((another.is_plain("large"), another.is_plain("of another")), (false, true));
    let (dir, _) = super::lost::left_by(another);
    let bed = Bed::over(dir, device);
    assert_eq!(bed.pending_promotions(), 1);
    let file = bed.other.open(b"large", Access::Read).expect("it is there");
    assert_eq!((read(&file, 0, 1), read(&file, LARGE - 1, 9)), (vec![1], vec![2]));
    assert_eq!(file.stat().expect("open").inode, number);
    drop(file);
    fs::write(bed.dir.path().join("large"), "of another program").expect("written");
    let (bed, finished) = bed.again(true);
    let said = finished.expect_err("a file is in the place").to_string();
    assert!(said.contains("large"), "{said}");
    let (bed, finished) = bed.again(true);
    finished.expect_err("it is reported again");
    fs::remove_file(bed.dir.path().join("large")).expect("removed");
    let (bed, finished) = bed.again(true);
    finished.expect("finished");
    assert_eq!(fs::metadata(bed.dir.path().join("large")).expect("a file").len(), LARGE);
    assert!(bed.external().is_empty());
    assert_eq!(bed.pending_promotions(), 0);
}

/// A packer that failed after a promotion, and before it removed the entry, also with both names; or whose container was durable before the
/// external file. Files without an entry may be another job's.
#[test]
fn interrupted_promotions_are_finished() {
    let bed = Bed::new();
    let external = |bed: &Bed, name: &str| {
        drop(grown(bed, name.as_bytes()).expect("made"));
        let number = bed.one.stat(name.as_bytes()).expect("there").inode;
        bed.dir.path().join(format!(".tameike-packed/out.{number:016x}"))
    };
    let path = |name: &str| bed.dir.path().join(name);
    fs::rename(external(&bed, "large"), path("large")).expect("renamed");
    fs::hard_link(external(&bed, "twice"), path("twice")).expect("linked");
    external(&bed, "unfinished");
    for name in ["large", "twice", "unfinished"] {
        let leaving = |store: &mut Store| {
            store.external.end_promotions()?;
            store.set_location_of(name.as_bytes(), ContentLocation::Promotable)
        };
        bed.packer.with_store(leaving).expect("set");
    }
    fs::remove_file(external(&bed, "lost")).expect("removed");
    external(&bed, "stays");
    fs::write(path(".tameike-packed/out.0123456789abcdef"), "unlisted").expect("written");
    let bed = bed.killed();
    for name in ["large", "twice"] {
        fs::remove_file(bed.dir.path().join(name)).expect("removed");
        assert_eq!(
            errno(bed.one.stat(name.as_bytes())),
            Some(Errno::ENOENT),
            "nothing is packed under {name}"
        );
    }
    assert_eq!(bed.one.stat(b"lost").expect("its name is there").size, 0);
    assert!(bed.is_plain("unfinished") && !bed.is_plain("stays"));
    let (bed, finished) = bed.again(true);
    finished.expect("finished");
    assert_eq!((bed.is_plain("stays"), bed.is_plain("lost"), bed.external().len()), (true, false, 1));
}

/// A removed file comes back if the disk has lost the removal: so its content is kept until the removal is durable.
#[test]
fn external_content_is_removed_once_the_removal_is_durable() {
    let bed = Bed::new();
    drop(grown(&bed, b"first").expect("made"));
    drop(grown(&bed, b"second").expect("made"));
    bed.wait_closed();
    bed.one.sync_dir(b"").expect("synced");
    bed.one.rename(b"second", b"first", RenameMode::Replace).expect("renamed");
    assert_eq!(bed.external().len(), 2);
    bed.one.sync_dir(b"").expect("synced");
    assert_eq!(bed.external().len(), 1);
    bed.one.unlink(b"first").expect("removed");
    // A client that is about to write much finds the space free.
    let file = bed.one.create(b"third", 0o644).expect("made");
    file.expect_size(LARGE).expect("expected");
    assert_eq!(bed.external().iter().map(fs::Metadata::len).collect::<Vec<_>>(), [0]);
    drop(file);
    bed.wait_closed();
    bed.one.unlink(b"third").expect("removed");
    let bed = bed.killed();
    assert_eq!(bed.external().len(), 1);
    let (bed, finished) = bed.again(true);
    finished.expect("finished");
    assert_eq!((bed.external().len(), bed.is_plain("third")), (0, false));
}

/// Programs make directories read-only when they are done with them.
#[test]
fn files_are_promoted_into_a_read_only_directory() {
    let bed = Bed::new();
    fs::create_dir(bed.dir.path().join("dir")).expect("made");
    let files: Vec<_> = (0..40).map(|number| format!("dir/{number}")).collect();
    let open: Vec<_> =
        files.iter().map(|path| bed.one.create(path.as_bytes(), 0o644).expect("made")).collect();
    let set =
        |mode| fs::set_permissions(bed.dir.path().join("dir"), PermissionsExt::from_mode(mode)).expect("set");
    set(0o555);
    open.iter().for_each(|file| file.write_at(&[1], LARGE - 1).expect("written"));
    drop(open);
    let (bed, finished) = bed.again(true);
    finished.expect("finished");
    for path in files {
        assert_eq!(fs::metadata(bed.dir.path().join(path)).expect("a file").len(), LARGE);
    }
    assert_eq!(fs::metadata(bed.dir.path().join("dir")).expect("a directory").mode() & 0o7777, 0o555);
}

/// Permissions that a directory gives to new files apply.
#[test]
fn promoted_files_get_the_default_acl_of_their_directory() {
    // As set by `setfacl -d -m u::rwx,u:1234:rwx,g::r-x,m::rwx,o::---`.
    let entry = |tag: u16, may: u16, who: u32| {
        [&tag.to_le_bytes()[..], &may.to_le_bytes(), &who.to_le_bytes()].concat()
    };
    let nobody = u32::MAX;
    let entries = [
        entry(1, 7, nobody),
        entry(2, 7, 1234),
        entry(4, 5, nobody),
        entry(16, 7, nobody),
        entry(32, 0, nobody),
    ];
    let list = [&2_u32.to_le_bytes()[..], &entries.concat()].concat();
    let bed = Bed::new();
    fs::create_dir(bed.dir.path().join("dir")).expect("made");
    rustix::fs::setxattr(
        bed.dir.path().join("dir"),
        "system.posix_acl_default",
        &list,
        rustix::fs::XattrFlags::empty(),
    )
    .expect("set");
    drop(grown(&bed, b"dir/large").expect("made"));
    let (bed, finished) = bed.again(true);
    finished.expect("finished");
    let mut found = [0; 100];
    let size =
        rustix::fs::getxattr(bed.dir.path().join("dir/large"), "system.posix_acl_access", &mut found[..])
            .expect("a list");
    assert!(found[..size].windows(8).any(|found| found == entry(2, 7, 1234)), "{:?}", &found[..size]);
}

/// A user who may rename files in a directory can replace a file that is unfinished out of it.
#[test]
fn content_is_not_written_to_a_file_that_another_program_put_in_place() {
    let bed = Bed::new();
    bed.one.make(b"d", &Special::Directory(0o777)).expect("made");
    let (dir, trap) = (bed.dir.path().join("d"), bed.dir.path().join("trap"));
    let ends = AtomicBool::new(false);
    let swap = || {
        fs::write(&trap, "").expect("written");
        fs::set_permissions(&trap, PermissionsExt::from_mode(0o666)).expect("ours");
        while !ends.load(Relaxed) {
            let names = fs::read_dir(&dir).expect("a directory").flatten();
            let mut moved = names.filter(|name| name.file_name().as_bytes().starts_with(ASIDE));
            if moved.any(|name| renameat_with(CWD, &trap, CWD, name.path(), RenameFlags::EXCHANGE).is_ok()) {
                return fs::remove_file(&trap).expect("ours");
            }
        }
    };
    std::thread::scope(|scope| {
        for number in 0..40 {
            ends.store(false, Relaxed);
            let swapping = scope.spawn(swap);
            let path = format!("d/{number}");
            let file = grown(&bed, path.as_bytes()).expect("written");
            ends.store(true, Relaxed);
            swapping.join().expect("swapped, or not");
            assert_eq!(read(&file, LARGE - 2, 9), [0, 2]);
            assert!(bed.external().iter().all(|file| file.mode() & 0o777 == 0o600), "after {number}");
        }
    });
    let (_bed, finished) = bed.again(true);
    finished.expect("all come to their places");
}

/// A user who may rename files in the shared directory can replace the container's directory with one whose files have the names of
/// external files.
#[test]
fn content_is_not_written_to_a_directory_that_replaces_the_container() {
    let bed = Bed::new();
    let at = |name: &str| bed.dir.path().join(name);
    drop(grown(&bed, b"before").expect("made"));
    let before = bed.other.open(b"before", Access::Write).expect("open");
    fs::rename(at(".tameike-packed"), at("taken")).expect("renamed");
    fs::create_dir(at(".tameike-packed")).expect("made");
    let names = || fs::read_dir(at("taken")).expect("a directory").flatten().map(|name| name.file_name());
    let traps = || {
        for name in names().filter(|name| name.as_bytes().starts_with(b"out.")) {
            fs::write(at(".tameike-packed").join(name), "trap").expect("written");
        }
    };
    traps();
    let after = grown(&bed, b"after").expect("made");
    traps();
    [&before, &after].into_iter().for_each(|file| file.write_at(b"secret", 0).expect("written"));
    for (name, file) in [("before", &before), ("after", &after)] {
        let again = bed.one.open(name.as_bytes(), Access::Read).expect("open");
        assert_eq!((read(&again, 0, 6), again.stat().expect("open").size), (b"secret".to_vec(), LARGE));
        assert_eq!(file.stat().expect("open").size, LARGE);
    }
    let trapped = |dir: std::path::PathBuf| {
        let files = fs::read_dir(dir).expect("a directory").flatten();
        files.map(|file| fs::read(file.path()).expect("a file")).collect::<Vec<_>>()
    };
    assert_eq!(trapped(at(".tameike-packed")), vec![b"trap".to_vec(); 2]);
    drop((before, after));
    bed.wait_closed();
    let said = bed.packer.finish(true).expect_err("other files are in their places").to_string();
    assert!(said.contains("another program has put a file in its place"), "{said}");
    assert_eq!(names().filter(|name| name.as_bytes().starts_with(b"out.")).count(), 2, "they are kept");
}

/// A node that has not read any content yet.
#[test]
fn content_is_not_read_from_a_directory_of_another_user() {
    if process::user() != 0 {
        return;
    }
    let bed = Bed::new();
    drop(grown(&bed, b"file").expect("made"));
    let number = bed.one.stat(b"file").expect("there").inode;
    let container = bed.dir.path().join(".tameike-packed");
    fs::rename(&container, bed.dir.path().join("taken")).expect("renamed");
    fs::create_dir(&container).expect("made");
    fs::write(container.join(format!("out.{number:016x}")), "trap").expect("written");
    std::os::unix::fs::chown(&container, Some(65_534), None).expect("given");
    assert_eq!(errno(bed.other.open(b"file", Access::Write)), Some(Errno::EPERM));
    assert_eq!(errno(bed.other.stat(b"file")), Some(Errno::EPERM));
}
