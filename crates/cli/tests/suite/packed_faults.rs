//! Packed files if the shared file system is full or loses acknowledged writes, or if the packer crashes.

use crate::support::jobs::{Background, Job, Random, code_of_recovery, new_job, seed, sleep_ms, wait_for};
use crate::support::mounts::Mounts;
use crate::support::small_disk::{KINDS, Kind, SmallDisk};
use crate::support::{
    Run, Site, assert_code, assert_contains, binary, err, is_soak, json, out, shown, succeed, utf8,
};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

const INCOMPLETE: i32 = 75;
/// Files of a job with a fault.
const FILES: u32 = 120;

/// A shared directory on its own file system, in which an earlier job has packed files.
struct Scene {
    site: Site,
    mounts: Mounts,
    job: Job,
}

impl Scene {
    fn new(job: &str) -> Option<Self> {
        let (site, job) = new_job(job);
        fs::create_dir(site.plain().join("expected")).expect("a directory");
        Some(Self { job, mounts: Mounts::new()?, site })
    }

    fn receipt_path(&self) -> PathBuf {
        self.site.plain().join("receipt")
    }

    /// Runs a job of two nodes that packs.
    fn run(&self, script: &str) -> Output {
        let receipt = self.receipt_path();
        let options = ["--job", &self.job.name, "--receipt", utf8(&receipt), "--aggregate", "--verify"];
        let script = format!("expected={}/expected; export expected\n{script}", self.site.plain().display());
        self.mounts.inside(&self.site.job(2, &options, &script)).output().expect("nsenter is installed")
    }

    /// Runs a job that must succeed; returns its output.
    fn must(&self, script: &str) -> String {
        let output = self.run(script);
        assert_code(&output, 0);
        out(&output)
    }

