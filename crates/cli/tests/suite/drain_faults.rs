//! A shared directory that fails during a job: the receipt lists what is missing and why, the job ends with 75 and a journal,
//! and `recover` completes the drain when there is space again.

use crate::support::jobs::{Job, Random, new_job, seed};
use crate::support::mounts::Mounts;
use crate::support::small_disk::{KINDS, Kind, SmallDisk};
use crate::support::{Run, Site, assert_code, assert_contains, err, is_soak, json, out, shown, utf8};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};

const INCOMPLETE: i32 = 75;
/// Files of a job, each slightly larger than 1 MiB.
const FILES: u32 = 16;
const SIZE: u32 = 1_050_000;

/// Serializes scenes: a job that starts examines journals of other jobs, which moves their logs into their tables.
static ALONE: Mutex<()> = Mutex::new(());

struct Scene {
    _alone: MutexGuard<'static, ()>,
    size_bytes: u32,
    site: Site,
    mounts: Mounts,
    job: Job,
}

impl Scene {
    fn new(job: &str) -> Option<Self> {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let (site, job) = new_job(job);
        Some(Self { _alone, job, mounts: Mounts::new()?, size_bytes: SIZE, site })
    }

    fn receipt_path(&self) -> PathBuf {
        self.site.plain().join("receipt")
    }

    /// Runs a job of two nodes that writes the files, each first outside of the views, and then runs `end`. Existing files are
    /// overwritten in place.
    fn run(&self, end: &str) -> Output {
        let expected = self.site.plain().join("expected");
        fs::create_dir(&expected).expect("a directory");
        let (expected, shared, size) = (expected.display(), self.site.shared(), self.size_bytes);
        let script = format!(
            r#"export expected={expected} shared={}
               for i in $(seq {FILES}); do head -c {size} /dev/urandom > $expected/$i; done
               for i in $(seq 1 2 {FILES}); do cat $expected/$i 1<> "$TAMEIKE_CACHE/$i"; done
               tameike exec --node 1 -- sh -euc 'for i in $(seq 2 2 {FILES}); do cat $expected/$i 1<> "$TAMEIKE_CACHE/$i"; done'
               {end}"#,
            shared.display()
        );
        let receipt = self.receipt_path();
        let options = ["--job", &self.job.name, "--receipt", utf8(&receipt), "--memory", "64MiB"];
        self.mounts.inside(&self.site.job(2, &options, &script)).output().expect("nsenter is installed")
    }

    /// The job must have ended with a receipt that lists files missing for this reason. Returns their number.
    fn check_incomplete(&self, output: &Output, reason: &str) -> usize {
        assert_code(output, INCOMPLETE);
        let advice = format!("tameike recover --job {}", self.job.name);
        assert_contains(&err(output), &["drain INCOMPLETE", &advice]);
        let receipt = json(&self.receipt_path());
        assert_eq!(receipt["complete"], Value::Bool(false));
        let mut missing = 0;
        for file in receipt["files"].as_array().expect("files") {
            let name = file["path"].as_str().expect("a path");
            match file["outcome"]["missing"].as_str() {
                Some(why) => {
                    assert!(why.to_lowercase().contains(reason), "{why}");
                    missing += 1;
                }
                None => self.check_file(name),
            }
        }
        missing
    }

    /// The status lists the job. It examines the journals, which moves their logs into their tables.
    fn check_status(&self) {
        let status = self.mounts.tameike(&self.site, &["status"]).output().expect("it starts");
        assert_contains(&out(&status), &[&self.job.name]);
    }

    /// The file in the shared directory is as written.
    fn check_file(&self, name: &str) {
        assert!(self.is_right(name), "{name} differs");
    }

    fn check_files(&self) {
        (1..=FILES).for_each(|name| self.check_file(&name.to_string()));
    }

    fn is_right(&self, name: &str) -> bool {
        let (plain, shared) = (self.site.plain().display(), self.site.shared().display());
        self.mounts.shell(&format!("cmp {plain}/expected/{name} {shared}/{name}")).status.success()
    }

