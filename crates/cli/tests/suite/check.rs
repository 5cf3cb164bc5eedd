//! `tameike check`: the stores of a job that was killed are examined, damaged, repaired and recovered.

use crate::support::mounts::Mounts;
use crate::support::victims::{Background, JobPlace, end_programs, signal, wait_for};
use crate::support::{Site, processes_naming, shown};
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
    place: JobPlace,
    store: PathBuf,
}

impl Killed {
    fn new(name: &str) -> Option<Self> {
        let (site, mounts) = (Site::new(), Mounts::new()?);
        mounts.mount_memory(&site.shared(), "64k");
        let (expected, device) = (site.base().join("expected"), site.base().join("device"));
        fs::create_dir(&expected).expect("a directory");
        fs::create_dir(&device).expect("a directory");
        let place = JobPlace::new(&site, &format!("{name}-{}", std::process::id()));
        let ready = site.base().join("ready");
        let script = format!(
            r#"for i in $(seq {FILES}); do
                   head -c {SIZE} /dev/urandom > {expected}/$i; cat {expected}/$i > $TAMEIKE_CACHE/$i
               done
               mkdir $TAMEIKE_SHARED/dir; echo small > $TAMEIKE_SHARED/dir/note
               head -c 300000 /dev/zero > $TAMEIKE_SHARED/dir/zeros; sync $TAMEIKE_SHARED/dir/zeros
               touch {ready}; sleep 1000 & wait"#,
            expected = expected.display(),
            ready = ready.display(),
        );
        let device_option = device.to_str().expect("plain path");
        let options = ["--job", &place.job, "--memory", "64MiB", "--device", device_option];
        let mut job = Background::start(&mut mounts.inside(&site.job(1, &options, &script)));
        wait_for("the job", || (ready.exists() || !job.runs()).then_some(()));
        let store = place.devices(&device).pop().expect("the store of the node");
        let killed = Self { site, mounts, place, store };
        let busy = killed.check(&[]);
        assert_eq!(busy.status.code(), Some(FAILED), "{}", shown(&busy));
        assert!(shown(&busy).contains("a process has the store"), "{}", shown(&busy));
        // The agent first: it would clean up after the exit of its driver.
        assert!(killed.place.kill_agent(0) && signal(job.program(), "KILL"));
        let base = killed.site.base();
        let base = base.to_str().expect("plain path");
        wait_for("the end of all processes", || {
            end_programs(base);
            processes_naming(base).is_empty().then_some(())
        });
        job.output();
        Some(killed)
    }

    fn check(&self, options: &[&str]) -> Output {
        let store = self.store.to_str().expect("plain path");
        self.mounts.tameike(&self.site, &[&["check", store], options].concat())
    }

    fn expected(&self, file: u32) -> Vec<u8> {
        fs::read(self.site.base().join(format!("expected/{file}"))).expect("written by the job")
    }

    /// Flips a bit of these bytes on the device.
    fn damage(&self, bytes: &[u8]) {
        let path = self.store.join("extents");
        let file = fs::File::options().read(true).write(true).open(&path).expect("the extents file");
        let mut block = vec![0; 4096];
        let mut places = (0..file.metadata().expect("a file").len()).step_by(4096);
        let found = places.find(|&place| {
            file.read_exact_at(&mut block, place).expect("read");
            block == bytes
        });
        let place = found.expect("the device has the data");
        file.write_all_at(&[bytes[7] ^ 1], place + 7).expect("written");
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
    let whole = killed.check(&[]);
    assert_eq!(whole.status.code(), Some(0), "{}", shown(&whole));
    let text = shown(&whole);
    assert!(
        text.contains("tameike: the store is whole") && text.contains("`tameike recover` drains it"),
        "{text}"
    );

    // Bytes 8192 to 12287 of the third file.
    killed.damage(&killed.expected(3)[8192..12_288]);
    let damaged = killed.check(&["--json"]);
    assert_eq!(damaged.status.code(), Some(DAMAGED), "{}", shown(&damaged));
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
    let refused = killed.check(&["--repair"]);
    fs::set_permissions(&killed.store, mode).expect("ours");
    let text = shown(&refused);
    assert_eq!(refused.status.code(), Some(FAILED), "{text}");
    assert!(text.contains("only the owner can repair a store"), "{text}");
    assert!(!killed.store.join("lost+found").exists());

    let repaired = killed.check(&["--repair"]);
    let text = shown(&repaired);
    assert_eq!(repaired.status.code(), Some(REPAIRED), "{text}");
    assert!(text.contains("LOST   extents  bytes 8192 to 12287 of 3 are lost"), "{text}");
    assert!(killed.store.join("lost+found/lost.txt").is_file());
    let again = killed.check(&[]);
    assert_eq!(again.status.code(), Some(0), "{}", shown(&again));
    assert!(shown(&again).contains("found earlier: bytes 8192 to 12287 of 3 are lost"), "{}", shown(&again));

    killed.mounts.must(&format!("mount -o remount,size=64m {}", killed.site.shared().display()));
    let recovered = killed.mounts.tameike(&killed.site, &["recover", "--job", &killed.place.job, "--verify"]);
    let text = shown(&recovered);
    assert_eq!(recovered.status.code(), Some(INCOMPLETE), "{text}");
    assert!(text.contains("bytes 8192 to 12287 of 3 are lost"), "{text}");
    for file in 1..=FILES {
        let (mut drained, mut expected) = (killed.drained(file), killed.expected(file));
        if file == 3 {
            drained[8192..12_288].fill(0);
            expected[8192..12_288].fill(0);
        }
        assert!(drained == expected, "file {file}");
    }
    killed.mounts.tameike(&killed.site, &["recover", "--job", &killed.place.job, "--discard"]);
    killed.place.assert_gone();
}

#[test]
fn other_directories_are_refused_and_not_changed() {
    let site = Site::new();
    let dir = site.base().join("empty");
    fs::create_dir(&dir).expect("a directory");
    for (path, words) in [
        (dir.as_path(), "is not a node's store"),
        (&dir.join("nothing"), "No such file or directory"),
        (Path::new("/proc/version"), "is not a directory"),
    ] {
        let output = site.tameike(&["check", path.to_str().expect("plain path"), "--repair"]).output();
        let output = output.expect("it starts");
        assert_eq!(output.status.code(), Some(FAILED), "{}", shown(&output));
        assert!(shown(&output).contains(words), "{}", shown(&output));
    }
    assert_eq!(fs::read_dir(&dir).expect("read").count(), 0);
}
