//! `tameike agg`: trees are packed, listed, read, extracted and verified, also after damage and crashes.

mod archives;
mod mounts;
mod names;
mod sparse;
mod times;

use crate::support::{Run, assert_contains, binary, err, out, shown, succeed, wrapped};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use tempfile::TempDir;

const DAMAGED: i32 = 4;
const REPAIRED: i32 = 1;
const INCOMPLETE: i32 = 75;
const FAILED: i32 = 71;

/// Arguments: text and paths.
type Arguments<'a> = [&'a dyn AsRef<OsStr>];

/// `tameike agg` with these arguments.
fn agg(arguments: &Arguments<'_>) -> Command {
    let mut command = Command::new(binary());
    command.arg("agg").args(arguments.iter().map(|argument| argument.as_ref()));
    command
}

/// A directory with an empty source directory, and the path of a container.
struct Dirs {
    base: TempDir,
    source: PathBuf,
    container: PathBuf,
}

impl Dirs {
    fn new() -> Self {
        Self::in_dir(tempfile::tempdir().expect("a directory"))
    }

    /// The same in memory, because not every disk file system supports all times.
    fn in_memory() -> Self {
        Self::in_dir(tempfile::tempdir_in("/dev/shm").expect("a directory"))
    }

    fn in_dir(base: TempDir) -> Self {
        let (source, container) = (base.path().join("source"), base.path().join("container"));
        fs::create_dir(&source).expect("a directory");
        Self { base, source, container }
    }

    /// A path in the directory.
    fn at(&self, name: &str) -> PathBuf {
        self.base.path().join(name)
    }

    /// Fills the source with these numbers of files of this size.
    fn fill(&self, numbers: Range<u64>, size: usize) {
        for number in numbers {
            fs::write(self.source.join(format!("{number}")), bytes(number, size)).expect("written");
        }
    }

    /// Creates a file of the source with this time.
    fn put(&self, name: &str, time: &str) {
        fs::write(self.source.join(name), name).expect("written");
        self.touch(name, time);
    }

    fn touch(&self, name: &str, time: &str) {
        let path = self.source.join(name);
        succeed(Command::new("touch").args(["--no-dereference", "--date", time]).arg(path));
    }

    /// A source with files of all types and sizes.
    fn tree() -> Self {
        let dirs = Self::new();
        let source = &dirs.source;
        fs::create_dir_all(source.join("results/deep/er")).expect("directories");
        fs::create_dir(source.join("empty")).expect("a directory");
        for (number, size) in [0, 1, 3901, 70_000, 1 << 20, 5_000_000].into_iter().enumerate() {
            let file = source.join(format!("results/rank-{number}.out"));
            fs::write(&file, bytes(number as u64, size)).expect("written");
            fs::set_permissions(&file, fs::Permissions::from_mode(0o600 + number as u32)).expect("changed");
        }
        for number in 0..300 {
            let file = source.join(format!("results/deep/er/{number:04}"));
            fs::write(file, bytes(1000 + number, 900)).expect("written");
        }
        let holes = File::create(source.join("holes")).expect("made");
        holes.write_all_at(b"behind", 9 << 20).expect("written");
        symlink("../results/rank-1.out", source.join("empty/link")).expect("a link");
        succeed(Command::new("mkfifo").arg(source.join("fifo")));
        fs::set_permissions(source.join("empty"), fs::Permissions::from_mode(0o500)).expect("changed");
        dirs
    }

    /// Packs the source.
    fn pack(&self) {
        agg(&[&"create", &self.source, &self.container]).exits(0);
    }

    /// Packs the source with several writers.
    fn packed(self) -> Self {
        agg(&[&"create", &"--writers=3", &"--block-size=64K", &self.source, &self.container]).exits(0);
        self
    }

    /// The extracted tree equals the source, with times and permissions.
    fn assert_extracted(&self, into: &str) -> PathBuf {
        let into = self.at(into);
        agg(&[&"extract", &"--same-permissions", &self.container, &into]).exits(0);
        assert_same(&self.source, &into);
        into
    }

