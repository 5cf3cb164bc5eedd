//! The peer cache: nodes that read the same file of the shared directory serve parts of it to each other from memory.

use crate::support::{Site, succeed};
use std::fs;
use tameike_core::limits::UNIT_SIZE;

const NODES: u32 = 4;
const SIZE: usize = 24 * UNIT_SIZE + 777;

/// Has each node read the file twice, then prints sums of counters, and the table.
const PROGRAM: &str = r#"
import collections, json, os, subprocess, sys

def counters(thing):
    if isinstance(thing, dict):
        yield from ((one["name"], one["value"]) for one in thing.get("counters", []))
        thing = list(thing.values())
    if isinstance(thing, list):
        for part in thing: yield from counters(part)

path = os.environ["TAMEIKE_CACHE"] + "/file"
for node in range(int(os.environ["TAMEIKE_NODES"])):
    compare = ["cmp", path, sys.argv[1]]
    subprocess.run(["tameike", "exec", "--node", str(node), "--", *compare], check=True)
    subprocess.run(["tameike", "exec", "--node", str(node), "--", *compare], check=True)
stat = ["tameike", "cache", "stat"]
sums = collections.Counter()
for name, value in counters(json.loads(subprocess.check_output([*stat, "--json"]))): sums[name] += value
print(*(f"{name}={sums[name]}" for name in sorted(sums)))
print(subprocess.check_output(stat, text=True))
"#;

#[test]
fn a_file_that_all_nodes_read_is_read_from_the_shared_directory_once() {
    let fabrics = ["auto", "tcp", "ofi:tcp", "ofi:shm"].map(|fabric| ["--fabric", fabric]);
    for how in fabrics.iter().map(|fabric| &fabric[..]).chain([&["--no-peer-reads"][..]]) {
        let site = Site::new();
        let content: Vec<u8> =
            (0..SIZE as u32 / 4 + 1).flat_map(|word| word.wrapping_mul(31).to_le_bytes()).collect();
        fs::write(site.shared().join("file"), &content[..SIZE]).expect("a file");
        fs::write(site.plain().join("same"), &content[..SIZE]).expect("a copy");
        let script = format!("{} {}", site.python(PROGRAM), site.plain().join("same").display());
        let text = succeed(&mut site.job(NODES, &[&["--memory", "128MiB"], how].concat(), &script));
        let value = |name: &str| {
            let start = text.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            start.and_then(|value| value.parse::<u64>().ok()).unwrap_or_else(|| panic!("{name} in {text}"))
        };
        assert_eq!(value("loaded_shared_bytes"), SIZE as u64, "{text}");
        assert_eq!(value("loaded_peer_memory_bytes"), 0, "the homes have it: {text}");
        // The kernel may read ahead some pages twice.
        let brought = value("read_home_bytes") + value("read_peer_memory_bytes");
        let wanted = u64::from(NODES) * SIZE as u64;
        assert!((wanted..wanted + wanted / 2).contains(&brought), "{brought} of {wanted}: {text}");
        assert!(value("peer_reads_served") <= value("peer_reads_requested"), "{text}");
        let by_libfabric = how.iter().any(|word| word.starts_with("ofi"));
        assert_eq!(text.contains("libfabric_read_bytes="), by_libfabric, "{text}");
        assert!(!by_libfabric || value("libfabric_read_bytes") > SIZE as u64, "{text}");
        assert!(how != ["--no-peer-reads"] || value("peer_reads_requested") == 0, "{text}");
        let rows = text.lines().filter(|line| line.contains(" localhost ")).count();
        assert_eq!(rows, NODES as usize, "{text}");
    }
}

