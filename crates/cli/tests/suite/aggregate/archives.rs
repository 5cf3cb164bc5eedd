//! Other programs unpack archives of `agg export`, also as unprivileged users, and with the times of the files.

use super::{INCOMPLETE, agg, path};
use crate::support::{binary, shown, succeed};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const NOBODY: u32 = 65_534;

/// A source, its container, and a directory that every user may enter.
struct Site(TempDir);

impl Site {
    /// The source is in memory, because not every disk file system supports all times.
    fn new() -> Self {
        let base = tempfile::tempdir_in("/dev/shm").expect("a directory");
        fs::set_permissions(base.path(), fs::Permissions::from_mode(0o755)).expect("ours");
        fs::create_dir(base.path().join("source")).expect("a directory");
        Self(base)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn put(&self, name: &str, time: &str) {
        let file = self.at("source").join(name);
        fs::write(&file, name).expect("written");
        succeed(Command::new("touch").args(["--no-dereference", "--date", time]).arg(file));
    }

    fn pack(&self) {
        succeed(
            Command::new(binary()).args(["agg", "create"]).args([self.at("source"), self.at("container")]),
        );
    }

    fn python(&self, script: &str) -> String {
        succeed(Command::new("python3").args(["-c", script]).current_dir(self.0.path()))
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // Allow an unprivileged user to remove read-only directories.
        let _ = Command::new("chmod").args(["-R", "u+rwX"]).arg(self.0.path()).status();
    }
}

/// All directories preceded all files, so `tar` set their permissions before it created their files.
#[test]
fn an_unprivileged_user_unpacks_read_only_directories() {
    let site = Site::new();
    let source = site.at("source");
    for dir in ["a", "a/deep", "a!", "b"] {
        fs::create_dir(source.join(dir)).expect("a directory");
        fs::write(source.join(dir).join("file"), dir).expect("written");
    }
    site.put("a.txt", "2002-02-02T00:00:00Z");
    for dir in ["a/deep", "a", "a!", "b"] {
        let dir = source.join(dir);
        succeed(Command::new("touch").args(["--date", "2001-01-01T00:00:00Z"]).arg(&dir));
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o555)).expect("ours");
    }
    site.pack();
    let exported = agg(&[path("export"), &site.at("container"), &site.at("a.tar")]);
    assert!(exported.status.success(), "{}", shown(&exported));
    let into = site.at("into");
    fs::create_dir(&into).expect("a directory");
    let mut tar = Command::new("tar");
    if rustix::process::geteuid().is_root() {
        chown(&into, Some(NOBODY), Some(NOBODY)).expect("root's");
        tar = Command::new("setpriv");
        tar.args(["--reuid=65534", "--regid=65534", "--clear-groups", "tar"]);
    }
    succeed(tar.arg("--extract").arg("--file").arg(site.at("a.tar")).arg("--directory").arg(&into));
    succeed(Command::new("diff").arg("--recursive").args([&source, &into]));
    for dir in ["a", "a/deep", "a!", "b"] {
        let found = into.join(dir).metadata().expect("there");
        assert_eq!((found.mode() & 0o777, found.mtime()), (0o555, 978_307_200), "{dir}");
    }
}

/// Directories without an index entry are traversed too.
#[test]
fn files_of_directories_without_entries_are_exported() {
    let site = Site::new();
    fs::write(site.at("file"), "x").expect("written");
    site.pack();
    for target in ["a/b/c", "a/b.txt", "a!/d", "a/b"] {
        let mut target_path = site.at("container").into_os_string();
        target_path.push(format!(":{target}"));
        // The last one is the prefix of another path.
        let _ = agg(&[path("cp"), &site.at("file"), Path::new(&target_path)]);
    }
    let listed = agg(&[path("ls"), path("-r"), &site.at("container")]);
    let mut expected: Vec<_> = std::str::from_utf8(&listed.stdout).expect("text").lines().collect();
    expected.sort_unstable();
    let exported = agg(&[path("export"), &site.at("container"), &site.at("a.tar")]);
    assert!(exported.status.success(), "{}", shown(&exported));
    let names = succeed(Command::new("tar").arg("--list").arg("--file").arg(site.at("a.tar")));
    let mut names: Vec<_> = names.lines().map(|name| name.trim_end_matches('/')).collect();
    names.sort_unstable();
    assert!(names.len() >= 3);
    assert_eq!(names, expected);
}