    /// The subfile with these bytes, and their offset.
    fn find(&self, bytes: &[u8]) -> (PathBuf, u64) {
        let names = fs::read_dir(&self.container).expect("a directory");
        let mut files =
            names.map(|name| name.expect("a name").path()).filter(|path| path.extension().is_some());
        let found = files.find_map(|path| {
            let all = fs::read(&path).expect("read");
            let at = all.windows(bytes.len()).position(|window| window == bytes)?;
            Some((path, at as u64))
        });
        found.expect("they are there")
    }
}

impl Drop for Dirs {
    fn drop(&mut self) {
        // Allow an unprivileged user to remove read-only directories.
        let _ = Command::new("chmod").args(["-R", "u+rwX"]).arg(self.base.path()).status();
    }
}

/// Pseudo-random bytes of a seed.
fn bytes(seed: u64, size: usize) -> Vec<u8> {
    let mut state = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    std::iter::repeat_with(next).take(size).collect()
}

fn assert_same_content(one: &Path, other: &Path) {
    let options = ["--recursive", "--no-dereference", "--exclude=fifo"];
    succeed(Command::new("diff").args(options).args([one, other]));
}

/// Content, times and permissions are the same.
fn assert_same(one: &Path, other: &Path) {
    assert_same_content(one, other);
    let listed = |dir: &Path| {
        let list = r"find . -mindepth 1 -printf '%P %y %m %U %G %T@ %l\n' | LC_ALL=C sort";
        succeed(Command::new("sh").args(["-c", list]).current_dir(dir))
    };
    assert_eq!(listed(one), listed(other));
}

#[test]
fn an_extracted_tree_equals_its_source() {
    let tree = Dirs::tree().packed();
    let into = tree.assert_extracted("back");
    let holes = fs::metadata(into.join("holes")).expect("there");
    assert!(holes.blocks() * 512 < holes.size() / 2, "holes are still holes");
    let again = agg(&[&"extract", &tree.container, &into, &"results/rank-2.out"]).exits(INCOMPLETE);
    assert_contains(&err(&again), &["rank-2.out"]);
}

#[test]
fn parts_of_a_container_are_listed_printed_and_extracted() {
    let tree = Dirs::tree().packed();
    let container = &tree.container;
    let names = |arguments: &Arguments<'_>| -> Vec<String> {
        out(&agg(arguments).exits(0)).lines().map(str::to_owned).collect()
    };
    assert_eq!(names(&[&"ls", &container]), ["empty", "fifo", "holes", "results"]);
    assert_eq!(names(&[&"ls", &container, &"/empty/"]), ["empty/link"]);
    assert_eq!(names(&[&"ls", &container, &"-r"]).len(), 313);
    assert_eq!(names(&[&"ls", &container, &"-r", &"results/deep"]).len(), 301);
    let long = names(&[&"ls", &container, &"-l", &"results/rank-2.out"]);
    assert!(long[0].starts_with("-rw-----w-") && long[0].contains(" 3901 "), "{long:?}");
    let printed = agg(&[&"cat", &container, &"results/rank-2.out", &"results/rank-5.out"]).exits(0);
    assert_eq!(printed.stdout, [bytes(2, 3901), bytes(5, 5_000_000)].concat());
    let some = tree.at("some");
    agg(&[&"extract", &container, &some, &"results/deep/er", &"holes"]).exits(0);
    assert_eq!(fs::read_dir(some.join("results/deep/er")).expect("there").count(), 300);
    assert!(some.join("holes").exists() && !some.join("results/rank-1.out").exists());
    let missing: [&Arguments<'_>; 2] = [&[&"cat", container, &"nowhere"], &[&"ls", container, &"no/where"]];
    for arguments in missing {
        assert_contains(&err(&agg(arguments).exits(FAILED)), &["it is not in the container"]);
    }
}

