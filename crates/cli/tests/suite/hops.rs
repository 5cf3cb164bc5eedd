//! The thread that reads a request also answers it, if this node and the shared file system suffice.
//!
//! Each hop to another thread waits for a core: on a busy machine, extraction of small files into the cache view took 15 ms a
//! file, nearly all of it for 35 hops.

use crate::support::{Site, succeed};
use std::fs;

const FILES: u32 = 500;
/// Other programs of the machine make the flusher work at the same time: one attempt of these must not.
const ATTEMPTS: usize = 4;
/// Limit of wake-ups per file of all threads that do not read requests. Kernel threads release files asynchronously, so
/// sometimes more threads work than the limit for blocked ones.
const WAKE_UPS_MAX: u32 = 6;

/// Creates files like tar, and prints the number of wake-ups of the agent's other threads.
const PROGRAM: &str = r#"
import glob, json, os, subprocess, sys

def agents(thing):
    if isinstance(thing, dict):
        if "resident_bytes" in thing: yield thing["pid"]
        thing = list(thing.values())
    if isinstance(thing, list):
        for part in thing: yield from agents(part)

[agent] = agents(json.loads(subprocess.check_output(["tameike", "status", "--json"])))

def wake_ups():
    count = 0
    for path in glob.glob(f"/proc/{agent}/task/*/status"):
        with open(path) as file: fields = dict(line.split(":", 1) for line in file)
        if fields["Name"].strip() in ("tameike-block", "tameike-reactor"):
            count += int(fields["voluntary_ctxt_switches"])
    return count

before = wake_ups()
assert before > 0, "no such threads"
for number in range(int(sys.argv[1])):
    file = os.open(f"file-{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(file, b"x" * 3000)
    os.utime(file, (1, 1)); os.fchown(file, os.getuid(), os.getgid()); os.fchmod(file, 0o644)
    os.close(file)
print("woken", wake_ups() - before)
"#;

#[test]
fn small_files_of_the_cache_view_are_created_without_hops() {
    let site = Site::new();
    let program = site.python(PROGRAM);
    let script = format!(
        r#"for attempt in $(seq {ATTEMPTS}); do mkdir "$TAMEIKE_CACHE/$attempt"; cd "$TAMEIKE_CACHE/$attempt"; {program} {FILES}; done"#
    );
    let text = succeed(&mut site.job(1, &["--memory", "64MiB"], &script));
    let woken: Vec<u32> =
        text.lines().map(|line| line["woken ".len()..].parse().expect("a number")).collect();
    println!("{woken:?} wake-ups for {FILES} files");
    assert_eq!(woken.len(), ATTEMPTS);
    assert!(woken.iter().any(|woken| *woken < WAKE_UPS_MAX * FILES), "{woken:?} wake-ups for {FILES} files");
    assert_eq!(fs::read(site.shared().join("1/file-0")).expect("a drained file"), [b'x'; 3000]);
}
