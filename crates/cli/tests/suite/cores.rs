//! `--cores` binds the agent, and nothing else.

use crate::support::{Site, assert_contains, err, shown, succeed};

/// Prints the cores that `status` reports, and the affinity of the agent's threads and of this program. Threads of FUSE by
/// io_uring are bound to one core each.
const PROGRAM: &str = r#"
import glob, json, os, subprocess

def agents(thing):
    if isinstance(thing, dict):
        if "resident_bytes" in thing: yield thing
        thing = list(thing.values())
    if isinstance(thing, list):
        for part in thing: yield from agents(part)

def allowed(path):
    with open(path) as file: return dict(line.split(":", 1) for line in file)["Cpus_allowed_list"].strip()

def numbers(cores):
    ranges = [part.split("-") for part in cores.split(",")]
    return {core for ends in ranges for core in range(int(ends[0]), int(ends[-1]) + 1)}

[agent] = agents(json.loads(subprocess.check_output(["tameike", "status", "--json"])))
threads = glob.glob(f"/proc/{agent['pid']}/task/*/status")
assert len(threads) > 8, threads
print("status", agent["cores"])
used = set.union(*(numbers(allowed(thread)) for thread in threads))
print("agent", "there" if used == numbers(agent["cores"]) else used)
print("program", allowed("/proc/self/status"))
"#;

fn cores_of(site: &Site, options: &[&str]) -> String {
    succeed(&mut site.job(1, options, &site.python(PROGRAM)))
}

#[test]
fn agents_stay_on_their_cores() {
    let site = Site::new();
    let all = tameike_io::os::process::own_cores().expect("Linux reports it");
    let one = all.iter().last().expect("a core").to_string();
    let bound = cores_of(&site, &["--cores", &one]);
    assert_eq!(bound, format!("status {one}\nagent there\nprogram {all}\n"));
    assert_eq!(cores_of(&site, &[]), format!("status {all}\nagent there\nprogram {all}\n"));
}

#[test]
fn cores_that_are_not_available_are_refused() {
    let site = Site::new();
    let output = site.job(2, &["--cores", "0,1023"], "echo runs").output().expect("starts");
    assert!(!output.status.success() && output.stdout.is_empty(), "{}", shown(&output));
    assert_contains(&err(&output), &["but not 1023", "nodes 0, 1"]);
}