    fn recover(&self, options: &[&str]) -> Command {
        let receipt = self.receipt_path();
        let arguments = ["recover", "--job", &self.job.name, "--receipt", utf8(&receipt)];
        self.mounts.tameike(&self.site, &[&arguments, options].concat())
    }

    fn check_recovery(&self) {
        let output = self.recover(&["--verify"]).exits(0);
        assert_contains(&err(&output), &["read back and equal"]);
        self.check_files();
    }
}

#[test]
fn a_full_shared_directory_leaves_a_journal_that_is_drained_when_there_is_space() {
    let Some(scene) = Scene::new("full") else { return };
    scene.mounts.mount_memory(scene.site.shared(), "6m");
    let output = scene.run("");
    let missing = scene.check_incomplete(&output, "no space left");
    scene.check_status();
    assert!(missing > 5, "{missing} files are missing");
    // Without space, recovery reports the same.
    let again = scene.recover(&["--verify"]).output().expect("it starts");
    assert_eq!(scene.check_incomplete(&again, "no space left"), missing, "{}", shown(&again));
    scene.check_status();
    scene.mounts.resize(scene.site.shared(), "64m");
    scene.check_recovery();
}

#[test]
fn a_shared_directory_that_turns_read_only_leaves_a_journal() {
    let Some(scene) = Scene::new("read-only") else { return };
    scene.mounts.mount_memory(scene.site.shared(), "64m");
    // The whole file system, like a failed server; busy while a flush has a file open.
    let output = scene.run("until mount -o remount,ro $shared 2>/dev/null; do :; done");
    let missing = scene.check_incomplete(&output, "read-only");
    scene.check_status();
    assert!(missing > 0, "everything was flushed before");
    scene.mounts.must(&format!("mount -o remount,rw {}", scene.site.shared().display()));
    scene.check_recovery();
}

/// The file system buffers all writes, and the disk has no space for them: only fsync fails. Files that a receipt reports as
/// synced must be on the disk, not only in memory.
///
/// S17a.
#[test]
fn a_failed_fsync_is_no_success() {
    let seed = seed();
    let rounds = if is_soak() { 12 } else { 1 };
    for round in 0..rounds {
        for kind in KINDS {
            println!("round {round}, TAMEIKE_SEED={}: {kind:?}", seed + round);
            fail_fsync(kind, seed + round);
        }
    }
}

fn fail_fsync(kind: Kind, seed: u64) {
    let Some(mut scene) = Scene::new("fsync") else { return };
    scene.size_bytes = kind.file_bytes;
    let mut random = Random::new(seed);
    let space_kib = random.below(u64::from(FILES * scene.size_bytes / 1024 / 2)) as u32;
    // Half of the files of the job exist before.
    let Some(disk) = SmallDisk::new(&scene.mounts, &scene.site, kind, FILES / 2, space_kib) else { return };
    let output = scene.run("");
    let missing = scene.check_incomplete(&output, "fsync");
    scene.check_status();
    assert!(missing >= FILES as usize / 2 - 1, "the disk had space: {}", shown(&output));
    let synced = scene.files_that_are("synced");
    println!("{space_kib} KiB of space: {missing} missing, {} synced", synced.len());
    // Recovery sees pages of failed writes that the kernel kept, or only data of the disk.
    if random.below(2) == 0 {
        disk.forget();
        synced.iter().for_each(|name| scene.check_file(name));
    }
    disk.give_space();
    let verify: &[&str] = if random.below(2) == 0 { &["--verify"] } else { &[] };
    scene.recover(verify).exits(0);
    disk.forget();
    scene.check_files();
}

impl Scene {
    /// An ended job with most files only in the journal, and with space for them in the shared directory now.
    fn interrupted(job: &str) -> Option<Self> {
        let scene = Self::new(job)?;
        scene.mounts.mount_memory(scene.site.shared(), "4m");
        let output = scene.run("");
        let missing = scene.check_incomplete(&output, "no space left");
        assert!(missing > FILES as usize / 2, "{}", shown(&output));
        scene.mounts.resize(scene.site.shared(), "64m");
        Some(scene)
    }

