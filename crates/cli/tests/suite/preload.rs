//! Preloaded programs: unchanged programs give the same results as without the library, beside programs that are not preloaded.

use crate::support::jobs::new_job;
use crate::support::{
    Run, Site, assert_contains, err, is_root, out, preload, programs, shown, succeed, utf8,
};
use std::fs;
use std::process::Command;

/// A job with preloaded programs. On a disk, its agent serves the node-local view too.
fn job(site: &Site, nodes: u32, options: &[&str], script: &str) -> Command {
    let device = ["--preload", "--device", utf8(site.disk())];
    site.job(nodes, &[&device, options].concat(), script)
}

/// Runs a preloaded Python program in each of these views.
fn run_in(views: &str, program: &str) {
    let site = Site::new();
    let script = format!(r#"for view in {views}; do cd "$view"; {}; cd /; done"#, site.python(program));
    job(&site, 1, &[], &script).exits(0);
}

/// S31a.
///
/// Runs a script in a plain directory, and preloaded in each view; the results must be equal, mostly without the kernel.
fn compare(script: &str) {
    let site = Site::new();
    let script = format!("{script}\n{}", programs::LISTING);
    let expected = succeed(Command::new("bash").args(["-euc", &script]).current_dir(site.plain()));
    let file = site.plain().with_file_name("script");
    fs::write(&file, &script).expect("a script");
    let inner = format!(
        r#"for view in "$TAMEIKE_SHARED" "$TAMEIKE_NODE_LOCAL" "$TAMEIKE_CACHE"; do
               mkdir "$view/here"; cd "$view/here"; bash -eu {}; cd /; echo ---
           done
           tameike status --json"#,
        file.display()
    );
    let text = succeed(&mut job(&site, 1, &[], &inner));
    let status = preload::assert_equal_in_all_views(&text, &expected);
    assert!(preload::answered(status) > 30, "requests went through the kernel: {status}");
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
fn python_and_a_database() {
    compare(programs::PYTHON);
}

/// S1a. One process uses the ring and the other the kernel, which have separate caches. S31b.
#[test]
fn preloaded_and_other_programs_see_the_same() {
    run_in(
        r#""$TAMEIKE_SHARED" "$TAMEIKE_NODE_LOCAL" "$TAMEIKE_CACHE""#,
        r#"
import os, subprocess, sys
reader = subprocess.Popen([sys.executable, "-c", """
import os, sys
for line in sys.stdin:
    name, size = line.split()
    with open(name, 'rb') as file:
        data = file.read()
    here = os.stat('.')
    print(len(data), sum(data), os.stat(name).st_size, here.st_nlink, here.st_mtime_ns, flush=True)
"""], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "TAMEIKE_RING")})
last = 0
for round in range(200):
    name = f"file-{round % 7}"
    data = bytes([round % 200 + 1]) * (round * 61 % 9000 + 1)
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if round % 2 else 0), 0o644)
    size = os.fstat(fd).st_size
    os.write(fd, data)
    reader.stdin.write(f"{name} {len(data)}\n"); reader.stdin.flush()
    count, total, shown, links, changed = map(int, reader.stdout.readline().split())
    assert count == shown == max(size, len(data)), (round, count, shown, size, len(data))
    assert size > len(data) or total == sum(data), round
    os.write(fd, b"x")
    os.close(fd)
    if round % 7 == 3:
        os.unlink(name)
        fresh = f"dir-{round}"
        os.mkdir(fresh)
        reader.stdin.write("file-0 0\n"); reader.stdin.flush()
        now = list(map(int, reader.stdout.readline().split()))
        assert now[4] > last, "the directory has changed"
        last = now[4]
reader.stdin.close()
assert reader.wait() == 0
"#,
    );
}

/// S1a. The reader reads a granted frame; each change must revoke the grant.
#[test]
fn granted_frames_are_read_without_the_agent_and_never_stale() {
    run_in(r#""$TAMEIKE_SHARED" "$TAMEIKE_CACHE""#, GRANTED_PROGRAM);
}

const GRANTED_PROGRAM: &str = r#"
import json, os, random, subprocess, sys

def answered():
    text = subprocess.check_output(["tameike", "status", "--json"], text=True)
    place = text.index('"ring_answered"')
    return int("".join(c for c in text[place:].split("value")[1].split("}")[0] if c.isdigit()))

def helper(env):
    return subprocess.Popen([sys.executable, "-c", """
import os, sys
for line in sys.stdin:
    what, name, place, value = line.split()
    if what == 'write':
        fd = os.open(name, os.O_WRONLY)
        os.pwrite(fd, bytes([int(value)]) * 4096, int(place))
        os.close(fd)
    elif what == 'cut':
        os.truncate(name, int(place))
    elif what == 'replace':
        fd = os.open('new', os.O_WRONLY | os.O_CREAT, 0o644)
        os.pwrite(fd, bytes([int(value)]) * 4096, int(place))
        os.close(fd)
        os.rename('new', name)
    print('done', flush=True)
"""], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)

ring = helper(os.environ)
kernel = helper({k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "TAMEIKE_RING")})

