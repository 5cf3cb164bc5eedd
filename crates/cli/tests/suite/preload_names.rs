//! Names that preloaded programs look up without requests are never stale.

use crate::support::{Site, preload, succeed};

/// Code of programs of both frontends: attributes without the device, or the name of an error; and steps that one program runs
/// on request of another.
const FRONTENDS: &str = r#"
import errno, os, shutil, subprocess, sys

def attributes(path):
    try:
        found = os.lstat(path)
    except OSError as error:
        return errno.errorcode[error.errno]
    return (found.st_ino, found.st_mode, found.st_nlink, found.st_uid, found.st_gid, found.st_size, found.st_blocks,
            found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns)

class Frontend:
    """A process that runs steps on request, preloaded or not."""
    def __init__(self, preloaded, before=()):
        hidden = () if preloaded else ("LD_PRELOAD", "TAMEIKE_RING")
        env = {name: value for name, value in os.environ.items() if name not in hidden}
        command = [*before, sys.executable, "-c", "import sys; sys.argv = ['frontend']; exec(open(%r).read())" % sys.argv[0]]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
    def __call__(self, step):
        self.process.stdin.write(repr(step) + "\n"); self.process.stdin.flush()
        return eval(self.process.stdout.readline())
    def end(self):
        self.process.stdin.close()
        assert self.process.wait() == 0

def put(path, data, mode="wb"):
    with open(path, mode) as file:
        file.write(data)

def get(path):
    with open(path, "rb") as file:
        return file.read()

if sys.argv[0] == "frontend":
    kept = {}
    for line in sys.stdin:
        try:
            result = eval(eval(line))
        except OSError as error:
            result = errno.errorcode[error.errno]
        print(repr(result) if isinstance(result, (tuple, str, int)) else None, flush=True)
    sys.exit()
"#;

/// Runs a program with this code on some nodes; returns the number of lookups without requests.
fn lookups(nodes: u32, program: &str) -> u64 {
    let site = Site::new();
    let program = site.python(&format!("{FRONTENDS}{program}"));
    let script = format!(r#"cd "$TAMEIKE_SHARED"; {program}; tameike status --json"#);
    let status = succeed(&mut site.job(nodes, &["--preload"], &script));
    preload::counted(&status, "ring_looked_up")
}

/// S31b. S1a. S23b
///
/// A program of either frontend runs each step, between lookups of another that has cached the name.
#[test]
fn changes_on_a_node_are_seen_by_programs_that_cached_the_name() {
    let count = lookups(
        1,
        r#"
steps = (
    "os.chmod('dir/file', 0o640)",
    "os.utime('dir/file', ns=(5, 7))",
    "os.truncate('dir/file', 3000)",
    "put('dir/file', b'x' * 5000)",
    "put('dir/file', b'more', 'ab')",
    "kept.update(open=open('dir/file', 'r+b', buffering=0)) or kept['open'].write(b'y' * 9000)",
    "kept['open'].write(b'z' * 100)",
    "kept.pop('open').close()",
    "len(get('dir/file'))",
    "os.utime('dir/file')",
    "len(get('dir/file'))",
    "os.setxattr('dir/file', 'user.name', b'value')",
    "os.link('dir/file', 'dir/other')",
    "os.unlink('dir/other')",
    "os.unlink('dir/file')",
    "put('dir/file', b'newer')",
    "os.rename('dir/file', 'dir/away')",
    "put('dir/file', b'the next one')",
    "os.replace('dir/away', 'dir/file')",
    "os.rename('dir', 'old')",
    "os.mkdir('dir') or put('dir/file', b'of another directory')",
    "os.unlink('dir/file') or os.rmdir('dir')",
    "os.rename('old', 'dir')",
    "os.chmod('dir', 0o500) or os.chmod('dir', 0o700)",
)
frontends = Frontend(True), Frontend(False)
here, there = Frontend(True), Frontend(False)
def agree(*when):
    found = [attributes("dir/file"), here("attributes('dir/file')"), there("attributes('dir/file')")]
    assert found[0] == found[1] == found[2], (when, found)
os.mkdir("dir")
for round in range(4):
    put("dir/file", b"first")
    for step in steps:
        for _ in range(3):
            agree(round, step)
        result = frontends[round % 2](step)
        assert not isinstance(result, str), (step, result)
        agree(round, "after", step)
    os.unlink("dir/file")
for frontend in (*frontends, here, there):
    frontend.end()
os.rmdir("dir")
"#,
    );
    assert!(count > 300, "{count}");
}

/// Each stat of a file that a program of the node had just created was a request.
#[test]
fn files_that_a_node_has_created_are_looked_up_without_requests() {
    let count = lookups(
        1,
        r#"
os.makedirs("some/where")
for number in range(1000):
    put(f"some/where/{number}", b"x" * (number % 3))
here = Frontend(True)
assert here("sum(os.stat(f'some/where/{number}').st_size for number in range(1000))") == 999
here.end()
"#,
    );
    assert!(count > 900, "{count}");
}

/// S8a. S12a
#[test]
fn changes_of_another_node_are_seen_by_programs_that_cached_the_name() {
    let count = lookups(
        2,
        r#"
steps = (
    ("None", "os.chmod('dir/file', 0o640)"),
    ("None", "os.utime('dir/file', ns=(5, 7))"),
    ("None", "put('dir/file', b'x' * 5000)"),
    ("None", "os.truncate('dir/file', 3000)"),
    ("None", "os.setxattr('dir/file', 'user.name', b'value')"),
    ("None", "os.link('dir/file', 'dir/other')"),
    ("os.link('dir/file', 'dir/other')", "os.unlink('dir/other')"),
    ("None", "os.unlink('dir/file')"),
    ("None", "os.unlink('dir/file') or put('dir/file', b'newer')"),
    ("put('dir/new', b'the next one')", "os.replace('dir/new', 'dir/file')"),
    ("None", "os.rename('dir/file', 'dir/away')"),
    ("None", "os.rename('dir', 'old')"),
    ("os.mkdir('new') or put('new/file', b'of another directory')", "os.rename('dir', 'old') or os.rename('new', 'dir')"),
)
far = Frontend(True, ("tameike", "exec", "--node", "1", "--"))
for setup, step in steps:
    # Made here, so that this node answers for it.
    os.mkdir("dir")
    put("dir/file", b"first")
    eval(setup)
    for _ in range(5):
        before = attributes("dir/file")
    result = far(step)
    assert not isinstance(result, str), (step, result)
    found = attributes("dir/file")
    assert found != before, step
    expected = far("attributes('dir/file')")
    assert found == expected, (step, found, expected)
    for name in ("dir", "old"):
        shutil.rmtree(name, ignore_errors=True)
far.end()
"#,
    );
    assert!(count > 30, "{count}");
}