/// Times before 1970 and fractions of seconds were lost without a message.
#[test]
fn a_tar_archive_has_all_times() {
    let site = Site::new();
    let long = "x".repeat(200);
    for (name, time) in [
        ("old", "1950-01-06T00:00:00.25Z"),
        ("before", "1969-12-31T23:59:59.999999999Z"),
        ("new", "2020-02-02T02:02:02.123456789Z"),
        ("end", "@4611686018427387904"),
        (&long, "1901-01-01T00:00:00.5Z"),
    ] {
        site.put(name, time);
    }
    symlink("target", site.at("source/link")).expect("a link");
    succeed(
        Command::new("touch")
            .args(["--no-dereference", "--date", "1960-01-01T00:00:00.5Z"])
            .arg(site.at("source/link")),
    );
    site.pack();
    let exported = agg(&[path("export"), &site.at("container"), &site.at("a.tar")]);
    assert!(exported.status.success(), "{}", shown(&exported));
    fs::create_dir(site.at("into")).expect("a directory");
    succeed(Command::new("tar").arg("-xf").arg(site.at("a.tar")).arg("-C").arg(site.at("into")));
    for name in ["old", "before", "new", "end", "link", &long] {
        let times = ["source", "into"].map(|dir| {
            let found = site.at(dir).join(name).symlink_metadata().expect("there");
            (found.mtime(), found.mtime_nsec())
        });
        assert_eq!(times[0], times[1], "{name}");
    }
    let read =
        site.python("import tarfile; print(*(f'{i.name[:9]}={i.mtime}' for i in tarfile.open('a.tar')))");
    assert!(read.contains("old=-630719999.75") && read.contains("xxxxxxxxx=-2177452799.5"), "{read}");
}

/// A time outside the range of zip became 1980 without a message.
#[test]
fn a_zip_archive_has_the_nearest_times() {
    let site = Site::new();
    for (name, time) in
        [("1975", "1975-01-06T00:00:01Z"), ("2020", "2020-02-02T02:02:03Z"), ("2050", "2050-02-02T02:02:02Z")]
    {
        site.put(name, time);
    }
    site.pack();
    let exported = agg(&[path("export"), &site.at("container"), &site.at("a.zip")]);
    assert!(exported.status.success(), "{}", shown(&exported));
    let read = "
import struct, zipfile
for info in sorted(zipfile.ZipFile('a.zip').infolist(), key=lambda info: info.filename):
    field = info.extra.find(b'UT')
    print(info.filename, info.date_time, struct.unpack_from('<I', info.extra, field + 5)[0] if field >= 0 else None)";
    let expected = "1975 (1980, 1, 1, 0, 0, 0) 158198401\n\
        2020 (2020, 2, 2, 2, 2, 2) 1580608923\n\
        2050 (2050, 2, 2, 2, 2, 2) None\n";
    assert_eq!(site.python(read), expected);
    for (name, time) in
        [("1969", "1969-12-31T23:59:59Z"), ("2051", "2051-01-01T00:00:01Z"), ("3000", "3000-01-01T00:00:00Z")]
    {
        site.put(name, time);
    }
    fs::remove_dir_all(site.at("container")).expect("removed");
    site.pack();
    let exported = agg(&[path("export"), &site.at("container"), &site.at("b.zip")]);
    assert_eq!(exported.status.code(), Some(INCOMPLETE), "{}", shown(&exported));
    let words = String::from_utf8_lossy(&exported.stderr).into_owned();
    assert!(
        words.contains("exported 6 paths") && words.contains("exported 3 paths with another time"),
        "{words}"
    );
    let read = site.python(&read.replace("a.zip", "b.zip"));
    assert!(read.contains("1969 (1980, 1, 1, 0, 0, 0) None"), "{read}");
    assert!(read.contains("3000 (2107, 12, 31, 23, 59, 58) None"), "{read}");
}