def send(who, *step):
    print(*step, file=who.stdin, flush=True)
    assert who.stdout.readline().strip() == "done"

UNIT = 1 << 20
fd = os.open("file", os.O_RDWR | os.O_CREAT, 0o644)
os.pwrite(fd, bytes([1]) * (3 * UNIT), 0)
os.fsync(fd)
places = [random.randrange(3 * UNIT - 4096) for _ in range(20000)]
before = answered()
for place in places:
    assert os.pread(fd, 4096, place) == bytes([1]) * 4096
requests = answered() - before
assert requests < 4000, f"{requests} requests for {len(places)} reads"

for round in range(2, 120):
    who = kernel if round % 4 == 0 else ring
    place = random.randrange(767) * 4096
    for near in (place, place + 4096, 0):
        assert len(os.pread(fd, 4096, near)) == len(os.pread(fd, 4096, near)) == 4096
    send(who, "write", "file", place, round)
    assert os.pread(fd, 4096, place) == bytes([round]) * 4096, (round, place)
    if who is kernel:
        # What the kernel has had open it has for as long as this descriptor lives.
        os.close(fd)
        fd = os.open("file", os.O_RDWR)
send(ring, "cut", "file", UNIT + 100, 0)
assert os.pread(fd, 4096, 2 * UNIT) == b"" and len(os.pread(fd, 4096, UNIT)) == 100
assert len(os.pread(fd, 4096, 8192)) == len(os.pread(fd, 4096, 8192)) == 4096
send(kernel, "cut", "file", 8192, 0)
assert os.pread(fd, 4096, 8192) == b"" and len(os.pread(fd, 4096, 4096)) == 4096
old = os.pread(fd, 4096, 0)
send(ring, "replace", "file", 0, 250)
assert os.pread(fd, 4096, 0) == os.pread(fd, 4096, 0) == old, "it is open yet"
new = os.open("file", os.O_RDONLY)
assert os.pread(new, 4096, 0) == os.pread(new, 4096, 0) == bytes([250]) * 4096
for round in range(1, 30):
    end = os.lseek(new, 0, os.SEEK_END)
    assert os.read(new, 10) == os.read(new, 10) == b"", "it ends there"
    send(kernel if round % 5 == 0 else ring, "write", "file", end, round)
    assert os.pread(new, 5000, end) == bytes([round]) * 4096, round

def small(number):
    fd = os.open(f"small-{number}", os.O_RDONLY)
    assert os.read(fd, 501) == bytes([number % 251]) * 500 and os.read(fd, 501) == b""
    os.close(fd)

