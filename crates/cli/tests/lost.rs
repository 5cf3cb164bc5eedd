//! Data that was only in memory and is gone, and memory of jobs of which nothing else is left.

#[path = "support/mounts.rs"]
mod mounts;
mod support;
#[path = "support/victims.rs"]
mod victims;

use mounts::Mounts;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::{Mutex, PoisonError};
use support::{Site, processes_naming, shown};
use victims::{Background, JobPlace, end_programs, signal, wait_for};

/// The memory of jobs that are gone is the user's: `recover --discard` of one test gives up that of all.
static ALONE: Mutex<()> = Mutex::new(());

const INCOMPLETE: i32 = 75;
const MEMORY: &str = "/dev/shm";

/// A job of two nodes that was killed with all of its agents. Its shared directory has room for little of what
/// it wrote.
struct Killed {
    site: Site,
    mounts: Mounts,
    place: JobPlace,
}

impl Killed {
    fn new(name: &str, script: &str) -> Option<Self> {
        Self::of_fabric(name, script, "auto")
    }

    fn of_fabric(name: &str, script: &str, fabric: &str) -> Option<Self> {
        let (site, mounts) = (Site::new(), Mounts::new()?);
        mounts.mount_memory(&site.shared(), "1m");
        let place = JobPlace::new(&site, &format!("{name}-{}", std::process::id()));
        let ready = site.shared().with_file_name("ready");
        let script = format!("{script}\nsleep 1000 & touch {}; wait", ready.display());
        let options = ["--job", &place.job, "--memory", "64MiB", "--fabric", fabric];
        let mut job = Background::start(&mut mounts.inside(&site.job(2, &options, &script)));
        wait_for("the job", || (ready.exists() || !job.runs()).then_some(()));
        // The agents first: they would clear away after their driver. And it would after them.
        assert!(signal(job.program(), "STOP"));
        assert!(place.kill_agents(0..2));
        assert!(signal(job.program(), "KILL"));
        // Nobody is left to end what runs in the nodes.
        let base = site.base();
        let base = base.to_str().expect("plain path");
        wait_for("the end of all processes", || {
            end_programs(base);
            processes_naming(base).is_empty().then_some(())
        });
        job.output();
        Some(Self { site, mounts, place })
    }

    fn devices(&self) -> Vec<PathBuf> {
        let mut devices = self.place.devices(Path::new(MEMORY));
        devices.sort();
        assert_eq!(devices.len(), 2, "the store of each node");
        devices
    }

    /// Where libfabric keeps memory of the agents.
    fn endpoints(&self) -> usize {
        let start = format!("tameike-fabric-{}.", self.place.job);
        let entries = fs::read_dir(MEMORY).expect("there").flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&start)).count()
    }

    /// Another job of the same user, which sweeps; what it said.
    fn next_job(&self) -> String {
        let output = self.mounts.inside(&self.site.job(1, &[], "true")).output().expect("a job");
        assert_eq!(output.status.code(), Some(0), "{}", shown(&output));
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    fn recover(&self, more: &[&str]) -> Output {
        self.mounts.tameike(&self.site, &[&["recover"], more].concat())
    }

    fn check_recovery(&self, more: &[&str], code: i32, parts: &[&str]) {
        let output = self.recover(more);
        assert_eq!(output.status.code(), Some(code), "{}", shown(&output));
        for part in parts {
            assert!(shown(&output).contains(part), "no {part:?} in {}", shown(&output));
        }
    }
}

const WRITES: &str = r#"head -c 5000000 /dev/urandom > "$TAMEIKE_CACHE/file""#;

/// After a restart of the machine `recover` found nothing and called that success.
#[test]
fn what_was_only_in_memory_is_told_as_lost() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(killed) = Killed::new("restart", WRITES) else { return };
    let devices = killed.devices();
    devices.iter().for_each(|device| fs::remove_dir_all(device).expect("ours"));
    // A recovery that was cut off at its start has left its name there: the loss was then forgotten.
    fs::create_dir(&devices[0]).expect("made");
    fs::write(devices[0].join("owner.json"), "{}").expect("written");
    for node in 0..2 {
        let path = killed.place.dir.join(format!("node-{node}/node.json"));
        let mut state: Value = serde_json::from_slice(&fs::read(&path).expect("a record")).expect("JSON");
        state["boot_id"] = json!("of another start");
        fs::write(path, state.to_string()).expect("ours");
    }
    let said = killed.next_job();
    assert!(said.contains(&format!("job {} was cut off and lost data", killed.place.job)), "{said}");
    let shared = killed.site.shared();
    let shared = shared.to_str().expect("plain path");
    let named = ["node 0", "node 1", "is lost", "restarted", "nothing can be recovered", shared];
    killed.check_recovery(&[], INCOMPLETE, &named);
    killed.place.assert_gone();
    killed.check_recovery(&[], 0, &["nothing to recover"]);
}

