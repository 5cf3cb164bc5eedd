//! Concurrent use of packed files: by nodes of one job, by a job that does not pack, and by programs outside of jobs.

use crate::support::interactive::Interactive;
use crate::support::jobs::{Background, Job, wait_for};
use crate::support::{Run, Site, assert_code, assert_contains, binary, err, out, shown, succeed};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

const FAILED: i32 = 71;
const INCOMPLETE: i32 = 75;

/// A job that has packed files, and runs until `end`.
struct Packing {
    running: Background,
    job: Job,
}

impl Packing {
    fn start(site: &Site, name: &str, script: &str) -> Self {
        let job = Job::new(site, name);
        let (packed, end) = (site.plain().join("packed"), site.plain().join("end"));
        let script = format!(
            r#"cd "$TAMEIKE_CACHE"; {script}
               touch {}; until test -e {}; do sleep 0.05; done"#,
            packed.display(),
            end.display()
        );
        let options = ["--job", &job.name, "--aggregate", "--verify"];
        Self { running: Background::start_until(&mut site.job(2, &options, &script), &packed), job }
    }

    fn exec(&self, site: &Site, script: &str) -> String {
        let exec = ["exec", "--job", &self.job.name, "--node", "1", "--", "sh", "-euc", script];
        succeed(&mut site.tameike(&exec))
    }

    fn end(self, site: &Site) {
        fs::write(site.plain().join("end"), "").expect("written");
        assert_code(&self.running.output(), 0);
        fs::remove_file(site.plain().join("end")).expect("it is there");
        fs::remove_file(site.plain().join("packed")).expect("it is there");
    }
}

fn verify(site: &Site) -> String {
    succeed(Command::new(binary()).args(["agg", "verify"]).arg(site.shared().join(".tameike-packed")))
}