/// A path in a container, as an argument.
fn inside(container: &Path, path: &str) -> PathBuf {
    let mut argument = container.as_os_str().to_owned();
    argument.push(":");
    argument.push(path);
    argument.into()
}

#[test]
fn files_and_trees_are_copied_in_and_out_and_between_containers() {
    let tree = Dirs::tree().packed();
    let (base, container) = (tree.base.path(), &tree.container);
    let copied = |arguments: &Arguments<'_>| agg(arguments).arg("-p").exits(0);
    // From a container: to another name, into a directory, everything.
    copied(&[&"cp", &inside(container, "results/rank-2.out"), &base.join("file")]);
    assert_eq!(fs::read(base.join("file")).expect("copied"), bytes(2, 3901));
    assert_eq!(fs::metadata(base.join("file")).expect("there").permissions().mode() & 0o777, 0o602);
    fs::create_dir(base.join("some")).expect("a directory");
    copied(&[
        &"cp",
        &"-r",
        &inside(container, "results/deep"),
        &inside(container, "holes"),
        &inside(container, "empty/link"),
        &base.join("some"),
    ]);
    assert_same(&tree.source.join("results/deep"), &base.join("some/deep"));
    let holes = fs::metadata(base.join("some/holes")).expect("there");
    assert!(holes.size() == (9 << 20) + 6 && holes.blocks() * 512 < holes.size() / 2);
    assert_eq!(fs::read_link(base.join("some/link")).expect("a link"), Path::new("../results/rank-1.out"));
    copied(&[&"cp", &"-r", &inside(container, ""), &base.join("all")]);
    assert_same(&tree.source, &base.join("all"));
    // Into a container: under another name; then the extracted tree equals the source.
    copied(&[&"cp", &"-r", &tree.source, &inside(container, "again")]);
    copied(&[&"cp", &"-r", &"--compress", &tree.source, &base.join("file"), &inside(container, "again")]);
    copied(&[&"cp", &"-r", &inside(container, "again/source"), &base.join("back")]);
    assert_same(&tree.source, &base.join("back"));
    assert_eq!(agg(&[&"cat", &container, &"again/file"]).exits(0).stdout, bytes(2, 3901));
    // Between containers, and within one.
    let other = base.join("other");
    fs::create_dir(base.join("nothing")).expect("a directory");
    agg(&[&"create", &base.join("nothing"), &other]).exits(0);
    copied(&[&"cp", &"-r", &inside(container, "again/source"), &inside(&other, "here")]);
    copied(&[&"cp", &"-r", &inside(&other, "here"), &inside(&other, "there")]);
    copied(&[&"cp", &"-r", &inside(&other, "there"), &base.join("third")]);
    assert_same(&tree.source, &base.join("third"));
    for container in [container, &other] {
        agg(&[&"verify", container]).exits(0);
    }
}

#[test]
fn files_that_are_not_copied_are_reported() {
    let tree = Dirs::tree().packed();
    let (base, container) = (tree.base.path(), &tree.container);
    let refused = |arguments: &Arguments<'_>, code: i32, why: &str| {
        assert_contains(&err(&agg(arguments).exits(code)), &[why]);
    };
    let file = inside(container, "results/rank-2.out");
    fs::create_dir(base.join("into")).expect("a directory");
    fs::write(base.join("into/rank-2.out"), "other").expect("written");
    refused(&[&"cp", &file, &inside(container, "holes"), &base.join("into")], INCOMPLETE, "rank-2.out");
    assert_eq!(fs::read(base.join("into/rank-2.out")).expect("there"), b"other", "nothing is replaced");
    assert!(base.join("into/holes").exists(), "other files are copied");
    refused(&[&"cp", &base.join("into/rank-2.out"), &inside(container, "results")], INCOMPLETE, "rank-2.out");
    assert_eq!(agg(&[&"cat", &container, &"results/rank-2.out"]).exits(0).stdout, bytes(2, 3901));
    refused(&[&"cp", &inside(container, "results"), &base.join("into")], INCOMPLETE, "`-r`");
    refused(&[&"cp", &inside(container, "no/where"), &base.join("into")], INCOMPLETE, "no/where");
    refused(&[&"cp", &base.join("none"), &inside(container, "")], INCOMPLETE, "none");
    refused(&[&"cp", &file, &inside(container, "holes"), &base.join("new")], FAILED, "not a directory");
    refused(&[&"cp", &base.join("into/holes"), &inside(&base.join("none"), "x")], FAILED, "in a container");
    assert!(!base.join("none:x").exists());
}

