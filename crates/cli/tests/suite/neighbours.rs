//! Agents of one host with devices in memory, which read each other's devices directly.

use crate::support::{Site, succeed};

/// Runs a Python program on node 0 of a job of two nodes, through the kernel and with the library; returns the outputs.
fn run(program: &str) -> [String; 2] {
    run_with(&[], program)
}

fn run_with(more: &[&str], program: &str) -> [String; 2] {
    let small = [&["--memory", "64MiB", "--capacity", "512MiB"], more].concat();
    [&small[..], &[&small[..], &["--preload"]].concat()].map(|options| {
        let site = Site::new();
        succeed(&mut site.job(2, options, &site.python(program)))
    })
}

/// The device of the other node is damaged: the reader gets an error, and no wrong data. The writer still has the data in
/// memory.
#[test]
fn damage_on_the_device_of_a_neighbour_is_an_error() {
    let program = r#"
import errno, glob, mmap, os, subprocess, sys

UNIT, UNITS = 1 << 20, 8
path = os.environ["TAMEIKE_SHARED"] + "/file"

def outcomes():
    found, file = [], os.open(path, os.O_RDONLY)
    for unit in range(UNITS):
        try:
            bytes = os.pread(file, UNIT, unit * UNIT)
            right = b"%08d" % unit * (UNIT // 8)
            # The kernel asks for a part at a time, and reports an error after the first one as a short read.
            found.append("right" if bytes == right else "short" if right.startswith(bytes) else "wrong")
        except OSError as error:
            found.append("short" if error.errno == errno.EIO else str(error))
    os.close(file)
    return found

if sys.argv[1:]:
    print(*outcomes())
    sys.exit()
with open(path, "wb", buffering=0) as file:
    for unit in range(UNITS): file.write(b"%08d" % unit * (UNIT // 8))
    os.fsync(file.fileno())
damaged = 0
for device in glob.glob(f"/dev/shm/tameike-*{os.environ['TAMEIKE_JOB']}*/extents"):
    with open(device, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        for unit in range(1, UNITS):
            at = memory.find(b"%08d" % unit * 512)
            if at >= 0: memory[at + 5000] ^= 1; damaged += 1
print(damaged)
program = ["tameike", "exec", "--node", "1", "--", "python3", sys.argv[0], "read"]
print(subprocess.run(program, check=True, capture_output=True, text=True).stdout)
"#;
    for messages in run_with(&["--no-peer-reads"], program) {
        let words: Vec<_> = messages.split_whitespace().collect();
        assert_eq!(words, ["7", "right", "short", "short", "short", "short", "short", "short", "short"]);
    }
}

/// Data that one node rewrites and removes while another reads it changes its extent locations: the reader gets bytes of the
/// file from the right offset, whatever has replaced the old extents.
#[test]
fn data_that_is_rewritten_during_a_direct_read_is_never_read_wrong() {
    let program = r#"
import os, subprocess, sys, time

UNIT, UNITS, BLOCK = 1 << 20, 6, 4096
path = os.environ["TAMEIKE_SHARED"] + "/file"

def content(name, version, unit):
    blocks = range(unit * UNIT // BLOCK, (unit + 1) * UNIT // BLOCK)
    return b"".join(b"%-8s%08d" % (name, block) + b"%016d" % version * (BLOCK // 16 - 1) for block in blocks)

def write(path, name, version):
    with open(path, "r+b" if os.path.exists(path) else "wb", buffering=0) as file:
        for unit in range(UNITS): file.write(content(name, version, unit))
        os.fsync(file.fileno())

if sys.argv[1:]:
    count, versions = 0, set()
    while not os.path.exists(path + ".end"):
        with open(path, "rb", buffering=0) as file:
            for unit in range(UNITS):
                bytes = os.pread(file.fileno(), UNIT, unit * UNIT)
                for at in range(0, UNIT, BLOCK):
                    block = bytes[at:at + BLOCK]
                    assert block[:16] == b"%-8s%08d" % (b"file", (unit * UNIT + at) // BLOCK), block[:32]
                    assert block[16:32] * (BLOCK // 16 - 1) == block[16:], "bytes of two versions in a block"
                    versions.add(int(block[16:32]))
                count += 1
    print("read", count, len(versions) > 1)
    sys.exit()
write(path, b"file", 0)
reader = subprocess.Popen(["tameike", "exec", "--node", "1", "--", "python3", sys.argv[0], "read"])
until, version = time.monotonic() + 4, 0
while time.monotonic() < until and reader.poll() is None:
    version += 1
    write(path, b"file", version)
    write(path + ".other", b"other", version)
    os.unlink(path + ".other")
open(path + ".end", "w").close()
sys.exit(reader.wait())
"#;
    for messages in run(program) {
        let words: Vec<_> = messages.split_whitespace().collect();
        assert!(words.len() == 3 && words[0] == "read", "{messages}");
        let (count, changed) = (words[1], words[2]);
        println!("{count} units were read");
        assert!(count.parse::<u32>().is_ok_and(|count| count > 0) && changed == "True", "{messages}");
    }
}

/// Several threads read records of odd sizes in a program that closes all unknown descriptors in between: the library keeps
/// its descriptors of devices.
#[test]
fn reads_on_devices_work_after_a_program_closes_all_descriptors() {
    let program = r#"
import os, subprocess, sys, threading

UNIT, UNITS, RECORD = 1 << 20, 24, 47008
path = os.environ["TAMEIKE_SHARED"] + "/file"

def content(start, end):
    return b"".join(b"%016d" % number for number in range(start // 16, -(-end // 16)))[start % 16:][:end - start]

def devices():
    links = [os.readlink(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd") if int(number) > 900]
    return sum(link.endswith("/extents") for link in links)

def read(first):
    with open(path, "rb", buffering=0) as file:
        for start in range(first * RECORD, UNITS * UNIT, 3 * RECORD):
            end = min(start + RECORD, UNITS * UNIT)
            assert os.pread(file.fileno(), end - start, start) == content(start, end), start

if sys.argv[1:]:
    for round in range(3):
        os.closerange(3, 4096)
        threads = [threading.Thread(target=read, args=(first,)) for first in range(3)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
    print(devices(), "devices")
    sys.exit()
with open(path, "wb", buffering=0) as file:
    for unit in range(UNITS): file.write(content(unit * UNIT, (unit + 1) * UNIT))
    os.fsync(file.fileno())
program = ["tameike", "exec", "--node", "1", "--", "python3", sys.argv[0], "read"]
print(subprocess.run(program, check=True, stdout=subprocess.PIPE, text=True).stdout)
"#;
    assert_eq!(run(program).map(|messages| messages.trim().to_owned()), ["0 devices", "2 devices"]);
}