/// S40a, S40b, S40c, S40d, S40e.
#[test]
fn a_job_that_does_not_pack_reads_packed_files_of_another() {
    let site = Site::new();
    let script = r#"cd "$TAMEIKE_CACHE"; mkdir d; echo old > d/old; echo kept > d/kept"#;
    succeed(&mut site.job(1, &["--aggregate"], script));
    let packing = Packing::start(&site, "packs", "echo first > d/first; mkdir both");
    let refused = site.job(1, &["--aggregate"], "true").exits(FAILED);
    assert_contains(&shown(&refused), &["another job packs files of this shared directory"]);
    let ready = site.plain().join("ready");
    let beside_job = Job::new(&site, "beside");
    let script = format!("{} {} {}", site.python(BESIDE), site.plain().display(), ready.display());
    let options = ["--verify", "--job", &beside_job.name];
    let beside = Background::start_until(&mut site.job(2, &options, &script), &ready);
    // Files of the other job exist after their flush.
    let script = r#"cd "$TAMEIKE_CACHE"; echo later > d/later; mv d/first d/renamed; rm d/old
        until test "$(cat both/plain)" = plain; do sleep 0.05; done"#;
    packing.exec(&site, script);
    fs::write(site.plain().join("more"), "").expect("written");
    let output = beside.output();
    assert_code(&output, INCOMPLETE);
    assert_contains(&shown(&output), &["1 of 2 files", "MISSING: another job packs"]);
    packing.end(&site);
    site.tameike(&["recover", "--job", &beside_job.name]).exits(0);
    let script = r#"cd "$TAMEIKE_CACHE"; cat d/kept d/later d/renamed both/plain; ls d; echo more >> d/later; rm d/renamed; mv d e; ls e"#;
    let found = succeed(&mut site.job(2, &[], script));
    assert_eq!(found, "kept\nmore\nlater\nfirst\nplain\nkept\nlater\nrenamed\nkept\nlater\n");
    assert_eq!(
        succeed(&mut site.job(1, &["--aggregate"], r#"cat "$TAMEIKE_CACHE/e/later""#)),
        "later\nmore\n"
    );
    verify(&site);
}

/// S40: another job can read external files, and not write them.
#[test]
fn a_concurrent_job_reads_large_files_and_does_not_write_them() {
    let site = Site::new();
    let original = site.plain().join("original");
    let script = format!("head -c 2000000 /dev/urandom > {0}; cp {0} big", original.display());
    let packing = Packing::start(&site, "large", &script);
    let content = fs::read(&original).expect("there");
    let outside = || {
        let names = fs::read_dir(site.shared().join(".tameike-packed")).expect("a container");
        names.map(|name| name.expect("a name").path()).find(|path| path.to_string_lossy().contains("/out."))
    };
    let is_whole = || outside().and_then(|path| fs::read(path).ok()).filter(|bytes| *bytes == content);
    wait_for("content outside", is_whole);
    let job = Job::new(&site, "writes");
    let script = r#"cd "$TAMEIKE_CACHE"; cat big; printf x | dd of=big conv=notrunc bs=1 status=none"#;
    let output = site.job(1, &["--job", &job.name], script).exits(INCOMPLETE);
    assert_contains(&err(&output), &["MISSING: another job packs"]);
    assert!(output.stdout == content);
    packing.end(&site);
    assert!(fs::read(site.shared().join("big")).expect("it is there") == content && outside().is_none());
    let discarded = site.tameike(&["recover", "--job", &job.name, "--discard"]).output().expect("it starts");
    assert_contains(&shown(&discarded), &["big"]);
}

/// S35b.
#[test]
fn external_content_is_readable_in_the_container_until_it_is_promoted() {
    let site = Site::new();
    let original = site.plain().join("original");
    let script = format!(
        "mkdir d; head -c 3000000 /dev/urandom > {0}; cp {0} d/big; cp {0} d/again; chmod 640 d/big",
        original.display()
    );
    let packing = Packing::start(&site, "leaves", &script);
    let content = fs::read(&original).expect("there");
    let container = site.shared().join(".tameike-packed");
    let outside = || {
        let names = fs::read_dir(&container).expect("a container").map(|name| name.expect("a name"));
        let outside = names.filter(|name| name.file_name().to_string_lossy().starts_with("out."));
        let whole = outside.filter(|name| fs::read(name.path()).is_ok_and(|bytes| bytes == content));
        (whole.count() == 2).then_some(())
    };
    wait_for("content outside", outside);
    let agg = |action: &str, more: &[&str]| {
        let mut agg = Command::new(binary());
        agg.args(["agg", action]).arg(&container).args(more).current_dir(site.plain()).exits(0)
    };
    let printed = agg("cat", &["d/big"]);
    assert!(printed.stdout == content && shown(&printed).contains("are external"));
    let listed = out(&agg("ls", &["-l", "d/big"]));
    assert!(listed.starts_with("-rw-r-----") && listed.contains(" 3000000 "), "{listed}");
    agg("extract", &["back", "d"]);
    agg("export", &["all.tar"]);
    succeed(Command::new("tar").args(["xf", "all.tar", "--one-top-level=tar"]).current_dir(site.plain()));
    for file in ["back/d/big", "back/d/again", "tar/d/big", "tar/d/again"] {
        assert!(fs::read(site.plain().join(file)).expect("there") == content, "{file}");
    }
    assert!(verify(&site).contains("verified 2 paths"), "{}", verify(&site));
    packing.end(&site);
    assert!(fs::read(site.shared().join("d/big")).expect("there") == content);
    assert!(!shown(&agg("ls", &[])).contains("are external"));
}

/// What the second job does.
const BESIDE: &str = r#"
import errno, os, sys, time
plain, ready = sys.argv[1:]
os.chdir(os.environ["TAMEIKE_CACHE"])
assert open("d/old").read() == "old\n"

def refused(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        assert error.errno == errno.EROFS, (call, arguments, error)
        return
    raise SystemExit(f"{call} {arguments} succeeded")

refused(os.unlink, "d/kept")
refused(os.rename, "d/kept", "d/new")
refused(os.chmod, "d/kept", 0o600)
with open("d/kept", "a") as file: file.write("more\n")
refused(os.rename, "d", "e")
open("both/gone", "w").write("x")
os.rename("both/gone", "both/away")
os.unlink("both/away")
open("both/plain", "w").write("plain\n")
open(ready, "w")
while not os.path.exists(f"{plain}/more"): time.sleep(0.05)
for _ in range(2000):
    if sorted(os.listdir("d")) == ["kept", "later", "renamed"]: break
    time.sleep(0.05)
assert sorted(os.listdir("d")) == ["kept", "later", "renamed"], os.listdir("d")
assert not os.path.exists("d/old") and not os.path.exists("d/first")
assert open("d/renamed").read() == "first\n"
"#;

/// S41a, S41b.
#[test]
fn files_of_programs_outside_of_jobs_take_precedence() {
    let site = Site::new();
    let shared = site.shared();
    let script = r#"cd "$TAMEIKE_CACHE"; mkdir d gone; for i in 1 2 3 4; do echo packed $i > d/$i; echo $i > gone/$i; done"#;
    succeed(&mut site.job(1, &["--aggregate"], script));
    let packing = Packing::start(&site, "outside", "cat d/1");
    let seen: Vec<_> = fs::read_dir(shared.join("d")).expect("a directory").collect();
    assert!(seen.is_empty(), "{seen:?}");
    for name in ["2", "3", "4"] {
        fs::write(shared.join("d").join(name), "outside\n").expect("written");
    }
    fs::remove_dir(shared.join("gone")).expect("removed");
    let script = r#"cd "$TAMEIKE_CACHE"; for i in $(seq 200); do test "$(cat d/2)" = outside && break; sleep 0.01; done; cat d/1 d/2; ls d | tr '\n' ' '; mv d/3 d/moved; rm d/4; ls d | tr '\n' ' '
                    cat gone/1 2>/dev/null && exit 1 || true; mkdir gone; ls -A gone; echo new > gone/1; cat gone/1"#;
    let found = packing.exec(&site, script);
    assert_eq!(found, "packed 1\noutside\n1 2 3 4 1 2 moved new\n");
    packing.end(&site);
    // A program that does not see hidden files does not remove them.
    fs::remove_file(shared.join("d/2")).expect("removed");
    let found =
        succeed(&mut site.job(2, &[], r#"cd "$TAMEIKE_CACHE"; cat d/1 d/2 d/moved gone/1; ls d gone"#));
    assert_eq!(found, "packed 1\npacked 2\noutside\nnew\nd:\n1\n2\nmoved\n\ngone:\n1\n");
    let listed =
        succeed(Command::new(binary()).args(["agg", "ls", "-r"]).arg(shared.join(".tameike-packed")));
    let is_apart = |line: &&str| line.starts_with(".tameike-apart/") && line.contains("/gone/");
    assert_eq!(listed.lines().filter(is_apart).count(), 4, "{listed}");
    verify(&site);
}

/// S33a, S33b: one node changes files that another has open.
#[test]
fn another_node_changes_packed_files_that_are_open() {
    let site = Site::new();
    let program = site.python(NODES);
    succeed(&mut site.job(2, &["--aggregate", "--verify"], &program));
    verify(&site);
    // Later jobs, with or without packing, find the files of this one.
    for options in [&["--aggregate"] as &[&str], &[]] {
        succeed(&mut site.job(2, options, &format!("{program} left")));
    }
}

/// Node 0 has files open while programs of node 1 change them.
const NODES: &str = r#"
import errno, mmap, os, subprocess, sys
os.chdir(os.environ["TAMEIKE_CACHE"])

def left():
    assert sorted(os.listdir(".")) == sorted(["new", "other", "over", "mode", "time", "cut", "appended", "mapped", "closed"]), os.listdir(".")
    read = lambda name: open(name, "rb").read()
    assert read("new") == b"renamed" + b"!" and read("over") == b"replacing"
    assert os.stat("mode").st_mode & 0o7777 == 0o751 and os.stat("time").st_mtime_ns == 1_000_000_001_500_000_000
    assert os.stat("time").st_atime_ns >= 1_000_000_000
    assert read("cut") == b"cut" + bytes(997), read("cut")
    lines = read("appended").splitlines()
    assert sorted(lines) == sorted([b"%d %d" % (node, number) for node in (0, 1) for number in range(200)])
    for node in (0, 1):
        own = [line for line in lines if line.startswith(b"%d " % node)]
        assert own == [b"%d %d" % (node, number) for number in range(200)]
    mapped = read("mapped")
    assert mapped[:4] == b"zero" and mapped[4096:4099] == b"one" and len(mapped) == 8192
    assert read("closed") == b"after"
    assert read("other") == b"other"

if sys.argv[1:] == ["left"]:
    left()
    raise SystemExit

def far(program):
    code = "import errno, mmap, os\nos.chdir(os.environ['TAMEIKE_CACHE'])\n" + program
    subprocess.run(["tameike", "exec", "--node", "1", "--", "python3", "-c", code], check=True)

def make(name, content):
    file = os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR)
    os.write(file, content)
    os.fsync(file)
    return file

renamed = make("old", b"renamed")
far("os.rename('old', 'new'); assert open('new').read() == 'renamed'; assert not os.path.exists('old')")
assert not os.path.exists("old") and os.path.samestat(os.fstat(renamed), os.stat("new"))
os.pwrite(renamed, b"!", 7)
os.close(renamed)
assert open("new").read() == "renamed!"

replaced, source = make("over", b"replaced"), make("source", b"replacing")
far("os.rename('source', 'over'); assert open('over').read() == 'replacing'")
os.pwrite(replaced, b"R", 0)
assert os.pread(replaced, 100, 0) == b"Replaced" and os.fstat(replaced).st_nlink == 0
assert os.pread(source, 100, 0) == b"replacing" and os.fstat(source).st_nlink == 1
os.close(replaced), os.close(source)

removed = make("removed", b"removed")
far("os.unlink('removed'); open('other', 'w').write('other')")
os.pwrite(removed, b"still", 100_000)
assert os.pread(removed, 7, 0) == b"removed" and os.pread(removed, 5, 100_000) == b"still"
assert os.fstat(removed).st_nlink == 0 and not os.path.exists("removed")
os.close(removed)

linked = make("linked", b"linked")
far("""
def refused(number, call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        assert error.errno == number, error
        return
    raise SystemExit(f"{call} succeeded")
refused(errno.EPERM, os.link, 'linked', 'link')
refused(errno.EOPNOTSUPP, os.setxattr, 'linked', 'user.x', b'1')
refused(errno.ENODATA, os.getxattr, 'linked', 'user.x')
refused(errno.ENODATA, os.removexattr, 'linked', 'user.x')
assert os.listxattr('linked') == []
os.unlink('linked')
""")
os.close(linked)

changed, timed = make("mode", b"mode"), make("time", b"time")
far("os.chmod('mode', 0o751); os.utime('time', ns=(1_000_000_000, 1_000_000_001_500_000_000))")
assert os.fstat(changed).st_mode & 0o7777 == 0o751
assert os.fstat(timed).st_mtime_ns == 1_000_000_001_500_000_000
os.close(changed), os.close(timed)

cut = make("cut", b"cut" * 1000)
far("os.truncate('cut', 3); assert open('cut').read() == 'cut'; os.truncate('cut', 1000)")
assert os.fstat(cut).st_size == 1000
os.close(cut)
assert open("cut", "rb").read() == b"cut" + bytes(997)

appending = os.open("appended", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
code = """
import os
file = os.open(os.environ['TAMEIKE_CACHE'] + '/appended', os.O_WRONLY | os.O_APPEND)
for number in range(200): os.write(file, b'1 %d\\n' % number)
"""
other = subprocess.Popen(["tameike", "exec", "--node", "1", "--", "python3", "-c", code])
for number in range(200): os.write(appending, b"0 %d\n" % number)
assert other.wait() == 0
os.close(appending)

mapped = make("mapped", bytes(8192))
memory = mmap.mmap(mapped, 8192)
memory[:4] = b"zero"
far("""
file = os.open('mapped', os.O_RDWR)
memory = mmap.mmap(file, 8192)
memory[4096:4099] = b'one'
memory.flush()
memory.close()
os.close(file)
""")
memory.flush()
memory.close()
os.close(mapped)

closed = make("closed", b"before")
far("file = os.open('closed', os.O_WRONLY | os.O_TRUNC); os.write(file, b'after'); os.close(file)")
os.close(closed)
assert open("closed", "rb").read() == b"after"
left()
"#;

/// Locks every readable file except the packer's lock, like a user who may read a container but not write to it.
const READER: &str = r#"
import fcntl, os, sys
names = [name for name in os.listdir(".") if name != "lock"]
files = [open(name, "rb") for name in names]
for file in files:
    fcntl.lockf(file, fcntl.LOCK_SH)
try:
    files.append(open("lock", "rb"))
    fcntl.lockf(files[-1], fcntl.LOCK_SH)
    assert os.getuid() == int(sys.argv[1]), "another user can read the lock"
    fcntl.lockf(files[-1], fcntl.LOCK_UN)
except PermissionError:
    pass
print("locked", flush=True)
sys.stdin.read()
"#;

/// A user who may read packed files can lock them, but this does not block packing.
#[test]
fn a_reader_of_a_container_does_not_block_packing() {
    let site = Site::new();
    let pack =
        |name: &str| site.job(1, &["--aggregate"], &format!(r#"echo {name} > "$TAMEIKE_CACHE/{name}""#));
    succeed(&mut pack("first"));
    let container = site.shared().join(".tameike-packed");
    let open = r#"chmod a+rx . && for name in *; do test "$name" = lock || chmod a+r "$name"; done"#;
    succeed(Command::new("sh").args(["-c", open]).current_dir(&container));
    let own = fs::metadata(&container).expect("it is there").uid();
    // As another user, if this one is root.
    let mut reader = Command::new(if own == 0 { "setpriv" } else { "python3" });
    if own == 0 {
        reader.args(["--reuid", "65533", "--regid", "65533", "--clear-groups", "python3"]);
        // Root's Python may be inaccessible to other users.
        reader.env("PATH", "/usr/bin:/bin");
    }
    reader.args(["-c", READER, &own.to_string()]).current_dir(&container);
    let mut reader = Interactive::start(&mut reader);
    assert_eq!(reader.line().as_deref(), Some("locked"));
    pack("second").exits(0);
    reader.end();
    assert!(verify(&site).contains("verified 2 paths"));
}