#[test]
fn other_programs_read_exported_archives() {
    let tree = Dirs::tree().packed();
    let archive = tree.at("archive.tar");
    agg(&[&"export", &tree.container, &archive]).exits(0);
    let piped = agg(&[&"export", &tree.container]).exits(0);
    assert_eq!(piped.stdout, fs::read(&archive).expect("read"));
    let into = tree.at("unpacked");
    fs::create_dir(&into).expect("a directory");
    let mut tar = Command::new("tar");
    succeed(tar.args(["--extract", "--preserve-permissions", "--file"]).args([
        archive.as_path(),
        "--directory".as_ref(),
        into.as_path(),
    ]));
    assert_same_content(&tree.source, &into);
    let listed = "import sys, tarfile; print(len(tarfile.open(sys.argv[1]).getnames()))";
    assert_eq!(succeed(Command::new("python3").args(["-c", listed]).arg(&archive)).trim(), "313");
    agg(&[&"export", &tree.container, &archive]).exits(FAILED);
}

/// A zip archive has all files of the tree and no others.
const UNZIPPED: &str = "
import os, stat, sys, zipfile
archive, source, left = zipfile.ZipFile(sys.argv[1]), sys.argv[2], {sys.argv[3]}
assert archive.testzip() is None
for info in archive.infolist():
    at, mode = os.path.join(source, info.filename), info.external_attr >> 16
    found = os.lstat(at)
    assert stat.S_IMODE(mode) == stat.S_IMODE(found.st_mode), info
    if stat.S_ISLNK(mode):
        assert archive.read(info).decode() == os.readlink(at)
    elif not info.is_dir():
        assert archive.read(info) == open(at, 'rb').read(), info
names = {name.rstrip('/') for name in archive.namelist()}
there = {os.path.relpath(os.path.join(at, name), source) for at, dirs, files in os.walk(source) for name in dirs + files}
assert there - names == left and len(names) == len(archive.namelist()), (there ^ names)
";

#[test]
fn a_zip_archive_has_the_files_and_unsupported_types_are_reported() {
    let tree = Dirs::tree().packed();
    let archive = tree.at("archive.zip");
    let output = agg(&[&"export", &tree.container, &archive]).exits(INCOMPLETE);
    assert_contains(&err(&output), &["fifo", "zip"]);
    let piped = agg(&[&"export", &"--format=zip", &tree.container]).exits(INCOMPLETE);
    assert!(piped.stdout == fs::read(&archive).expect("read"));
    succeed(Command::new("python3").args(["-c", UNZIPPED]).arg(&archive).arg(&tree.source).arg("fifo"));
}

/// A container that is mounted, until this is dropped.
struct Mounted(Child);

impl Mounted {
    /// Mounts the container; returns the mount point, too.
    fn new(dirs: &Dirs) -> (Self, PathBuf) {
        let at = dirs.at("at");
        fs::create_dir_all(&at).expect("a directory");
        let mut server = agg(&[&"mount", &dirs.container, &at]);
        let mut server = Self(server.stderr(Stdio::piped()).spawn().expect("it starts"));
        let mut line = String::new();
        let mut messages = BufReader::new(server.0.stderr.take().expect("a pipe"));
        messages.read_line(&mut line).expect("the mount message");
        assert_contains(&line, &["is mounted at"]);
        (server, at)
    }

    /// Interrupts it like Ctrl-C.
    fn end(&mut self) -> ExitStatus {
        succeed(Command::new("kill").arg(self.0.id().to_string()));
        self.0.wait().expect("it ends")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            self.end();
        }
    }
}

