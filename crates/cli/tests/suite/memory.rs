//! Agent memory stays within its configured limit: the frames, and the fixed allowance of `docs/memory.md`, for any amount of
//! data and files.

use crate::support::{Site, is_soak, succeed};

/// Memory of an agent besides its frames, according to `docs/memory.md`.
const ALLOWANCE_MIB: u64 = 128;
/// Frames of each agent in this test.
const FRAMES_MIB: u64 = 64;

/// Prints the peak resident memory of each agent in MiB.
const PEAKS: &str = r#"
    peaks() { tameike status --json | python3 -c "
import json, sys
def agents(thing):
    if isinstance(thing, dict):
        if 'resident_bytes' in thing: yield thing['pid'], thing['resident_bytes']
        thing = list(thing.values())
    if isinstance(thing, list):
        for part in thing: yield from agents(part)
for pid, resident in sorted(agents(json.load(sys.stdin))):
    status = dict(line.split(':', 1) for line in open(f'/proc/{pid}/status'))
    peak = int(status['VmHWM'].split()[0]) * 1024
    assert 0 < resident <= peak, (resident, peak)
    print('peak', peak // 1048576, 'MiB, reported', resident // 1048576, 'MiB')
"; }
"#;

/// Runs a script in a job of two nodes, and checks the memory of its agents at the end.
fn assert_bounded(script: &str) {
    let site = Site::new();
    let options = ["--capacity", "shared=256M,cache=256M,node-local=64M", "--memory", "64M"];
    let text = succeed(&mut site.job(2, &options, &format!("{PEAKS}{script}\npeaks")));
    let peaks: Vec<u64> =
        text.lines().filter_map(|line| line.strip_prefix("peak ")?.split(' ').next()?.parse().ok()).collect();
    assert_eq!(peaks.len(), 2, "{text}");
    let bound = FRAMES_MIB + ALLOWANCE_MIB;
    assert!(peaks.iter().all(|&peak| peak > 0 && peak <= bound), "more than {bound} MiB:\n{text}");
    println!("{text}");
}

#[test]
fn memory_stays_bounded_while_data_passes_through() {
    let rounds = if is_soak() { 80 } else { 8 };
    assert_bounded(&format!(
        r#"round=0
        while [ $round -lt {rounds} ]; do
            for view in "$TAMEIKE_SHARED" "$TAMEIKE_CACHE"; do
                cd "$view"
                tameike exec --all -- sh -euc 'dd if=/dev/zero of=file-$TAMEIKE_NODE bs=1M count=64 status=none'
                tameike exec --all -- sh -euc 'cat file-0 file-1 | wc -c > /dev/null; test $(stat -c %s file-$TAMEIKE_NODE) = 67108864'
                rm file-0 file-1
            done
            round=$((round + 1))
        done"#
    ));
}

#[test]
fn memory_stays_bounded_while_files_come_and_go() {
    let files = if is_soak() { 100_000 } else { 4_000 };
    assert_bounded(&format!(
        r#"for view in "$TAMEIKE_SHARED" "$TAMEIKE_CACHE"; do
            cd "$view"
            tameike exec --all -- python3 -c "
import os
mine = 'dir-' + os.environ['TAMEIKE_NODE']
os.mkdir(mine)
for start in range(0, {files} // 2, 1000):
    names = [mine + '/' + str(start + i) for i in range(1000)]
    for name in names:
        with open(name, 'w') as file: file.write(name * 20)
    for name in names: os.unlink(name)
os.rmdir(mine)"
        done"#
    ));
}

/// Node 1 is stopped while four programs of node 0 write files that it stores in part, until no frame is left; node 0 must
/// still read its own data. A regression: the four threads that serve the view waited in those writes, and the read with
/// them.
#[test]
fn a_view_is_served_while_writes_wait_for_frames() {
    let site = Site::new();
    let program = site.python(include_str!("memory/pressure.py"));
    let options = ["--capacity", "shared=512M,cache=512M,node-local=64M", "--memory", "128M"];
    let text = succeed(&mut site.job(2, &options, &program));
    assert_eq!(text.matches("read while").count(), 2, "{text}");
}

/// A regression: cached data of the node's own store used the frames with which the store answers reads. They ran out, and
/// sequential readers waited forever.
#[test]
fn cached_data_of_the_own_store_does_not_use_the_stores_frames() {
    let site = Site::new();
    let script = r#"for view in "$TAMEIKE_SHARED" "$TAMEIKE_CACHE"; do
            head -c 100000000 /dev/urandom >"$view/file"
            for round in 1 2; do
                read=$(timeout --signal=KILL 60 dd "if=$view/file" bs=47008 iflag=direct status=none | cksum)
                test "$read" = "$(cksum <"$view/file")"
            done
        done"#;
    succeed(&mut site.job(1, &["--memory", "48M"], script));
}
