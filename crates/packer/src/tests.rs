//! Tests of two nodes that create names at the same time, in the shared directory and in its container.

mod external;
mod lost;
mod takeover;

use super::{
    ATTRIBUTE, ContainerDir, ExternalDir, OpenContainer, PackHandler, PackedTree, Packer, PackerClient,
    PackerParts,
};
use crate::client::lookup::Unlisted;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tameike_container::Container;
use tameike_core::attr::AttrChange;
use tameike_core::wire::meta::RenameMode;
use tameike_core::wire::pack::{PackReply, PackRequest, PackerTime};
use tameike_core::{Errno, FileKind, Result};
use tameike_io::os::process::{monotonic, random_bytes};
use tameike_io::os::system::System;
use tameike_io::shared::{PosixTree, SharedFs, Special, XattrMode};
use tempfile::TempDir;

/// Time after which a test fails.
const LIMIT: Duration = Duration::from_secs(60);

/// Two nodes with one packer.
struct Bed {
    dir: TempDir,
    device: TempDir,
    system: System,
    packer: Arc<Packer>,
    one: PackedTree,
    other: PackedTree,
}

impl Bed {
    fn new() -> Self {
        let temporary = || tempfile::tempdir().expect("a directory");
        Self::over(temporary(), temporary())
    }

    /// A bed over what an earlier one has left in a shared directory and on a device.
    fn over(dir: TempDir, device: TempDir) -> Self {
        let system = System::start(2).expect("a thread");
        let open =
            |path: std::path::PathBuf| -> Result<Arc<dyn SharedFs>> { Ok(Arc::new(PosixTree::open(&path)?)) };
        let plain = open(dir.path().to_owned()).expect("a tree");
        let open_container = || -> OpenContainer {
            let container = dir.path().join(".tameike-packed");
            Box::new(move || {
                let (tree, why_not_own) = PosixTree::open_unfollowed(&container)?;
                Ok(ContainerDir { fs: Arc::new(tree), why_not_own })
            })
        };
        let parts = PackerParts {
            plain: plain.clone(),
            container: open_container(),
            device: open(device.path().to_owned()).expect("a tree"),
            packs: true,
            size_max: 1 << 20,
            job: None,
        };
        let packer = Arc::new(Packer::new(parts, false, false).expect("the only packer"));
        let tree = || {
            PackedTree::new(
                system.runtime().clone(),
                (plain.clone(), ExternalDir::new(open_container(), false)),
                Some(PackerClient::Local(packer.clone())),
                (0, 0),
                false,
                1 << 20,
            )
        };
        let (one, other) = (tree(), tree());
        Self { dir, device, system, packer, one, other }
    }

    /// Creates a file that is not packed.
    fn make_plain(&self, path: &[u8]) -> Result<()> {
        self.other.set_xattr(b"", ATTRIBUTE, b"off", XattrMode::Any)?;
        let made = self.other.create(path, 0o644).map(drop);
        self.other.set_xattr(b"", ATTRIBUTE, b"on", XattrMode::Any)?;
        made
    }

    /// Looks up so many missing names on one node that the packer answers from a snapshot.
    fn miss_many(&self, dir: &str) {
        let end = monotonic() + LIMIT;
        let probe = format!("{dir}probe");
        while self.one.find_unlisted(probe.as_bytes(), monotonic()) != Some(Unlisted::Missing) {
            assert!(monotonic() < end, "the shared directory is asked for each name");
            assert_eq!(errno(self.one.stat(format!("{dir}missing").as_bytes())), Some(Errno::ENOENT));
        }
    }

    fn is_plain(&self, name: &str) -> bool {
        fs::symlink_metadata(self.dir.path().join(name)).is_ok()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.system.stop();
    }
}

fn errno<T>(done: Result<T>) -> Option<Errno> {
    done.err().map(|fault| fault.errno)
}

