//! `tameike run --aggregate-only`: unchanged programs whose files go into a container, without agents and mounts.

#[path = "support/mounts.rs"]
mod mounts;
#[path = "support/programs.rs"]
mod programs;
mod support;

use mounts::Mounts;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use support::{binary, preload, processes_naming, shown, succeed};
use tempfile::TempDir;

const FAILED: i32 = 71;
const INCOMPLETE: i32 = 75;

/// A directory with a container, and one with a spool.
struct Place {
    base: TempDir,
}

impl Place {
    fn new() -> Self {
        preload::install();
        let place = Self { base: tempfile::tempdir().expect("a directory") };
        fs::create_dir(place.spool()).expect("a directory");
        fs::create_dir(place.plain()).expect("a directory");
        let waits = place.base.path().join("until-packed");
        fs::write(&waits, include_str!("support/until-packed")).expect("a script");
        fs::set_permissions(&waits, fs::Permissions::from_mode(0o755)).expect("ours");
        place
    }

    fn container(&self) -> PathBuf {
        self.base.path().join("container")
    }

    fn spool(&self) -> PathBuf {
        self.base.path().join("spool")
    }

    fn plain(&self) -> PathBuf {
        self.base.path().join("plain")
    }

    /// Runs words with the container.
    fn run(&self, words: &[&str]) -> Command {
        let mut command = Command::new(binary());
        command.arg("run").arg("--aggregate-only").arg(self.container()).arg("--spool").arg(self.spool());
        command.arg("--").args(words).current_dir(self.base.path());
        command.env("PATH", self.path()).env("TAMEIKE_BINARY", binary());
        command
    }

    /// Where scripts find programs, and `until-packed`.
    fn path(&self) -> String {
        format!("{}:{}", self.base.path().display(), std::env::var("PATH").expect("there are programs"))
    }

    /// Runs a script in the directory that is nobody's.
    fn plainly(&self, script: &str) -> String {
        succeed(
            Command::new("bash").args(["-euc", script]).current_dir(self.plain()).env("PATH", self.path()),
        )
    }

    /// Runs a script in the container's directory.
    fn script(&self, script: &str) -> Command {
        let script = format!("cd {}\n{script}", self.container().display());
        self.run(&["bash", "-euc", &script])
    }

    fn agg(&self, word: &str, more: &[&Path]) -> Output {
        Command::new(binary())
            .args(["agg", word])
            .arg(self.container())
            .args(more)
            .output()
            .expect("it starts")
    }

    /// Nothing is left, and all is whole.
    fn assert_whole(&self) {
        let left: Vec<_> = fs::read_dir(self.spool()).expect("a directory").flatten().collect();
        assert!(left.is_empty(), "{left:?}");
        let verified = self.agg("verify", &[]);
        assert!(verified.status.success(), "{}", shown(&verified));
        assert!(processes_naming(&self.base.path().to_string_lossy()).is_empty());
    }

    /// All that is in the container, as files.
    fn extracted(&self) -> PathBuf {
        let into = self.base.path().join("extracted");
        let output = self.agg("extract", &[&into]);
        assert!(output.status.success(), "{}", shown(&output));
        into
    }
}

/// The same lines, or the first that differ.
#[track_caller]
fn assert_same(found: &str, expected: &str) {
    let differ = || found.lines().zip(expected.lines()).find(|(found, expected)| found != expected);
    assert!(
        found == expected,
        "{:?}; {} and {} lines",
        differ(),
        found.lines().count(),
        expected.lines().count()
    );
}

