//! pjdfstest, a suite for POSIX file systems, on each view, and on ext4 and XFS for comparison.
//!
//! `suites/pjdfstest.expected` lists the cases that do not pass, with reasons. A new failure fails the test, and so does a
//! listed case that passes or is skipped.

use crate::support::mounts::Mounts;
use crate::support::{Run, Site, is_root, succeed, utf8};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Cases of version 0.2.2 on Linux.
const CASES: usize = 398;

/// Outcomes of cases that did not pass, by name.
type Outcomes = BTreeMap<String, String>;

/// Runs the suite in the new directory `$2`, and writes its output to the file `$1`.
///
/// The cases of EROFS run in a separate process: other cases leave files open for writing, which prevents a read-only remount.
/// pjdfstest calls `mount`, which for FUSE calls a helper that mounts again, unless an option prevents it. A file that was
/// removed while open keeps a FUSE mount busy until the kernel has the reply to its RELEASE, for which no program waits: so
/// the `mount` wrapper retries for some seconds.
fn suite(site: &Site) -> String {
    let programs = site.plain().join("programs");
    fs::create_dir(&programs).expect("a directory");
    fs::create_dir(messages(site)).expect("a directory");
    let mount = programs.join("mount");
    let tried = "for try in $(seq 50); do messages=$(/bin/mount --internal-only \"$@\" 2>&1) && exit; sleep 0.1; done";
    fs::write(&mount, format!("#!/bin/sh\n{tried}\necho \"$messages\" >&2; exit 1\n")).expect("a program");
    fs::set_permissions(&mount, fs::Permissions::from_mode(0o755)).expect("ours");
    format!(
        r#"messages={messages}
           sed 's/^allow_remount = false/allow_remount = true/' {config} > $messages/erofs.toml
           pjdfstest() {{ NO_COLOR=1 RUST_BACKTRACE=0 PATH={programs}:$PATH {program} -s {elsewhere} "$@" 2>&1 || true; }}
           suite() {{
               mkdir "$2"; chmod 755 "$2"
               (cd /; pjdfstest -c {config} -p "$2"; pjdfstest -c $messages/erofs.toml -p "$2" erofs) > "$1"
           }}
        "#,
        programs = programs.display(),
        program = crate::suites::program("pjdfstest"),
        config = crate::suites::file("pjdfstest.toml"),
        elsewhere = site.plain().display(),
        messages = messages(site).display(),
    )
}

/// The directory of the suite's output.
fn messages(site: &Site) -> PathBuf {
    site.plain().join("messages")
}

/// A site that other users can enter, for cases about permissions.
fn open_site() -> Site {
    let site = Site::new();
    let open = |dir: &Path| fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).expect("ours");
    open(site.base().parent().expect("it has a parent"));
    site
}

/// Parses the suite's output: the cases that did not pass. If a case ran twice, the second outcome counts.
fn read(messages: &str) -> Outcomes {
    let mut outcomes = Outcomes::new();
    for line in messages.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        if let [name, outcome @ ("ok" | "skipped" | "FAILED")] = words.as_slice() {
            outcomes.insert((*name).to_owned(), (*outcome).to_owned());
        }
    }
    assert_eq!(outcomes.len(), CASES, "not the whole suite: {messages}");
    outcomes.retain(|_, outcome| outcome != "ok");
    outcomes
}

/// The listed outcomes in a file system or view, without reasons.
fn expected(file_system: &str) -> Outcomes {
    let text = fs::read_to_string(crate::suites::file("pjdfstest.expected")).expect("the list");
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let mut listed = Outcomes::new();
    for line in lines {
        let words: Vec<_> = line.split_whitespace().collect();
        assert!(words.len() > 3, "WHERE CASE OUTCOME REASON, not: {line}");
        let is_view = !matches!(file_system, "ext4" | "xfs");
        if words[0] == file_system || words[0] == "views" && is_view {
            listed.insert(words[1].to_owned(), words[2].to_owned());
        }
    }
    listed
}