#[test]
fn a_stale_lookup_creates_no_second_file_at_a_path() {
    type Make = fn(&Bed) -> Result<()>;
    let ways: [(&str, Make); 6] = [
        ("link", |bed| bed.other.make(b"new", &Special::Symlink(b"target".to_vec())).map(drop)),
        ("file", |bed| bed.make_plain(b"new")),
        ("directory", |bed| bed.other.make(b"new", &Special::Directory(0o755)).map(drop)),
        ("name", |bed| bed.other.link(b"plain", b"new")),
        ("rename", |bed| bed.other.rename(b"plain", b"new", RenameMode::Replace)),
        ("rename of a directory", |bed| bed.other.rename(b"dir", b"new", RenameMode::NoReplace)),
    ];
    for (with_packed, with_misses) in [(false, false), (true, false), (false, true), (true, true)] {
        for (way, make) in ways {
            let bed = Bed::new();
            bed.make_plain(b"plain").expect("made");
            bed.other.make(b"dir", &Special::Directory(0o755)).expect("made");
            if with_packed {
                drop(bed.other.create(b"dir/packed", 0o644).expect("made"));
            }
            if with_misses {
                bed.miss_many("");
            }
            assert_eq!(errno(bed.one.stat(b"new")), Some(Errno::ENOENT), "{way}");
            make(&bed).expect(way);
            bed.other.stat(b"new").expect(way);
            if with_misses {
                bed.one.stat(b"new").expect(way);
            }
            assert_eq!(errno(bed.one.create(b"new", 0o644)), Some(Errno::EEXIST), "{way}");
            assert!(bed.is_plain("new"), "{way}");
            // A free name can be created all the same.
            assert_eq!(errno(bed.one.stat(b"free")), Some(Errno::ENOENT), "{way}");
            drop(bed.one.create(b"free", 0o644).expect(way));
            assert!(!bed.is_plain("free") && bed.other.stat(b"free").expect(way).kind == FileKind::File);
        }
    }
}

#[test]
fn no_creation_of_a_node_hides_a_packed_file() {
    let bed = Bed::new();
    bed.make_plain(b"plain").expect("made");
    drop(bed.one.create(b"new", 0o644).expect("made"));
    let symlink = Special::Symlink(b"target".to_vec());
    assert_eq!(errno(bed.other.make(b"new", &symlink)), Some(Errno::EEXIST));
    assert_eq!(errno(bed.make_plain(b"new")), Some(Errno::EEXIST));
    assert_eq!(errno(bed.other.link(b"plain", b"new")), Some(Errno::EEXIST));
    assert_eq!(errno(bed.other.rename(b"plain", b"new", RenameMode::NoReplace)), Some(Errno::EEXIST));
    assert!(!bed.is_plain("new") && bed.is_plain("plain"));
    bed.other.rename(b"plain", b"new", RenameMode::Replace).expect("renamed");
    assert!(bed.is_plain("new"));
    // No packed file is left below it.
    bed.one.unlink(b"new").expect("removed");
    assert_eq!(errno(bed.other.stat(b"new")), Some(Errno::ENOENT));
}

#[test]
fn entries_come_with_a_renamed_directory() {
    for mode in [RenameMode::Replace, RenameMode::Exchange] {
        let bed = Bed::new();
        for dir in [b"from", b"dest"] {
            bed.other.make(dir, &Special::Directory(0o755)).expect("made");
        }
        bed.make_plain(b"from/new").expect("made");
        bed.miss_many("dest/");
        assert_eq!(errno(bed.one.stat(b"dest/new")), Some(Errno::ENOENT));
        bed.other.rename(b"from", b"dest", mode).expect("renamed");
        assert_eq!(errno(bed.one.create(b"dest/new", 0o644)), Some(Errno::EEXIST));
        assert_eq!(bed.one.stat(b"dest/new").expect("it came with its directory").kind, FileKind::File);
    }
}

/// S42a.
#[test]
fn creations_of_other_nodes_are_seen_soon_despite_snapshots() {
    let bed = Bed::new();
    let new = bed.dir.path().join("new");
    let (end, mut was_missed) = (monotonic() + LIMIT, false);
    while !was_missed {
        assert!(monotonic() < end, "the shared directory is asked for each name");
        bed.miss_many("");
        fs::write(&new, "").expect("written");
        let until = monotonic() + LIMIT / 4;
        while errno(bed.one.stat(b"new")).is_some() {
            was_missed = true;
            assert!(monotonic() < until, "it is not seen");
        }
        fs::remove_file(&new).expect("removed");
        while errno(bed.one.stat(b"new")).is_none() {
            assert!(monotonic() < until, "it is seen still");
        }
    }
}

