//! S19a, S19b.

use crate::support::{Site, succeed, utf8};
use std::fs;

/// Fills the view with files of 3 MB until one fails, then checks the invariants.
///
/// `free` is the available space of `df` in KiB; a full view and one that is empty again report it.
const FILL: &str = r#"
    free() { df --output=avail -k . | tail -n 1; }
    seq 500000 | head -c 3000000 > pattern; kept=$(cksum < pattern); before=$(free)
    files=0; while on $((files % 2)) "cp pattern file-$files 2>/dev/null"; do files=$((files + 1)); test $files -lt 100; done
    test $files -ge 2; test $(free) -lt 8192
    on 1 '! head -c 8000000 /dev/zero > large 2>/dev/null'
    python3 - <<'END'
import errno, os
try:
    with open("large", "wb") as file:
        for _ in range(100): file.write(bytes(1000000))
        os.fsync(file.fileno())
except OSError as error: assert error.errno == errno.ENOSPC, error
else: raise AssertionError("100 MB fitted")
END
    rm -f large file-$files
    i=0; while [ $i -lt $files ]; do export kept; on $((i % 2)) "test \"\$(cksum < file-$i)\" = \"$kept\""; i=$((i + 1)); done
    rm file-0; on 1 'cp pattern again; cmp pattern again'
    rm again file-*; rm pattern
    i=0; while [ $(free) -lt $((before - 2048)) ]; do i=$((i + 1)); test $i -lt 200 || { echo "$before before, $(free) now"; exit 1; }; sleep 0.05; done
"#;
/// Runs a command on a node of the job, in the same directory.
const ON: &str = r#"on() { node=$1; shift; tameike exec --node "$node" -- sh -euc "$*"; }
"#;

#[test]
fn a_full_shared_view_returns_enospc_and_keeps_its_files() {
    let site = Site::new();
    let script = format!(r#"{ON} cd "$TAMEIKE_SHARED"; {FILL}"#);
    succeed(&mut site.job(2, &["--capacity", "shared=16M"], &script));
}

#[test]
fn a_full_node_local_view_returns_enospc_and_keeps_its_files() {
    fill_node_local(&Site::new(), "ram");
    let site = Site::new();
    fill_node_local(&site, utf8(site.disk()));
}

fn fill_node_local(site: &Site, device: &str) {
    let script = format!(
        r#"on() {{ shift; sh -euc "$*"; }}
        cd "$TAMEIKE_NODE_LOCAL"; {FILL}
        # Holes take no space, what is put into them does.
        echo x | dd of=holes bs=1 seek=5000000000 status=none; test $(free) -gt 15000; test $(stat -c %s holes) = 5000000002
        ! head -c 20000000 /dev/zero | dd of=holes bs=100000 conv=notrunc status=none 2>/dev/null; rm holes
        # What is removed while open takes its space until it is closed, and no longer.
        i=0; while [ $i -lt 10 ]; do
            exec 3<>temporary; rm temporary; head -c 12000000 /dev/zero >&3; test $(free) -lt 6000; exec 3>&-; i=$((i + 1))
        done
        python3 -c "
import os
file = os.open('orphan', os.O_RDWR | os.O_CREAT); os.unlink('orphan')
os.ftruncate(file, 1000000); os.fchmod(file, 0o600); assert os.fstat(file).st_size == 1000000
os.ftruncate(file, 10); assert os.pread(file, 100, 0) == bytes(10)""#
    );
    succeed(&mut site.job(1, &["--capacity", "node-local=16M", "--device", device], &script));
}

#[test]
fn the_cache_view_takes_three_times_its_capacity() {
    let site = Site::new();
    let script = format!(
        r#"{ON} cd "$TAMEIKE_CACHE"; cat input | cmp - input
        seq 900000 | head -c 6000000 > part; i=0
        while [ $i -lt 16 ]; do on $((i % 2)) "cat part part > file-$i"; i=$((i + 1)); done
        i=0; while [ $i -lt 16 ]; do on $(((i + 1) % 2)) "cat part part | cmp - file-$i"; i=$((i + 1)); done
        rm part; cat input > /dev/null"#
    );
    let input: Vec<u8> = (0..40_000_000u32).map(|index| (index / 977) as u8).collect();
    fs::write(site.shared().join("input"), &input).expect("an input larger than the view");
    succeed(&mut site.job(2, &["--capacity", "cache=32M"], &script));
    let lines: Vec<u8> =
        (1..=900_000).flat_map(|line| format!("{line}\n").into_bytes()).take(6_000_000).collect();
    for file in 0..16 {
        let drained = fs::read(site.shared().join(format!("file-{file}"))).expect("a drained file");
        assert!(drained == [&lines[..], &lines[..]].concat(), "file-{file} differs");
    }
}

/// A regression: writes that waited for space at their home held its request frames, and flush messages were queued behind
/// more writes. A job hung if its program wrote a large file on the node that coordinates it. Each file has units on one node
/// only, so that its writes meet there; the number chooses the coordinator.
#[test]
fn files_larger_than_the_capacity_of_their_home_are_written() {
    let site = Site::new();
    let script = r#"cd "$TAMEIKE_CACHE"; python3 - <<'END'
import os
unit = 1 << 20
for number in range(12):
    file = os.open(f"large-{number}", os.O_CREAT | os.O_WRONLY)
    for unit_index in range(24):
        os.pwrite(file, bytes([number, unit_index]) * (unit // 2), (2 * unit_index + number % 2) * unit)
    os.close(file)
END"#;
    succeed(&mut site.job(2, &["--memory", "64M", "--capacity", "cache=16M"], script));
    for number in 0..12u8 {
        let drained = fs::read(site.shared().join(format!("large-{number}"))).expect("a drained file");
        for index in 0..24u8 {
            let start = (2 * usize::from(index) + usize::from(number % 2)) << 20;
            let unit = &drained[start..start + (1 << 20)];
            assert!(unit.chunks(2).all(|pair| pair == [number, index]), "large-{number}, unit {index}");
        }
    }
}
