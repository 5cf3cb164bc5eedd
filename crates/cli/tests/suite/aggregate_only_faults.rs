//! `tameike run --aggregate-only` with concurrent runs, kills, full file systems and invalid input.

use crate::support::mounts::Mounts;
use crate::support::spooled::Place;
use crate::support::{binary, shown, succeed};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const FAILED: i32 = 71;
const INCOMPLETE: i32 = 75;

/// S39c.
#[test]
fn a_killed_program_loses_nothing_that_it_has_written() {
    let place = Place::new();
    let output = place
        .script(
            r#"for i in $(seq 50); do seq $((i * 400)) > file-$i; done; exec 7> open; printf written >&7; kill -9 $$"#,
        )
        .output()
        .expect("it starts");
    assert_eq!(output.status.code(), Some(128 + 9), "{}", shown(&output));
    let extracted = place.extracted();
    assert_eq!(fs::read(extracted.join("open")).expect("it is there"), b"written");
    for number in 1..=50 {
        let expected: String = (1..=number * 400).map(|line| format!("{line}\n")).collect();
        let found = fs::read_to_string(extracted.join(format!("file-{number}"))).expect("it is there");
        assert_eq!(found, expected);
    }
    place.assert_whole();
}

#[track_caller]
fn await_line(child: &mut Child, expected: &str) {
    let mut line = String::new();
    let out = child.stdout.as_mut().expect("a pipe");
    BufReader::new(out).read_line(&mut line).expect("a line");
    assert_eq!(line, expected);
}

fn start(command: &mut Command) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
}

/// S39d.
#[test]
fn a_later_run_continues_for_a_killed_packer() {
    let place = Place::new();
    let script = "for i in $(seq 300); do seq $i > file-$i; done; until-packed file-1; mkdir d; exec 7> d/open; printf open >&7; echo ready; read line";
    for round in 0..5 {
        let mut child = start(&mut place.script(
            &format!("test -e d && rm -r d\n{script} {round}").replace("test -e d &&", "! test -e d ||"),
        ));
        await_line(
            &mut child, "ready
",
        );
        child.kill().expect("killed");
        child.wait().expect("ended");
    }
    let output = place.script("cat d/open; cat file-* | wc -l; rm file-1").output().expect("it starts");
    assert!(output.status.success(), "{}", shown(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "open45150\n");
    let extracted = place.extracted();
    assert!(!extracted.join("file-1").exists());
    assert_eq!(fs::read_to_string(extracted.join("file-3")).expect("it is there"), "1\n2\n3\n");
    place.assert_whole();
}

/// S39b. Runs of a host share a spool, and the last one removes it. Another host has its own spool.
#[test]
fn runs_of_one_host_share_a_spool() {
    let place = Place::new();
    let wait = "until test -s other; do sleep 0.02; done; cat other; echo mine > mine";
    let mut first = start(&mut place.script(wait));
    let second =
        place.script("echo theirs > other; until test -s mine; do sleep 0.02; done; cat mine").output();
    let second = second.expect("it starts");
    assert!(second.status.success(), "{}", shown(&second));
    assert_eq!(String::from_utf8_lossy(&second.stdout), "mine\n");
    drop(first.stdin.take());
    let first = first.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&first.stdout), "theirs\n", "{}", shown(&first));
    place.assert_whole();
    assert_eq!(fs::read_to_string(place.extracted().join("mine")).expect("it is there"), "mine\n");
    let elsewhere = place.base.path().join("elsewhere");
    fs::create_dir(&elsewhere).expect("a directory");
    let mut here =
        start(&mut place.script("echo packed > here; sync; echo ready; read line || true; cat ../ready"));
    await_line(&mut here, "ready\n");
    let mut other = Command::new(binary());
    other.arg("run").arg("--aggregate-only").arg(place.container()).arg("--spool").arg(&elsewhere);
    let other = other.args(["--", "cat"]).arg(place.container().join("here")).output().expect("it starts");
    assert_eq!(String::from_utf8_lossy(&other.stdout), "packed\n", "{}", shown(&other));
    fs::write(place.base.path().join("ready"), "").expect("a file");
    drop(here.stdin.take());
    assert!(here.wait().expect("it ends").success());
}

/// S39f.
#[test]
fn synced_files_are_in_the_container_before_the_run_ends() {
    let place = Place::new();
    let mut child = start(&mut place.script(
        "python3 -c 'import os; f = open(\"synced\", \"w\"); f.write(\"safe\"); f.flush(); os.fsync(f.fileno()); print(\"ready\", flush=True); input()'",
    ));
    await_line(
        &mut child, "ready
",
    );
    let output = place.agg("cat", &[Path::new("synced")]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "safe", "{}", shown(&output));
    drop(child.stdin.take());
    child.wait().expect("it ends");
    place.assert_whole();
}