/// S39: "Below the directory of `--aggregate-only`, an unchanged program that is linked dynamically finds and
/// leaves what it would in a plain one."
///
/// Runs a script in a plain directory, and in that of a container. A later run, and who extracts it, finds the same.
fn compare(script: &str) -> Place {
    let place = Place::new();
    let listing = programs::LISTING.replace(" %n ", " ");
    let with = format!("{script}\n{listing}");
    let expected = place.plainly(&with);
    let here = place.plainly(&listing);
    for (script, expected) in [(&with, &expected), (&listing, &here)] {
        let output = place.script(script).output().expect("it starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_same(&String::from_utf8_lossy(&output.stdout), expected);
    }
    let found = succeed(Command::new("bash").args(["-euc", &listing]).current_dir(place.extracted()));
    assert_same(&found, &here);
    place.assert_whole();
    place
}

/// What a later run says of what an earlier one has left is what is said of the plain directory.
fn assert_runs_again(place: &Place, script: &str) {
    let expected = place.plainly(script);
    let output = place.script(script).output().expect("it starts");
    assert!(output.status.success(), "{}", shown(&output));
    assert_same(&String::from_utf8_lossy(&output.stdout), &expected);
    place.assert_whole();
}

#[test]
fn coreutils_and_the_shell() {
    compare(programs::COREUTILS);
}

#[test]
fn archives_and_version_control() {
    compare(programs::ARCHIVES);
}

#[test]
fn python_and_a_data_base() {
    compare(programs::PYTHON);
}

#[test]
fn many_processes_of_python() {
    compare(programs::PROCESSES);
}

#[test]
fn repositories_that_git_leaves() {
    let place = compare(programs::REPOSITORIES);
    assert_runs_again(&place, programs::REPOSITORIES_AGAIN);
}

#[test]
fn data_bases_that_sqlite_leaves() {
    let place = compare(programs::DATA_BASES);
    assert_runs_again(&place, programs::DATA_BASES_AGAIN);
}

/// What packing takes from the tree comes back, whoever looks: by name, in a list, by a link, to be changed.
#[test]
fn what_is_packed_meanwhile_is_there_all_the_same() {
    compare(
        r#"umask 022; mkdir -p a/b; for i in $(seq 200); do echo "number $i" > a/b/$i; done; ln -s b/7 a/link; ln -s a/b dir
           until-packed a/b/*
           cat a/b/* | md5sum; cat a/link dir/9; ls a/b | wc -l; ls -l a/b/5 | cut -c1-10; test -f a/b/6; test -s dir/8
           echo more >> a/b/10; echo less > a/b/11; : > a/b/12; truncate -s 4 a/b/13; chmod 600 a/b/14; touch -d @1000 a/b/15
           mv a/b/16 a/moved; mv a/b/17 a/b/18; cp a/b/19 a/copy; ln a/b/20 a/hard; rm a/b/21; mv a/b a/c; rm dir
           until-packed a/c/* a/moved a/copy a/hard
           cat a/c/* | md5sum; cat a/moved a/copy a/hard; test ! -e a/c/21; test ! -e a/b; stat -c '%Y %a' a/c/14 a/c/15 | tail -1
           mkdir a/d; mv a/d a/c/d; until-packed a/c/d; rmdir a/c/d; if rmdir a/c 2>/dev/null; then exit 1; fi
           mkdir gone; seq 100 > gone/file; until-packed gone/file; rm -r gone; mkdir gone; seq 5 > gone/other; until-packed gone/other; ls gone"#,
    );
}

#[test]
fn what_is_only_read_is_not_packed_again() {
    let place = Place::new();
    succeed(
        &mut place.script("mkdir many; for i in $(seq 40); do seq $((i * 500)) > many/$i; done; sleep 0.1"),
    );
    let size = || fs::metadata(place.container().join("00010000.data")).expect("a subfile").blocks();
    let packed = size();
    let read =
        place.script("cat many/* | wc -l; sleep 0.3; cat many/* many/* | wc -l").output().expect("it starts");
    assert!(read.status.success(), "{}", shown(&read));
    assert_eq!(String::from_utf8_lossy(&read.stdout), "410000\n820000\n");
    assert!(shown(&read).contains("packed 0 files"), "{}", shown(&read));
    // Who is known not to have changed a file is no reason to miss who does.
    let script = "cat many/* > all; sleep 0.3; echo more >> many/7; cat many/7 | wc -l";
    let changed = place.script(script).output().expect("it starts");
    assert!(shown(&changed).contains("packed 2 files"), "{}", shown(&changed));
    let grown = size() - packed;
    assert!(grown < 2 * packed, "{grown} blocks more than {packed}");
    place.assert_whole();
}

#[test]
fn links_lead_where_they_lead() {
    compare(
        r#"umask 022; mkdir d ../outside; echo far > ../outside/f; ln -s ../outside/out out; echo data > out; cat ../outside/out; rm ../outside/out
           ln -s "$PWD/target" absolute; echo hi > absolute; ln -s d l; echo packed > d/f; mkdir d/sub d/other; ln -s ../outside o; until-packed target d/f
           cat target l/f; echo more >> l/f; cat d/f; rm l/f; rmdir l/sub; test ! -e d/f; test ! -e d/sub; mv l/other l/moved; test -d d/moved; ls l
           cat o/f; mkdir o/made; rmdir o/made; echo x > o/x; mv o/x o/y; rm o/y; ln -s /etc/passwd p; test -e p; head -c 4 p; stat -L -c %F p; test -d o
           ln -s dangling dang; test ! -e dang; cat dang 2>/dev/null || echo none; ln -s loop1 loop2; ln -s loop2 loop1; cat loop1 2>/dev/null || echo loops
           mkdir .tameike-packed; echo one > f; until-packed f; echo two >> f; cat f; rm -r .tameike-packed absolute p ../outside"#,
    );
}

#[test]
fn errors_are_those_of_a_plain_directory() {
    compare(
        r#"umask 022; python3 - <<'PYTHON'
import errno, fcntl, mmap, os, subprocess
os.mkdir("d"); os.mkdir("full"); open("full/x", "w").close(); open("f", "w").write("x"); os.symlink("d", "l"); open("p", "w").write("packed")
subprocess.run(["until-packed", "p", "f", "full/x"], check=True)
def tell(name, call, *words, **more):
    try:
        call(*words, **more)
        print(name, words, "done")
    except OSError as error:
        print(name, words, errno.errorcode[error.errno])
for path in ("f/", "p/", "p/x", "nope", "nope/", "d", "d/", "d/.", ".", "l/", "full", "x" * 300):
    for name in ("stat", "lstat", "readlink", "unlink", "listdir", "rmdir"):
        if (name, path) not in (("rmdir", "d"), ("rmdir", "d/"), ("unlink", "l")):
            tell(name, getattr(os, name), path)
for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR | os.O_CREAT | os.O_EXCL, os.O_RDONLY | os.O_DIRECTORY, os.O_RDONLY | os.O_NOFOLLOW):
    for path in ("p", "l", "d", "f/"):
        tell("open", os.open, path, flags)
for pair in (("p", "d"), ("d", "p"), ("d", "full"), ("nope", "x"), ("f/", "h"), ("d", "d/in"), (".", "x"), ("p", "nope/x")):
    tell("rename", os.rename, *pair)
tell("mkdir", os.mkdir, "p"); tell("mkdir", os.mkdir, "new/"); tell("symlink", os.symlink, "a", "p"); tell("link", os.link, "d", "e")
tell("truncate", os.truncate, "d", 0); tell("truncate", os.truncate, "p", -1); tell("chdir", os.chdir, "p")
try:
    subprocess.run(["./p"], check=True)
except OSError as error:
    print("run", errno.errorcode[error.errno])
fd = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o644)
os.write(fd, b"no name yet")
os.link(f"/proc/self/fd/{fd}", "named", src_dir_fd=os.open("/", os.O_RDONLY))
print(open("named").read())
PYTHON"#,
    );
}

/// Writing through a mapping changes no time of a file in memory whose page was read before.
#[test]
fn what_is_written_through_mappings_and_beside_readers_is_packed() {
    compare(
        r#"umask 022; python3 - <<'PYTHON'
import mmap, os, subprocess
def until_packed(*names):
    subprocess.run(["until-packed", *names], check=True)
def let_the_packer_look(marks=iter(range(9))):
    # One round is over when what was made after the others is packed.
    mark = f"mark-{next(marks)}"
    open(mark, "w").close()
    until_packed(mark)
open("mapped", "w").write("0123456789" * 1000)
os.utime("mapped", (1000, 1000))
open("read", "w").write("first\n")
until_packed("mapped", "read")
with open("mapped", "r+b") as file:
    mapping = mmap.mmap(file.fileno(), 0)
    assert mapping[:4] == b"0123"
    let_the_packer_look()
    mapping[:4] = b"NEW!"
    mapping.close()
reader = open("read")
assert reader.readline() == "first\n"
for word in ("second", "third"):
    open("read", "a").write(word + "\n")
    until_packed("--copied", "read")
    assert reader.readline() == word + "\n" and os.fstat(reader.fileno()).st_nlink == 1
os.fchmod(reader.fileno(), 0o600)
let_the_packer_look()
until_packed("--copied", "read")
PYTHON
        flock read sh -c 'echo > held; until test -e done; do sleep 0.02; done' & until test -e held; do sleep 0.02; done
        until-packed held; flock --nonblock read echo both || echo one; echo > done; wait
        mkdir git; cd git; git init -q a; echo x > a/x; git -C a add x; git -C a -c user.name=a -c user.email=b commit -qm x; git clone -q --no-hardlinks a b; cat b/x; cd ..; rm -rf git"#,
    );
}

/// S39: "A file has the time of its last change of content as that of its last change of anything, and a number made of its name."
/// So attributes stay what they are while a file is packed.
#[test]
fn attributes_do_not_tell_of_packing() {
    compare(
        r#"umask 022; python3 - <<'PYTHON'
import os, subprocess
start = os.getcwd()
os.mkdir("dir")
with open("dir/file", "wb") as file:
    file.write(b"x" * 5000)
    inside = os.fstat(file.fileno())
def told(stat):
    return stat.st_dev, stat.st_ino, stat.st_mode, stat.st_size, stat.st_nlink, stat.st_uid
before, directory = os.stat("dir/file"), os.stat("dir")
subprocess.run(["until-packed", "dir/file"], check=True)
packed = os.stat("dir/file")
assert told(before) == told(packed) and before.st_mtime_ns == packed.st_mtime_ns == packed.st_ctime_ns
assert (inside.st_dev, inside.st_ino) == (packed.st_dev, packed.st_ino)
assert os.stat("dir").st_mtime_ns == directory.st_mtime_ns
with open("dir/file", "rb") as file:
    assert told(os.fstat(file.fileno())) == told(packed) and len(file.read()) == 5000
assert told(os.stat("dir/file")) == told(packed) and os.stat("dir").st_mtime_ns == directory.st_mtime_ns
assert os.path.realpath("dir/../dir/file") == os.getcwd() + "/dir/file"
os.chdir("dir")
assert os.getcwd() == start + "/dir" and os.path.samefile("file", "../dir/file")
here = os.open(".", os.O_RDONLY)
os.chdir("/")
assert os.stat("file", dir_fd=here).st_ino == packed.st_ino
assert [entry.name for entry in os.scandir(here)] == ["file"]
os.fchdir(here)
assert [entry.is_file() for entry in os.scandir(".")] == [True]
os.chdir("../..")
assert os.path.exists("plain") or os.path.exists("container")
PYTHON"#,
    );
}

/// S39: "Hard links are names of one file while the program runs and the spool has room, and become files of their own in the
/// container." Git tells by the number whether it has made the link that it wanted; a clone beside its origin failed.
#[test]
fn names_of_one_file_are_so_while_the_program_runs() {
    compare(
        r#"umask 022; python3 - <<'PYTHON'
import mmap, os, subprocess
def assert_one(*names):
    found = [os.stat(name) for name in names]
    assert {each.st_ino for each in found} == {number} and {each.st_nlink for each in found} == {len(names)}, found
def until_packed(*names):
    subprocess.run(["until-packed", "--copied", *names], check=True)
open("a", "w").write("first\n")
subprocess.run(["until-packed", "a"], check=True)
number = os.stat("a").st_ino
os.link("a", "b")
assert_one("a", "b")
until_packed("a", "b")
assert_one("a", "b")
open("b", "a").write("second\n")
assert open("a").read() == "first\nsecond\n"
until_packed("a", "b")
os.link("b", "c")
os.rename("a", "d")
assert_one("b", "c", "d")
until_packed("b", "c", "d")
os.utime("b", (1000, 1000))
until_packed("b", "c", "d")
with open("c", "r+b") as file:
    mapping = mmap.mmap(file.fileno(), 0)
    assert mapping[:5] == b"first"
    mapping[:5] = b"FIRST"
    mapping.close()
until_packed("b", "d")
os.unlink("c")
assert_one("b", "d")
os.unlink("b")
assert open("d").read() == "FIRST\nsecond\n"
PYTHON"#,
    );
}

/// S39: "Who comes past the C library (static programs, system calls by hand) finds no file where one is packed."
#[test]
fn who_comes_past_the_library_finds_no_file() {
    let place = Place::new();
    let output = place
        .script(
            r#"seq 100 > file; until-packed file; python3 - <<'PYTHON'
import ctypes, errno, os
library = ctypes.CDLL(None, use_errno=True)
for path in (b"file", os.path.abspath("file").encode()):
    assert library.syscall(257 if os.uname().machine == "x86_64" else 56, -100, path, os.O_RDONLY) == -1
    assert ctypes.get_errno() == errno.ENOENT
assert len(open("file").read().split()) == 100
PYTHON"#,
        )
        .output()
        .expect("it starts");
    assert!(output.status.success(), "{}", shown(&output));
    place.assert_whole();
}

/// S39: "Until the program ends, a program of it that is killed has lost nothing that it had written."
#[test]
fn a_program_that_is_killed_loses_nothing_it_has_written() {
    let place = Place::new();
    let output = place
        .script(
            r#"for i in $(seq 50); do seq $i > file-$i; done; exec 7> open; printf written >&7; kill -9 $$"#,
        )
        .output()
        .expect("it starts");
    assert_eq!(output.status.code(), Some(128 + 9), "{}", shown(&output));
    let extracted = place.extracted();
    assert_eq!(fs::read(extracted.join("open")).expect("it is there"), b"written");
    for number in 1..=50 {
        let expected: String = (1..=number).map(|line| format!("{line}\n")).collect();
        let found = fs::read_to_string(extracted.join(format!("file-{number}"))).expect("it is there");
        assert_eq!(found, expected);
    }
    place.assert_whole();
}

#[track_caller]
fn await_line(child: &mut Child, expected: &str) {
    let mut line = String::new();
    let out = child.stdout.as_mut().expect("a pipe");
    BufReader::new(out).read_line(&mut line).expect("a line");
    assert_eq!(line, expected);
}

fn start(command: &mut Command) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
}

/// S39: "What a `tameike run` that was killed has not packed is in the spool, and packed by the next one on that host with
/// the same container."
#[test]
fn a_packer_that_is_killed_is_followed() {
    let place = Place::new();
    let script = "for i in $(seq 300); do seq $i > file-$i; done; until-packed file-1; mkdir d; exec 7> d/open; printf open >&7; echo ready; read line";
    for round in 0..5 {
        let mut child = start(&mut place.script(
            &format!("test -e d && rm -r d\n{script} {round}").replace("test -e d &&", "! test -e d ||"),
        ));
        await_line(
            &mut child, "ready
",
        );
        child.kill().expect("killed");
        child.wait().expect("ended");
    }
    let output = place.script("cat d/open; cat file-* | wc -l; rm file-1").output().expect("it starts");
    assert!(output.status.success(), "{}", shown(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "open45150\n");
    let extracted = place.extracted();
    assert!(!extracted.join("file-1").exists());
    assert_eq!(fs::read_to_string(extracted.join("file-3")).expect("it is there"), "1\n2\n3\n");
    place.assert_whole();
}

/// S39: "Programs of one host see each other's files at once; those of another host see what was packed when they first list a
/// directory." Several runs share a spool, and who ends last takes it away. Another host's has a spool of its own, elsewhere.
#[test]
fn runs_of_one_host_share_a_spool() {
    let place = Place::new();
    let wait = "until test -s other; do sleep 0.02; done; cat other; echo mine > mine";
    let mut first = start(&mut place.script(wait));
    let second =
        place.script("echo theirs > other; until test -s mine; do sleep 0.02; done; cat mine").output();
    let second = second.expect("it starts");
    assert!(second.status.success(), "{}", shown(&second));
    assert_eq!(String::from_utf8_lossy(&second.stdout), "mine\n");
    drop(first.stdin.take());
    let first = first.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&first.stdout), "theirs\n", "{}", shown(&first));
    place.assert_whole();
    assert_eq!(fs::read_to_string(place.extracted().join("mine")).expect("it is there"), "mine\n");
    let elsewhere = place.base.path().join("elsewhere");
    fs::create_dir(&elsewhere).expect("a directory");
    let mut here =
        start(&mut place.script("echo packed > here; sync; echo ready; read line || true; cat ../ready"));
    await_line(&mut here, "ready\n");
    let mut other = Command::new(binary());
    other.arg("run").arg("--aggregate-only").arg(place.container()).arg("--spool").arg(&elsewhere);
    let other = other.args(["--", "cat"]).arg(place.container().join("here")).output().expect("it starts");
    assert_eq!(String::from_utf8_lossy(&other.stdout), "packed\n", "{}", shown(&other));
    fs::write(place.base.path().join("ready"), "").expect("a file");
    drop(here.stdin.take());
    assert!(here.wait().expect("it ends").success());
}

/// S39: "fsync makes a file safe in the container."
#[test]
fn what_is_synced_is_in_the_container_before_the_run_ends() {
    let place = Place::new();
    let mut child = start(&mut place.script(
        "python3 -c 'import os; f = open(\"synced\", \"w\"); f.write(\"safe\"); f.flush(); os.fsync(f.fileno()); print(\"ready\", flush=True); input()'",
    ));
    await_line(
        &mut child, "ready
",
    );
    let output = place.agg("cat", &[Path::new("synced")]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "safe", "{}", shown(&output));
    drop(child.stdin.take());
    child.wait().expect("it ends");
    place.assert_whole();
}

/// What a program was told as done is done, whatever is killed.
#[test]
fn names_that_have_changed_stay_changed_when_the_packer_is_killed() {
    let place = Place::new();
    let script = "echo old > data; echo k > gone; echo m > mode; mkdir d; echo in > d/f; until-packed data gone mode d/f; echo new > tmp; until-packed tmp
        mv tmp data; rm gone; chmod 600 mode; mv d e; kill -9 $PPID";
    place.script(script).output().expect("it starts");
    let output = place.script("cat data e/f; stat -c %a mode; ls").output().expect("it starts");
    assert!(output.status.success(), "{}", shown(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "new\nin\n600\ndata\ne\nmode\n");
    place.assert_whole();
}

#[test]
fn what_a_program_leaves_running_ends_with_it() {
    let place = Place::new();
    let script = "(trap '' HUP; exec > late; echo one; sleep 1000) & until test -s late; do sleep 0.02; done";
    let output = place.script(script).stdout(Stdio::null()).output().expect("it starts");
    assert!(output.status.success(), "{}", shown(&output));
    assert_eq!(fs::read_to_string(place.extracted().join("late")).expect("it is there"), "one\n");
    place.assert_whole();
}

/// A copy of a container has a spool of its own.
#[test]
fn a_copy_of_a_container_is_another_one() {
    let place = Place::new();
    let output = place.script("echo first > first").output().expect("it starts");
    assert!(output.status.success(), "{}", shown(&output));
    let copy = place.base.path().join("copy");
    succeed(Command::new("cp").arg("-a").arg(place.container()).arg(&copy));
    let mut here = start(&mut place.script("echo ready; read line || true"));
    await_line(&mut here, "ready\n");
    let mut other = Command::new(binary());
    other.arg("run").arg("--aggregate-only").arg(&copy).arg("--spool").arg(place.spool());
    let other = other.args(["--", "touch"]).arg(copy.join("second")).output().expect("it starts");
    assert!(other.status.success(), "{}", shown(&other));
    drop(here.stdin.take());
    assert!(here.wait().expect("it ends").success());
    let names = |container: &Path| {
        let listed = Command::new(binary()).args(["agg", "ls"]).arg(container).output().expect("it starts");
        String::from_utf8_lossy(&listed.stdout).into_owned()
    };
    assert_eq!(
        (names(&place.container()), names(&copy)),
        ("first\n".to_owned(), "first\nsecond\n".to_owned())
    );
    place.assert_whole();
}

#[test]
fn bad_input_is_named_and_nothing_is_changed() {
    let place = Place::new();
    fs::create_dir(place.container()).expect("a directory");
    fs::write(place.container().join("mine"), "not a container").expect("a file");
    let output = place.script("echo no > file").output().expect("it starts");
    assert_eq!(output.status.code(), Some(FAILED));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("neither empty nor a container"),
        "{}",
        shown(&output)
    );
    assert_eq!(fs::read_dir(place.container()).expect("a directory").count(), 1);
    fs::remove_file(place.container().join("mine")).expect("removed");
    let output = place.run(&["/no/such/program"]).output().expect("it starts");
    assert_eq!(output.status.code(), Some(127), "{}", shown(&output));
    let output = place.run(&["sh", "-c", "exit 3"]).output().expect("it starts");
    assert_eq!(output.status.code(), Some(3), "{}", shown(&output));
    let missing = place.base.path().join("no/such/dir");
    let output =
        Command::new(binary()).arg("run").arg("--aggregate-only").arg(&missing).args(["--", "true"]).output();
    let output = output.expect("it starts");
    assert_eq!(output.status.code(), Some(FAILED), "{}", shown(&output));
    assert!(!missing.exists());
    place.assert_whole();
}

/// S39: "What cannot be packed is named, kept in the spool, and packed by the next run once there is room."
#[test]
fn a_full_file_system_keeps_the_rest_in_the_spool() {
    let Some(mounts) = Mounts::new() else { return };
    let place = Place::new();
    fs::create_dir(place.container()).expect("a directory");
    mounts.mount_memory(&place.container(), "24m");
    let script = "umask 022; for i in $(seq 40); do head -c 1000000 /dev/zero | tr '\\0' \"$(printf %o $((i + 64)))\" > file-$i; done; md5sum file-*";
    let run = |script: &str| mounts.inside(&place.script(script)).output().expect("it starts");
    let output = run(script);
    assert_eq!(output.status.code(), Some(INCOMPLETE), "{}", shown(&output));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("kept in") && said.contains("ENOSPC"), "{said}");
    let sum = String::from_utf8_lossy(&output.stdout).into_owned();
    mounts.must(&format!("mount -o remount,size=100m {}", place.container().display()));
    let output = run("md5sum file-*");
    assert!(output.status.success(), "{}", shown(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), sum);
    let verify = mounts.shell(&format!("{} agg verify {}", binary(), place.container().display()));
    assert!(verify.status.success(), "{}", shown(&verify));
    assert_eq!(fs::read_dir(place.spool()).expect("a directory").count(), 0);
}

/// A spool that is full makes room as files are packed; who writes more than it has at once is told.
#[test]
fn a_small_spool_is_enough_for_many_files() {
    let Some(mounts) = Mounts::new() else { return };
    let place = Place::new();
    mounts.mount_memory(&place.spool(), "16m");
    let script = "for i in $(seq 100); do head -c 1000000 /dev/urandom > file-$i; done; ls | wc -l; for i in $(seq 100); do wc -c < file-$i; done | sort | uniq -c";
    let output = mounts.inside(&place.script(script)).output().expect("it starts");
    assert!(output.status.success(), "{}", shown(&output));
    let words: Vec<_> =
        String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect();
    assert_eq!(words, ["100", "100", "1000000"]);
    let output = mounts.inside(&place.script("head -c 20000000 /dev/zero > large || echo told")).output();
    let output = output.expect("it starts");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "told\n", "{}", shown(&output));
}

#[test]
fn a_plain_user_needs_nothing_else() {
    const NOBODY: u32 = 65534;
    let place = Place::new();
    for dir in [place.base.path().to_path_buf(), place.spool(), place.plain()] {
        chown(&dir, Some(NOBODY), Some(NOBODY)).expect("root's");
    }
    let mut command = place.script(
        "umask 077; mkdir d; echo a > d/file; chmod 000 d/file; until-packed d/file; chmod 200 d/file; echo b >> d/file; test -w d/file; ! test -r d/file; id -u",
    );
    let output = command.uid(NOBODY).gid(NOBODY).output().expect("it starts");
    assert!(output.status.success(), "{}", shown(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "65534\n");
    let extracted = place.extracted();
    assert_eq!(fs::read_to_string(extracted.join("d/file")).expect("it is there"), "a\nb\n");
    let found = fs::metadata(extracted.join("d/file")).expect("it is there");
    assert_eq!((found.uid(), found.mode() & 0o7777), (NOBODY, 0o200));
    place.assert_whole();
}

#[test]
fn programs_of_mpi_in_c_and_fortran() {
    let place = Place::new();
    for program in programs::of_mpi(place.base.path()) {
        let run = |dir: &Path| {
            let words = "mpirun --allow-run-as-root --oversubscribe -np 6";
            let mut words: Vec<_> = words.split(' ').map(str::to_owned).collect();
            words.extend([program.display().to_string(), dir.display().to_string()]);
            words
        };
        let plain = run(&place.plain());
        succeed(Command::new(&plain[0]).args(&plain[1..]));
        let packed = run(&place.container());
        let output =
            place.run(&packed.iter().map(String::as_str).collect::<Vec<_>>()).output().expect("it starts");
        assert!(output.status.success(), "{}", shown(&output));
    }
    succeed(Command::new("diff").arg("-r").arg(place.plain()).arg(place.extracted()));
    place.assert_whole();
}

#[test]
fn an_archive_of_twenty_thousand_files() {
    let place = Place::new();
    place.plainly(programs::MAKE_ARCHIVE);
    let output = place.script("tar -xf ../all.tar; find . -type f | wc -l").output().expect("it starts");
    assert!(output.status.success(), "{}", shown(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "20000\n");
    succeed(Command::new("diff").arg("-r").arg(place.plain()).arg(place.extracted()));
    let files = fs::read_dir(place.container()).expect("a directory").count();
    assert!(files < 10, "{files} files");
    place.assert_whole();
}
