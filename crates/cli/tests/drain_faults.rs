//! A shared directory that takes no more in the middle of a job: the receipt says what is missing and why, the
//! job ends with 75 and a journal, and `recover` completes it when there is room again.

#[path = "support/mounts.rs"]
mod mounts;
mod support;
#[path = "support/victims.rs"]
mod victims;

use mounts::Mounts;
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::Output;
use support::{Site, shown};
use victims::JobPlace;

const INCOMPLETE: i32 = 75;
/// Files of a job, of 1 MiB and a bit each.
const FILES: u32 = 16;
const SIZE: u32 = 1_050_000;

struct Scene {
    site: Site,
    mounts: Mounts,
    place: JobPlace,
}

impl Scene {
    fn new(job: &str) -> Option<Self> {
        let site = Site::new();
        let job = format!("{job}-{}", std::process::id());
        Some(Self { place: JobPlace::new(&site, &job), mounts: Mounts::new()?, site })
    }

    fn receipt_path(&self) -> PathBuf {
        self.site.base().join("receipt")
    }

    /// Runs a job of two nodes that writes the files, each first to a place outside of the views, and then does
    /// what `end` says. Files that are there are overwritten in place.
    fn run(&self, end: &str) -> Output {
        let expected = self.site.base().join("expected");
        fs::create_dir(&expected).expect("a directory");
        let (expected, shared) = (expected.display(), self.site.shared());
        let script = format!(
            r#"export expected={expected} shared={}
               for i in $(seq {FILES}); do head -c {SIZE} /dev/urandom > $expected/$i; done
               for i in $(seq 1 2 {FILES}); do cat $expected/$i 1<> "$TAMEIKE_CACHE/$i"; done
               tameike exec --node 1 -- sh -euc 'for i in $(seq 2 2 {FILES}); do cat $expected/$i 1<> "$TAMEIKE_CACHE/$i"; done'
               {end}"#,
            shared.display()
        );
        let receipt = self.receipt_path();
        let receipt = receipt.to_str().expect("plain path");
        let options = ["--job", &self.place.job, "--receipt", receipt, "--memory", "64MiB"];
        self.mounts.inside(&self.site.job(2, &options, &script)).output().expect("nsenter is installed")
    }

    /// The job must have ended with a receipt that names what is missing for this reason. How many files.
    fn check_incomplete(&self, output: &Output, reason: &str) -> usize {
        assert_eq!(output.status.code(), Some(INCOMPLETE), "{}", shown(output));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("drain INCOMPLETE"), "{said}");
        assert!(said.contains(&format!("tameike recover --job {}", self.place.job)), "{said}");
        let receipt: Value =
            serde_json::from_slice(&fs::read(self.receipt_path()).expect("a receipt")).expect("JSON");
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
        let status = self.mounts.tameike(&self.site, &["status"]);
        assert!(String::from_utf8_lossy(&status.stdout).contains(&self.place.job), "{}", shown(&status));
        missing
    }

    /// The file on the shared directory is as it was written.
    fn check_file(&self, name: &str) {
        let (base, shared) = (self.site.base(), self.site.shared());
        self.mounts.must(&format!("cmp {}/expected/{name} {}/{name}", base.display(), shared.display()));
    }

    fn recover(&self) -> Output {
        let receipt = self.receipt_path();
        let receipt = receipt.to_str().expect("plain path");
        let arguments = ["recover", "--job", &self.place.job, "--verify", "--receipt", receipt];
        self.mounts.tameike(&self.site, &arguments)
    }

    /// Recovery must complete the job.
    fn check_recovery(&self) {
        let output = self.recover();
        assert_eq!(output.status.code(), Some(0), "{}", shown(&output));
        assert!(
            String::from_utf8_lossy(&output.stderr).contains("read back and equal"),
            "{}",
            shown(&output)
        );
        (1..=FILES).for_each(|name| self.check_file(&name.to_string()));
        self.place.assert_gone();
    }
}

