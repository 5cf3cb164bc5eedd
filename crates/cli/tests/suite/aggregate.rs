//! `tameike agg`: trees are packed, listed, read, extracted and verified, also after damage and crashes.

mod archives;
mod mounts;
mod names;
mod sparse;
mod times;

use crate::support::{binary, shown, succeed};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use tempfile::TempDir;

const DAMAGED: i32 = 4;
const REPAIRED: i32 = 1;
const INCOMPLETE: i32 = 75;
const FAILED: i32 = 71;

fn agg(words: &[&Path]) -> Output {
    Command::new(binary()).arg("agg").args(words).output().expect("it starts")
}

fn path(word: &str) -> &Path {
    Path::new(word)
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

/// A tree with files of all types and sizes.
struct Tree {
    base: TempDir,
}

impl Tree {
    fn new() -> Self {
        let tree = Self { base: tempfile::tempdir().expect("a directory") };
        let source = tree.source();
        fs::create_dir_all(source.join("results/deep/er")).expect("directories");
        fs::create_dir(source.join("empty")).expect("a directory");
        for (number, size) in [0, 1, 3901, 70_000, 1 << 20, 5_000_000].into_iter().enumerate() {
            let file = source.join(format!("results/rank-{number}.out"));
            fs::write(&file, bytes(number as u64, size)).expect("written");
            fs::set_permissions(&file, fs::Permissions::from_mode(0o600 + number as u32)).expect("changed");
        }
        for number in 0..300 {
            fs::write(source.join(format!("results/deep/er/{number:04}")), bytes(1000 + number, 900))
                .expect("written");
        }
        let holes = File::create(source.join("holes")).expect("made");
        holes.write_all_at(b"behind", 9 << 20).expect("written");
        symlink("../results/rank-1.out", source.join("empty/link")).expect("a link");
        succeed(Command::new("mkfifo").arg(source.join("fifo")));
        fs::set_permissions(source.join("empty"), fs::Permissions::from_mode(0o500)).expect("changed");
        tree
    }

    fn source(&self) -> PathBuf {
        self.base.path().join("source")
    }

    fn container(&self) -> PathBuf {
        self.base.path().join("container")
    }

    fn packed(self) -> Self {
        let output = agg(&[
            path("create"),
            path("--writers=3"),
            path("--block-size=64K"),
            &self.source(),
            &self.container(),
        ]);
        assert!(output.status.success(), "{}", shown(&output));
        self
    }

    /// The extracted tree equals the source, with times and permissions.
    fn assert_extracted(&self, into: &str) -> PathBuf {
        let into = self.base.path().join(into);
        let output = agg(&[path("extract"), path("--same-permissions"), &self.container(), &into]);
        assert!(output.status.success(), "{}", shown(&output));
        assert_same(&self.source(), &into);
        into
    }

    /// The subfile with these bytes, and their offset.
    fn find(&self, bytes: &[u8]) -> (PathBuf, u64) {
        let names = fs::read_dir(self.container()).expect("a directory");
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

impl Drop for Tree {
    fn drop(&mut self) {
        // Allow an unprivileged user to clean up.
        let _ = fs::set_permissions(self.source().join("empty"), fs::Permissions::from_mode(0o700));
    }
}

fn assert_same(one: &Path, other: &Path) {
    succeed(
        Command::new("diff")
            .args(["--recursive", "--no-dereference", "--exclude=fifo"])
            .args([one, other])
            .stderr(Stdio::inherit()),
    );
    let listed = |dir: &Path| {
        succeed(Command::new("find").current_dir(dir).args([
            ".",
            "-mindepth",
            "1",
            "-printf",
            "%P %y %m %U %G %T@ %l\\n",
        ]))
    };
    let sorted = |text: String| -> Vec<String> {
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(listed(one)), sorted(listed(other)));
}

#[test]
fn an_extracted_tree_equals_its_source() {
    let tree = Tree::new().packed();
    let into = tree.assert_extracted("back");
    let holes = fs::metadata(into.join("holes")).expect("there");
    assert!(holes.blocks() * 512 < holes.size() / 2, "holes are still holes");
    let again = agg(&[path("extract"), &tree.container(), &into, path("results/rank-2.out")]);
    assert_eq!(again.status.code(), Some(INCOMPLETE), "{}", shown(&again));
    assert!(String::from_utf8_lossy(&again.stderr).contains("rank-2.out"), "{}", shown(&again));
}

#[test]
fn parts_of_a_container_are_listed_printed_and_extracted() {
    let tree = Tree::new().packed();
    let container = tree.container();
    let names = |words: &[&Path]| -> Vec<String> {
        let output = agg(words);
        assert!(output.status.success(), "{}", shown(&output));
        String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
    };
    assert_eq!(names(&[path("ls"), &container]), ["empty", "fifo", "holes", "results"]);
    assert_eq!(names(&[path("ls"), &container, path("/empty/")]), ["empty/link"]);
    assert_eq!(names(&[path("ls"), &container, path("-r")]).len(), 313);
    assert_eq!(names(&[path("ls"), &container, path("-r"), path("results/deep")]).len(), 301);
    let long = names(&[path("ls"), &container, path("-l"), path("results/rank-2.out")]);
    assert!(long[0].starts_with("-rw-----w-") && long[0].contains(" 3901 "), "{long:?}");
    let printed = agg(&[path("cat"), &container, path("results/rank-2.out"), path("results/rank-5.out")]);
    assert_eq!(printed.stdout, [bytes(2, 3901), bytes(5, 5_000_000)].concat());
    let some = tree.base.path().join("some");
    let output = agg(&[path("extract"), &container, &some, path("results/deep/er"), path("holes")]);
    assert!(output.status.success(), "{}", shown(&output));
    assert_eq!(fs::read_dir(some.join("results/deep/er")).expect("there").count(), 300);
    assert!(some.join("holes").exists() && !some.join("results/rank-1.out").exists());
    for words in
        [&[path("cat"), &container, path("nowhere")][..], &[path("ls"), &container, path("no/where")]]
    {
        let output = agg(words);
        assert_eq!(output.status.code(), Some(FAILED));
        assert!(
            String::from_utf8_lossy(&output.stderr).contains("it is not in the container"),
            "{}",
            shown(&output)
        );
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
    let tree = Tree::new().packed();
    let (base, container) = (tree.base.path(), tree.container());
    let copied = |words: &[&Path]| {
        let output = agg(&[&[path("cp"), path("-p")], words].concat());
        assert!(output.status.success(), "{}", shown(&output));
    };
    // From a container: to another name, into a directory, everything.
    copied(&[&inside(&container, "results/rank-2.out"), &base.join("file")]);
    assert_eq!(fs::read(base.join("file")).expect("copied"), bytes(2, 3901));
    assert_eq!(fs::metadata(base.join("file")).expect("there").permissions().mode() & 0o777, 0o602);
    fs::create_dir(base.join("some")).expect("a directory");
    copied(&[
        path("-r"),
        &inside(&container, "results/deep"),
        &inside(&container, "holes"),
        &inside(&container, "empty/link"),
        &base.join("some"),
    ]);
    assert_same(&tree.source().join("results/deep"), &base.join("some/deep"));
    let holes = fs::metadata(base.join("some/holes")).expect("there");
    assert!(holes.size() == (9 << 20) + 6 && holes.blocks() * 512 < holes.size() / 2);
    assert_eq!(fs::read_link(base.join("some/link")).expect("a link"), path("../results/rank-1.out"));
    copied(&[path("-r"), &inside(&container, ""), &base.join("all")]);
    assert_same(&tree.source(), &base.join("all"));
    // Into a container: under another name; then the extracted tree equals the source.
    copied(&[path("-r"), &tree.source(), &inside(&container, "again")]);
    copied(&[
        path("-r"),
        path("--compress"),
        &tree.source(),
        &base.join("file"),
        &inside(&container, "again"),
    ]);
    copied(&[path("-r"), &inside(&container, "again/source"), &base.join("back")]);
    assert_same(&tree.source(), &base.join("back"));
    assert_eq!(agg(&[path("cat"), &container, path("again/file")]).stdout, bytes(2, 3901));
    // Between containers, and within one.
    let other = base.join("other");
    fs::create_dir(base.join("nothing")).expect("a directory");
    assert!(agg(&[path("create"), &base.join("nothing"), &other]).status.success());
    copied(&[path("-r"), &inside(&container, "again/source"), &inside(&other, "here")]);
    copied(&[path("-r"), &inside(&other, "here"), &inside(&other, "there")]);
    copied(&[path("-r"), &inside(&other, "there"), &base.join("third")]);
    assert_same(&tree.source(), &base.join("third"));
    for container in [&container, &other] {
        let verified = agg(&[path("verify"), container]);
        assert!(verified.status.success(), "{}", shown(&verified));
    }
    for dir in ["all", "back", "third"] {
        fs::set_permissions(base.join(dir).join("empty"), fs::Permissions::from_mode(0o700))
            .expect("changed");
    }
}

#[test]
fn files_that_are_not_copied_are_reported() {
    let tree = Tree::new().packed();
    let (base, container) = (tree.base.path(), tree.container());
    let refused = |words: &[&Path], code: i32, why: &str| {
        let output = agg(&[&[path("cp")], words].concat());
        assert_eq!(output.status.code(), Some(code), "{}", shown(&output));
        assert!(String::from_utf8_lossy(&output.stderr).contains(why), "{}", shown(&output));
    };
    let file = inside(&container, "results/rank-2.out");
    fs::create_dir(base.join("into")).expect("a directory");
    fs::write(base.join("into/rank-2.out"), "other").expect("written");
    refused(&[&file, &inside(&container, "holes"), &base.join("into")], INCOMPLETE, "rank-2.out");
    assert_eq!(fs::read(base.join("into/rank-2.out")).expect("there"), b"other", "nothing is replaced");
    assert!(base.join("into/holes").exists(), "other files are copied");
    refused(&[&base.join("into/rank-2.out"), &inside(&container, "results")], INCOMPLETE, "rank-2.out");
    assert_eq!(agg(&[path("cat"), &container, path("results/rank-2.out")]).stdout, bytes(2, 3901));
    refused(&[&inside(&container, "results"), &base.join("into")], INCOMPLETE, "`-r`");
    refused(&[&inside(&container, "no/where"), &base.join("into")], INCOMPLETE, "no/where");
    refused(&[&base.join("none"), &inside(&container, "")], INCOMPLETE, "none");
    refused(&[&file, &inside(&container, "holes"), &base.join("new")], FAILED, "not a directory");
    refused(&[&base.join("into/holes"), &inside(&base.join("none"), "x")], FAILED, "in a container");
    assert!(!base.join("none:x").exists());
}

#[test]
fn other_programs_read_exported_archives() {
    let tree = Tree::new().packed();
    let archive = tree.base.path().join("archive.tar");
    let output = agg(&[path("export"), &tree.container(), &archive]);
    assert!(output.status.success(), "{}", shown(&output));
    let piped = agg(&[path("export"), &tree.container()]);
    assert_eq!(piped.stdout, fs::read(&archive).expect("read"));
    let into = tree.base.path().join("unpacked");
    fs::create_dir(&into).expect("a directory");
    succeed(
        Command::new("tar")
            .arg("--extract")
            .arg("--preserve-permissions")
            .arg("--file")
            .args([&archive])
            .arg("--directory")
            .arg(&into),
    );
    succeed(
        Command::new("diff").args(["-r", "--no-dereference", "--exclude=fifo"]).args([&tree.source(), &into]),
    );
    let listed = "import sys, tarfile; print(len(tarfile.open(sys.argv[1]).getnames()))";
    assert_eq!(succeed(Command::new("python3").args(["-c", listed]).arg(&archive)).trim(), "313");
    let again = agg(&[path("export"), &tree.container(), &archive]);
    assert_eq!(again.status.code(), Some(FAILED), "{}", shown(&again));
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
    let tree = Tree::new().packed();
    let archive = tree.base.path().join("archive.zip");
    let output = agg(&[path("export"), &tree.container(), &archive]);
    assert_eq!(output.status.code(), Some(INCOMPLETE), "{}", shown(&output));
    let shown_text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(shown_text.contains("fifo") && shown_text.contains("zip"), "{shown_text}");
    let piped = agg(&[path("export"), path("--format=zip"), &tree.container()]);
    assert!(piped.stdout == fs::read(&archive).expect("read"));
    succeed(Command::new("python3").args(["-c", UNZIPPED]).arg(&archive).arg(tree.source()).arg("fifo"));
}

/// A container that is mounted, until this is dropped.
struct Mounted(Child);

impl Mounted {
    fn new(container: &Path, at: &Path) -> Self {
        let mut server = Command::new(binary());
        server.args(["agg", "mount"]).args([container, at]).stderr(Stdio::piped());
        let mut server = Self(server.spawn().expect("it starts"));
        let mut line = String::new();
        let mut messages = BufReader::new(server.0.stderr.take().expect("a pipe"));
        messages.read_line(&mut line).expect("the mount message");
        assert!(line.contains("is mounted at"), "{line}");
        server
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
    let tree = Tree::new().packed();
    let at = tree.base.path().join("at");
    fs::create_dir(&at).expect("a directory");
    let mut server = Mounted::new(&tree.container(), &at);
    assert_same(&tree.source(), &at);
    let listed = |dir: &str| fs::read_dir(at.join(dir)).expect("a directory").count();
    assert_eq!((listed(""), listed("results"), listed("results/deep/er")), (4, 7, 300));
    let (of, file) = (at.join("results/rank-2.out"), tree.source().join("results/rank-2.out"));
    let (of, file) = (of.metadata().expect("there"), file.metadata().expect("there"));
    assert_eq!((of.mode(), of.mtime(), of.len()), (file.mode(), file.mtime(), file.len()));
    assert_eq!(fs::read_link(at.join("empty/link")).expect("a link"), path("../results/rank-1.out"));
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
    let tree = Tree::new();
    let text = "the same line again and again\n".repeat(200_000);
    fs::write(tree.source().join("log"), &text).expect("written");
    let output = agg(&[path("create"), path("--compress"), &tree.source(), &tree.container()]);
    assert!(output.status.success(), "{}", shown(&output));
    let size = |dir: &Path| -> u64 {
        let names = fs::read_dir(dir).expect("a directory");
        names.map(|name| name.expect("a name").metadata().expect("a file").blocks() * 512).sum()
    };
    assert!(size(&tree.container()) < 8 << 20, "{} bytes", size(&tree.container()));
    tree.assert_extracted("back");
    let verified = agg(&[path("verify"), &tree.container()]);
    assert!(verified.status.success(), "{}", shown(&verified));
    let printed = agg(&[path("cat"), &tree.container(), path("log")]);
    assert!(printed.stdout == text.as_bytes());
}

#[test]
fn damage_is_reported_and_all_other_files_are_extracted() {
    let tree = Tree::new().packed();
    let (subfile, at) = tree.find(&bytes(3, 70_000)[..200]);
    let file = OpenOptions::new().write(true).open(subfile).expect("opened");
    file.write_all_at(&[0xff; 3], at + 100).expect("damaged");
    let verified = agg(&[path("verify"), &tree.container()]);
    assert_eq!(verified.status.code(), Some(DAMAGED), "{}", shown(&verified));
    let shown_text = String::from_utf8_lossy(&verified.stdout).into_owned();
    assert!(
        shown_text.contains("DAMAGED  results/rank-3.out: ") && shown_text.matches("DAMAGED").count() == 1,
        "{shown_text}"
    );
    let into = tree.base.path().join("back");
    let extracted = agg(&[path("extract"), &tree.container(), &into]);
    assert_eq!(extracted.status.code(), Some(INCOMPLETE), "{}", shown(&extracted));
    assert!(!into.join("results/rank-3.out").exists(), "no partial file is left");
    fs::remove_file(tree.source().join("results/rank-3.out")).expect("removed");
    succeed(
        Command::new("diff").args(["-r", "--no-dereference", "--exclude=fifo"]).args([&tree.source(), &into]),
    );
}

#[test]
fn an_index_that_is_damaged_or_missing_is_rebuilt() {
    let tree = Tree::new().packed();
    let index = tree.container().join("index");
    let size = fs::metadata(&index).expect("there").len();
    for damage in [Some(size / 3), Some(size - 5), None] {
        match damage {
            Some(at) => {
                let file = OpenOptions::new().write(true).open(&index).expect("opened");
                file.write_all_at(b"rubbish", at.min(size - 7)).expect("damaged");
                let extracted = agg(&[path("ls"), path("-r"), &tree.container()]);
                assert_eq!(extracted.status.code(), Some(FAILED), "{}", shown(&extracted));
                assert!(
                    String::from_utf8_lossy(&extracted.stderr).contains("--rebuild"),
                    "{}",
                    shown(&extracted)
                );
                let rebuilt = agg(&[path("verify"), path("--rebuild"), &tree.container()]);
                assert_eq!(rebuilt.status.code(), Some(REPAIRED), "{}", shown(&rebuilt));
            }
            None => fs::remove_file(&index).expect("removed"),
        }
        let verified = agg(&[path("verify"), &tree.container()]);
        assert!(verified.status.success(), "{}", shown(&verified));
        let is_told = String::from_utf8_lossy(&verified.stderr).contains("it has no index");
        assert_eq!(is_told, damage.is_none(), "{}", shown(&verified));
        let into = format!("back-{damage:?}");
        tree.assert_extracted(&into);
    }
}

/// The reader ran out of file descriptors.
#[test]
fn a_container_of_more_files_than_may_be_open_is_read() {
    let base = tempfile::tempdir().expect("a directory");
    let (source, container) = (base.path().join("source"), base.path().join("container"));
    fs::create_dir(&source).expect("a directory");
    for number in 0..80 {
        fs::write(source.join(format!("{number}")), bytes(number, 50_000)).expect("written");
    }
    let create = ["agg", "create", "--writers=40", "--subfiles=40", "--block-size=256K"];
    succeed(Command::new(binary()).args(create).args([&source, &container]));
    let limited = |words: &[&Path]| {
        let limit = r#"ulimit -n 30; exec "$0" agg "$@""#;
        Command::new("sh").args(["-c", limit]).arg(binary()).args(words).output().expect("it runs")
    };
    let verified = limited(&[path("verify"), &container]);
    assert!(verified.status.success(), "{}", shown(&verified));
    let printed = limited(&[path("cat"), &container, path("7")]);
    assert!(printed.stdout == bytes(7, 50_000), "{}", shown(&printed));
    let back = base.path().join("back");
    let extracted = limited(&[path("extract"), &container, &back]);
    assert!(extracted.status.success(), "{}", shown(&extracted));
    assert_same(&source, &back);
}

#[test]
fn files_that_a_killed_writer_packed_are_readable() {
    let base = tempfile::tempdir().expect("a directory");
    let (source, container) = (base.path().join("source"), base.path().join("container"));
    fs::create_dir(&source).expect("a directory");
    for number in 0..3000_u64 {
        let size = if number % 50 == 0 { 300_000 } else { 2000 };
        fs::write(source.join(format!("{number:04}")), bytes(number, size)).expect("written");
    }
    let (mut found, mut delay_ms) = (Vec::new(), 5);
    for round in 0..12 {
        let _ = fs::remove_dir_all(&container);
        let mut writer = Command::new(binary())
            .args(["agg", "create", "--block-size=256K", "--writers=2"])
            .args([&source, &container])
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        // A different delay in each round.
        succeed(Command::new("sleep").arg(format!("0.{delay_ms:03}")));
        delay_ms += 7;
        writer.kill().expect("killed");
        let whole = writer.wait().expect("ended").success();
        if !container.join("container").exists()
            || fs::metadata(container.join("container")).expect("there").len() == 0
        {
            continue;
        }
        let into = base.path().join(format!("back-{round}"));
        let extracted = agg(&[path("extract"), &container, &into]);
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
    let tree = Tree::new();
    let refused = |words: &[&Path], why: &str| {
        let output = agg(words);
        assert_eq!(output.status.code(), Some(FAILED), "{}", shown(&output));
        assert!(String::from_utf8_lossy(&output.stderr).contains(why), "{}", shown(&output));
    };
    refused(&[path("ls"), &tree.source()], "this is no container");
    refused(&[path("create"), &tree.source(), tree.base.path()], "not an empty directory");
    for inside in [tree.source(), tree.source().join("new"), tree.source().join("results/new")] {
        refused(&[path("create"), &tree.source(), &inside], "the directory to pack");
        assert!(inside == tree.source() || !inside.exists());
    }
    refused(&[path("create"), path("--block-size=100K"), &tree.source(), &tree.container()], "power of two");
    refused(&[path("create"), path("/no/such/tree"), &tree.container()], "/no/such/tree");
    let mut file = File::create(tree.base.path().join("file")).expect("made");
    file.write_all(b"x").expect("written");
    refused(&[path("create"), &tree.source(), &tree.base.path().join("file/container")], "creating ");
}

/// If the index is missing and a record header is damaged, the rebuilt index lacks the file of that record.
#[test]
fn a_damaged_record_gives_a_non_zero_exit_code() {
    let base = tempfile::tempdir().expect("a directory");
    let (source, container) = (base.path().join("source"), base.path().join("container"));
    fs::create_dir(&source).expect("a directory");
    for number in 0..20 {
        fs::write(source.join(format!("{number}")), bytes(number, 9000)).expect("written");
    }
    succeed(
        Command::new(binary())
            .args(["agg", "create", "--subfiles=1", "--writers=1"])
            .args([&source, &container]),
    );
    fs::remove_file(container.join("index")).expect("removed");
    let subfile = container.join("00000000.data");
    let mut data = fs::read(&subfile).expect("read");
    let heads: Vec<_> = (0..data.len()).step_by(64).filter(|at| data[*at..].starts_with(b"TREC")).collect();
    data[heads[3] + 40] ^= 1;
    fs::write(&subfile, data).expect("damaged");
    let all = inside(&container, "");
    let (back, copied, archive) =
        (base.path().join("back"), base.path().join("copied"), base.path().join("a.tar"));
    for words in [
        &[path("verify"), &container][..],
        &[path("extract"), &container, &back],
        &[path("cp"), path("-r"), &all, &copied],
        &[path("export"), &container, &archive],
    ] {
        let output = agg(words);
        assert_eq!(output.status.code(), Some(DAMAGED), "{words:?}: {}", shown(&output));
    }
    assert_eq!(fs::read_dir(&back).expect("there").count(), 19);
}

#[test]
fn a_lost_header_is_rebuilt_from_the_data_files() {
    for is_lost in [true, false] {
        let tree = Tree::new().packed();
        let header = tree.container().join("container");
        let before = fs::read(&header).expect("read");
        match is_lost {
            true => fs::remove_file(&header).expect("removed"),
            false => {
                let mut damaged = before.clone();
                damaged[20] ^= 0x40;
                fs::write(&header, damaged).expect("damaged");
            }
        }
        let printed = agg(&[path("cat"), &tree.container(), path("results/rank-2.out")]);
        assert_eq!(printed.stdout, bytes(2, 3901), "{}", shown(&printed));
        let verified = agg(&[path("verify"), &tree.container()]);
        assert_eq!(verified.status.code(), Some(DAMAGED), "{}", shown(&verified));
        let rebuilt = agg(&[path("verify"), path("--rebuild"), &tree.container()]);
        assert_eq!(rebuilt.status.code(), Some(REPAIRED), "{}", shown(&rebuilt));
        assert_eq!(fs::read(&header).expect("read"), before);
        let verified = agg(&[path("verify"), &tree.container()]);
        assert!(verified.status.success(), "{}", shown(&verified));
    }
}

#[test]
fn links_within_a_container_are_followed() {
    let base = tempfile::tempdir().expect("a directory");
    let (source, container) = (base.path().join("source"), base.path().join("container"));
    fs::create_dir_all(source.join("run-7")).expect("directories");
    fs::write(source.join("run-7/log"), "hello").expect("written");
    symlink("run-7", source.join("latest")).expect("a link");
    symlink("run-7/log", source.join("log")).expect("a link");
    symlink("../outside", source.join("run-7/out")).expect("a link");
    symlink("loop", source.join("loop")).expect("a link");
    succeed(Command::new(binary()).args(["agg", "create"]).args([&source, &container]));
    for name in ["log", "latest/log", "latest/../log"] {
        let printed = agg(&[path("cat"), &container, path(name)]);
        assert_eq!(printed.stdout, b"hello", "{name}: {}", shown(&printed));
    }
    let listed = agg(&[path("ls"), &container, path("latest")]);
    assert_eq!(listed.stdout, b"run-7/log\nrun-7/out\n", "{}", shown(&listed));
    for name in ["loop", "latest/../../x"] {
        let printed = agg(&[path("cat"), &container, path(name)]);
        assert_eq!(printed.status.code(), Some(FAILED), "{}", shown(&printed));
    }
}

/// The thread that walks the tree blocked forever on its full channel.
#[test]
fn packing_onto_a_full_file_system_ends() {
    let base = tempfile::tempdir().expect("a directory");
    let (source, full) = (base.path().join("source"), base.path().join("full"));
    fs::create_dir(&source).expect("a directory");
    fs::create_dir(&full).expect("a directory");
    for number in 0..3000 {
        fs::write(source.join(format!("{number}")), bytes(number, 9000)).expect("written");
    }
    let script =
        r#"mount -t tmpfs -o size=12m none "$1" && exec timeout -s KILL 60 "$0" agg create "$2" "$1/c.tmk""#;
    let output = Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", script])
        .args([Path::new(binary()), &full, &source])
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(FAILED), "{}", shown(&output));
}
