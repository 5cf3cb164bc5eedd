//! Other programs unpack archives of `agg export`, also as unprivileged users, and with the times of the files.

use super::{Dirs, INCOMPLETE, agg, inside};
use crate::support::{Run, assert_contains, err, out, succeed};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::process::Command;

const NOBODY: u32 = 65_534;

/// Directories that every user may enter.
fn open_dirs() -> Dirs {
    let dirs = Dirs::in_memory();
    fs::set_permissions(dirs.base.path(), fs::Permissions::from_mode(0o755)).expect("ours");
    dirs
}

impl Dirs {
    fn python(&self, script: &str) -> String {
        succeed(Command::new("python3").args(["-c", script]).current_dir(self.base.path()))
    }
}

/// All directories preceded all files, so `tar` set their permissions before it created their files.
#[test]
fn an_unprivileged_user_unpacks_read_only_directories() {
    let dirs = open_dirs();
    let source = &dirs.source;
    for dir in ["a", "a/deep", "a!", "b"] {
        fs::create_dir(source.join(dir)).expect("a directory");
        fs::write(source.join(dir).join("file"), dir).expect("written");
    }
    dirs.put("a.txt", "2002-02-02T00:00:00Z");
    for dir in ["a/deep", "a", "a!", "b"] {
        dirs.touch(dir, "2001-01-01T00:00:00Z");
        fs::set_permissions(source.join(dir), fs::Permissions::from_mode(0o555)).expect("ours");
    }
    dirs.pack();
    agg(&[&"export", &dirs.container, &dirs.at("a.tar")]).exits(0);
    let into = dirs.at("into");
    fs::create_dir(&into).expect("a directory");
    let mut tar = Command::new("tar");
    if rustix::process::geteuid().is_root() {
        chown(&into, Some(NOBODY), Some(NOBODY)).expect("root's");
        tar = Command::new("setpriv");
        tar.args(["--reuid=65534", "--regid=65534", "--clear-groups", "tar"]);
    }
    succeed(tar.arg("--extract").arg("--file").arg(dirs.at("a.tar")).arg("--directory").arg(&into));
    succeed(Command::new("diff").arg("--recursive").args([source, &into]));
    for dir in ["a", "a/deep", "a!", "b"] {
        let found = into.join(dir).metadata().expect("there");
        assert_eq!((found.mode() & 0o777, found.mtime()), (0o555, 978_307_200), "{dir}");
    }
}

/// Directories without an index entry are traversed too.
#[test]
fn files_of_directories_without_entries_are_exported() {
    let dirs = open_dirs();
    fs::write(dirs.at("file"), "x").expect("written");
    dirs.pack();
    for target in ["a/b/c", "a/b.txt", "a!/d", "a/b"] {
        // The last one is the prefix of another path.
        let _ = agg(&[&"cp", &dirs.at("file"), &inside(&dirs.container, target)]).output();
    }
    let listed = out(&agg(&[&"ls", &"-r", &dirs.container]).exits(0));
    let mut expected: Vec<_> = listed.lines().collect();
    expected.sort_unstable();
    agg(&[&"export", &dirs.container, &dirs.at("a.tar")]).exits(0);
    let names = succeed(Command::new("tar").arg("--list").arg("--file").arg(dirs.at("a.tar")));
    let mut names: Vec<_> = names.lines().map(|name| name.trim_end_matches('/')).collect();
    names.sort_unstable();
    assert!(names.len() >= 3);
    assert_eq!(names, expected);
}

/// Times before 1970 and fractions of seconds were lost without a message.
#[test]
fn a_tar_archive_has_all_times() {
    let dirs = open_dirs();
    let long = "x".repeat(200);
    for (name, time) in [
        ("old", "1950-01-06T00:00:00.25Z"),
        ("before", "1969-12-31T23:59:59.999999999Z"),
        ("new", "2020-02-02T02:02:02.123456789Z"),
        ("end", "@4611686018427387904"),
        (&long, "1901-01-01T00:00:00.5Z"),
    ] {
        dirs.put(name, time);
    }
    symlink("target", dirs.source.join("link")).expect("a link");
    dirs.touch("link", "1960-01-01T00:00:00.5Z");
    dirs.pack();
    agg(&[&"export", &dirs.container, &dirs.at("a.tar")]).exits(0);
    fs::create_dir(dirs.at("into")).expect("a directory");
    succeed(Command::new("tar").arg("-xf").arg(dirs.at("a.tar")).arg("-C").arg(dirs.at("into")));
    for name in ["old", "before", "new", "end", "link", &long] {
        let times = ["source", "into"].map(|dir| {
            let found = dirs.at(dir).join(name).symlink_metadata().expect("there");
            (found.mtime(), found.mtime_nsec())
        });
        assert_eq!(times[0], times[1], "{name}");
    }
    let read =
        dirs.python("import tarfile; print(*(f'{i.name[:9]}={i.mtime}' for i in tarfile.open('a.tar')))");
    assert_contains(&read, &["old=-630719999.75", "xxxxxxxxx=-2177452799.5"]);
}

/// A time outside the range of zip became 1980 without a message.
#[test]
fn a_zip_archive_has_the_nearest_times() {
    let dirs = open_dirs();
    for (name, time) in
        [("1975", "1975-01-06T00:00:01Z"), ("2020", "2020-02-02T02:02:03Z"), ("2050", "2050-02-02T02:02:02Z")]
    {
        dirs.put(name, time);
    }
    dirs.pack();
    agg(&[&"export", &dirs.container, &dirs.at("a.zip")]).exits(0);
    let read = "
import struct, zipfile
for info in sorted(zipfile.ZipFile('a.zip').infolist(), key=lambda info: info.filename):
    field = info.extra.find(b'UT')
    print(info.filename, info.date_time, struct.unpack_from('<I', info.extra, field + 5)[0] if field >= 0 else None)";
    let expected = "1975 (1980, 1, 1, 0, 0, 0) 158198401\n\
        2020 (2020, 2, 2, 2, 2, 2) 1580608923\n\
        2050 (2050, 2, 2, 2, 2, 2) None\n";
    assert_eq!(dirs.python(read), expected);
    for (name, time) in
        [("1969", "1969-12-31T23:59:59Z"), ("2051", "2051-01-01T00:00:01Z"), ("3000", "3000-01-01T00:00:00Z")]
    {
        dirs.put(name, time);
    }
    fs::remove_dir_all(&dirs.container).expect("removed");
    dirs.pack();
    let exported = agg(&[&"export", &dirs.container, &dirs.at("b.zip")]).exits(INCOMPLETE);
    assert_contains(&err(&exported), &["exported 6 paths", "exported 3 paths with another time"]);
    let read = dirs.python(&read.replace("a.zip", "b.zip"));
    assert_contains(&read, &["1969 (1980, 1, 1, 0, 0, 0) None", "3000 (2107, 12, 31, 23, 59, 58) None"]);
}