/// What the other node still has is drained, and nothing of it is called complete.
#[test]
fn a_part_that_is_lost_is_never_forgotten() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(killed) = Killed::new("part", WRITES) else { return };
    killed.mounts.must(&format!("mount -o remount,size=16m {}", killed.site.shared().display()));
    fs::remove_dir_all(&killed.devices()[1]).expect("ours");
    for _ in 0..2 {
        killed.check_recovery(
            &[],
            INCOMPLETE,
            &["drain INCOMPLETE", "is lost", "something else has removed it"],
        );
    }
    killed.check_recovery(&["--discard"], INCOMPLETE, &["are removed"]);
    killed.place.assert_gone();
}

/// A file was counted once by each node that held a part of it.
#[test]
fn memory_without_a_job_is_kept_while_it_holds_data_and_a_file_is_counted_once() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(killed) = Killed::new("orphan", WRITES) else { return };
    let said = killed.next_job();
    assert!(said.contains(" of 1 file not on the shared file system"), "{said}");
    fs::remove_dir_all(&killed.place.dir).expect("ours");
    let said = killed.next_job();
    let device = killed.devices()[0].display().to_string();
    assert!(said.contains(&device) && said.contains("is kept: it holds"), "{said}");
    killed.check_recovery(&[], INCOMPLETE, &[&device, "--discard"]);
    killed.check_recovery(&["--discard"], INCOMPLETE, &[&format!("{device} is removed")]);
    killed.place.assert_gone();
    killed.check_recovery(&[], 0, &["nothing to recover"]);
}

#[test]
fn memory_of_which_nothing_else_is_left_is_swept_and_nothing_else() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(killed) = Killed::new("swept", r#"echo data > "$TAMEIKE_SHARED/file""#) else { return };
    let devices = killed.devices();
    let owner: Value =
        serde_json::from_slice(&fs::read(devices[0].join("owner.json")).expect("an owner")).expect("JSON");
    // Of others, or of jobs of which something is left.
    let decoy = |number: u32| PathBuf::from(format!("{}{number}", devices[0].display()));
    let with_owner = |number: u32, key: &str, value: Value| {
        let mut owner = owner.clone();
        owner[key] = value;
        fs::create_dir(decoy(number)).expect("made");
        fs::write(decoy(number).join("owner.json"), owner.to_string()).expect("ours");
    };
    let own = fs::read_to_string("/proc/self/stat").expect("proc");
    let start: u64 =
        own.rsplit(')').next().and_then(|rest| rest.split(' ').nth(20)?.parse().ok()).expect("a time");
    with_owner(1, "node_dir", json!(killed.site.base()));
    with_owner(2, "place_id", json!([0, 0]));
    with_owner(3, "pid", json!(std::process::id()));
    let mut alive: Value =
        serde_json::from_slice(&fs::read(decoy(3).join("owner.json")).expect("made")).expect("JSON");
    alive["pid_start"] = json!(start);
    fs::write(decoy(3).join("owner.json"), alive.to_string()).expect("ours");
    fs::create_dir(decoy(4)).expect("made");
    symlink(&devices[1], decoy(5)).expect("a link");
    fs::remove_dir_all(&killed.place.dir).expect("ours");
    let said = killed.next_job();
    for device in &devices {
        assert!(!device.exists(), "{said}");
        assert!(said.contains(&format!("{} of job {}", device.display(), killed.place.job)), "{said}");
    }
    for number in 1..=5 {
        assert!(decoy(number).symlink_metadata().is_ok(), "decoy {number}: {said}");
    }
    (1..=4).for_each(|number| fs::remove_dir_all(decoy(number)).expect("ours"));
    fs::remove_file(decoy(5)).expect("ours");
    killed.place.assert_gone();
}

/// libfabric's provider within a host keeps an endpoint's memory in a file, which nobody removes when its agent is killed.
#[test]
fn memory_of_endpoints_of_killed_agents_is_swept() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let wrote = r#"echo data > "$TAMEIKE_SHARED/file""#;
    let Some(killed) = Killed::of_fabric("endpoint", wrote, "ofi:shm") else { return };
    assert_eq!(killed.endpoints(), 2, "one of each node");
    let said = killed.next_job();
    assert_eq!(killed.endpoints(), 0, "{said}");
    killed.place.assert_gone();
}
