//! `tameike run --aggregate-only`: files of unchanged programs are packed into a container, without agents and mounts.

use crate::support::programs;
use crate::support::spooled::SpoolSite;
use crate::support::{Run, assert_contains, is_soak, out, shown, succeed};
use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Compares lines, and shows the first that differ.
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

/// S39a.
///
/// Runs a script in a plain directory and in a container's. A later run and an extraction find the same files.
fn compare(script: &str) -> SpoolSite {
    let site = SpoolSite::new();
    let listing = programs::LISTING.replace(" %n ", " ");
    let with = format!("{script}\n{listing}");
    let expected = site.plainly(&with);
    let here = site.plainly(&listing);
    for (script, expected) in [(&with, &expected), (&listing, &here)] {
        assert_same(&succeed(&mut site.script(script)), expected);
    }
    let found = succeed(Command::new("bash").args(["-euc", &listing]).current_dir(site.extracted()));
    assert_same(&found, &here);
    site
}

/// A script prints the same for the files of an earlier run and for those of the plain directory.
fn assert_runs_again(site: &SpoolSite, script: &str) {
    let expected = site.plainly(script);
    assert_same(&succeed(&mut site.script(script)), &expected);
}

#[test]
fn coreutils_and_the_shell() {
    compare(programs::COREUTILS);
}

#[test]
fn archives_and_version_control() {
    compare(programs::ARCHIVES);
}

/// Holes were packed as zeros.
#[test]
fn files_with_holes_take_the_space_of_their_data() {
    let site = compare(
        "truncate --size 256M image
         printf boot | dd of=image conv=notrunc status=none
         printf data | dd of=image bs=1M seek=100 conv=notrunc status=none
         sleep 0.2
         md5sum image
         stat --format '%s' image",
    );
    let files = fs::read_dir(site.container()).expect("a directory");
    let space: u64 = files.map(|file| file.expect("a name").metadata().expect("there").blocks() * 512).sum();
    assert!(space < 16 << 20, "{space} bytes");
}

#[test]
fn python_and_a_database() {
    compare(programs::PYTHON);
}

#[test]
fn many_processes_of_python() {
    compare(programs::PROCESSES);
}

#[test]
fn git_repositories_of_an_earlier_run() {
    let site = compare(programs::REPOSITORIES);
    assert_runs_again(&site, programs::REPOSITORIES_AGAIN);
}

#[test]
fn sqlite_databases_of_an_earlier_run() {
    let site = compare(programs::DATA_BASES);
    assert_runs_again(&site, programs::DATA_BASES_AGAIN);
}