/// S42b.
#[test]
fn a_file_created_by_an_outside_program_hides_the_packed_one_soon() {
    let bed = Bed::new();
    let end = monotonic() + LIMIT;
    for number in 0.. {
        assert!(monotonic() < end, "no create missed what was created just before it");
        let name = format!("new-{number}");
        assert_eq!(errno(bed.one.stat(name.as_bytes())), Some(Errno::ENOENT));
        fs::write(bed.dir.path().join(&name), "outside").expect("written");
        match bed.one.create(name.as_bytes(), 0o644) {
            Ok(_) => {
                let size = || bed.one.stat(name.as_bytes()).expect("a file").size;
                while size() != 7 {
                    assert!(monotonic() < end, "the packed file stays visible");
                }
                return;
            }
            // The time was over.
            Err(fault) => assert_eq!(fault.errno, Errno::EEXIST),
        }
    }
}

#[test]
fn a_directory_with_packed_files_cannot_be_exchanged() {
    let bed = Bed::new();
    bed.other.make(b"dir", &Special::Directory(0o755)).expect("made");
    drop(bed.other.create(b"dir/packed", 0o644).expect("made"));
    bed.make_plain(b"plain").expect("made");
    for [from, to] in [[&b"plain"[..], b"dir"], [b"dir", b"plain"]] {
        assert_eq!(errno(bed.one.rename(from, to, RenameMode::Exchange)), Some(Errno::EINVAL));
    }
    bed.one.stat(b"dir/packed").expect("where it was");
    bed.one.unlink(b"dir/packed").expect("removed");
    bed.one.rename(b"plain", b"dir", RenameMode::Exchange).expect("changed places");
    assert_eq!(bed.other.stat(b"plain").expect("a directory").kind, FileKind::Directory);
    assert_eq!(bed.other.stat(b"dir").expect("a file").kind, FileKind::File);
}

fn number_of(bed: &Bed, path: &[u8]) -> u64 {
    bed.one.stat(path).expect("it is there").inode
}

/// The creation of a file by a node that has found its directory, and no file at the path.
fn made(path: &[u8], looked: Option<PackerTime>) -> PackRequest {
    let number = u64::from_le_bytes(random_bytes().expect("random bytes"));
    PackRequest::Create { path: path.to_vec(), number, mode: 0o644, uid: 0, gid: 0, looked }
}

#[test]
fn no_file_is_created_in_a_removed_directory() {
    let bed = Bed::new();
    for dir in [b"moved", b"empty", b"stays"] {
        bed.other.make(dir, &Special::Directory(0o755)).expect("made");
    }
    drop(bed.other.create(b"stays/packed", 0o644).expect("made"));
    bed.other.rename(b"moved", b"now", RenameMode::Replace).expect("renamed");
    bed.other.rmdir(b"empty").expect("removed");
    for path in [&b"moved/new"[..], b"empty/new"] {
        assert_eq!(errno(bed.packer.serve(made(path, None))), Some(Errno::ENOENT));
        let rename = PackRequest::Rename {
            number: number_of(&bed, b"stays/packed"),
            from: b"stays/packed".to_vec(),
            to: path.to_vec(),
            mode: RenameMode::Replace,
        };
        assert_eq!(errno(bed.packer.serve(rename)), Some(Errno::ENOENT));
    }
    bed.other.make(b"moved", &Special::Directory(0o755)).expect("made again");
    drop(bed.one.create(b"moved/new", 0o644).expect("made"));
    drop(bed.one.create(b"stays/new", 0o644).expect("made"));
    // A file takes the path of the directory.
    bed.make_plain(b"plain").expect("made");
    bed.other.make(b"swapped", &Special::Directory(0o755)).expect("made");
    bed.other.rename(b"plain", b"swapped", RenameMode::Exchange).expect("changed places");
    let rename = PackRequest::Rename {
        number: number_of(&bed, b"stays/packed"),
        from: b"stays/packed".to_vec(),
        to: b"swapped/new".to_vec(),
        mode: RenameMode::NoReplace,
    };
    assert_eq!(errno(bed.packer.serve(rename)), Some(Errno::ENOENT));
}

