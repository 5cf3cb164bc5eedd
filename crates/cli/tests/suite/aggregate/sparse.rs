//! Sparse files stay sparse in a container, and in copies from it.

use super::{Arguments, Dirs, Mounted, agg, inside};
use crate::support::{Run, succeed};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

const SIZE: u64 = 256 << 20;
/// More than the allocated size of all files, and much less than the size of one.
const SPACE_MAX: u64 = 8 << 20;

fn packed() -> Dirs {
    let dirs = Dirs::new();
    for (name, extents) in [
        ("image", &[(0, 4096), (SIZE / 2 + 5000, 100_000), (SIZE / 2 + 400_000, 1)][..]),
        ("data at the end", &[(SIZE - 7, 7)]),
        ("hole", &[]),
    ] {
        let file = File::create(dirs.source.join(name)).expect("made");
        file.set_len(SIZE).expect("longer");
        for (offset, length) in extents {
            file.write_all_at(&vec![7; *length], *offset).expect("written");
        }
    }
    assert!(space(&dirs.source) < SPACE_MAX, "this file system has no holes: set TMPDIR to another one");
    dirs.pack();
    dirs
}

fn run(arguments: &Arguments<'_>) {
    agg(arguments).exits(0);
}

/// Allocated bytes below a directory.
fn space(dir: &Path) -> u64 {
    let found = dir.symlink_metadata().expect("there");
    let below = found.is_dir().then(|| fs::read_dir(dir).expect("a directory"));
    below.into_iter().flatten().map(|name| space(&name.expect("a name").path())).sum::<u64>()
        + found.blocks() * 512
}

/// The same files, with their holes.
fn assert_same(dirs: &Dirs, found: &Path) {
    assert!(space(found) < SPACE_MAX, "{} takes {}", found.display(), space(found));
    for name in ["image", "data at the end", "hole"] {
        succeed(Command::new("cmp").arg(dirs.source.join(name)).arg(found.join(name)));
    }
}

#[test]
fn holes_take_no_space_in_a_container() {
    let dirs = packed();
    let container = &dirs.container;
    assert!(space(container) < SPACE_MAX, "{}", space(container));
    run(&[&"verify", container]);
    run(&[&"extract", container, &dirs.at("extracted")]);
    assert_same(&dirs, &dirs.at("extracted"));
    // Through sessions: into a container, and between two containers.
    run(&[&"cp", &"-r", &dirs.source, &inside(container, "again")]);
    let other = dirs.at("other");
    fs::create_dir(dirs.at("nothing")).expect("a directory");
    run(&[&"create", &dirs.at("nothing"), &other]);
    run(&[&"cp", &"-r", &inside(container, "again"), &inside(&other, "copy")]);
    assert!(space(container) + space(&other) < 2 * SPACE_MAX);
    run(&[&"compact", &"--compress", &other]);
    assert!(space(&other) < SPACE_MAX, "{}", space(&other));
    run(&[&"verify", &other]);
    run(&[&"cp", &"-r", &inside(&other, "copy"), &dirs.at("copied")]);
    assert_same(&dirs, &dirs.at("copied"));
    let (archive, unpacked) = (dirs.at("a.tar"), dirs.at("unpacked"));
    run(&[&"export", &other, &archive]);
    fs::create_dir(&unpacked).expect("a directory");
    succeed(Command::new("tar").args(["-xf"]).arg(&archive).arg("-C").arg(&unpacked));
    fs::remove_file(archive).expect("removed");
    for name in ["image", "hole"] {
        succeed(Command::new("cmp").arg(dirs.source.join(name)).arg(unpacked.join("copy").join(name)));
    }
}

#[test]
fn a_mounted_container_shows_holes() {
    let dirs = packed();
    let (mut server, at) = Mounted::new(&dirs);
    assert_same(&dirs, &at);
    let copied = dirs.at("copied");
    succeed(Command::new("cp").arg("-r").args([&at, &copied]));
    assert_same(&dirs, &copied);
    assert!(server.end().success());
}

/// An entry cannot list so many small extents: some holes between them become zeros.
#[test]
fn a_file_of_very_many_extents_is_packed() {
    let dirs = Dirs::new();
    let file = File::create(dirs.source.join("file")).expect("made");
    for number in 0..3000_u64 {
        file.write_all_at(b"data", number * (132 << 10)).expect("written");
    }
    dirs.pack();
    assert!(space(&dirs.container) < 100 << 20, "{}", space(&dirs.container));
    run(&[&"extract", &dirs.container, &dirs.at("back")]);
    succeed(Command::new("cmp").arg(dirs.source.join("file")).arg(dirs.at("back/file")));
}
