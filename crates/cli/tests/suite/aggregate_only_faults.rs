//! `tameike run --aggregate-only` with concurrent runs, kills, full file systems and invalid input.

use crate::support::interactive::Interactive;
use crate::support::mounts::Mounts;
use crate::support::spooled::SpoolSite;
use crate::support::{Run, assert_code, assert_contains, binary, err, out, shown, succeed};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

const FAILED: i32 = 71;
const INCOMPLETE: i32 = 75;

/// S39c.
#[test]
fn a_killed_program_loses_nothing_that_it_has_written() {
    let site = SpoolSite::new();
    let script = r#"for i in $(seq 50); do seq $((i * 400)) > file-$i; done; exec 7> open; printf written >&7; kill -9 $$"#;
    site.script(script).exits(128 + 9);
    let extracted = site.extracted();
    assert_eq!(fs::read(extracted.join("open")).expect("it is there"), b"written");
    for number in 1..=50 {
        let expected: String = (1..=number * 400).map(|line| format!("{line}\n")).collect();
        let found = fs::read_to_string(extracted.join(format!("file-{number}"))).expect("it is there");
        assert_eq!(found, expected);
    }
}

/// S39d.
#[test]
fn a_later_run_continues_for_a_killed_packer() {
    let site = SpoolSite::new();
    let script = "for i in $(seq 300); do seq $i > file-$i; done; until-packed file-1; mkdir d; exec 7> d/open; printf open >&7; echo ready; read line";
    for round in 0..5 {
        let script = format!("! test -e d || rm -r d\n{script} {round}");
        Interactive::start_until_ready(&mut site.script(&script)).kill();
    }
    let found = succeed(&mut site.script("cat d/open; cat file-* | wc -l; rm file-1"));
    assert_eq!(found, "open45150\n");
    let extracted = site.extracted();
    assert!(!extracted.join("file-1").exists());
    assert_eq!(fs::read_to_string(extracted.join("file-3")).expect("it is there"), "1\n2\n3\n");
}

/// S39b. Runs of a host share a spool, and the last one removes it. Another host has its own spool.
#[test]
fn runs_of_one_host_share_a_spool() {
    let site = SpoolSite::new();
    let wait = "until test -s other; do sleep 0.02; done; cat other; echo mine > mine";
    let first = Interactive::start(&mut site.script(wait));
    let second = "echo theirs > other; until test -s mine; do sleep 0.02; done; cat mine";
    assert_eq!(succeed(&mut site.script(second)), "mine\n");
    assert_eq!(first.end().0, ["theirs"]);
    site.assert_intact();
    assert_eq!(site.extracted_text("mine"), "mine\n");
    let elsewhere = site.base.path().join("elsewhere");
    fs::create_dir(&elsewhere).expect("a directory");
    let script = "echo packed > here; sync; echo ready; read line || true; cat ../ready";
    let here = Interactive::start_until_ready(&mut site.script(script));
    let mut other = Command::new(binary());
    other.arg("run").arg("--aggregate-only").arg(site.container()).arg("--spool").arg(&elsewhere);
    let other = other.args(["--", "cat"]).arg(site.container().join("here")).output().expect("it starts");
    assert_eq!(out(&other), "packed\n", "{}", shown(&other));
    fs::write(site.base.path().join("ready"), "").expect("a file");
    assert_eq!(here.end().1, Some(0));
}

/// S39f.
#[test]
fn synced_files_are_in_the_container_before_the_run_ends() {
    let site = SpoolSite::new();
    let script = "python3 -c 'import os; f = open(\"synced\", \"w\"); f.write(\"safe\"); f.flush(); os.fsync(f.fileno()); print(\"ready\", flush=True); input()'";
    let run = Interactive::start_until_ready(&mut site.script(script));
    assert_eq!(succeed(&mut site.agg("cat", &[Path::new("synced")])), "safe");
    run.end();
}

