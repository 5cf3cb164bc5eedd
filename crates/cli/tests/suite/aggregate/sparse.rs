//! Sparse files stay sparse in a container, and in copies from it.

use super::{Mounted, agg, inside, path};
use crate::support::{shown, succeed};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const SIZE: u64 = 256 << 20;
/// More than the allocated size of all files, and much less than the size of one.
const SPACE_MAX: u64 = 8 << 20;

fn packed() -> TempDir {
    let base = tempfile::tempdir().expect("a directory");
    let source = base.path().join("source");
    fs::create_dir(&source).expect("a directory");
    for (name, places) in [
        ("image", &[(0, 4096), (SIZE / 2 + 5000, 100_000), (SIZE / 2 + 400_000, 1)][..]),
        ("data at the end", &[(SIZE - 7, 7)]),
        ("hole", &[]),
    ] {
        let file = File::create(source.join(name)).expect("made");
        file.set_len(SIZE).expect("longer");
        for (place, length) in places {
            file.write_all_at(&vec![7; *length], *place).expect("written");
        }
    }
    assert!(space(&source) < SPACE_MAX, "this file system has no holes: set TMPDIR to another one");
    done(&[path("create"), &source, &base.path().join("container")]);
    base
}

fn done(words: &[&Path]) {
    let output = agg(words);
    assert!(output.status.success(), "{}", shown(&output));
}

/// Allocated bytes below a directory.
fn space(dir: &Path) -> u64 {
    let found = dir.symlink_metadata().expect("there");
    let below = found.is_dir().then(|| fs::read_dir(dir).expect("a directory"));
    below.into_iter().flatten().map(|name| space(&name.expect("a name").path())).sum::<u64>()
        + found.blocks() * 512
}

/// The same files, with their holes.
fn assert_same(base: &Path, found: &Path) {
    assert!(space(found) < SPACE_MAX, "{} takes {}", found.display(), space(found));
    for name in ["image", "data at the end", "hole"] {
        succeed(Command::new("cmp").arg(base.join("source").join(name)).arg(found.join(name)));
    }
}

#[test]
fn holes_take_no_space_in_a_container() {
    let base = packed();
    let (base, container) = (base.path(), base.path().join("container"));
    assert!(space(&container) < SPACE_MAX, "{}", space(&container));
    done(&[path("verify"), &container]);
    done(&[path("extract"), &container, &base.join("extracted")]);
    assert_same(base, &base.join("extracted"));
    // Through sessions: into a container, and between two containers.
    done(&[path("cp"), path("-r"), &base.join("source"), &inside(&container, "again")]);
    let other = base.join("other");
    fs::create_dir(base.join("nothing")).expect("a directory");
    done(&[path("create"), &base.join("nothing"), &other]);
    done(&[path("cp"), path("-r"), &inside(&container, "again"), &inside(&other, "copy")]);
    assert!(space(&container) + space(&other) < 2 * SPACE_MAX);
    done(&[path("compact"), path("--compress"), &other]);
    assert!(space(&other) < SPACE_MAX, "{}", space(&other));
    done(&[path("verify"), &other]);
    done(&[path("cp"), path("-r"), &inside(&other, "copy"), &base.join("copied")]);
    assert_same(base, &base.join("copied"));
    let exported = agg(&[path("export"), &other, &base.join("a.tar")]);
    assert!(exported.status.success(), "{}", shown(&exported));
    let unpacked = base.join("unpacked");
    fs::create_dir(&unpacked).expect("a directory");
    let archive = base.join("a.tar");
    succeed(Command::new("tar").args(["-xf"]).arg(&archive).arg("-C").arg(&unpacked));
    fs::remove_file(archive).expect("removed");
    for name in ["image", "hole"] {
        succeed(
            Command::new("cmp").arg(base.join("source").join(name)).arg(unpacked.join("copy").join(name)),
        );
    }
}

#[test]
fn a_mounted_container_shows_holes() {
    let base = packed();
    let at: PathBuf = base.path().join("at");
    fs::create_dir(&at).expect("a directory");
    let mut server = Mounted::new(&base.path().join("container"), &at);
    assert_same(base.path(), &at);
    let copied = base.path().join("copied");
    succeed(Command::new("cp").arg("-r").args([&at, &copied]));
    assert_same(base.path(), &copied);
    assert!(server.end().success());
}

/// An entry cannot list so many small extents: some holes between them become zeros.
#[test]
fn a_file_of_very_many_extents_is_packed() {
    let base = tempfile::tempdir().expect("a directory");
    let source = base.path().join("source");
    fs::create_dir(&source).expect("a directory");
    let file = File::create(source.join("file")).expect("made");
    for number in 0..3000_u64 {
        file.write_all_at(b"data", number * (132 << 10)).expect("written");
    }
    let container = base.path().join("container");
    done(&[path("create"), &source, &container]);
    assert!(space(&container) < 100 << 20, "{}", space(&container));
    done(&[path("extract"), &container, &base.path().join("back")]);
    succeed(Command::new("cmp").arg(source.join("file")).arg(base.path().join("back/file")));
}
