//! Jobs of unprivileged users: without root, concurrent, and on hosts with restrictions.

mod user;

use crate::failover::FAIL;
use crate::kit::Kit;
use crate::support::interactive::Interactive;
use crate::support::{Run, assert_code, assert_contains, binary, err, helper, out, shown, succeed, utf8};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::{Command, Output};
use user::{Allows, Host, User};

/// Users of every Debian system.
const NOBODY: u32 = 65534;
const DAEMON: u32 = 1;
const SYS: u32 = 3;
/// The group of a project.
const GROUP: u32 = 54_321;

const FAILED: i32 = 71;
const INCOMPLETE: i32 = 75;

/// Runs a job of two nodes that must work with any paths.
const EVERYTHING: &str = r#"
    me=$(id -u):$(id -g)
    for view in "$TAMEIKE_SHARED" "$TAMEIKE_CACHE" "$TAMEIKE_NODE_LOCAL"; do
        mkdir "$view/dir"
        echo made > "$view/dir/file"
        test "$(stat -c %u:%g "$view/dir/file")" = "$me"
        test "$(stat -c %u:%g "$view/dir")" = "$me"
        chmod 600 "$view/dir/file"
        mv "$view/dir/file" "$view/dir/moved"
    done
    rm "$TAMEIKE_CACHE/dir/moved"
    rmdir "$TAMEIKE_CACHE/dir"
    tameike exec --all -- sh -euc '
        test "$(cat "$TAMEIKE_SHARED/dir/moved")" = made
        test "$(stat -c %u:%g "$TAMEIKE_SHARED/dir/moved")" = "$(id -u):$(id -g)"
        echo "from $TAMEIKE_NODE" > "$TAMEIKE_CACHE/from-$TAMEIKE_NODE"'
    cat "$TAMEIKE_CACHE/from-0" "$TAMEIKE_CACHE/from-1" > "$TAMEIKE_CACHE/both"
    tameike exec --node 1 -- sh -euc 'test "$(cat "$TAMEIKE_CACHE/both")" = "$(printf "from 0\nfrom 1")"'
    tameike exec --node 1 -- sh -euc 'echo "$TAMEIKE_SHARED"' > "$TAMEIKE_SHARED/path"
    # What a job leaves running ends with it.
    setsid sleep 1000 > /dev/null 2>&1 &
    tameike exec --node 1 -- sh -c 'setsid sleep 1000 > /dev/null 2>&1 &'
    if [ "$(cat "$TAMEIKE_SHARED/path")" = "$TAMEIKE_SHARED" ]; then echo same paths; else echo other paths; fi"#;

fn everything_works(allows: Allows, paths: &str) {
    let host = Host::new();
    let user = host.user(NOBODY);
    let job = format!("{}-{}", paths.replace(' ', "-"), std::process::id());
    let output = user.job(allows, &job, EVERYTHING).exits(0);
    assert_contains(&out(&output), &[paths]);
    assert_contains(&err(&output), &["drain complete: 3 files", "all synced, read back and equal"]);
    user.assert_shared("from-0", "from 0\n");
    user.assert_shared("from-1", "from 1\n");
    user.assert_shared("both", "from 0\nfrom 1\n");
    assert_no_device(&job);
}

/// No device of the job is left in memory.
fn assert_no_device(job: &str) {
    let names = fs::read_dir("/dev/shm").expect("/dev/shm").flatten().map(|entry| entry.file_name());
    let of_job = |name: &std::ffi::OsString| {
        let name = name.to_string_lossy().into_owned();
        name.rsplit_once('-').is_some_and(|(device, _)| {
            device
                .strip_prefix("tameike-")
                .and_then(|rest| rest.split_once('-'))
                .is_some_and(|(_, of)| of == job)
        })
    };
    let left: Vec<_> = names.filter(of_job).collect();
    assert!(left.is_empty(), "devices left: {left:?}");
}

#[test]
fn an_unprivileged_user_runs_a_job_in_namespaces() {
    everything_works(Allows::Everything, "same paths");
}

#[test]
fn fusermount3_mounts_if_namespaces_are_refused() {
    everything_works(Allows::NoNamespaces, "other paths");
}

