//! Lost data that was only in memory, and stores in memory of jobs of which nothing else is left.

use crate::support::jobs::{Background, Job};
use crate::support::mounts::Mounts;
use crate::support::{Run, Site, assert_code, assert_contains, err, json, shown, utf8};
use serde_json::{Value, json as value};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

const INCOMPLETE: i32 = 75;
const MEMORY: &str = "/dev/shm";

/// A job of two nodes that was killed with all of its agents. Its shared directory has space for little of its data. It has
/// its own `/dev/shm`, because `recover` examines everything of the user there.
struct Killed {
    site: Site,
    mounts: Mounts,
    job: Job,
}

impl Killed {
    fn new(name: &str, script: &str) -> Option<Self> {
        Self::with(Site::new(), name, script, &[])
    }

    fn with(site: Site, name: &str, script: &str, more: &[&str]) -> Option<Self> {
        let mounts = Mounts::new()?;
        mounts.mount_memory(site.shared(), "1m");
        mounts.mount_memory(Path::new(MEMORY), "256m");
        let job = Job::new(&site, name);
        let ready = site.plain().join("ready");
        let script = format!("{script}\nsleep 1000 & touch {}; wait", ready.display());
        let options = [&["--job", &job.name, "--memory", "64MiB"], more].concat();
        let running = Background::start_until(&mut mounts.inside(&site.job(2, &options, &script)), &ready);
        job.kill(&site, running, 0..2);
        Some(Self { site, mounts, job })
    }

    /// The namespace's `/dev/shm` as the test sees it.
    fn memory(&self) -> PathBuf {
        self.mounts.root().join(MEMORY.trim_start_matches('/'))
    }

    fn devices(&self) -> Vec<PathBuf> {
        let mut devices = self.job.devices(&self.memory());
        devices.sort();
        assert_eq!(devices.len(), 2, "the store of each node");
        devices
    }

    fn assert_removed(&self) {
        self.job.assert_removed();
        assert_eq!(self.job.devices(&self.memory()), Vec::<PathBuf>::new(), "shared memory left");
    }

    /// A path as programs in the namespace see it.
    fn shown_path(&self, path: &Path) -> String {
        let below = path.strip_prefix(self.mounts.root()).expect("in the namespace");
        Path::new("/").join(below).display().to_string()
    }

    /// Number of the agents' shared memory files of libfabric.
    fn endpoints(&self) -> usize {
        let start = format!("tameike-fabric-{}.", self.job.name);
        let entries = fs::read_dir(self.memory()).expect("there").flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&start)).count()
    }

    /// Runs another job of the same user, which removes leftovers; returns its messages.
    fn next_job(&self) -> String {
        err(&self.mounts.inside(&self.site.job(1, &[], "true")).exits(0))
    }

    /// Runs a command with another TMPDIR than the job; it must exit with `code`. Returns its messages.
    fn elsewhere(&self, arguments: &[&str], code: i32) -> String {
        let tmp = self.site.base().with_file_name("other");
        fs::create_dir_all(&tmp).expect("made");
        shown(&self.mounts.inside(self.site.tameike(arguments).env("TMPDIR", tmp)).exits(code))
    }

    /// Enlarges the shared directory and recovers with another TMPDIR; the file must be complete then.
    fn recover_elsewhere(&self, more: &[&str]) -> String {
        let shared = self.site.shared();
        self.mounts.resize(shared, "64m");
        let text = self.elsewhere(&[&["recover"], more].concat(), 0);
        self.mounts.must(&format!("test $(stat -c %s {}/file) = 5000000", shared.display()));
        self.assert_removed();
        text
    }

    fn check_recovery(&self, more: &[&str], code: i32, parts: &[&str]) {
        let output = self.mounts.tameike(&self.site, &[&["recover"], more].concat()).exits(code);
        assert_contains(&shown(&output), parts);
    }
}

const WRITES: &str = r#"head -c 5000000 /dev/urandom > "$TAMEIKE_CACHE/file""#;

/// After a restart of the machine, `recover` found nothing and reported success.
#[test]
fn data_that_was_only_in_memory_is_reported_as_lost() {
    let Some(killed) = Killed::new("restart", WRITES) else { return };
    let devices = killed.devices();
    devices.iter().for_each(|device| fs::remove_dir_all(device).expect("ours"));
    // An interrupted recovery has left its owner record there: then the loss was forgotten.
    fs::create_dir(&devices[0]).expect("made");
    fs::write(devices[0].join("owner.json"), "{}").expect("written");
    for node in 0..2 {
        let path = killed.job.dir.join(format!("node-{node}/node.json"));
        let mut state = json(&path);
        state["boot_id"] = value!("of another start");
        fs::write(path, state.to_string()).expect("ours");
    }
    let text = killed.next_job();
    assert_contains(&text, &[&format!("job {} was interrupted and lost data", killed.job.name)]);
    let shared = utf8(killed.site.shared());
    let reported = ["node 0", "node 1", "is lost", "restarted", "nothing can be recovered", shared];
    killed.check_recovery(&[], INCOMPLETE, &reported);
    killed.assert_removed();
    killed.check_recovery(&[], 0, &["nothing to recover"]);
}

