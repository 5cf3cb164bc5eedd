//! Jobs on several hosts: over a stub for ssh that runs the command here with an empty environment in another directory, and
//! logs the host names.

use crate::support::sandbox::Sandbox;
use crate::support::{Run, assert_contains, err, out, utf8};
use std::os::unix::fs::PermissionsExt;

/// A sandbox with a stub for ssh, and the options for a job on two hosts, the second without a device.
fn two_hosts() -> (Sandbox, String) {
    let sandbox = Sandbox::new();
    let ssh = sandbox.path("ssh");
    let log = sandbox.path("ssh.log");
    let script = format!(
        "#!/bin/sh\n[ $# = 2 ] || exit 99\necho \"$1\" >> {0}; echo \"$2\" >> {0}.lines\ncd / && exec env -i PATH=\"$PATH\" sh -c \"$2\"\n",
        log.display()
    );
    std::fs::write(&ssh, script).expect("written");
    std::fs::set_permissions(&ssh, PermissionsExt::from_mode(0o755)).expect("ours");
    let hosts = sandbox.path("hosts");
    std::fs::write(&hosts, "alpha address=127.0.0.1 # first\nbeta address=127.0.0.1 slots=4 device=no\n")
        .expect("written");
    let options = format!("--hostfile {}", hosts.display());
    (sandbox, options)
}

fn with_ssh(sandbox: &Sandbox, mut command: std::process::Command) -> std::process::Command {
    command.env("TAMEIKE_SSH", sandbox.path("ssh"));
    command
}

#[test]
fn nodes_are_reached_over_ssh() {
    let (sandbox, options) = two_hosts();
    let program = sandbox.program.display();
    let dirty =
        format!("echo data > {}/tameike-$(id -u)-$TAMEIKE_JOB-0/dirty;", sandbox.path("disk").display());
    let script = format!(
        "{dirty} pwd; echo \"it's $TAMEIKE_NODE\"; {program} exec --all -x MINE='a b' -- sh -c 'echo $TAMEIKE_NODE $MINE' \
         | sort; exit 9"
    );
    let output = with_ssh(&sandbox, sandbox.run(&options, &script)).exits(9);
    let here = sandbox.path("");
    let here = utf8(&here).trim_end_matches('/');
    assert_eq!(out(&output), format!("{here}\nit's 0\n[0] 0 a b\n[1] 1 a b\n"), "{}", err(&output));
    assert!(sandbox.shared("from-node-0").exists());
    let log = std::fs::read_to_string(sandbox.path("ssh.log")).expect("written");
    // Per node: one ssh for its agent, and for `exec` one for the variables and one for the command; one for the script.
    assert_eq!((log.matches("alpha").count(), log.matches("beta").count()), (4, 3), "{log}");
    // Every user on either host can read command lines.
    let lines = std::fs::read_to_string(sandbox.path("ssh.log.lines")).expect("written");
    let lines: Vec<_> = lines.lines().filter(|line| line.contains("variables")).collect();
    assert_eq!(lines.len(), 4, "{lines:?}");
    assert!(lines.iter().all(|line| !line.contains("MINE=") && !line.contains("a b")), "{lines:?}");
}

#[test]
fn signals_reach_commands_on_other_hosts() {
    let (sandbox, options) = two_hosts();
    let script = "trap 'echo got it; exit 6' TERM; echo ready; while :; do sleep 0.05; done";
    let run = sandbox.start_command(with_ssh(&sandbox, sandbox.run(&options, script)));
    run.signal("TERM");
    let output = run.exits(6);
    assert_eq!(out(&output), "got it\n");
}

#[test]
fn journals_on_other_hosts_are_recovered() {
    let (sandbox, options) = two_hosts();
    sandbox.request("fail-drain");
    let script =
        format!("echo data > {}/tameike-$(id -u)-$TAMEIKE_JOB-0/dirty", sandbox.path("disk").display());
    let options = format!("{options} --job away");
    with_ssh(&sandbox, sandbox.run(&options, &script)).exits(75);
    sandbox.cancel("fail-drain");
    // The job's record has the ssh command.
    sandbox.tameike(&["recover", "--job", "away"]).exits(0);
    assert!(sandbox.shared("from-node-0").exists());
}

#[test]
fn unreachable_hosts_are_reported() {
    let (sandbox, _) = two_hosts();
    let output = sandbox.run("--hosts no-such-host.invalid,localhost,nor-this.invalid", "true").exits(71);
    for host in ["no-such-host.invalid", "nor-this.invalid"] {
        assert_contains(&err(&output), &[host]);
    }
    std::fs::write(sandbox.path("ssh"), "#!/bin/sh\necho no route to $1 >&2\nexit 255\n").expect("written");
    let hosts = format!("--hostfile {}", sandbox.path("hosts").display());
    let output = with_ssh(&sandbox, sandbox.run(&hosts, "true")).exits(71);
    for host in ["alpha", "beta"] {
        assert_contains(&err(&output), &[&format!("on {host}: "), &format!("no route to {host}")]);
    }
}