#[test]
fn an_unprivileged_user_shares_memory_between_nodes() {
    let (host, kit) = (Host::new(), Kit::new());
    host.install(&kit.place().join("libtameike.so.0"));
    let [region, window] = ["dsm", "win"].map(|name| host.install(&kit.build(name)));
    // Each node may have another path of the view.
    let on_both = |program: &Path, task: &str, file: &str, arguments: &str| {
        let program = program.display();
        let start = |rank| {
            let run = format!("exec {program} {task} \"$TAMEIKE_SHARED/{file}\" {rank} 2 {arguments}");
            format!("tameike exec --node {rank} -- sh -c '{run}' & pids=\"$pids $!\"\n")
        };
        format!("pids=\n{}{}for pid in $pids; do wait $pid; done\n", start(0), start(1))
    };
    let share =
        |mechanism| on_both(&region, "share", mechanism, &format!("{mechanism} 100 4 /dev/null enough"));
    let mut script: String = ["userfaultfd", "mprotect", "one-writer"].map(share).concat();
    script.push_str(&on_both(&window, "calls", "window", "1"));
    let user = host.user(NOBODY);
    for (allows, how) in [(Allows::Everything, "namespaces"), (Allows::NoNamespaces, "helper")] {
        user.job(allows, &format!("memory-{how}-{}", std::process::id()), &script).exits(0);
    }
}

/// The checking programs of the tests of replicas, while an agent is killed.
#[test]
fn an_unprivileged_user_has_a_job_that_survives_a_killed_agent() {
    let host = Host::new();
    let checker = host.install(Path::new(&helper("checker.py")));
    let user = host.user(NOBODY);
    let script = format!(
        r#"{FAIL}
           dir=$(mktemp -d); check() {{ node=$1; shift; tameike exec --node $node -- python3 {} "$@" $dir; }}
           tameike exec --node 2 -- sh -euc 'mkdir "$TAMEIKE_SHARED/two" "$TAMEIKE_CACHE/two"'
           check 0 run 1 & first=$!; check 1 run 1 & second=$!
           until test $(ls $dir | grep -c begun) = 4; do test ! -e $dir/stop; sleep 0.05; done
           kill_agent 2; sleep 0.5; touch $dir/stop; wait $first; wait $second
           check 0 verify 0,1; check 1 verify 0,1; rm -r $dir"#,
        checker.display()
    );
    let shared = user.shared();
    for (allows, how) in [(Allows::Everything, "namespaces"), (Allows::NoNamespaces, "helper")] {
        let job = format!("replicas-{how}-{}", std::process::id());
        let run = ["run", "--local", "3", "--replicas", "2", "--shared", utf8(&shared), "--job", &job];
        let output = user.tameike(allows, &[&run[..], &["--", "sh", "-euc", &script]].concat()).exits(0);
        assert_contains(&err(&output), &["other nodes serve its data", "drain complete"]);
        assert_no_device(&job);
        fs::remove_dir_all(&shared).expect("drained files");
        fs::create_dir(&shared).expect("a directory");
        chown(&shared, Some(NOBODY), Some(NOBODY)).expect("an owner");
    }
}

#[test]
fn the_job_prints_advice_if_mounts_are_refused() {
    let host = Host::new();
    let user = host.user(NOBODY);
    let job = format!("none-{}", std::process::id());
    for (allows, part) in [(Allows::NoDevice, "/dev/fuse"), (Allows::Nothing, "namespace")] {
        let output = user.job(allows, &job, "exit 0").exits(FAILED);
        assert_contains(&err(&output), &[part, "fusermount3", "`tameike doctor` prints how to fix it"]);
        assert_no_device(&job);
    }
}

/// The doctor's check `name`: outcome, finding and advice.
fn diagnosis(user: &User<'_>, allows: Allows, name: &str) -> (bool, String, String) {
    let output = user.tameike(allows, &["doctor", "--json"]).output().expect("a doctor");
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a JSON document");
    let works = document["works"].as_bool().expect("works");
    assert_code(&output, if works { 0 } else { FAILED });
    let checks = document["checks"].as_array().expect("checks");
    let check = checks.iter().find(|check| check["name"] == name).expect(name);
    let text = |key: &str| check[key].as_str().expect(key).to_owned();
    (works, text("outcome"), text("mend"))
}