    /// Packs forty files, which must stay intact.
    fn pack_old(&self) {
        self.must(r#"cd "$TAMEIKE_CACHE"; mkdir old; for i in $(seq 40); do seq $((i * 50)) > old/$i; done"#);
    }

    /// Runs a job in which both nodes write files of `size` bytes, each first outside of the views, and then `end`. Their names
    /// exist before they have content.
    fn write(&self, size: u32, end: &str) -> Output {
        self.run(&format!(
            r#"cd "$TAMEIKE_CACHE"; mkdir -p new; for i in $(seq {FILES}); do : > new/$i; done
               for i in $(seq {FILES}); do head -c {size} /dev/urandom > $expected/$i; done
               for i in $(seq 1 2 {FILES}); do cat $expected/$i 1<> new/$i; done
               tameike exec --node 1 -- sh -euc 'cd "$TAMEIKE_CACHE"; for i in $(seq 2 2 {FILES}); do cat $expected/$i 1<> new/$i; done'
               {end}"#
        ))
    }

    /// The job has ended with a receipt that lists missing files; returns the names of the complete ones.
    fn check_incomplete(&self, output: &Output) -> BTreeSet<String> {
        assert_code(output, INCOMPLETE);
        let text = err(output);
        assert_contains(&text, &[&format!("tameike recover --job {}", self.job.name)]);
        let receipt = json(&self.receipt_path());
        assert_eq!(receipt["complete"], Value::Bool(false));
        let (mut complete, mut missing) = (BTreeSet::new(), 0);
        for file in receipt["files"].as_array().expect("files") {
            let path = file["path"].as_str().expect("a path");
            if file["outcome"]["missing"].is_string() {
                assert!(text.contains(path), "{path} is not named: {text}");
                missing += 1;
            } else {
                complete.insert(path.to_owned());
            }
        }
        assert!(missing > 0, "{}", shown(output));
        println!("{missing} files are missing, {} complete", complete.len());
        complete
    }

    fn recover(&self) {
        self.mounts.tameike(&self.site, &["recover", "--job", &self.job.name, "--verify"]).exits(0);
    }

    fn container(&self) -> PathBuf {
        self.site.shared().join(".tameike-packed")
    }

    /// These files of the job are in the container as written.
    fn check_packed(&self, names: &BTreeSet<String>) {
        for name in names.iter().filter_map(|path| path.strip_prefix("new/")) {
            self.mounts.must(&format!(
                "{} agg cat {} new/{name} | cmp - {}/expected/{name}",
                binary(),
                self.container().display(),
                self.site.plain().display()
            ));
        }
    }

    fn check_undamaged(&self) {
        self.mounts.must(&format!("{} agg verify {}", binary(), self.container().display()));
    }

    /// All files are complete, those of the earlier job too.
    fn check_all(&self) {
        let found = self.must(&format!(
            r#"cd "$TAMEIKE_CACHE"; for i in $(seq {FILES}); do cmp new/$i $expected/$i; done
               for i in $(seq 5 40); do seq $((i * 50)) | cmp - old/$i; done
               for i in 1 2 3; do seq $((i * 50)) | cmp - old/$i || seq $((i * 50)) | cmp - old/moved-$i; done
               ls -A | grep -v lost+found | tr '\n' ' '; ls new | wc -l"#
        ));
        assert_eq!(found, format!("new old {FILES}\n"));
    }
}

/// S17a.
#[test]
fn a_full_shared_directory_loses_nothing_that_was_packed() {
    let Some(scene) = Scene::new("full") else { return };
    scene.mounts.mount_memory(scene.site.shared(), "3m");
    scene.pack_old();
    let output = scene.write(60_000, "");
    let complete = scene.check_incomplete(&output);
    scene.check_packed(&complete);
    // Without space, recovery reports the same.
    scene.mounts.tameike(&scene.site, &["recover", "--job", &scene.job.name]).exits(INCOMPLETE);
    scene.check_packed(&complete);
    scene.mounts.resize(scene.site.shared(), "64m");
    scene.recover();
    scene.check_undamaged();
    scene.check_all();
}

/// S19a. Creation without space fails and leaves no name, and a failed rename does not leave a file under two names.
#[test]
fn names_that_fail_with_enospc_do_not_exist() {
    let Some(scene) = Scene::new("names") else { return };
    scene.mounts.mount_memory(scene.site.shared(), "2m");
    scene.pack_old();
    scene.must(&format!(
        r#"cd "$TAMEIKE_CACHE"; head -c 4M /dev/zero > {shared}/ballast 2>/dev/null || true
           python3 - <<'END'
import errno, os, threading
made, refused, failures = [], [], []
def make(maker):
    for number in range(maker, 20000, 4):
        name = f"new-{{number}}-" + "x" * 200
        try:
            os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            made.append(name)
        except OSError as error:
            if error.errno != errno.ENOSPC or os.path.exists(name): failures.append((name, error))
            refused.append(name)
            # More than a block of the container.
            if len(refused) > 6000: break
makers = [threading.Thread(target=make, args=[maker]) for maker in range(4)]
for maker in makers: maker.start()
for maker in makers: maker.join()
assert refused and not failures, (len(refused), failures)
for name in made: assert os.path.exists(name), name
# What is packed is read all the same.
for number in range(1, 41): assert open(f"old/{{number}}").read().startswith("1\n"), number
for number in range(1, 41):
    old, new = f"old/{{number}}", f"old/moved-{{number}}"
    try:
        os.rename(old, new)
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
        assert os.path.exists(old) and not os.path.exists(new), old
try:
    os.rename("old", "older")
except OSError as error:
    assert error.errno == errno.ENOSPC, error
assert len(os.listdir("older" if os.path.exists("older") else "old")) == 40
os.unlink("{shared}/ballast")
for name in made: os.unlink(name)
open("after", "w").write("after")
END"#,
        shared = scene.site.shared().display()
    ));
    let found = scene.must(
        r#"cd "$TAMEIKE_CACHE"; ls -A | tr '\n' ' '; cat after; cat old*/* | sort -n | uniq -c | tail -n 1; ls old* | wc -l"#,
    );
    // Only the longest file contains the last number.
    assert_eq!(
        found,
        "after old after      1 2000\n40\n"
            .replace("old", if found.contains("older") { "older" } else { "old" })
    );
}

/// The file system buffers the container's data, and the disk has no space for it: only fsync fails.
///
/// S34a. `recover` re-creates names that the file system acknowledged but lost, from the device of the packer.
#[test]
fn a_failed_fsync_of_the_container_is_no_success() {
    let seed = seed();
    for round in 0..if is_soak() { 6 } else { 1 } {
        for kind in KINDS {
            println!("round {round}, TAMEIKE_SEED={}: {kind:?}", seed + round);
            fail_fsync(kind, seed + round);
        }
    }
}

fn fail_fsync(kind: Kind, seed: u64) {
    let Some(scene) = Scene::new("fsync") else { return };
    let mut random = Random::new(seed);
    let Some(disk) = SmallDisk::new(&scene.mounts, &scene.site, kind, 0, 0) else { return };
    disk.give_space();
    scene.pack_old();
    // Metadata of the file system has its space before: only packed data is lost. With little space, names are lost too.
    scene.must(r#"mkdir "$TAMEIKE_CACHE/new""#);
    let space_kib = if random.below(2) == 0 { random.below(60) } else { random.below(2_000) };
    println!("{space_kib} KiB of space");
    disk.limit_space(space_kib as u32);
    let end = "for i in 1 2 3; do mv old/$i old/moved-$i; done; rm old/4";
    let output = scene.write(60_000, end);
    let complete = scene.check_incomplete(&output);
    // Recovery sees pages of failed writes that the kernel kept, or only data of the disk.
    let forgets = kind.has_journal() && random.below(2) == 0;
    if forgets {
        disk.forget_and_give_space();
        scene.check_packed(&complete);
    }
    disk.give_space();
    scene.recover();
    disk.forget();
    println!("{} of memory before recovery", if forgets { "nothing" } else { "all" });
    // Records that the disk has lost are reported as damage; each file has a later one.
    scene.check_all();
}

/// Only names were changed while the disk had no space: the packer's device is not removed like that of a completed job, and
/// the names are restored.
#[test]
fn lost_names_are_restored_if_nothing_else_is_dirty() {
    let Some(scene) = Scene::new("clean") else { return };
    let Some(disk) = SmallDisk::new(&scene.mounts, &scene.site, KINDS[1], 0, 0) else { return };
    disk.give_space();
    scene.pack_old();
    disk.limit_space(0);
    let output = scene.run(
        r#"cd "$TAMEIKE_CACHE"; mv old/1 old/moved-1; rm old/2; chmod 600 old/3; : > old/new; mkdir dir; mv old/4 dir"#,
    );
    assert_code(&output, INCOMPLETE);
    disk.forget_and_give_space();
    let list =
        r#"cd "$TAMEIKE_CACHE"; ls -d dir/* old/1 old/2 old/moved-1 old/new 2>/dev/null | tr '\n' ' '"#;
    // Another job removes leftovers.
    let other = scene.mounts.inside(&scene.site.job(1, &["--job", "other"], "true")).exits(0);
    assert_contains(&shown(&other), &["names of packed files that may not be on the shared file system"]);
    scene.recover();
    let found = scene
        .must(&format!(r#"{list}; stat -c %a old/3; seq 200 | cmp - dir/4; seq 50 | cmp - old/moved-1"#));
    assert_eq!(found, "dir/4 old/moved-1 old/new 600\n");
}

/// S34a. The content of the disk after fsync: all that is left after a power failure.
#[test]
fn a_name_is_on_the_disk_when_fsync_has_returned() {
    for kind in &KINDS[1..] {
        let Some(scene) = Scene::new("name") else { return };
        let copy = scene.site.plain().join("copy");
        fs::create_dir(&copy).expect("a directory");
        let Some(disk) = SmallDisk::new(&scene.mounts, &scene.site, *kind, 0, 0) else { return };
        disk.give_space();
        scene.pack_old();
        let synced = scene.site.plain().join("synced");
        let script = format!(
            r#"cd "$TAMEIKE_CACHE"; mkdir new; python3 -c '
import os
file = os.open("new/synced", os.O_CREAT | os.O_WRONLY)
os.write(file, b"content")
os.rename("old/7", "old/moved")
os.fsync(file)'
               touch {}; exec sleep 600"#,
            synced.display()
        );
        let options = ["--job", &scene.job.name, "--aggregate"];
        let mut command = scene.mounts.inside(&scene.site.job(2, &options, &script));
        let running = Background::start_until(&mut command, &synced);
        disk.copy_to(&scene.site.plain().join("image"));
        assert!(scene.job.kill_agents(0..2));
        assert_ne!(running.output().status.code(), Some(0));
        scene.mounts.must(&format!(
            "mount -o loop {0}/image {0}/copy || mount -o loop,nouuid {0}/image {0}/copy",
            scene.site.plain().display()
        ));
        let list = format!("{} agg ls -r {}/.tameike-packed", binary(), copy.display());
        let listed = scene.mounts.must(&list);
        let has = |name: &str| listed.lines().any(|line| line == name);
        assert!(has("new/synced") && has("old/moved") && !has("old/7"), "{kind:?}: {listed}");
        scene.mounts.must(&format!(
            "seq 350 > {0}/seven; {1} agg cat {0}/copy/.tameike-packed old/moved | cmp - {0}/seven; umount {0}/copy",
            scene.site.plain().display(),
            binary()
        ));
        // The bytes were in the journal.
        scene.recover();
        assert_eq!(scene.must(r#"cat "$TAMEIKE_CACHE/new/synced""#), "content");
    }
}

/// Runs a job of two nodes, and kills its first agent, the packer, with SIGKILL during `script`, which never ends. Then recovers
/// the job; returns the messages of the recovery.
fn kill_packer(site: &Site, job: &Job, script: &str, wait: impl FnOnce()) -> String {
    let running = Background::start(&mut site.job(2, &["--job", &job.name, "--aggregate"], script));
    wait();
    assert!(job.kill_agent(0));
    let output = running.output();
    println!("the job has ended with {}", output.status);
    let recovered = site.tameike(&["recover", "--job", &job.name]).output().expect("it starts");
    let text = shown(&recovered);
    assert_code(&recovered, code_of_recovery(&text));
    format!("{}\n{text}", shown(&output))
}

/// S38a. A directory is renamed at the same time: each file exists once, under the old name or the new one.
#[test]
fn the_rename_of_a_directory_with_packed_files_is_atomic() {
    let mut random = Random::new(seed());
    for round in 0..if is_soak() { 30 } else { 2 } {
        let (site, job) = new_job(&format!("moves-{round}"));
        let ready = site.plain().join("ready");
        let script = format!(
            r#"cd "$TAMEIKE_CACHE"; mkdir -p a/sub; for i in $(seq 300); do seq $i > a/sub/$i; done; touch {}
               python3 -c '
import os
while True:
    os.rename("a", "b")
    os.rename("b", "a")'"#,
            ready.display()
        );
        let pause = random.below(400);
        let text = kill_packer(&site, &job, &script, || {
            wait_for("files", || ready.exists().then_some(()));
            sleep_ms(pause);
        });
        let script = r#"cd "$TAMEIKE_CACHE"; ls -A | wc -l; cd ?/sub; ls -A | wc -l; for i in $(seq 300); do seq $i | cmp - $i; done"#;
        let found = succeed(&mut site.job(2, &["--aggregate"], script));
        assert_eq!(found, "1\n300\n", "after {pause} ms: {text}");
        let container = site.shared().join(".tameike-packed");
        let listed = succeed(Command::new(binary()).args(["agg", "ls", "-r"]).arg(&container));
        assert_eq!(listed.lines().filter(|line| line.contains("/sub/")).count(), 300, "{listed}");
    }
}

/// S35a. Also if another file system is mounted there, to which rename is impossible.
#[test]
fn large_files_are_promoted_to_another_file_system() {
    let Some(scene) = Scene::new("below") else { return };
    let below = scene.site.shared().join("below");
    scene.mounts.mount_memory(scene.site.shared(), "64m");
    fs::create_dir(&below).expect("made here");
    scene.mounts.must(&format!("mkdir {}", below.display()));
    scene.mounts.mount_memory(&below, "64m");
    let script = r#"cd "$TAMEIKE_CACHE"; head -c 5M /dev/urandom > $expected/large; cp $expected/large below/large
                    cp $expected/large large; echo small > below/small; chmod 604 below/large; touch -d 2001-02-03 below/large"#;
    scene.must(script);
    let found = scene.mounts.must(&format!(
        r#"cd {}; cmp below/large {1}; cmp large {1}; ls -A . below .tameike-packed | grep -c -e moved -e '^out' || true
           stat -c '%a %Y' below/large; test ! -e below/small"#,
        scene.site.shared().display(),
        scene.site.plain().join("expected/large").display()
    ));
    assert_eq!(found, "0\n604 981158400\n");
    let again =
        r#"cd "$TAMEIKE_CACHE"; cat below/small; cmp below/large $expected/large; rm below/large; ls below"#;
    assert_eq!(scene.must(again), "small\nsmall\n");
    scene.check_undamaged();
}

/// S35a. The packer is killed during the promotion: each file exists once, packed or not, and no other file exists.
#[test]
fn promoted_files_exist_once_whenever_the_packer_crashes() {
    const LARGE: usize = 24;
    let mut random = Random::new(seed());
    for round in 0..if is_soak() { 20 } else { 3 } {
        let (site, job) = new_job(&format!("out-{round}"));
        let sums = site.plain().join("sums");
        let script = format!(
            r#"cd "$TAMEIKE_CACHE"; mkdir d; for i in $(seq -w {LARGE}); do head -c 1500000 /dev/urandom > d/$i; done
               echo small > d/small; cksum d/* > {}"#,
            sums.display()
        );
        let (after, moved) = (random.below(LARGE as u64 / 2), site.shared().join("d"));
        let plain = || fs::read_dir(&moved).map_or(0, Iterator::count) as u64;
        let text = kill_packer(&site, &job, &script, || {
            wait_for("files that are moved out", || (plain() > after).then_some(()));
            sleep_ms(random.below(3));
        });
        // The names change: nothing is left at the old paths.
        let script = r#"cd "$TAMEIKE_CACHE"; cksum d/*; mkdir e; for i in d/*; do mv $i e/; done; ls -A d; rm -r e; ls -A"#;
        let found = succeed(&mut site.job(2, &["--aggregate"], script));
        let expected = fs::read_to_string(&sums).expect("sums");
        assert_eq!(found, format!("{expected}d\n"), "after {after} files: {text}");
        assert_eq!(fs::read_dir(&moved).expect("a directory").count(), 0, "{text}");
    }
}

/// S38b.
#[test]
fn packed_files_return_errors_without_the_packer() {
    let (site, job) = new_job("dead");
    fs::write(site.shared().join("plain"), "plain").expect("written");
    let wrote = site.plain().join("wrote");
    let script = format!(
        r#"cd "$TAMEIKE_CACHE"; mkdir d; for i in $(seq 30); do seq $i > d/$i; done; touch {0}; while test -e {0}; do sleep 0.05; done"#,
        wrote.display()
    );
    let options = ["--job", &job.name, "--aggregate", "--keep-going"];
    let running = Background::start_until(&mut site.job(3, &options, &script), &wrote);
    assert!(job.kill_agent(0));
    let program = site.python(CALLS);
    succeed(&mut site.tameike(&["exec", "--job", &job.name, "--node", "1", "--", "sh", "-c", &program]));
    fs::remove_file(&wrote).expect("it is there");
    assert_ne!(running.output().status.code(), Some(0));
    site.tameike(&["recover", "--job", &job.name]).exits(0);
    let script = r#"cd "$TAMEIKE_CACHE/d"; for i in $(seq 30); do seq $i | cmp - $i; done; ls | wc -l"#;
    assert_eq!(succeed(&mut site.job(2, &["--aggregate"], script)), "30\n");
}

/// Operations on packed files that still work for other nodes, and those that fail.
const CALLS: &str = r#"
import errno, os
os.chdir(os.environ["TAMEIKE_CACHE"])

def refused(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        assert error.errno == errno.EHOSTDOWN, (call, arguments, error)
        return
    raise SystemExit(f"{call} {arguments} succeeded")

refused(os.stat, "d/1")
refused(open, "d/2")
refused(os.unlink, "d/3")
refused(os.rename, "d/4", "d/40")
refused(os.chmod, "d/5", 0o600)
refused(os.truncate, "d/6", 1)
refused(os.listdir, "d")
refused(os.stat, "d/missing")
refused(lambda: open("d/new", "x"))
"#;