/// Acknowledged changes stay, whatever is killed.
#[test]
fn changes_of_names_survive_a_killed_packer() {
    let place = Place::new();
    let script = "echo old > data; echo k > gone; echo m > mode; mkdir d; echo in > d/f; until-packed data gone mode d/f; echo new > tmp; until-packed tmp
        mv tmp data; rm gone; chmod 600 mode; mv d e; kill -9 $PPID";
    place.script(script).output().expect("it starts");
    let output = place.script("cat data e/f; stat -c %a mode; ls").output().expect("it starts");
    assert!(output.status.success(), "{}", shown(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "new\nin\n600\ndata\ne\nmode\n");
    place.assert_whole();
}

#[test]
fn background_processes_end_with_the_run() {
    let place = Place::new();
    let script = "(trap '' HUP; exec > late; echo one; sleep 1000) & until test -s late; do sleep 0.02; done";
    let output = place.script(script).stdout(Stdio::null()).output().expect("it starts");
    assert!(output.status.success(), "{}", shown(&output));
    assert_eq!(fs::read_to_string(place.extracted().join("late")).expect("it is there"), "one\n");
    place.assert_whole();
}

/// A copy of a container has its own spool.
#[test]
fn a_copy_of_a_container_is_a_different_container() {
    let place = Place::new();
    let output = place.script("echo first > first").output().expect("it starts");
    assert!(output.status.success(), "{}", shown(&output));
    let copy = place.base.path().join("copy");
    succeed(Command::new("cp").arg("-a").arg(place.container()).arg(&copy));
    let mut here = start(&mut place.script("echo ready; read line || true"));
    await_line(&mut here, "ready\n");
    let mut other = Command::new(binary());
    other.arg("run").arg("--aggregate-only").arg(&copy).arg("--spool").arg(place.spool());
    let other = other.args(["--", "touch"]).arg(copy.join("second")).output().expect("it starts");
    assert!(other.status.success(), "{}", shown(&other));
    drop(here.stdin.take());
    assert!(here.wait().expect("it ends").success());
    let names = |container: &Path| {
        let listed = Command::new(binary()).args(["agg", "ls"]).arg(container).output().expect("it starts");
        String::from_utf8_lossy(&listed.stdout).into_owned()
    };
    assert_eq!(
        (names(&place.container()), names(&copy)),
        ("first\n".to_owned(), "first\nsecond\n".to_owned())
    );
    place.assert_whole();
}

#[test]
fn invalid_input_is_reported_and_nothing_is_changed() {
    let place = Place::new();
    fs::create_dir(place.container()).expect("a directory");
    fs::write(place.container().join("mine"), "not a container").expect("a file");
    let output = place.script("echo no > file").output().expect("it starts");
    assert_eq!(output.status.code(), Some(FAILED));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("neither empty nor a container"),
        "{}",
        shown(&output)
    );
    assert_eq!(fs::read_dir(place.container()).expect("a directory").count(), 1);
    fs::remove_file(place.container().join("mine")).expect("removed");
    let output = place.run(&["/no/such/program"]).output().expect("it starts");
    assert_eq!(output.status.code(), Some(127), "{}", shown(&output));
    let output = place.run(&["sh", "-c", "exit 3"]).output().expect("it starts");
    assert_eq!(output.status.code(), Some(3), "{}", shown(&output));
    let missing = place.base.path().join("no/such/dir");
    let output =
        Command::new(binary()).arg("run").arg("--aggregate-only").arg(&missing).args(["--", "true"]).output();
    let output = output.expect("it starts");
    assert_eq!(output.status.code(), Some(FAILED), "{}", shown(&output));
    assert!(!missing.exists());
    place.assert_whole();
}

/// S39e.
#[test]
fn a_full_file_system_keeps_the_rest_in_the_spool() {
    let Some(mounts) = Mounts::new() else { return };
    let place = Place::new();
    fs::create_dir(place.container()).expect("a directory");
    mounts.mount_memory(&place.container(), "24m");
    let script = "umask 022; for i in $(seq 40); do head -c 1000000 /dev/zero | tr '\\0' \"$(printf %o $((i + 64)))\" > file-$i; done; md5sum file-*";
    let run = |script: &str| mounts.inside(&place.script(script)).output().expect("it starts");
    let output = run(script);
    assert_eq!(output.status.code(), Some(INCOMPLETE), "{}", shown(&output));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("kept in") && text.contains("ENOSPC"), "{text}");
    // Files that are reported as packed are in the container.
    assert!(!text.contains("packed 40 files"), "{text}");
    let sum = String::from_utf8_lossy(&output.stdout).into_owned();
    mounts.must(&format!("mount -o remount,size=100m {}", place.container().display()));
    let output = run("md5sum file-*");
    assert!(output.status.success(), "{}", shown(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), sum);
    let verify = mounts.shell(&format!("{} agg verify {}", binary(), place.container().display()));
    assert!(verify.status.success(), "{}", shown(&verify));
    assert_eq!(fs::read_dir(place.spool()).expect("a directory").count(), 0);
}