#[test]
fn the_doctor_prints_how_to_fix_problems() {
    let host = Host::new();
    let user = host.user(NOBODY);
    let cases = [
        (Allows::Everything, "FUSE device", true, "ok", ""),
        (Allows::Everything, "namespaces", true, "ok", ""),
        (Allows::Everything, "mounts", true, "ok", ""),
        (Allows::NoDevice, "FUSE device", false, "missing", "chmod 666 /dev/fuse"),
        (Allows::NoDevice, "mounts", false, "missing", "fix the FUSE device"),
        (Allows::NoNamespaces, "FUSE device", true, "ok", ""),
        (Allows::NoNamespaces, "namespaces", true, "slow", "sysctl -w user.max_user_namespaces"),
        (Allows::NoNamespaces, "mounts", true, "slow", "fix the namespaces"),
        (Allows::Nothing, "namespaces", false, "slow", "sysctl -w user.max_user_namespaces"),
        (Allows::Nothing, "mounts", false, "missing", "apt install fuse3"),
        (Allows::Nothing, "fusermount3", false, "slow", "apt install fuse3"),
    ];
    for (allows, name, works, outcome, mend) in cases {
        let found = diagnosis(&user, allows, name);
        assert_eq!((found.0, found.1.as_str()), (works, outcome), "{allows:?}, {name}: {found:?}");
        assert!(found.2.contains(mend) && (!mend.is_empty() || found.2.is_empty()), "{allows:?}: {found:?}");
    }
}

/// Ends a job that waits for a line; it must succeed.
fn end(mut job: Interactive) {
    job.send_line("go");
    assert_eq!(job.line().as_deref(), Some("done"));
    assert_eq!(job.end().1, Some(0));
}

/// Two users with jobs of the same name, and two jobs of one user, on one host with one `/tmp`.
#[test]
fn jobs_of_several_users_and_of_one_do_not_collide() {
    let host = Host::new();
    let (nobody, daemon) = (host.user(NOBODY), host.user(DAEMON));
    let names = ["one", "two"].map(|name| format!("{name}-{}", std::process::id()));
    let script = |word: &str| {
        format!(
            r#"echo {word} > "$TAMEIKE_SHARED/word"; echo ready; read -r go
               tameike exec --node 1 -- sh -euc 'cp "$TAMEIKE_SHARED/word" "$TAMEIKE_CACHE/{word}"'
               echo done"#
        )
    };
    let allows = Allows::Everything;
    let first = Interactive::start_until_ready(&mut nobody.job(allows, &names[0], &script("first")));
    let second = Interactive::start_until_ready(&mut nobody.job(allows, &names[1], &script("second")));
    let other = Interactive::start_until_ready(&mut daemon.job(allows, &names[0], &script("other")));

    let status = succeed(&mut nobody.tameike(allows, &["status"]));
    assert!(names.iter().all(|name| status.contains(name.as_str())), "{status}");
    let status = succeed(&mut daemon.tameike(allows, &["status"]));
    assert!(status.contains(&names[0]) && !status.contains(&names[1]), "{status}");

    let ambiguous = nobody.tameike(allows, &["exec", "--", "true"]).exits(FAILED);
    assert_contains(&err(&ambiguous), &["choose one with --job"]);
    let foreign = daemon.tameike(allows, &["exec", "--job", &names[1], "--", "true"]).exits(FAILED);
    assert_contains(&err(&foreign), &["this user has no job"]);
    // From outside the job, `exec` enters its views.
    let script = r#"cat "$TAMEIKE_SHARED/word""#;
    let beside = |user: &User<'_>, job: &str| {
        let arguments = ["exec", "--job", job, "--node", "1", "--", "sh", "-euc", script];
        succeed(&mut user.tameike(allows, &arguments))
    };
    assert_eq!(beside(&nobody, &names[0]), "first\n");
    assert_eq!(beside(&nobody, &names[1]), "second\n");
    assert_eq!(beside(&daemon, &names[0]), "other\n");
    // The name of a running job is refused, and that job continues.
    let refused = nobody.job(allows, &names[1], "exit 0").exits(FAILED);
    assert_contains(&err(&refused), &["a job named"]);

    [second, other, first].into_iter().for_each(end);
    nobody.assert_shared("first", "first\n");
    nobody.assert_shared("second", "second\n");
    daemon.assert_shared("other", "other\n");
    names.iter().for_each(|name| assert_no_device(name));
}