#[test]
fn no_directory_is_created_at_the_path_of_a_packed_file() {
    let bed = Bed::new();
    bed.other.make(b"dir", &Special::Directory(0o755)).expect("made");
    drop(bed.one.create(b"new", 0o644).expect("made"));
    // By a node whose lookup is older.
    let make = PackRequest::MakeDir { call: 1, path: b"new".to_vec(), mode: 0o755 };
    assert_eq!(errno(bed.packer.serve(make)), Some(Errno::EEXIST));
    for (mode, reply) in [(RenameMode::NoReplace, Errno::EEXIST), (RenameMode::Replace, Errno::ENOTDIR)] {
        let rename = PackRequest::MoveDir { call: 2, from: b"dir".to_vec(), to: b"new".to_vec(), mode };
        assert_eq!(errno(bed.packer.serve(rename)), Some(reply));
    }
    assert!(!bed.is_plain("new") && bed.is_plain("dir"));
    bed.other.stat(b"new").expect("the file");
}

#[test]
fn a_repeated_lookup_does_not_allow_to_replace_a_newer_file() {
    let bed = Bed::new();
    bed.make_plain(b"new").expect("made");
    fs::remove_file(bed.dir.path().join("new")).expect("removed");
    let Ok(PackReply::LookupFirst(since)) = bed.packer.serve(made(b"new", None)) else {
        panic!("the client need not look up")
    };
    // It looks up again, and finds nothing. Another node creates something.
    bed.make_plain(b"new").expect("made");
    let reply = bed.packer.serve(made(b"new", Some(since)));
    assert!(matches!(reply, Ok(PackReply::LookupFirst(again)) if again.time > since.time), "{reply:?}");
    assert_eq!(errno(bed.one.create(b"new", 0o644)), Some(Errno::EEXIST));
    fs::remove_file(bed.dir.path().join("new")).expect("removed");
    drop(bed.one.create(b"new", 0o644).expect("made"));
}

/// The container as a later job finds it if this one fails now.
fn as_left(bed: &Bed) -> Container {
    container_in(bed.dir.path())
}

fn container_in(dir: &Path) -> Container {
    let container = PosixTree::open(&dir.join(".tameike-packed")).expect("a tree");
    Container::open(Arc::new(container)).expect("it opens")
}

#[test]
fn changed_attributes_are_with_the_file_system_while_the_file_is_open() {
    let bed = Bed::new();
    let file = bed.one.create(b"file", 0o644).expect("made");
    let mode = |mode| AttrChange { mode: Some(mode), ..AttrChange::default() };
    let found = || {
        let container = as_left(&bed);
        let entry = container.find(b"file").expect("no damage").expect("it is there");
        container.node(&entry).expect("no damage").mode
    };
    bed.other.change(b"file", &mode(0o600)).expect("changed");
    assert_eq!(found(), 0o600);
    file.change(&mode(0o640)).expect("changed");
    assert_eq!(found(), 0o640);
}

/// Each entry is with the file system before its creation returns, though concurrent creations share writes.
#[test]
fn concurrent_creations_are_with_the_file_system_when_they_return() {
    let bed = Bed::new();
    std::thread::scope(|scope| {
        for maker in 0..8 {
            let bed = &bed;
            scope.spawn(move || {
                for number in 0..50 {
                    let path = format!("{maker}-{number}");
                    let file = bed.one.create(path.as_bytes(), 0o644).expect("made");
                    if number % 10 == 0 {
                        let found = as_left(bed).find(path.as_bytes());
                        assert!(found.expect("no damage").is_some(), "{path} is not there");
                    }
                    if number % 3 == 0 {
                        bed.other.unlink(path.as_bytes()).expect("removed");
                    }
                    drop(file);
                }
            });
        }
    });
    let container = as_left(&bed);
    for maker in 0..8 {
        for number in 0..50 {
            let found = container.find(format!("{maker}-{number}").as_bytes()).expect("no damage");
            assert_eq!(found.and_then(|entry| entry.node).is_some(), number % 3 != 0, "{maker}-{number}");
        }
    }
}