/// Files that were packed before ENOSPC are not packed again, which would need space again.
#[test]
fn files_packed_before_the_file_system_was_full_stay_packed() {
    let Some(mounts) = Mounts::new() else { return };
    let place = Place::new();
    fs::create_dir(place.container()).expect("a directory");
    mounts.mount_memory(&place.container(), "4m");
    // Small files that stay open until the program exits, so that all are packed then. A process may have a thousand open files.
    let program = "import os; first = 0 if os.fork() else 750; files = [(i, open(str(i), 'wb')) for i in range(first, first + 750)]; \
                   [file.write(b'%05d' % i * 800) for i, file in files]; first or os.wait()";
    let run = |program: &str| {
        let output =
            mounts.inside(&place.script(&format!("python3 -c \"{program}\""))).output().expect("it starts");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let packed =
            text.split_once("packed ").and_then(|(_, rest)| rest.split(' ').next()?.parse::<u32>().ok());
        (output.status.code(), packed.unwrap_or_else(|| panic!("{}", shown(&output))))
    };
    let (status, first) = run(program);
    assert_eq!(status, Some(INCOMPLETE));
    assert!(0 < first && first < 1500, "{first}");
    mounts.must(&format!("mount -o remount,size=100m {}", place.container().display()));
    let (status, second) =
        run("assert all(open(str(i), 'rb').read() == b'%05d' % i * 800 for i in range(1500))");
    assert_eq!((status, first + second), (Some(0), 1500));
}

/// S39j. Files of programs without the library, or through links from outside, were in no listing, and the run reported
/// success.
#[test]
fn files_beside_the_container_are_reported() {
    let place = Place::new();
    std::os::unix::fs::symlink(place.container(), place.base.path().join("by")).expect("a link");
    let script = "echo in > a; echo 1 > ../by/stray; TAMEIKE_SPOOL= mkdir \"$TAMEIKE_CONTAINER/made\"";
    let first = place.script(script).output().expect("it starts");
    // Later runs report it too, until it is removed.
    let later = place.run(&["true"]).output().expect("it starts");
    for output in [first, later] {
        assert_eq!(output.status.code(), Some(INCOMPLETE), "{}", shown(&output));
        let text = shown(&output);
        let name = |name: &str| place.container().join(name).display().to_string();
        for stray in ["made", "stray"].map(name) {
            assert!(text.contains(&format!("{stray}: beside the container")), "{text}");
        }
        assert!(text.contains("2 paths are not packed") && !text.contains(".data:"), "{text}");
    }
    // The advice of the message works.
    fs::rename(place.container().join("stray"), place.base.path().join("stray")).expect("ours");
    fs::remove_dir(place.container().join("made")).expect("ours");
    succeed(&mut place.run(&["mv", "stray", "container/"]));
    assert_eq!(fs::read(place.extracted().join("stray")).expect("it is there"), b"1\n");
    place.assert_whole();
}

/// Packing frees a full spool; a write that exceeds its size at once fails.
#[test]
fn a_small_spool_is_enough_for_many_files() {
    let Some(mounts) = Mounts::new() else { return };
    let place = Place::new();
    mounts.mount_memory(&place.spool(), "16m");
    let script = "for i in $(seq 100); do head -c 1000000 /dev/urandom > file-$i; done; ls | wc -l; for i in $(seq 100); do wc -c < file-$i; done | sort | uniq -c";
    let output = mounts.inside(&place.script(script)).output().expect("it starts");
    assert!(output.status.success(), "{}", shown(&output));
    let words: Vec<_> =
        String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect();
    assert_eq!(words, ["100", "100", "1000000"]);
    let output = mounts.inside(&place.script("head -c 20000000 /dev/zero > large || echo failed")).output();
    let output = output.expect("it starts");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "failed\n", "{}", shown(&output));
}

/// Other users can create directories beside a spool, with any name that they can predict.
#[test]
fn other_users_cannot_block_the_removal_of_a_spool() {
    let place = Place::new();
    let output = place
        .script(r#"echo kept > file; mkdir -p "$TAMEIKE_SPOOL.gone/in"; echo "$TAMEIKE_SPOOL.gone""#)
        .output()
        .expect("it starts");
    assert!(output.status.success(), "{}", shown(&output));
    let beside = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
    fs::remove_dir_all(beside).expect("it is there");
    assert_eq!(fs::read_to_string(place.extracted().join("file")).expect("it is there"), "kept\n");
    place.assert_whole();
}