/// Work of a user in a directory of a project, whose group is not the user's primary group.
const PROJECT: &str = r#"
    cd "$TAMEIKE_CACHE"
    test "$(cat theirs)" = theirs; test "$(cat closed)" = closed; echo more >> theirs
    if sh -c 'echo no >> closed' 2> /dev/null; then exit 1; fi; if touch locked/file 2> /dev/null; then exit 1; fi
    if rm locked/kept 2> /dev/null; then exit 1; fi; if truncate -s 0 closed 2> /dev/null; then exit 1; fi
    for size in 0 7 100; do
        if python3 -c "import os; os.truncate('closed', $size)" 2> /dev/null; then exit 1; fi
    done
    if cat secret 2> /dev/null; then exit 1; fi; if chmod 666 closed 2> /dev/null; then exit 1; fi
    mkdir new; echo made > new/file; cp -p new/file new/copy; mv new/copy copy; chmod 640 copy; echo old >> mine/file; touch mine/new
    ln -s copy link; rm gone; rmdir empty
    tameike exec --node 1 -- sh -euc 'cd "$TAMEIKE_CACHE"; echo node > new/node; cat new/file'"#;

/// Sets the owner and the mode of a file, and the group of the project.
fn set_owner(path: &Path, owner: u32, mode: u32) {
    chown(path, Some(owner), Some(GROUP)).expect("an owner");
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
}

fn a_member_works_in_a_project(allows: Allows, options: &[&str]) {
    let host = Host::new();
    let user = host.user(DAEMON).in_group(GROUP);
    let shared = user.shared();
    let of = |name: &str, owner, mode| set_owner(&shared.join(name), owner, mode);
    for name in ["mine", "empty", "locked"] {
        fs::create_dir(shared.join(name)).expect("a directory");
    }
    let files =
        [("theirs", 0o660), ("closed", 0o640), ("secret", 0o600), ("gone", 0o600), ("locked/kept", 0o664)];
    for (name, mode) in files {
        fs::write(shared.join(name), format!("{name}\n")).expect("written");
        of(name, 0, mode);
    }
    fs::write(shared.join("mine/file"), "mine/file\n").expect("written");
    of("empty", 0, 0o2775);
    of("locked", 0, 0o2755);
    of("mine", DAEMON, 0o2755);
    of("mine/file", DAEMON, 0o644);
    of("", 0, 0o2775);
    let shared_name = utf8(&shared);
    let job = format!("project-{}", std::process::id());
    let arguments = [
        &["run", "--local", "2", "--shared", shared_name, "--verify", "--job", &job],
        options,
        &["--", "sh", "-euc", PROJECT],
    ];
    let output = user.tameike(allows, &arguments.concat()).exits(0);
    assert_eq!(out(&output), "made\n");
    let is_packed = !options.is_empty();
    let script = "cat theirs closed mine/file; stat -c '%u:%g %a %n' theirs closed mine mine/file link; ls";
    let found = succeed(Command::new("sh").args(["-euc", script]).current_dir(&shared));
    let expected = format!(
        "theirs\nmore\nclosed\nmine/file\nold\n0:{GROUP} 660 theirs\n0:{GROUP} 640 closed\n1:{GROUP} 2755 mine\n\
         1:{GROUP} 644 mine/file\n1:{GROUP} 777 link\nclosed\n{}link\nlocked\nmine\nnew\nsecret\ntheirs\n",
        if is_packed { "" } else { "copy\n" }
    );
    assert_eq!(found, expected);
    if is_packed {
        let packed = |name: &str| {
            let arguments = ["agg", "cat", ".tameike-packed", name];
            succeed(Command::new(binary()).args(arguments).current_dir(&shared))
        };
        assert_eq!(
            ["copy", "new/file", "new/node", "mine/new"].map(packed),
            ["made\n", "made\n", "node\n", ""]
        );
    } else {
        let made = "stat -c '%u:%g %n' copy new new/file new/node mine/new; stat -c %a copy; cat new/*";
        let found = succeed(Command::new("sh").args(["-euc", made]).current_dir(&shared));
        let names =
            ["copy", "new", "new/file", "new/node", "mine/new"].map(|name| format!("1:{GROUP} {name}\n"));
        assert_eq!(found, format!("{}640\nmade\nnode\n", names.concat()));
    }
}