/// Data of the other node is drained, but not reported as complete.
#[test]
fn lost_parts_are_always_reported() {
    let Some(killed) = Killed::new("part", WRITES) else { return };
    killed.mounts.resize(killed.site.shared(), "16m");
    fs::remove_dir_all(&killed.devices()[1]).expect("ours");
    for _ in 0..2 {
        killed.check_recovery(
            &[],
            INCOMPLETE,
            &["drain INCOMPLETE", "is lost", "another program has removed it"],
        );
    }
    killed.check_recovery(&["--discard"], INCOMPLETE, &["are removed"]);
    killed.assert_removed();
}

/// Regression: `recover` skipped the job, and reported that nothing was to be recovered.
#[test]
fn recover_waits_for_the_last_process_of_a_job() {
    let Some(killed) = Killed::new("ending", WRITES) else { return };
    let locked = killed.site.plain().join("locked");
    let holds =
        format!("flock --shared {} sh -c 'touch {}; sleep 1'", killed.job.dir.display(), locked.display());
    let mut holds = killed.mounts.inside(Command::new("sh").args(["-c", &holds]));
    let holder = Background::start_until(&mut holds, &locked);
    killed.mounts.resize(killed.site.shared(), "64m");
    killed.check_recovery(&[], 0, &["2 nodes back", "drain complete: 1 file"]);
    assert_code(&holder.output(), 0);
    killed.assert_removed();
}

/// Regressions: a file was counted once per node with a part of it, and stores of jobs without a directory were reported as
/// not recoverable.
#[test]
fn a_job_without_a_directory_is_recovered_from_memory() {
    let Some(killed) = Killed::new("orphan", WRITES) else { return };
    let text = killed.next_job();
    assert_contains(&text, &[" of 1 file not on the shared file system"]);
    fs::remove_dir_all(&killed.job.dir).expect("ours");
    let text = killed.next_job();
    let device = killed.shown_path(&killed.devices()[0]);
    let recover = format!("tameike recover --job {}", killed.job.name);
    assert_contains(&text, &[&device, "was interrupted and left", &recover]);
    killed.check_recovery(&[], INCOMPLETE, &["2 nodes back", "drain INCOMPLETE"]);
    let text = killed.recover_elsewhere(&[]);
    assert_contains(&text, &["drain complete: 1 file"]);
    killed.check_recovery(&[], 0, &["nothing to recover"]);
}

/// If a store is missing together with the job's directory, a loss is possible: nothing is reported as complete.
#[test]
fn a_missing_store_of_a_job_without_a_directory_is_reported() {
    let Some(killed) = Killed::new("missed", WRITES) else { return };
    fs::remove_dir_all(&killed.job.dir).expect("ours");
    fs::remove_dir_all(&killed.devices()[1]).expect("ours");
    killed.mounts.resize(killed.site.shared(), "64m");
    killed.check_recovery(&[], INCOMPLETE, &["no store of node 1 in /dev/shm", "is unknown"]);
    killed.assert_removed();
}

/// Some sites set a TMPDIR for each batch job: `recover` in the next batch job found nothing.
#[test]
fn a_job_of_another_tmpdir_is_found_by_its_stores() {
    for is_there in [true, false] {
        let Some(killed) = Killed::new(&format!("tmpdir-{is_there}"), WRITES) else { return };
        if !is_there {
            fs::remove_dir_all(killed.site.base()).expect("ours");
        }
        let job = &killed.job.name;
        let dirty = " of 1 file not on the shared file system";
        let status = killed.elsewhere(&["status"], 0);
        assert_contains(&status, &[dirty, &format!("job {job} was interrupted and left")]);
        assert!(killed.elsewhere(&["status", "--job", job], 0).contains(job));
        assert!(killed.elsewhere(&["doctor"], 0).contains(&format!("interrupted jobs: {job}")));
        let run = killed.elsewhere(&["run", "--", "true"], 0);
        assert!(is_there || run.contains(&format!("recover --job {job}")), "{run}");
        assert!(killed.elsewhere(&["recover", "--job", "none"], 0).contains("has no leftovers"));
        let text = killed.recover_elsewhere(&["--job", job]);
        assert_contains(&text, &[&format!("job {job} was interrupted and left"), dirty]);
    }
}

