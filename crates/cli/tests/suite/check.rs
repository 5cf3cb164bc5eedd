//! `tameike check`: the stores of a job that was killed are examined, damaged, repaired and recovered.

use crate::support::jobs::{Background, Job, new_job};
use crate::support::mounts::Mounts;
use crate::support::{Run, Site, assert_contains, shown, utf8};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Output;

const REPAIRED: i32 = 1;
const DAMAGED: i32 = 4;
const FAILED: i32 = 71;
const INCOMPLETE: i32 = 75;
/// Files of the job, each slightly larger than a unit.
const FILES: u32 = 4;
const SIZE: usize = 1_200_000;

/// A killed job of one node, whose shared directory had no space for its files.
struct Killed {
    site: Site,
    mounts: Mounts,
    job: Job,
    store: PathBuf,
}

impl Killed {
    fn new(name: &str) -> Option<Self> {
        let ((site, job), mounts) = (new_job(name), Mounts::new()?);
        mounts.mount_memory(site.shared(), "64k");
        let ready = site.plain().join("ready");
        let script = format!(
            r#"for i in $(seq {FILES}); do
                   head -c {SIZE} /dev/urandom > {expected}/$i; cat {expected}/$i > $TAMEIKE_CACHE/$i
               done
               mkdir $TAMEIKE_SHARED/dir; echo small > $TAMEIKE_SHARED/dir/note
               head -c 300000 /dev/zero > $TAMEIKE_SHARED/dir/zeros; sync $TAMEIKE_SHARED/dir/zeros
               touch {ready}; sleep 1000 & wait"#,
            expected = site.plain().display(),
            ready = ready.display(),
        );
        let options = ["--job", &job.name, "--memory", "64MiB", "--device", utf8(site.disk())];
        let running = Background::start_until(&mut mounts.inside(&site.job(1, &options, &script)), &ready);
        let store = job.devices(site.disk()).pop().expect("the store of the node");
        let killed = Self { site, mounts, job, store };
        assert_contains(&shown(&killed.check(&[], FAILED)), &["a process has the store"]);
        killed.job.kill(&killed.site, running, 0..1);
        Some(killed)
    }

    fn check(&self, options: &[&str], code: i32) -> Output {
        self.mounts.tameike(&self.site, &[&["check", utf8(&self.store)], options].concat()).exits(code)
    }

    fn expected(&self, file: u32) -> Vec<u8> {
        fs::read(self.site.plain().join(file.to_string())).expect("written by the job")
    }

    /// Flips a bit of these bytes on the device.
    fn damage(&self, bytes: &[u8]) {
        let path = self.store.join("extents");
        let file = fs::File::options().read(true).write(true).open(&path).expect("the extents file");
        let mut block = vec![0; 4096];
        let mut offsets = (0..file.metadata().expect("a file").len()).step_by(4096);
        let found = offsets.find(|&offset| {
            file.read_exact_at(&mut block, offset).expect("read");
            block == bytes
        });
        let offset = found.expect("the device has the data");
        file.write_all_at(&[bytes[7] ^ 1], offset + 7).expect("written");
    }

    /// The content of a file in the shared directory.
    fn drained(&self, file: u32) -> Vec<u8> {
        let path = self.site.shared().join(file.to_string());
        self.mounts.inside(std::process::Command::new("cat").arg(path)).output().expect("cat").stdout
    }
}

#[test]
fn damage_is_reported_and_repaired_and_the_rest_is_recovered() {
    let Some(killed) = Killed::new("check") else { return };
    let text = shown(&killed.check(&[], 0));
    assert_contains(&text, &["tameike: the store is whole", "`tameike recover` drains it"]);

    // Bytes 8192 to 12287 of the third file.
    killed.damage(&killed.expected(3)[8192..12_288]);
    let damaged = killed.check(&["--json"], DAMAGED);
    let document: Value = serde_json::from_slice(&damaged.stdout).expect("JSON");
    assert_eq!(document["outcome"], "damaged");
    let lost: Vec<_> = document["findings"]
        .as_array()
        .expect("findings")
        .iter()
        .filter(|finding| finding["severity"] != "note")
        .flat_map(|finding| finding["lost"].as_array().expect("losses").clone())
        .collect();
    assert_eq!(lost.len(), 1, "{document:#}");
    assert_eq!(
        (&lost[0]["file"], &lost[0]["start"], &lost[0]["end"]),
        (&"3".into(), &8192.into(), &12_288.into())
    );

    // A user who can write to the store could redirect writes of a repair.
    let mode = fs::metadata(&killed.store).expect("it is there").permissions();
    fs::set_permissions(&killed.store, fs::Permissions::from_mode(0o777)).expect("ours");
    let refused = killed.check(&["--repair"], FAILED);
    fs::set_permissions(&killed.store, mode).expect("ours");
    assert_contains(&shown(&refused), &["only the owner can repair a store"]);
    assert!(!killed.store.join("lost+found").exists());

    let repaired = killed.check(&["--repair"], REPAIRED);
    assert_contains(&shown(&repaired), &["LOST   extents  bytes 8192 to 12287 of 3 are lost"]);
    assert!(killed.store.join("lost+found/lost.txt").is_file());
    assert_contains(&shown(&killed.check(&[], 0)), &["found earlier: bytes 8192 to 12287 of 3 are lost"]);

    killed.mounts.resize(killed.site.shared(), "64m");
    let recover = ["recover", "--job", &killed.job.name];
    let tameike = |option: &str| killed.mounts.tameike(&killed.site, &[&recover[..], &[option]].concat());
    assert_contains(&shown(&tameike("--verify").exits(INCOMPLETE)), &["bytes 8192 to 12287 of 3 are lost"]);
    for file in 1..=FILES {
        let (mut drained, mut expected) = (killed.drained(file), killed.expected(file));
        if file == 3 {
            drained[8192..12_288].fill(0);
            expected[8192..12_288].fill(0);
        }
        assert!(drained == expected, "file {file}");
    }
    tameike("--discard").output().expect("it starts");
}

#[test]
fn other_directories_are_refused_and_not_changed() {
    let site = Site::new();
    for (path, reason) in [
        (site.plain(), "is not a node's store"),
        (&site.plain().join("nothing"), "No such file or directory"),
        (Path::new("/proc/version"), "is not a directory"),
    ] {
        let output = site.tameike(&["check", utf8(path), "--repair"]).exits(FAILED);
        assert_contains(&shown(&output), &[reason]);
    }
    assert_eq!(fs::read_dir(site.plain()).expect("read").count(), 0);
}