/// S44a.
#[test]
fn a_member_of_a_project_works_in_its_directory() {
    for allows in [Allows::Everything, Allows::NoNamespaces] {
        a_member_works_in_a_project(allows, &[]);
        a_member_works_in_a_project(allows, &["--aggregate"]);
    }
}

/// Large files have the group of their directory also if an interrupted job is recovered outside of its namespace.
#[test]
fn recovered_files_have_the_group_of_their_project() {
    let host = Host::new();
    let user = host.user(DAEMON).in_group(GROUP);
    let shared = user.shared();
    set_owner(&shared, 0, 0o2775);
    let shared_name = utf8(&shared);
    let job = format!("interrupted-{}", std::process::id());
    let script = format!(
        r#"cd "$TAMEIKE_CACHE"; mkdir d; head -c 2000000 /dev/urandom > d/large
           until ls {shared_name}/.tameike-packed | grep -q '^out\.'; do sleep 0.1; done; rmdir {shared_name}/d"#
    );
    let arguments =
        ["run", "--shared", shared_name, "--aggregate", "--job", &job, "--", "sh", "-euc", &script];
    user.tameike(Allows::Everything, &arguments).exits(INCOMPLETE);
    fs::create_dir(shared.join("d")).expect("made");
    set_owner(&shared.join("d"), 0, 0o2775);
    let recovered = user.tameike(Allows::Everything, &["recover", "--job", &job]).exits(0);
    let found = succeed(Command::new("stat").args(["-c", "%u:%g %s"]).arg(shared.join("d/large")));
    assert_eq!(found, format!("{DAEMON}:{GROUP} 2000000\n"), "{}", shown(&recovered));
}

/// S44b, S44c.
#[test]
fn files_of_other_users_appear_as_the_users_own() {
    let host = Host::new();
    let user = host.user(DAEMON).in_group(GROUP);
    for (name, mode) in [("odd", 0o470), ("read", 0o644)] {
        fs::write(user.shared().join(name), name).expect("written");
        set_owner(&user.shared().join(name), 0, mode);
    }
    let script = format!(
        r#"cd "$TAMEIKE_CACHE"; stat -c '%u:%g %a' odd read; test -w odd; printf +more >> odd; printf '#!/bin/sh' | dd of=odd conv=notrunc status=none; ./odd
           ! sh -c 'echo no >> read'; chown 1:1 odd read; touch own; ! chgrp {GROUP} own; ! chgrp {GROUP} odd; ! chown 0 own"#
    );
    let job = format!("shows-{}", std::process::id());
    let output = user.job(Allows::Everything, &job, &script).exits(0);
    assert_eq!(out(&output), "1:1 770\n1:1 644\n");
    let words = err(&output);
    assert_eq!(words.matches("Invalid argument").count(), 3, "{words}");
    let found =
        succeed(Command::new("stat").args(["-c", "%u:%g %a", "odd", "read"]).current_dir(user.shared()));
    assert_eq!(found, format!("0:{GROUP} 470\n0:{GROUP} 644\n"));
    assert_eq!(fs::read_to_string(user.shared().join("read")).expect("there"), "read");
}