    /// An interrupted job whose log has records. A job of another test that starts meanwhile inspects the store, and so empties the log.
    fn with_log() -> Option<Self> {
        for _ in 0..5 {
            let scene = Self::interrupted("log")?;
            if fs::metadata(scene.store_file("log.0")).expect("a log").len() > 100 {
                return Some(scene);
            }
            scene.discard().exits(INCOMPLETE);
        }
        unreachable!("other jobs have inspected five stores")
    }

    /// A file in the device directory of node 1.
    fn store_file(&self, name: &str) -> PathBuf {
        let devices = self.job.devices(Path::new("/dev/shm"));
        let device = devices.iter().find(|dir| dir.to_string_lossy().ends_with("-1")).expect("a device");
        device.join(name)
    }

    /// Recovery must report the damage, claim nothing false, and report it again until `--discard`. Returns the number of correct
    /// files.
    fn check_damaged(&self, part: &str) -> usize {
        for _ in 0..2 {
            let text = shown(&self.recover(&["--verify"]).exits(INCOMPLETE));
            assert!(text.contains(part) && !text.contains("panicked"), "{text}");
            self.verified().iter().for_each(|name| self.check_file(name));
        }
        let right = (1..=FILES).filter(|name| self.is_right(&name.to_string())).count();
        self.discard().exits(INCOMPLETE);
        right
    }

    fn discard(&self) -> Command {
        self.mounts.tameike(&self.site, &["recover", "--job", &self.job.name, "--discard"])
    }

    /// The files that the last receipt reports as verified.
    fn verified(&self) -> Vec<String> {
        self.files_that_are("verified")
    }

    /// The files with this outcome in the last receipt.
    fn files_that_are(&self, outcome: &str) -> Vec<String> {
        let receipt = json(&self.receipt_path());
        let files = receipt["files"].as_array().expect("files");
        let chosen = files.iter().filter(|file| file["outcome"] == outcome);
        chosen.map(|file| file["path"].as_str().expect("a path").to_owned()).collect()
    }
}

/// Flips a bit of every `step`th byte of a file from `first` on; a sparse file stays sparse.
fn damage(path: &Path, first: usize, step: usize) {
    let mut bytes = fs::read(path).expect("a file of the store");
    assert!(bytes.len() > first, "{} has {} bytes", path.display(), bytes.len());
    bytes.iter_mut().skip(first).step_by(step).for_each(|byte| *byte ^= 0x10);
    fs::write(path, bytes).expect("written");
}

#[test]
fn a_damaged_log_is_reported_and_the_rest_is_recovered() {
    let Some(scene) = Scene::with_log() else { return };
    damage(&scene.store_file("log.0"), 100, 2_000);
    let right = scene.check_damaged("of the log are missing or broken");
    assert!(right > 2, "{right} files are correct");
}

#[test]
fn a_damaged_table_is_reported_and_nothing_false_is_claimed() {
    let Some(scene) = Scene::interrupted("table") else { return };
    // The examination of the journal has moved the log into the table.
    scene.site.tameike(&["status"]).output().expect("it starts");
    let other = scene.site.job(1, &["--job", "other"], "true").output().expect("a job");
    assert_contains(&shown(&other), &["was interrupted"]);
    damage(&scene.store_file("table"), 4096, 512);
    // All files have units on both nodes, so possibly none is correct.
    scene.check_damaged("it is set aside");
}

/// The device has lost bytes of files: these are reported, and the other files are recovered.
#[test]
fn damaged_file_data_is_never_drained() {
    let Some(scene) = Scene::interrupted("bytes") else { return };
    let extents = scene.store_file("extents");
    scene.mounts.must(&format!(
        "dd if=/dev/urandom of={} bs=4096 count=1 seek=10 conv=notrunc status=none",
        extents.display()
    ));
    let output = scene.recover(&["--verify"]).output().expect("it starts");
    let text = shown(&output);
    if output.status.code() == Some(0) {
        // The damaged block may belong to a file that was drained before.
        scene.check_files();
    } else {
        assert_code(&output, INCOMPLETE);
        assert_contains(&text, &["checksum"]);
        scene.verified().iter().for_each(|name| scene.check_file(name));
        assert!(scene.verified().len() >= FILES as usize - 2, "{text}");
        scene.discard().output().expect("it starts");
    }
}