for number in range(300):
    fd = os.open(f"small-{number}", os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(fd, bytes([number % 251]) * 500)
    os.close(fd)
    small(number)
before = answered()
for number in range(300):
    small(number)
requests = answered() - before
assert os.getcwd() != os.environ["TAMEIKE_SHARED"] or requests < 600, f"{requests} requests"
for who in (ring, kernel):
    who.stdin.close()
    assert who.wait() == 0
"#;

/// S31c. The program has closed nothing.
#[test]
fn data_of_a_killed_program_is_drained() {
    let site = Site::new();
    let script = r#"cd "$TAMEIKE_CACHE"; python3 -c '
import os
fd = os.open("file", os.O_WRONLY | os.O_CREAT, 0o644)
os.write(fd, b"x" * 3000000)
os.kill(os.getpid(), 9)' || echo $?"#;
    job(&site, 1, &[], script).exits(0);
    let drained = fs::read(site.shared().join("file")).expect("it was drained");
    assert!(drained == [b'x'; 3_000_000], "{} bytes", drained.len());
}

/// S31d, S31e.
#[test]
fn an_agent_that_is_killed_is_an_error() {
    let (site, killed) = new_job("killed");
    let script = r#"cd "$TAMEIKE_SHARED"; python3 -c '
import errno, json, os, signal, subprocess
fd = os.open("file", os.O_RDWR | os.O_CREAT, 0o644)
os.write(fd, b"x")
assert os.pread(fd, 1, 0) == os.pread(fd, 1, 0) == b"x"
os.close(os.open("closed", os.O_WRONLY | os.O_CREAT, 0o644))
assert os.stat("closed") == os.stat("closed")
readers = [os.open("closed", (os.O_RDONLY, os.O_RDWR)[i % 2]) for i in range(1000)]
status = json.loads(subprocess.check_output(["tameike", "status", "--json"]))
def find(value):
    if isinstance(value, dict):
        return value.get("pid") or next(filter(None, map(find, value.values())), None)
    if isinstance(value, list):
        return next(filter(None, map(find, value)), None)
os.kill(find(status), signal.SIGKILL)
for call in (lambda: os.pread(fd, 1, 0), lambda: os.stat("closed"), lambda: os.write(fd, b"y"), lambda: os.fstat(fd), lambda: os.open("other", os.O_RDONLY), lambda: os.close(readers.pop())):
    try:
        while True:
            call()
    except OSError as error:
        assert error.errno in (errno.EIO, errno.ENOTCONN, errno.ECONNABORTED), error
print("REPORTED")'"#;
    let options = ["--keep-going", "--job", &killed.name];
    let output = job(&site, 1, &options, script).output().expect("a job");
    assert_contains(&out(&output), &["REPORTED"]);
    site.tameike(&["recover", "--job", &killed.name]).output().expect("it starts");
}

/// S31f.
#[test]
fn a_program_that_changed_nothing_gets_no_errors_of_other_writers() {
    let site = Site::new();
    let script = r#"cd "$TAMEIKE_SHARED"; python3 -c '
import errno, os
writer = os.open("f", os.O_RDWR | os.O_CREAT, 0o600)
others = [os.open("f", os.O_RDWR) for _ in range(3)]
found = []
try:
    for _ in range(60): os.write(writer, bytes(1 << 20))
except OSError as error: found.append(error.errno)
for other in others:
    os.read(other, 10)
    os.close(other)
try: os.close(writer)
except OSError as error: found.append(error.errno)
assert found and set(found) == {errno.ENOSPC}, found
print("SEEN")'"#;
    let output = job(&site, 1, &["--capacity", "shared=16M"], script).exits(0);
    assert_contains(&out(&output), &["SEEN"]);
}

/// S10a. SEEK_END uses the current size, not the size at the removal.
#[test]
fn a_removed_file_has_the_size_of_its_last_write() {
    let site = Site::new();
    let script = r#"for view in "$TAMEIKE_CACHE" "$TAMEIKE_SHARED"; do cd "$view"; python3 -c '
import os
fd = os.open("f", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
os.write(fd, b"a" * 100)
assert os.pread(fd, 4096, 0) == os.pread(fd, 4096, 0) == b"a" * 100
os.unlink("f")
for end in (1000, 2000, 9000):
    os.pwrite(fd, b"b" * 900, end - 900)
    for _ in range(3):
        assert os.pread(fd, 20000, end - 900) == b"b" * 900, end
        assert os.pread(fd, 300, end - 500) == b"b" * 300, end
        assert os.pread(fd, 10, end) == b""
os.close(fd)
print("SEEN")'; done"#;
    let text = succeed(&mut job(&site, 1, &[], script));
    assert_eq!(text.matches("SEEN").count(), 2, "{text}");
}

/// S31a. Also for a file that the kernel takes over without lookups of its parent directories: a second open returned ESTALE,
/// and so did its extended attributes.
#[test]
fn a_file_handed_over_to_the_kernel_is_found_by_its_descriptor() {
    let site = Site::new();
    let program = site.python(
        r#"
import ctypes, os, sys
for view in sys.argv[1:]:
    os.chdir(view)
    os.mkdir("dir")
    os.mkdir("dir/below")
    fd = os.open("dir/below/file", os.O_RDWR | os.O_CREAT, 0o644)
    os.pwrite(fd, b"text", 0)
    os.mkdir("other")
    os.rmdir("other")  # the agent resolves paths again from now on
    assert not os.path.exists("nothing") and not os.path.exists("other/nothing")
    os.fchmod(fd, 0o640)  # not by the ring
    with open(f"/proc/self/fd/{fd}", "rb") as again:
        assert again.read() == b"text", view
    os.setxattr(fd, "user.name", b"value")
    assert os.getxattr(fd, "user.name") == b"value", view
    linked = ctypes.CDLL(None).linkat(-100, f"/proc/self/fd/{fd}".encode(), -100, b"dir/link", 0x400)
    assert linked == 0 and os.fstat(fd).st_nlink == 2, view
    os.close(fd)
    assert open("dir/link").read() == "text" and os.stat("dir/link").st_mode & 0o777 == 0o640, view
print("SEEN")
"#,
    );
    let script = format!(r#"{program} "$TAMEIKE_CACHE" "$TAMEIKE_SHARED" "$TAMEIKE_NODE_LOCAL""#);
    for nodes in [1, 2] {
        assert_contains(&succeed(&mut job(&site, nodes, &[], &script)), &["SEEN"]);
        fs::remove_dir_all(site.shared().join("dir")).expect("it was drained");
    }
}

/// S31a. Also if the view is mounted read-only, as in sandboxes and containers, from the start or later.
#[test]
fn a_view_that_is_mounted_read_only_is_not_changed() {
    let site = Site::new();
    let program = site.python(
        r#"
import errno, os, subprocess, sys
view = os.environ["TAMEIKE_SHARED"]

def refused():
    calls = (lambda: os.open(view + "/new", os.O_CREAT | os.O_WRONLY), lambda: os.open(view + "/file", os.O_RDWR),
             lambda: os.open(view + "/file", os.O_RDONLY | os.O_TRUNC), lambda: os.unlink(view + "/file"),
             lambda: os.mkdir(view + "/dir"), lambda: os.rename(view + "/file", view + "/other"))
    for call in calls:
        try:
            call()
        except OSError as error:
            assert error.errno == errno.EROFS, error
        else:
            raise AssertionError("it was changed")
    assert open(view + "/file").read() == "text"

if len(sys.argv) > 1:
    refused()
else:
    os.close(os.open(view + "/file", os.O_CREAT | os.O_WRONLY, 0o644))
    with open(view + "/file", "w") as file:
        file.write("text")
    subprocess.run(["mount", "-o", "remount,bind,ro", view], check=True)
    refused()
    subprocess.run([sys.executable, sys.argv[0], "again"], check=True)
    subprocess.run(["mount", "-o", "remount,bind,rw", view], check=True)
    os.rename(view + "/file", view + "/other")
"#,
    );
    let script = format!(r#"{program}; cat "$TAMEIKE_SHARED/other""#);
    assert_eq!(succeed(&mut job(&site, 1, &[], &script)), "text");
}

/// A command on another node inherits the variables of this node, with which it would see the files of this node-local view.
#[test]
fn a_command_on_another_node_reaches_that_nodes_agent() {
    let site = Site::new();
    let script = r#"for node in 0 1; do
            tameike exec --node $node -- bash -c 'echo $TAMEIKE_NODE > $TAMEIKE_NODE_LOCAL/node; echo $TAMEIKE_RING'
        done
        for node in 0 1; do tameike exec --node $node -- bash -c 'cat $TAMEIKE_NODE_LOCAL/node'; done"#;
    let text = succeed(&mut job(&site, 2, &[], script));
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].ends_with("node-0/ring") && lines[1].ends_with("node-1/ring"), "{text}");
    assert_eq!(lines[2..], ["0", "1"]);
}

/// The two options contradict each other; in a job without a ring, `exec --preload` fails before the command runs.
#[test]
fn preload_without_a_ring_is_refused() {
    let site = Site::new();
    let output = job(&site, 1, &["--no-ring"], "echo ran").output().expect("a job");
    assert!(!output.status.success() && output.stdout.is_empty(), "{}", shown(&output));
    let messages = err(&output);
    assert_contains(&messages, &["--preload", "--no-ring"]);
    let script = r#"test -z "$TAMEIKE_RING"; ! tameike exec --preload -- echo ran"#;
    let output = site.job(1, &["--no-ring"], script).output().expect("a job");
    assert!(output.status.success() && output.stdout.is_empty(), "{}", shown(&output));
    assert_contains(&err(&output), &["does not support preloaded programs"]);
}

/// S31a. Also for user 0 without capabilities, or in a user namespace, where the kernel enforces mode bits.
#[test]
fn user_0_without_capabilities_has_the_same_permissions_as_in_the_kernel() {
    if !is_root() {
        return;
    }
    let site = Site::new();
    let script = r#"for view in "$TAMEIKE_SHARED" "$TAMEIKE_CACHE"; do
            cd "$view"
            echo secret > file; chmod 600 file; chown 1002:1002 file
            mkdir dir; chmod 700 dir; chown 1002:1002 dir
            for wrap in "setpriv --inh-caps=-all --bounding-set=-all" "unshare --user" "unshare --user --map-root-user"; do
                $wrap cat file && echo "read: $wrap"
                $wrap sh -c 'echo more >> file' && echo "written: $wrap"
                $wrap sh -c 'echo x > dir/made' && echo "made: $wrap"
                $wrap stat dir/made && echo "seen: $wrap"
                $wrap sh -c 'echo own > own; cat own; rm own' || echo "its own file: $wrap"
            done 2>/dev/null
            cd /
        done; cat "$TAMEIKE_CACHE/file"; chmod 777 "$TAMEIKE_CACHE/dir""#;
    for options in [&[][..], &["--preload"]] {
        let output = site.job(1, options, script).exits(0);
        let expected = "own\n".repeat(6) + "secret\n";
        assert_eq!(out(&output), expected, "{options:?}: {}", shown(&output));
        fs::remove_file(site.shared().join("file")).expect("drained");
        fs::remove_dir(site.shared().join("dir")).expect("drained");
    }
}