/// Acknowledged changes stay, whatever is killed.
#[test]
fn changes_of_names_survive_a_killed_packer() {
    let site = SpoolSite::new();
    let script = "echo old > data; echo k > gone; echo m > mode; mkdir d; echo in > d/f; until-packed data gone mode d/f; echo new > tmp; until-packed tmp
        mv tmp data; rm gone; chmod 600 mode; mv d e; kill -9 $PPID";
    site.script(script).output().expect("it starts");
    let found = succeed(&mut site.script("cat data e/f; stat -c %a mode; ls"));
    assert_eq!(found, "new\nin\n600\ndata\ne\nmode\n");
}

#[test]
fn background_processes_end_with_the_run() {
    let site = SpoolSite::new();
    let script = "(trap '' HUP; exec > late; echo one; sleep 1000) & until test -s late; do sleep 0.02; done";
    site.script(script).stdout(Stdio::null()).exits(0);
    assert_eq!(site.extracted_text("late"), "one\n");
}

/// A copy of a container has its own spool.
#[test]
fn a_copy_of_a_container_is_a_different_container() {
    let site = SpoolSite::new();
    site.script("echo first > first").exits(0);
    let copy = site.base.path().join("copy");
    succeed(Command::new("cp").arg("-a").arg(site.container()).arg(&copy));
    let here = Interactive::start_until_ready(&mut site.script("echo ready; read line || true"));
    let mut other = Command::new(binary());
    other.arg("run").arg("--aggregate-only").arg(&copy).arg("--spool").arg(site.spool());
    other.args(["--", "touch"]).arg(copy.join("second")).exits(0);
    assert_eq!(here.end().1, Some(0));
    let names = |container: &Path| succeed(Command::new(binary()).args(["agg", "ls"]).arg(container));
    assert_eq!([names(&site.container()), names(&copy)], ["first\n", "first\nsecond\n"]);
}

#[test]
fn invalid_input_is_reported_and_nothing_is_changed() {
    let site = SpoolSite::new();
    fs::create_dir(site.container()).expect("a directory");
    fs::write(site.container().join("mine"), "not a container").expect("a file");
    let output = site.script("echo no > file").exits(FAILED);
    assert_contains(&err(&output), &["neither empty nor a container"]);
    assert_eq!(fs::read_dir(site.container()).expect("a directory").count(), 1);
    fs::remove_file(site.container().join("mine")).expect("removed");
    site.run(&["/no/such/program"]).exits(127);
    site.run(&["sh", "-c", "exit 3"]).exits(3);
    let missing = site.base.path().join("no/such/dir");
    Command::new(binary())
        .arg("run")
        .arg("--aggregate-only")
        .arg(&missing)
        .args(["--", "true"])
        .exits(FAILED);
    assert!(!missing.exists());
}

/// S39e.
#[test]
fn a_full_file_system_keeps_the_rest_in_the_spool() {
    let Some(mounts) = Mounts::new() else { return };
    let site = SpoolSite::new();
    fs::create_dir(site.container()).expect("a directory");
    mounts.mount_memory(&site.container(), "24m");
    let script = "umask 022; for i in $(seq 40); do head -c 1000000 /dev/zero | tr '\\0' \"$(printf %o $((i + 64)))\" > file-$i; done; md5sum file-*";
    let run = |script: &str, code: i32| mounts.inside(&site.script(script)).exits(code);
    let output = run(script, INCOMPLETE);
    let text = err(&output);
    assert_contains(&text, &["kept in", "ENOSPC"]);
    // Files that are reported as packed are in the container.
    assert!(!text.contains("packed 40 files"), "{text}");
    let sum = out(&output);
    mounts.resize(&site.container(), "100m");
    assert_eq!(out(&run("md5sum file-*", 0)), sum);
    mounts.must(&format!("{} agg verify {}", binary(), site.container().display()));
}