/// A data set that is loaded first: each byte is read from the shared directory once in total.
#[test]
fn a_loaded_tree_is_read_from_the_shared_directory_once() {
    let site = Site::new();
    let tree = site.shared().join("tree");
    fs::create_dir_all(tree.join("a/b")).expect("directories");
    let mut size = 0;
    for (number, name) in ["small", "a/empty", "a/unit", "a/b/large", "a/b/odd"].into_iter().enumerate() {
        let length = [5000, 0, UNIT_SIZE, 9 * UNIT_SIZE, 3 * UNIT_SIZE + 1][number];
        fs::write(tree.join(name), vec![number as u8 + 1; length]).expect("a file");
        size += length as u64;
    }
    std::os::unix::fs::symlink("a/unit", tree.join("link")).expect("a link");
    let program = r#"
import json, os, subprocess, sys

def loaded():
    stat = json.loads(subprocess.check_output(["tameike", "cache", "stat", "--json"]))
    nodes = stat[0]["running"]["nodes"]
    parts = [one["value"] for node in nodes for one in node["status"]["counters"] if one["name"] == "loaded_shared_bytes"]
    return sum(parts), min(parts) > 0

def warm(*paths):
    return subprocess.run(["tameike", "cache", "warm", *paths], stderr=subprocess.PIPE, text=True)

tree = os.environ["TAMEIKE_CACHE"] + "/tree"
first = warm(tree)
print(first.returncode, first.stderr.split(" in ")[0], *loaded())
os.chdir(tree)
print(warm("small", "a/b").returncode, *loaded())
for node in range(3):
    compare = ["diff", "-r", "--no-dereference", tree, sys.argv[1]]
    subprocess.run(["tameike", "exec", "--node", str(node), "--", *compare], check=True)
print(*loaded())
missing = warm("small", "nothing")
print(missing.returncode, missing.stderr.splitlines()[1])
outside = warm("small", "/etc/passwd")
print(outside.returncode, "neither in the shared directory" in outside.stderr)
def lines(*what):
    return json.loads(subprocess.check_output(["tameike", "cache", "stat", "--json", *what]))["files"]
for line in lines("small", "a/b/large"):
    device, holders = sum(part["device_bytes"] for part in line["nodes"]), len(line["holders"])
    print(line["file"], device, holders, line["generation"] is not None)
print({"tree/small", "tree/a/unit", "tree/a/b/large", "tree/a/b/odd"} <= {line["file"] for line in lines("--files")})
head, row = subprocess.check_output(["tameike", "cache", "stat", "a/b/large"], text=True).splitlines()
print(head.split()[0], row.split()[0])
"#;
    let script = format!("{} {}", site.python(program), site.shared().join("tree").display());
    let text = succeed(&mut site.job(3, &["--memory", "64MiB"], &script));
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(
        lines,
        [
            &format!("0 tameike: 5 files loaded, 13.0 MiB {size} True"),
            &format!("0 {size} True"),
            &format!("{size} True"),
            "71 tameike: tree/nothing: ENOENT: no such file or directory",
            "71 True",
            "small 5000 3 True",
            &format!("a/b/large {} 3 True", 9 * UNIT_SIZE),
            "True",
            "file a/b/large",
        ]
    );
}

/// Files that do not fit are reported and not counted; holes need no space, and names may have any bytes.
#[test]
fn files_that_do_not_fit_are_reported_and_holes_and_odd_names_work() {
    use std::os::unix::ffi::OsStrExt;
    let site = Site::new();
    let odd = std::ffi::OsStr::from_bytes(b"odd \xff name");
    fs::create_dir(site.shared().join(odd)).expect("a directory");
    fs::write(site.shared().join(odd).join(odd), vec![1; 3 * UNIT_SIZE]).expect("a file");
    let sparse = fs::File::create(site.shared().join("sparse")).expect("a file");
    sparse.set_len(100 * UNIT_SIZE as u64).expect("a length");
    fs::create_dir(site.shared().join("much")).expect("a directory");
    for number in 0..20 {
        fs::write(site.shared().join("much").join(number.to_string()), vec![2; 2 * UNIT_SIZE])
            .expect("a file");
    }
    let script = r#"cd "$TAMEIKE_CACHE"
        warm() { tameike cache warm "$@" 2>&1 | sed 's/ in [0-9.]* s$//'; }
        loaded() { tameike cache stat --json | grep -A1 loaded_shared_bytes | grep -o '[0-9]*$' | awk '{ sum += $1 } END { print sum }'; }
        warm odd*; loaded
        warm sparse; loaded
        words=$(tameike cache warm much 2>&1) && exit 1 || test $? = 71
        echo "$words" | tail -1 | sed 's/^.* of [0-9]* files/some of many files/'
        # What does not fit is not read either, except what was being read at that moment.
        test $(loaded) -le $((27 << 20))"#;
    let options = ["--memory", "64MiB", "--capacity", "cache=8M,shared=8M,node-local=8M"];
    let text = succeed(&mut site.job(2, &options, script));
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[..2], ["tameike: 1 file loaded, 3.00 MiB", "3145728"], "{text}");
    assert_eq!(lines[2..4], ["tameike: 1 file loaded, 100 MiB", "3145728"], "{text}");
    assert!(lines[4].starts_with("some of many files did not fit the cache area"), "{text}");
}