#[test]
fn a_job_of_another_tmpdir_is_found_in_its_device_directory() {
    let site = Site::new();
    let disk = site.disk().to_owned();
    let disk = utf8(&disk);
    let options = ["--device", disk, "--capacity", "64M"];
    let Some(killed) = Killed::with(site, "disk", WRITES, &options) else { return };
    let job = &killed.job.name;
    assert!(!killed.elsewhere(&["status"], 0).contains(job));
    assert!(killed.elsewhere(&["status", "--device", disk], 0).contains(job));
    assert!(killed.elsewhere(&["doctor", "--device", disk], 0).contains(job));
    killed.elsewhere(&["recover", "--device", "/no/such/dir"], 71);
    fs::remove_dir_all(killed.site.base()).expect("ours");
    let run = killed.elsewhere(&["run", "--device", disk, "--capacity", "64M", "--", "true"], 0);
    assert_contains(&run, &[&format!("recover --job {job} --device {disk}")]);
    killed.recover_elsewhere(&["--device", disk]);
    assert_eq!(fs::read_dir(disk).expect("there").count(), 0, "stores are left");
}

/// The journal of a file that was removed from the shared directory could only be discarded.
#[test]
fn data_of_files_removed_from_the_shared_directory_is_saved_elsewhere() {
    let writes = r#"mkdir "$TAMEIKE_CACHE/dir"; seq 1 700000 > "$TAMEIKE_CACHE/dir/file""#;
    let Some(killed) = Killed::new("gone", writes) else { return };
    let shared = killed.site.shared();
    killed.mounts.must(&format!("rm {}/dir/file", shared.display()));
    let job = ["--job", &killed.job.name];
    let advice = format!("tameike recover --job {} --to DIR", killed.job.name);
    killed.check_recovery(&job, INCOMPLETE, &["dir/file no longer exists", &advice]);
    let to = killed.site.plain().join("to");
    let to_name = utf8(&to);
    killed.check_recovery(&["--to", to_name], INCOMPLETE, &["saving dir/file", "ENOENT"]);
    fs::create_dir(&to).expect("made");
    killed.check_recovery(
        &["--to", to_name],
        0,
        &["is gone from the shared directory", "drain complete: 1 file"],
    );
    killed.mounts.must(&format!("seq 1 700000 | cmp - {to_name}/dir/file"));
    killed.assert_removed();
    killed.mounts.must(&format!("test -z \"$(ls {}/dir)\"", shared.display()));
}

/// A failed save leaves the data in the journal: the next attempt with another directory succeeds.
#[test]
fn data_that_cannot_be_saved_stays_in_the_journal() {
    let Some(killed) = Killed::new("saved", WRITES) else { return };
    killed.mounts.must(&format!("rm {}/file", killed.site.shared().display()));
    let [small, large] = ["small", "large"].map(|name| killed.site.plain().join(name));
    for (dir, size) in [(&small, "1m"), (&large, "64m")] {
        fs::create_dir(dir).expect("made");
        killed.mounts.mount_memory(dir, size);
    }
    let to = |dir: &Path, code, parts: &[&str]| killed.check_recovery(&["--to", utf8(dir)], code, parts);
    to(&small, INCOMPLETE, &["saving file", "ENOSPC", "no longer exists"]);
    to(&small, INCOMPLETE, &["saving file", "EEXIST"]);
    to(&large, 0, &["drain complete: 1 file"]);
    killed.mounts.must(&format!("test $(stat -c %s {}/file) = 5000000", large.display()));
    killed.assert_removed();
}

#[test]
fn only_stores_without_dirty_data_and_job_are_removed() {
    let Some(killed) = Killed::new("swept", r#"echo data > "$TAMEIKE_SHARED/file""#) else { return };
    let devices = killed.devices();
    let owner = json(&devices[0].join("owner.json"));
    // Of other users, or of jobs that still have a directory.
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
    with_owner(1, "node_dir", value!(killed.site.base()));
    with_owner(2, "place_id", value!([0, 0]));
    with_owner(3, "pid", value!(std::process::id()));
    let mut alive = json(&decoy(3).join("owner.json"));
    alive["pid_start"] = value!(start);
    fs::write(decoy(3).join("owner.json"), alive.to_string()).expect("ours");
    fs::create_dir(decoy(4)).expect("made");
    symlink(&devices[1], decoy(5)).expect("a link");
    fs::remove_dir_all(&killed.job.dir).expect("ours");
    let text = killed.next_job();
    for device in &devices {
        assert!(!device.exists(), "{text}");
        assert_contains(&text, &[&format!("{} of job {}", killed.shown_path(device), killed.job.name)]);
    }
    for number in 1..=5 {
        assert!(decoy(number).symlink_metadata().is_ok(), "decoy {number}: {text}");
    }
    (1..=4).for_each(|number| fs::remove_dir_all(decoy(number)).expect("ours"));
    fs::remove_file(decoy(5)).expect("ours");
    killed.assert_removed();
}

/// libfabric's shared memory provider creates a file per endpoint, which a killed agent does not remove.
#[test]
fn endpoint_files_of_killed_agents_are_removed() {
    let writes = r#"echo data > "$TAMEIKE_SHARED/file""#;
    let Some(killed) = Killed::with(Site::new(), "endpoint", writes, &["--fabric", "ofi:shm"]) else {
        return;
    };
    assert_eq!(killed.endpoints(), 2, "one of each node");
    let text = killed.next_job();
    assert_eq!(killed.endpoints(), 0, "{text}");
    killed.assert_removed();
}