/// Files that were packed before ENOSPC are not packed again, which would need space again.
#[test]
fn files_packed_before_the_file_system_was_full_stay_packed() {
    let Some(mounts) = Mounts::new() else { return };
    let site = SpoolSite::new();
    fs::create_dir(site.container()).expect("a directory");
    mounts.mount_memory(&site.container(), "4m");
    // Small files that stay open until the program exits, so that all are packed then. A process may have a thousand open files.
    let program = "import os; first = 0 if os.fork() else 750; files = [(i, open(str(i), 'wb')) for i in range(first, first + 750)]; \
                   [file.write(b'%05d' % i * 800) for i, file in files]; first or os.wait()";
    let run = |program: &str| {
        let output =
            mounts.inside(&site.script(&format!("python3 -c \"{program}\""))).output().expect("it starts");
        let text = err(&output);
        let packed =
            text.split_once("packed ").and_then(|(_, rest)| rest.split(' ').next()?.parse::<u32>().ok());
        (output.status.code(), packed.unwrap_or_else(|| panic!("{}", shown(&output))))
    };
    let (status, first) = run(program);
    assert_eq!(status, Some(INCOMPLETE));
    assert!(0 < first && first < 1500, "{first}");
    mounts.resize(&site.container(), "100m");
    let (status, second) =
        run("assert all(open(str(i), 'rb').read() == b'%05d' % i * 800 for i in range(1500))");
    assert_eq!((status, first + second), (Some(0), 1500));
}

/// S39j. Files of programs without the library, or through links from outside, were in no listing, and the run reported
/// success.
#[test]
fn files_beside_the_container_are_reported() {
    let site = SpoolSite::new();
    std::os::unix::fs::symlink(site.container(), site.base.path().join("by")).expect("a link");
    let script = "echo in > a; echo 1 > ../by/stray; TAMEIKE_SPOOL= mkdir \"$TAMEIKE_CONTAINER/made\"";
    let first = site.script(script).output().expect("it starts");
    // Later runs report it too, until it is removed.
    let later = site.run(&["true"]).output().expect("it starts");
    for output in [first, later] {
        assert_code(&output, INCOMPLETE);
        let text = shown(&output);
        let name = |name: &str| site.container().join(name).display().to_string();
        for stray in ["made", "stray"].map(name) {
            assert_contains(&text, &[&format!("{stray}: beside the container")]);
        }
        assert!(text.contains("2 paths are not packed") && !text.contains(".data:"), "{text}");
    }
    // The advice of the message works.
    fs::rename(site.container().join("stray"), site.base.path().join("stray")).expect("ours");
    fs::remove_dir(site.container().join("made")).expect("ours");
    succeed(&mut site.run(&["mv", "stray", "container/"]));
    assert_eq!(fs::read(site.extracted().join("stray")).expect("it is there"), b"1\n");
}

/// Packing frees a full spool; a write that exceeds its size at once fails.
#[test]
fn a_small_spool_is_enough_for_many_files() {
    let Some(mounts) = Mounts::new() else { return };
    let site = SpoolSite::new();
    mounts.mount_memory(&site.spool(), "16m");
    let script = "for i in $(seq 100); do head -c 1000000 /dev/urandom > file-$i; done; ls | wc -l; for i in $(seq 100); do wc -c < file-$i; done | sort | uniq -c";
    let output = mounts.inside(&site.script(script)).exits(0);
    let counts = out(&output);
    assert_eq!(counts.split_whitespace().collect::<Vec<_>>(), ["100", "100", "1000000"]);
    let output = mounts
        .inside(&site.script("head -c 20000000 /dev/zero > large || echo failed"))
        .output()
        .expect("it starts");
    assert_eq!(out(&output), "failed\n", "{}", shown(&output));
}

/// Other users can create directories beside a spool, with any name that they can predict.
#[test]
fn other_users_cannot_block_the_removal_of_a_spool() {
    let site = SpoolSite::new();
    let output = site
        .script(r#"echo kept > file; mkdir -p "$TAMEIKE_SPOOL.gone/in"; echo "$TAMEIKE_SPOOL.gone""#)
        .exits(0);
    let beside = out(&output).trim_end().to_owned();
    fs::remove_dir_all(beside).expect("it is there");
    assert_eq!(site.extracted_text("file"), "kept\n");
}