#[test]
fn a_container_is_mounted_read_only() {
    let tree = Dirs::tree().packed();
    let (mut server, at) = Mounted::new(&tree);
    assert_same(&tree.source, &at);
    let listed = |dir: &str| fs::read_dir(at.join(dir)).expect("a directory").count();
    assert_eq!((listed(""), listed("results"), listed("results/deep/er")), (4, 7, 300));
    let (of, file) = (at.join("results/rank-2.out"), tree.source.join("results/rank-2.out"));
    let (of, file) = (of.metadata().expect("there"), file.metadata().expect("there"));
    assert_eq!((of.mode(), of.mtime(), of.len()), (file.mode(), file.mtime(), file.len()));
    assert_eq!(fs::read_link(at.join("empty/link")).expect("a link"), Path::new("../results/rank-1.out"));
    let refused = |result: std::io::Result<()>| result.expect_err("it cannot be changed").raw_os_error();
    assert_eq!(refused(File::create(at.join("new")).map(drop)), Some(30));
    assert_eq!(refused(fs::remove_file(at.join("holes"))), Some(30));
    assert_eq!(refused(OpenOptions::new().write(true).open(at.join("holes")).map(drop)), Some(30));
    let ended = server.end();
    assert!(ended.success(), "{ended}");
    assert_eq!(fs::read_dir(&at).expect("a directory").count(), 0);
}

#[test]
fn compressed_files_equal_their_source() {
    let tree = Dirs::tree();
    let text = "the same line again and again\n".repeat(200_000);
    fs::write(tree.source.join("log"), &text).expect("written");
    agg(&[&"create", &"--compress", &tree.source, &tree.container]).exits(0);
    let size = |dir: &Path| -> u64 {
        let names = fs::read_dir(dir).expect("a directory");
        names.map(|name| name.expect("a name").metadata().expect("a file").blocks() * 512).sum()
    };
    assert!(size(&tree.container) < 8 << 20, "{} bytes", size(&tree.container));
    tree.assert_extracted("back");
    agg(&[&"verify", &tree.container]).exits(0);
    let printed = agg(&[&"cat", &tree.container, &"log"]).exits(0);
    assert!(printed.stdout == text.as_bytes());
}

#[test]
fn damage_is_reported_and_all_other_files_are_extracted() {
    let tree = Dirs::tree().packed();
    let (subfile, at) = tree.find(&bytes(3, 70_000)[..200]);
    let file = OpenOptions::new().write(true).open(subfile).expect("opened");
    file.write_all_at(&[0xff; 3], at + 100).expect("damaged");
    let verified = agg(&[&"verify", &tree.container]).exits(DAMAGED);
    let text = out(&verified);
    assert_contains(&text, &["DAMAGED  results/rank-3.out: "]);
    assert_eq!(text.matches("DAMAGED").count(), 1, "{text}");
    let into = tree.at("back");
    agg(&[&"extract", &tree.container, &into]).exits(INCOMPLETE);
    assert!(!into.join("results/rank-3.out").exists(), "no partial file is left");
    fs::remove_file(tree.source.join("results/rank-3.out")).expect("removed");
    assert_same_content(&tree.source, &into);
}

#[test]
fn an_index_that_is_damaged_or_missing_is_rebuilt() {
    let tree = Dirs::tree().packed();
    let index = tree.container.join("index");
    let size = fs::metadata(&index).expect("there").len();
    for damage in [Some(size / 3), Some(size - 5), None] {
        match damage {
            Some(at) => {
                let file = OpenOptions::new().write(true).open(&index).expect("opened");
                file.write_all_at(b"rubbish", at.min(size - 7)).expect("damaged");
                let extracted = agg(&[&"ls", &"-r", &tree.container]).exits(FAILED);
                assert_contains(&err(&extracted), &["--rebuild"]);
                agg(&[&"verify", &"--rebuild", &tree.container]).exits(REPAIRED);
            }
            None => fs::remove_file(&index).expect("removed"),
        }
        let verified = agg(&[&"verify", &tree.container]).exits(0);
        let is_reported = err(&verified).contains("it has no index");
        assert_eq!(is_reported, damage.is_none(), "{}", shown(&verified));
        let into = format!("back-{damage:?}");
        tree.assert_extracted(&into);
    }
}