/// Panics if the outcomes differ from the list.
#[track_caller]
fn assert_as_listed(site: &Site, file_systems: &[&str]) {
    let mut wrong = String::new();
    for file_system in file_systems {
        let messages = fs::read_to_string(messages(site).join(file_system)).expect("the output of pjdfstest");
        let (outcomes, listed) = (read(&messages), expected(file_system));
        if outcomes != listed {
            let passed = |line: &&str| !line.ends_with(" ok");
            let rest: Vec<_> = messages.lines().filter(passed).collect();
            wrong +=
                &format!("{file_system}:\n{outcomes:#?}, but listed are {listed:#?}:\n{}\n", rest.join("\n"));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// Runs the suite in views of one job in parallel; `views` are the name in the list and the variable of each view.
/// The job has a short name, because socket paths are limited; no other test may use it.
fn run_in_views((job, options): (&str, &[&str]), nodes: u32, is_on_disk: bool, views: &[(&str, &str)]) {
    if !is_root() {
        return;
    }
    let site = open_site();
    let mut script = suite(&site);
    // Other users cannot enter the job's directories, only the mounts in them.
    script.push_str(
        r#"dir=$TAMEIKE_SHARED; while [ "$dir" != / ]; do chmod a+x "$dir"; dir=$(dirname "$dir"); done"#,
    );
    for (file_system, view) in views {
        script.push_str(&format!("\nsuite $messages/{file_system} $TAMEIKE_{view}/p &"));
    }
    script.push_str("\nwait");
    let disk = site.disk();
    let device = if is_on_disk { utf8(disk) } else { "ram" };
    succeed(&mut site.job(nodes, &[&["--job", job, "--device", device], options].concat(), &script));
    assert_as_listed(&site, &views.iter().map(|(file_system, _)| *file_system).collect::<Vec<_>>());
}

#[test]
fn each_view_is_a_posix_file_system() {
    let views = [("job-shared", "SHARED"), ("cache", "CACHE"), ("node-local-in-memory", "NODE_LOCAL")];
    run_in_views(("p", &[]), 1, false, &views);
}

#[test]
fn the_node_local_view_on_a_disk_is_a_posix_file_system() {
    run_in_views(("r", &[]), 1, true, &[("node-local", "NODE_LOCAL")]);
}

#[test]
fn the_view_of_four_agents_is_a_posix_file_system() {
    run_in_views(("q", &[]), 4, false, &[("job-shared-of-4", "SHARED")]);
}

/// S31a.
#[test]
fn the_views_are_posix_file_systems_for_preloaded_programs() {
    let views = [("job-shared-preloaded", "SHARED"), ("cache-preloaded", "CACHE")];
    run_in_views(("s", &["--preload"]), 2, true, &views);
}

/// The reference for the list: the machine's file systems.
#[test]
fn ext4_and_xfs_pass_the_same_suite() {
    let Some(mounts) = Mounts::new() else { return };
    let site = open_site();
    let disks = site.plain().join("disks");
    fs::create_dir(&disks).expect("a directory");
    mounts.mount_memory(&disks, "500m");
    let mut script = suite(&site);
    for (file_system, make, size) in [("ext4", "mkfs.ext4 -q", "100M"), ("xfs", "mkfs.xfs -q", "320M")] {
        script.push_str(&format!(
            "cd {disks}; mkdir {file_system}; truncate -s {size} {file_system}.image; {make} {file_system}.image; \
             mount -o loop {file_system}.image {file_system}; suite $messages/{file_system} $PWD/{file_system}/p &\n",
            disks = disks.display(),
        ));
    }
    script.push_str("wait; umount ext4 xfs");
    mounts.inside(Command::new("sh").args(["-euc", &script])).exits(0);
    assert_as_listed(&site, &["ext4", "xfs"]);
}

/// A self-test: a case that fails, is skipped, or is not listed is detected.
#[test]
fn a_failing_case_is_detected() {
    let mut lines: Vec<_> = (1..CASES).map(|case| format!("chmod::case_{case}    ok\n")).collect();
    lines.push("chmod::other    FAILED\n\tassertion failed\n".to_owned());
    let failed = Outcomes::from([("chmod::other".to_owned(), "FAILED".to_owned())]);
    assert_eq!(read(&lines.concat()), failed);
    lines.push("chmod::other    ok\n".to_owned());
    assert_eq!(read(&lines.concat()), Outcomes::new());
    lines.truncate(CASES - 1);
    let incomplete = std::panic::catch_unwind(|| read(&lines.concat()));
    assert!(incomplete.is_err(), "a suite that ended early passed");
}
