//! `tameike check --replicas`: devices of a running job change bytes, and the copies on other nodes repair them.

use crate::support::jobs::{Background, new_job};
use crate::support::{Run, assert_code, assert_contains, out, shown, utf8};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

const UNIT: usize = 1 << 20;
const BLOCK: usize = 4096;
/// Units of the file.
const UNITS: usize = 12;

const CAPACITY: &str = "96M";

/// The places of a block on a device.
fn places(device: &fs::File, bytes: &[u8]) -> Vec<u64> {
    let mut block = [0; BLOCK];
    let mut has = |offset: &u64| {
        device.read_exact_at(&mut block, *offset).expect("read");
        block == bytes
    };
    let size = device.metadata().expect("a file").len() / BLOCK as u64 * BLOCK as u64;
    (0..size).step_by(BLOCK).filter(|offset| has(offset)).collect()
}

fn open(store: &Path) -> fs::File {
    fs::File::options().read(true).write(true).open(store.join("extents")).expect("the extents file")
}

/// S53a.
#[test]
fn damaged_bytes_of_a_running_job_are_replaced_by_those_of_another_copy() {
    let (site, job) = new_job("copies");
    let [expected, ready, go] = ["expected", "ready", "go"].map(|name| site.plain().join(name));
    let script = format!(
        r#"head -c {size} /dev/urandom > {expected}; cp {expected} $TAMEIKE_SHARED/file; sync $TAMEIKE_SHARED/file
           touch {ready}; until test -e {go}; do sleep 0.05; done
           for node in 0 1 2; do tameike exec --node $node -- cmp {expected} $TAMEIKE_SHARED/file; done"#,
        size = UNITS * UNIT,
        expected = expected.display(),
        ready = ready.display(),
        go = go.display()
    );
    let options =
        ["--job", &job.name, "--replicas", "2", "--device", utf8(site.disk()), "--capacity", CAPACITY];
    let running = Background::start_until(&mut site.job(3, &options, &script), &ready);
    let check = |options: &[&str]| {
        let arguments = ["check", "--replicas", "--job", &job.name];
        site.tameike(&[&arguments, options].concat()).exits(0)
    };
    assert_contains(&out(&check(&[])), &["tameike: all copies are equal\n"]);

    let content = fs::read(&expected).expect("written by the job");
    let devices: Vec<_> = job.devices(site.disk()).iter().map(|store| open(store)).collect();
    // The second block of each unit, which two nodes have. Node 1 is the primary of some units, and the backup of others.
    let blocks = || content.chunks(UNIT).map(|unit| &unit[BLOCK..2 * BLOCK]);
    let mut damaged = 0;
    for block in blocks() {
        let found: Vec<_> = devices.iter().map(|device| places(device, block)).collect();
        assert_eq!(found.iter().map(Vec::len).sum::<usize>(), 2, "{found:?}");
        for &place in &found[1] {
            devices[1].write_all_at(&[block[7] ^ 1], place + 7).expect("written");
            damaged += 1;
        }
    }
    assert!(damaged > 1, "{damaged}");
    let repaired = check(&["--json"]);
    let document: Value = serde_json::from_str(&out(&repaired)).expect("JSON");
    let nodes = document["nodes"].as_array().expect("nodes");
    let count =
        |name: &str| nodes.iter().map(|node| node["report"][name].as_u64().expect("a number")).sum::<u64>();
    assert_eq!(
        (document["outcome"].as_str(), count("differences"), count("repaired")),
        (Some("repaired"), damaged, damaged)
    );
    assert_eq!((count("units"), count("failed")), (UNITS as u64, 0), "{document:#}");
    let differences = |node: usize| nodes[node]["report"]["differences"].as_u64().expect("a number");
    assert!(differences(1) > 0 && differences(0) + differences(2) > 0, "{document:#}");
    for block in blocks() {
        let found: Vec<_> = devices.iter().map(|device| places(device, block)).collect();
        assert_eq!(found.iter().filter(|places| !places.is_empty()).count(), 2, "{found:?}");
    }
    assert_contains(&out(&check(&[])), &["tameike: all copies are equal\n"]);
    fs::write(&go, "").expect("written");
    let output = running.output();
    assert_code(&output, 0);
    assert!(!shown(&output).contains("damaged"), "{}", shown(&output));
}