/// S43a, S43b, S43c, S43d, S43e. S44d.
#[test]
fn packed_files_are_private_until_their_user_opens_the_container() {
    let host = Host::new();
    let (packer, other) = (host.user(SYS), host.user(DAEMON));
    let shared = packer.shared();
    let run = |user: &User<'_>, name: &str, options: &[&str], script: &str, code: i32| -> Output {
        let job = format!("{name}-{}", std::process::id());
        let shared = utf8(&shared);
        let arguments = [&["run", "--shared", shared, "--job", &job], options, &["--", "sh", "-euc", script]];
        user.tameike(Allows::Everything, &arguments.concat()).exits(code)
    };
    let script = r#"cd "$TAMEIKE_CACHE"; umask 022; mkdir open; echo all > open/all; echo own > open/own; chmod 600 open/own
                    head -c 2000000 /dev/zero > large; chmod 600 large; mkdir -m 777 anybody"#;
    run(&packer, "packs", &["--aggregate"], script, 0);
    let container = shared.join(".tameike-packed");
    let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!((mode(&container), mode(&shared.join("large"))), (0o700, 0o600));
    let refused = |name: &str, options: &[&str], parts: [&str; 2]| {
        assert_contains(&shown(&run(&other, name, options, "exit 0", FAILED)), &parts);
    };
    let not_own = ["belongs to another user", "packed files would not be private there"];
    refused("closed", &["--packed-by-others"], ["which you may not read", "ask who packed them"]);
    refused("closed-packs", &["--aggregate"], not_own);
    fs::set_permissions(&container, fs::Permissions::from_mode(0o755)).expect("opened");
    refused("packs-too", &["--aggregate"], not_own);
    let script = r#"cd "$TAMEIKE_CACHE"; stat -c %u open/all; ls -A open; cat open/all; ! cat open/own; ! cat large; ! rm open/all; ! sh -c 'echo no >> open/all'; ! mv open/all open/other; ! chmod 666 open/all; echo mine > anybody/mine"#;
    let read = run(&other, "opened", &["--packed-by-others"], script, 0);
    assert_eq!(out(&read), "65534\nall\nown\nall\n");
    assert_eq!(fs::read_to_string(shared.join("anybody/mine")).expect("there"), "mine\n");
    // An untrusted container is ignored, and does not prevent the start of a job.
    let ignored = run(&other, "ignored", &[], r#"cd "$TAMEIKE_CACHE"; test ! -e open/all; ls -A"#, 0);
    assert_contains(&shown(&ignored), &["--packed-by-others"]);
}

#[test]
fn a_directory_of_another_user_with_our_name_is_refused() {
    let host = Host::new();
    let user = host.user(NOBODY);
    let job = format!("base-{}", std::process::id());
    let refused = |part: &str| {
        let output = user.job(Allows::Everything, &job, "exit 0").exits(FAILED);
        assert_contains(&err(&output), &[part, "set TMPDIR", utf8(&user.base())]);
    };
    let elsewhere = host.tmp().join("elsewhere");
    fs::create_dir(user.base()).expect("a directory");
    chown(user.base(), Some(DAEMON), Some(DAEMON)).expect("an owner");
    refused("belongs to another user");
    fs::rename(user.base(), &elsewhere).expect("moved");
    symlink(&elsewhere, user.base()).expect("a link");
    refused("is a symbolic link");
    assert_eq!(fs::read_dir(&elsewhere).expect("a directory").count(), 0, "a file was created there");
    fs::remove_file(user.base()).expect("a link");
    assert_no_device(&job);
}

#[test]
fn a_device_directory_of_another_user_with_our_name_is_refused() {
    /// Removes the directory also when an assertion fails.
    struct Foreign<'a>(&'a Path);
    impl Drop for Foreign<'_> {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(self.0);
        }
    }
    let host = Host::new();
    let user = host.user(NOBODY);
    let job = format!("dev-{}", std::process::id());
    let path = format!("/dev/shm/tameike-{NOBODY}-{job}-1");
    fs::create_dir(&path).expect("a directory");
    let _foreign = Foreign(Path::new(&path));
    fs::write(Path::new(&path).join("precious"), "theirs").expect("a file");
    let output = user.job(Allows::Everything, &job, "exit 0").exits(FAILED);
    assert_contains(&err(&output), &[&path, "node 1"]);
    assert_eq!(fs::read_to_string(Path::new(&path).join("precious")).expect("still there"), "theirs");
}

/// In a user namespace, unmapped users appear as `nobody`.
#[test]
fn user_nobody_does_not_own_directories_of_unmapped_users() {
    let host = Host::new();
    let user = host.user(NOBODY);
    let container = user.shared().join(".tameike-packed");
    fs::create_dir(&container).expect("a directory");
    chown(&container, Some(DAEMON), Some(DAEMON)).expect("an owner");
    fs::set_permissions(&container, fs::Permissions::from_mode(0o755)).expect("ours");
    let job = format!("unknown-{}", std::process::id());
    let shared = user.shared();
    let arguments = ["run", "--shared", utf8(&shared), "--job", &job, "--aggregate", "--", "true"];
    let refused = user.tameike(Allows::Everything, &arguments).exits(FAILED);
    assert_contains(&shown(&refused), &["belongs to another user"]);
    fs::remove_dir(&container).expect("it is empty");
}