/// The reader ran out of file descriptors.
#[test]
fn a_container_of_more_files_than_may_be_open_is_read() {
    let dirs = Dirs::new();
    dirs.fill(0..80, 50_000);
    let options = ["--writers=40", "--subfiles=40", "--block-size=256K"];
    agg(&[&"create", &dirs.source, &dirs.container]).args(options).exits(0);
    let limited = |arguments: &Arguments<'_>| {
        let limit = ["-c", r#"ulimit -n 30; exec "$0" "$@""#];
        wrapped("sh", &limit, &agg(arguments)).exits(0)
    };
    limited(&[&"verify", &dirs.container]);
    let printed = limited(&[&"cat", &dirs.container, &"7"]);
    assert!(printed.stdout == bytes(7, 50_000), "{}", shown(&printed));
    limited(&[&"extract", &dirs.container, &dirs.at("back")]);
    assert_same(&dirs.source, &dirs.at("back"));
}

#[test]
fn files_that_a_killed_writer_packed_are_readable() {
    let dirs = Dirs::new();
    let (source, container) = (&dirs.source, &dirs.container);
    for number in 0..3000_u64 {
        let size = if number % 50 == 0 { 300_000 } else { 2000 };
        fs::write(source.join(format!("{number:04}")), bytes(number, size)).expect("written");
    }
    let (mut found, mut delay_ms) = (Vec::new(), 5);
    for round in 0..12 {
        let _ = fs::remove_dir_all(container);
        let mut writer = agg(&[&"create", &"--block-size=256K", &"--writers=2", source, container])
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        // A different delay in each round.
        succeed(Command::new("sleep").arg(format!("0.{delay_ms:03}")));
        delay_ms += 7;
        writer.kill().expect("killed");
        let whole = writer.wait().expect("ended").success();
        if !fs::metadata(container.join("container")).is_ok_and(|header| header.len() > 0) {
            continue;
        }
        let into = dirs.at(&format!("back-{round}"));
        let extracted = agg(&[&"extract", &container, &into]).output().expect("it starts");
        let code = extracted.status.code();
        let mut count = 0;
        for name in fs::read_dir(&into).expect("there") {
            let name = name.expect("a name").file_name();
            let (one, other) = (fs::read(into.join(&name)), fs::read(source.join(&name)));
            assert_eq!(one.expect("read"), other.expect("read"), "{name:?}");
            count += 1;
        }
        assert!(!whole || count == 3000);
        match count {
            3000 => assert!(matches!(code, Some(0 | INCOMPLETE)), "{}", shown(&extracted)),
            // There may be only the container's header.
            0 => {}
            _ => assert_eq!(code, Some(INCOMPLETE), "{}", shown(&extracted)),
        }
        found.push(count);
    }
    assert!(!found.is_empty(), "no round got as far as a container");
}

#[test]
fn invalid_arguments_are_reported() {
    let tree = Dirs::tree();
    let refused = |arguments: &Arguments<'_>, why: &str| {
        let output = agg(arguments).exits(FAILED);
        assert_contains(&err(&output), &[why]);
    };
    refused(&[&"ls", &tree.source], "this is no container");
    refused(&[&"create", &tree.source, &tree.base.path()], "not an empty directory");
    for inside in ["", "new", "results/new"].map(|name| tree.source.join(name)) {
        refused(&[&"create", &tree.source, &inside], "the directory to pack");
        assert!(inside == tree.source || !inside.exists());
    }
    refused(&[&"create", &"--block-size=100K", &tree.source, &tree.container], "power of two");
    refused(&[&"create", &"/no/such/tree", &tree.container], "/no/such/tree");
    fs::write(tree.at("file"), "x").expect("written");
    refused(&[&"create", &tree.source, &tree.at("file/container")], "creating ");
}