#[test]
fn a_full_shared_directory_leaves_a_journal_that_is_drained_when_there_is_room() {
    let Some(scene) = Scene::new("full") else { return };
    scene.mounts.mount_memory(&scene.site.shared(), "6m");
    let output = scene.run("");
    let missing = scene.check_incomplete(&output, "no space left");
    assert!(missing > 5, "{missing} files are missing");
    // Without room, recovery says the same again.
    let again = scene.recover();
    assert_eq!(scene.check_incomplete(&again, "no space left"), missing, "{}", shown(&again));
    scene.mounts.must(&format!("mount -o remount,size=64m {}", scene.site.shared().display()));
    scene.check_recovery();
}

#[test]
fn a_shared_directory_that_turns_read_only_leaves_a_journal() {
    let Some(scene) = Scene::new("read-only") else { return };
    scene.mounts.mount_memory(&scene.site.shared(), "64m");
    // The whole file system, as a server that fails would do it; busy while a flush has a file open.
    let output = scene.run("until mount -o remount,ro $shared 2>/dev/null; do :; done");
    let missing = scene.check_incomplete(&output, "read-only");
    assert!(missing > 0, "everything was flushed before");
    scene.mounts.must(&format!("mount -o remount,rw {}", scene.site.shared().display()));
    scene.check_recovery();
}

/// The file system takes all writes into memory, and the disk below has no room for them: only fsync tells. The
/// files are there before, as holes of the disk, so that nothing but their content can fail. Of a write for which
/// the disk has some room, the kernel's loop device loses the rest and reports success: such a file is called
/// synced, and only reading back (`--verify`) tells.
#[test]
fn a_failed_fsync_is_no_success() {
    let Some(scene) = Scene::new("fsync") else { return };
    let (base, shared) = (scene.site.base(), scene.site.shared());
    let disk = base.join("disk");
    fs::create_dir(&disk).expect("a directory");
    scene.mounts.mount_memory(&disk, "64m");
    let (disk, shared) = (disk.display(), shared.display());
    let made = scene.mounts.shell(&format!(
        "truncate -s 40M {disk}/image; mkfs.ext2 -q -b 4096 {disk}/image
         mount -o loop {disk}/image {shared}
         for i in $(seq {FILES}); do head -c {SIZE} /dev/zero > {shared}/$i; done
         umount {shared}; fallocate --dig-holes {disk}/image
         mount -o remount,size=$(du -k {disk}/image | cut -f1)k {disk}
         mount -o loop {disk}/image {shared}
         head -c 10M /dev/zero > {disk}/rest 2>/dev/null || true"
    ));
    if !made.status.success() {
        println!("not tested: no file system on a loop device here: {}", shown(&made));
        return;
    }
    let output = scene.run("");
    let missing = scene.check_incomplete(&output, "fsync");
    assert!(missing > FILES as usize / 2, "the disk had room: {}", shown(&output));
    scene.mounts.must(&format!("mount -o remount,size=96m {disk}"));
    let recovered = scene.recover();
    let code = recovered.status.code();
    assert!(matches!(code, Some(0 | INCOMPLETE)), "{}", shown(&recovered));
    let verified = scene.verified();
    assert!(verified.len() >= missing, "{}", shown(&recovered));
    // What was verified is on the disk, and not only in memory.
    scene.mounts.must(&format!("umount {shared}; mount -o loop {disk}/image {shared}"));
    verified.iter().for_each(|name| scene.check_file(name));
    if code == Some(INCOMPLETE) {
        assert!(shown(&recovered).contains("read back differently"), "{}", shown(&recovered));
        let given_up =
            scene.mounts.tameike(&scene.site, &["recover", "--job", &scene.place.job, "--discard"]);
        assert_ne!(given_up.status.code(), Some(71), "{}", shown(&given_up));
    }
    scene.place.assert_gone();
}

impl Scene {
    /// The files that the last receipt calls verified.
    fn verified(&self) -> Vec<String> {
        let receipt = fs::read(self.receipt_path()).expect("a receipt");
        let receipt: Value = serde_json::from_slice(&receipt).expect("JSON");
        let files = receipt["files"].as_array().expect("files");
        let verified = files.iter().filter(|file| file["outcome"] == "verified");
        verified.map(|file| file["path"].as_str().expect("a path").to_owned()).collect()
    }
}