/// Packed files stay accessible: by name, in listings, through links, and for changes.
#[test]
fn files_that_are_packed_during_the_run_stay_accessible() {
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
fn files_that_are_only_read_are_not_packed_again() {
    let site = SpoolSite::new();
    succeed(
        &mut site.script("mkdir many; for i in $(seq 40); do seq $((i * 500)) > many/$i; done; sleep 0.1"),
    );
    let size = || fs::metadata(site.container().join("00010000.data")).expect("a subfile").blocks();
    let packed = size();
    let read = site.script("cat many/* | wc -l; sleep 0.3; cat many/* many/* | wc -l").exits(0);
    assert_eq!(out(&read), "410000\n820000\n");
    assert_contains(&shown(&read), &["packed 0 files"]);
    // A reader that changed nothing must not hide a later change.
    let script = "cat many/* > all; sleep 0.3; echo more >> many/7; cat many/7 | wc -l";
    let changed = site.script(script).exits(0);
    assert_contains(&shown(&changed), &["packed 2 files"]);
    let grown = size() - packed;
    assert!(grown < 2 * packed, "{grown} blocks more than {packed}");
}

#[test]
fn links_resolve_as_in_a_plain_directory() {
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
def report(name, call, *arguments):
    try:
        call(*arguments)
        print(name, arguments, "done")
    except OSError as error:
        print(name, arguments, errno.errorcode[error.errno])
for path in ("f/", "p/", "p/x", "nope", "nope/", "d", "d/", "d/.", ".", "l/", "full", "x" * 300):
    for name in ("stat", "lstat", "readlink", "unlink", "listdir", "rmdir"):
        if (name, path) not in (("rmdir", "d"), ("rmdir", "d/"), ("unlink", "l")):
            report(name, getattr(os, name), path)
for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR | os.O_CREAT | os.O_EXCL, os.O_RDONLY | os.O_DIRECTORY, os.O_RDONLY | os.O_NOFOLLOW):
    for path in ("p", "l", "d", "f/"):
        report("open", os.open, path, flags)
for pair in (("p", "d"), ("d", "p"), ("d", "full"), ("nope", "x"), ("f/", "h"), ("d", "d/in"), (".", "x"), ("p", "nope/x")):
    report("rename", os.rename, *pair)
report("mkdir", os.mkdir, "p"); report("mkdir", os.mkdir, "new/"); report("symlink", os.symlink, "a", "p"); report("link", os.link, "d", "e")
report("truncate", os.truncate, "d", 0); report("truncate", os.truncate, "p", -1); report("chdir", os.chdir, "p")
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

/// In tmpfs, a write through a mapping does not change the time of a file whose page was read before.
#[test]
fn writes_through_mappings_and_beside_readers_are_packed() {
    compare(
        r#"umask 022; python3 - <<'PYTHON'
import mmap, os, subprocess
def until_packed(*names):
    subprocess.run(["until-packed", *names], check=True)
def await_a_round(marks=iter(range(9))):
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
    await_a_round()
    mapping[:4] = b"NEW!"
    mapping.close()
reader = open("read")
assert reader.readline() == "first\n"
for word in ("second", "third"):
    open("read", "a").write(word + "\n")
    until_packed("--copied", "read")
    assert reader.readline() == word + "\n" and os.fstat(reader.fileno()).st_nlink == 1
os.fchmod(reader.fileno(), 0o600)
await_a_round()
until_packed("--copied", "read")
PYTHON
        flock read sh -c 'echo > held; until test -e done; do sleep 0.02; done' & until test -e held; do sleep 0.02; done
        until-packed held; flock --nonblock read echo both || echo one; echo > done; wait
        mkdir git; cd git; git init -q a; echo x > a/x; git -C a add x; git -C a -c user.name=a -c user.email=b commit -qm x; git clone -q --no-hardlinks a b; cat b/x; cd ..; rm -rf git"#,
    );
}

/// S39g. Attributes stay the same while a file is packed.
#[test]
fn packing_does_not_change_attributes() {
    compare(
        r#"umask 022; python3 - <<'PYTHON'
import os, subprocess
start = os.getcwd()
os.mkdir("dir")
with open("dir/file", "wb") as file:
    file.write(b"x" * 5000)
    inside = os.fstat(file.fileno())
def text(stat):
    return stat.st_dev, stat.st_ino, stat.st_mode, stat.st_size, stat.st_nlink, stat.st_uid
before, directory = os.stat("dir/file"), os.stat("dir")
subprocess.run(["until-packed", "dir/file"], check=True)
packed = os.stat("dir/file")
assert text(before) == text(packed) and before.st_mtime_ns == packed.st_mtime_ns == packed.st_ctime_ns
assert (inside.st_dev, inside.st_ino) == (packed.st_dev, packed.st_ino)
assert os.stat("dir").st_mtime_ns == directory.st_mtime_ns
with open("dir/file", "rb") as file:
    assert text(os.fstat(file.fileno())) == text(packed) and len(file.read()) == 5000
assert text(os.stat("dir/file")) == text(packed) and os.stat("dir").st_mtime_ns == directory.st_mtime_ns
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

/// Extended attributes and times of symbolic links were lost.
#[test]
fn extended_attributes_and_times_of_links_are_kept() {
    const LISTED: &str = r#"python3 -c '
import os
for name in sorted(os.listdir(".")):
    if os.path.islink(name): print(name, os.readlink(name), os.lstat(name).st_mtime_ns)
    else: print(name, [(key, os.getxattr(name, key)) for key in sorted(os.listxattr(name))])
'"#;
    let site = compare(&format!(
        r#"umask 022; python3 - <<'PYTHON'
import os, subprocess
for name in ("new", "changed", "without"):
    open(name, "w").write(name)
os.mkdir("dir"); os.mkdir("later"); open("dir/file", "w").close()
os.setxattr("new", "user.first", b"1"); os.setxattr("new", "user.second", b"x" * 1000)
os.setxattr("without", "user.gone", b"1"); os.setxattr("dir", "user.dir", b"value")
os.symlink("new", "link"); os.symlink("nowhere", "other")
os.utime("link", ns=(10**18, 10**18 + 7), follow_symlinks=False)
subprocess.run(["until-packed", "new", "changed", "without", "dir", "later"], check=True)
os.setxattr("changed", "user.since", b"2"); os.removexattr("without", "user.gone"); os.setxattr("later", "user.since", b"3")
os.utime("other", ns=(10**18, 10**18 + 9), follow_symlinks=False)
PYTHON
{LISTED}"#
    ));
    let extracted = site.base.path().join("extracted");
    let text = succeed(Command::new("bash").args(["-euc", LISTED]).current_dir(extracted));
    assert_same(&text, &site.plainly(LISTED));
    assert_runs_again(&site, LISTED);
    assert_runs_again(&site, "python3 -c 'import os; os.removexattr(\"dir\", \"user.dir\")'");
    assert_runs_again(&site, LISTED);
}

/// Packing and unpacking of files never changes the time of their directory, not even temporarily.
#[test]
fn a_directory_keeps_its_time_while_its_files_are_packed_and_unpacked() {
    let site = SpoolSite::new();
    let script = r#"
import os, threading, time
os.mkdir("d")
for number in range(3000): open(f"d/{number}", "w").write(str(number))
os.utime("d", ns=(10**18, 10**18))
seen, reading = set(), True
def read():
    global reading
    for number in range(3000): assert open(f"d/{number}").read() == str(number)
    reading = False
def stat_while(until):
    opened = os.open("d", os.O_RDONLY)
    while until():
        for of in ["d", opened]:
            stat = os.stat(of)
            seen.add((stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size))
end = time.monotonic() + 1.5
stat_while(lambda: time.monotonic() < end)
reader = threading.Thread(target=read)
reader.start()
stat_while(lambda: reading)
reader.join()
assert len(seen) == 1, seen"#;
    let script = format!("python3 - <<'END'\n{script}\nEND");
    succeed(&mut site.script(&script));
}

/// S39h. Git checks the inode number of a hard link that it has created; a clone beside its origin failed.
#[test]
fn hard_links_stay_links_while_the_program_runs() {
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

/// S39i.
#[test]
fn programs_without_the_library_find_no_file() {
    let site = SpoolSite::new();
    site.script(
        r#"seq 100 > file; until-packed file; python3 - <<'PYTHON'
import ctypes, errno, os
library = ctypes.CDLL(None, use_errno=True)
for path in (b"file", os.path.abspath("file").encode()):
    assert library.syscall(257 if os.uname().machine == "x86_64" else 56, -100, path, os.O_RDONLY) == -1
    assert ctypes.get_errno() == errno.ENOENT
assert len(open("file").read().split()) == 100
PYTHON"#,
    )
    .exits(0);
}

#[test]
fn an_unprivileged_user_can_use_it() {
    const NOBODY: u32 = 65534;
    let site = SpoolSite::new();
    for dir in [site.base.path().to_path_buf(), site.spool(), site.plain()] {
        chown(&dir, Some(NOBODY), Some(NOBODY)).expect("root's");
    }
    let mut command = site.script(
        "umask 077; mkdir d; echo a > d/file; setfattr -n user.k -v kept d/file; chmod 000 d/file; until-packed d/file; chmod 200 d/file; echo b >> d/file; test -w d/file; ! test -r d/file; id -u",
    );
    assert_eq!(succeed(command.uid(NOBODY).gid(NOBODY)), "65534\n");
    let extracted = site.extracted();
    assert_eq!(fs::read_to_string(extracted.join("d/file")).expect("it is there"), "a\nb\n");
    let found = fs::metadata(extracted.join("d/file")).expect("it is there");
    assert_eq!((found.uid(), found.mode() & 0o7777), (NOBODY, 0o200));
    let mut value = Command::new("getfattr");
    let value =
        value.args(["--absolute-names", "--only-values", "-n", "user.k"]).arg(extracted.join("d/file"));
    assert_eq!(succeed(value), "kept");
}

#[test]
fn programs_of_mpi_in_c_and_fortran() {
    let site = SpoolSite::new();
    for program in programs::of_mpi(site.base.path()) {
        let run = |dir: &Path| {
            let mpirun = "mpirun --allow-run-as-root --oversubscribe -np 6";
            format!("{mpirun} {} {}", program.display(), dir.display())
        };
        succeed(Command::new("sh").args(["-c", &run(&site.plain())]));
        site.run(&["sh", "-c", &run(&site.container())]).exits(0);
    }
    succeed(Command::new("diff").arg("-r").arg(site.plain()).arg(site.extracted()));
}

/// Twenty thousand in the long tests.
#[test]
fn an_archive_of_many_files() {
    let site = SpoolSite::new();
    let hundreds: u32 = if is_soak() { 200 } else { 40 };
    site.plainly(&programs::make_archive(hundreds));
    assert_eq!(
        succeed(&mut site.script("tar -xf ../all.tar; find . -type f | wc -l")),
        format!("{hundreds}00\n")
    );
    succeed(Command::new("diff").arg("-r").arg(site.plain()).arg(site.extracted()));
    let files = fs::read_dir(site.container()).expect("a directory").count();
    assert!(files < 10, "{files} files");
}

/// Programs rely on the permissions of their files: other users must not read a container that was created for them.
#[test]
fn a_container_of_a_run_is_private_unless_its_owner_opens_it() {
    let site = SpoolSite::new();
    fs::create_dir(site.container()).expect("a directory");
    let modes = || {
        let names = fs::read_dir(site.container()).expect("a container").flatten();
        let mut modes: Vec<_> = names.map(|name| name.metadata().expect("there").mode() & 0o777).collect();
        modes.sort_unstable();
        modes.dedup();
        modes
    };
    let run = |script: &str| site.script(script).exits(0);
    run("umask 022; echo secret > key; chmod 600 key");
    assert_eq!(modes(), [0o600]);
    succeed(Command::new("chmod").arg("-R").arg("a+rX").arg(site.container()));
    run("umask 077; echo more > other");
    assert_eq!(modes(), [0o644]);
}