/// If the index is missing and a record header is damaged, the rebuilt index lacks the file of that record.
#[test]
fn a_damaged_record_gives_a_non_zero_exit_code() {
    let dirs = Dirs::new();
    let container = &dirs.container;
    dirs.fill(0..20, 9000);
    agg(&[&"create", &"--subfiles=1", &"--writers=1", &dirs.source, container]).exits(0);
    fs::remove_file(container.join("index")).expect("removed");
    let subfile = container.join("00000000.data");
    let mut data = fs::read(&subfile).expect("read");
    let heads: Vec<_> = (0..data.len()).step_by(64).filter(|at| data[*at..].starts_with(b"TREC")).collect();
    data[heads[3] + 40] ^= 1;
    fs::write(&subfile, data).expect("damaged");
    let commands: [&Arguments<'_>; 4] = [
        &[&"verify", container],
        &[&"extract", container, &dirs.at("back")],
        &[&"cp", &"-r", &inside(container, ""), &dirs.at("copied")],
        &[&"export", container, &dirs.at("a.tar")],
    ];
    for arguments in commands {
        agg(arguments).exits(DAMAGED);
    }
    assert_eq!(fs::read_dir(dirs.at("back")).expect("there").count(), 19);
}

#[test]
fn a_lost_header_is_rebuilt_from_the_data_files() {
    for is_lost in [true, false] {
        let tree = Dirs::tree().packed();
        let header = tree.container.join("container");
        let before = fs::read(&header).expect("read");
        match is_lost {
            true => fs::remove_file(&header).expect("removed"),
            false => {
                let mut damaged = before.clone();
                damaged[20] ^= 0x40;
                fs::write(&header, damaged).expect("damaged");
            }
        }
        let printed = agg(&[&"cat", &tree.container, &"results/rank-2.out"]).exits(0);
        assert_eq!(printed.stdout, bytes(2, 3901), "{}", shown(&printed));
        agg(&[&"verify", &tree.container]).exits(DAMAGED);
        agg(&[&"verify", &"--rebuild", &tree.container]).exits(REPAIRED);
        assert_eq!(fs::read(&header).expect("read"), before);
        agg(&[&"verify", &tree.container]).exits(0);
    }
}

#[test]
fn links_within_a_container_are_followed() {
    let dirs = Dirs::new();
    let (source, container) = (&dirs.source, &dirs.container);
    fs::create_dir(source.join("run-7")).expect("a directory");
    fs::write(source.join("run-7/log"), "hello").expect("written");
    symlink("run-7", source.join("latest")).expect("a link");
    symlink("run-7/log", source.join("log")).expect("a link");
    symlink("../outside", source.join("run-7/out")).expect("a link");
    symlink("loop", source.join("loop")).expect("a link");
    dirs.pack();
    for name in ["log", "latest/log", "latest/../log"] {
        let printed = agg(&[&"cat", &container, &name]).exits(0);
        assert_eq!(printed.stdout, b"hello", "{name}: {}", shown(&printed));
    }
    let listed = agg(&[&"ls", &container, &"latest"]).exits(0);
    assert_eq!(listed.stdout, b"run-7/log\nrun-7/out\n", "{}", shown(&listed));
    for name in ["loop", "latest/../../x"] {
        agg(&[&"cat", container, &name]).exits(FAILED);
    }
}

/// The thread that walks the tree blocked forever on its full channel.
#[test]
fn packing_onto_a_full_file_system_ends() {
    let dirs = Dirs::new();
    let full = dirs.at("full");
    fs::create_dir(&full).expect("a directory");
    dirs.fill(0..3000, 9000);
    let script =
        r#"mount -t tmpfs -o size=12m none "$1" && exec timeout -s KILL 60 "$0" agg create "$2" "$1/c.tmk""#;
    Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", script])
        .args([Path::new(binary()), &full, &dirs.source])
        .exits(FAILED);
}
