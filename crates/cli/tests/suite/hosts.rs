//! Jobs on several hosts: over a stub for ssh that runs the command here with an empty environment in another directory, and
//! logs the host names.

use crate::place::{Place, assert_code, err, out};
use std::os::unix::fs::PermissionsExt;

/// A place with a stub for ssh, and the options for a job on two hosts, the second without a device.
fn two_hosts() -> (Place, String) {
    let place = Place::new();
    let ssh = place.path("ssh");
    let log = place.path("ssh.log");
    let script = format!(
        "#!/bin/sh\n[ $# = 2 ] || exit 99\necho \"$1\" >> {0}; echo \"$2\" >> {0}.lines\ncd / && exec env -i PATH=\"$PATH\" sh -c \"$2\"\n",
        log.display()
    );
    std::fs::write(&ssh, script).expect("written");
    std::fs::set_permissions(&ssh, PermissionsExt::from_mode(0o755)).expect("ours");
    let hosts = place.path("hosts");
    std::fs::write(&hosts, "alpha address=127.0.0.1 # first\nbeta address=127.0.0.1 slots=4 device=no\n")
        .expect("written");
    let options = format!("--hostfile {}", hosts.display());
    (place, options)
}

fn with_ssh(place: &Place, mut command: std::process::Command) -> std::process::Command {
    command.env("TAMEIKE_SSH", place.path("ssh"));
    command
}

#[test]
fn nodes_are_reached_over_ssh() {
    let (place, options) = two_hosts();
    let program = place.program.display();
    let dirty =
        format!("echo data > {}/tameike-$(id -u)-$TAMEIKE_JOB-0/dirty;", place.path("disk").display());
    let script = format!(
        "{dirty} pwd; echo \"it's $TAMEIKE_NODE\"; {program} exec --all -x MINE='a b' -- sh -c 'echo $TAMEIKE_NODE $MINE' \
         | sort; exit 9"
    );
    let output = with_ssh(&place, place.run_command(&options, &script)).output().expect("starts");
    assert_code(&output, 9);
    let here = place.path("");
    let here = here.to_str().expect("UTF-8").trim_end_matches('/');
    assert_eq!(out(&output), format!("{here}\nit's 0\n[0] 0 a b\n[1] 1 a b\n"), "{}", err(&output));
    assert!(place.shared("from-node-0").exists());
    let asked = std::fs::read_to_string(place.path("ssh.log")).expect("written");
    // Per node: one ssh for its agent, and for `exec` one for the variables and one for the command; one for the script.
    assert_eq!((asked.matches("alpha").count(), asked.matches("beta").count()), (4, 3), "{asked}");
    // Every user on either host can read command lines.
    let lines = std::fs::read_to_string(place.path("ssh.log.lines")).expect("written");
    let lines: Vec<_> = lines.lines().filter(|line| line.contains("variables")).collect();
    assert_eq!(lines.len(), 4, "{lines:?}");
    assert!(lines.iter().all(|line| !line.contains("MINE=") && !line.contains("a b")), "{lines:?}");
    place.assert_clean();
}

#[test]
fn signals_reach_commands_on_other_hosts() {
    let (place, options) = two_hosts();
    let script = "trap 'echo got it; exit 6' TERM; echo ready; while :; do sleep 0.05; done";
    let run = place.start_command(with_ssh(&place, place.run_command(&options, script)));
    run.signal("TERM");
    let output = run.finish();
    assert_code(&output, 6);
    assert_eq!(out(&output), "got it\n");
    place.assert_clean();
}

#[test]
fn journals_on_other_hosts_are_recovered() {
    let (place, options) = two_hosts();
    place.request("fail-drain");
    let script =
        format!("echo data > {}/tameike-$(id -u)-$TAMEIKE_JOB-0/dirty", place.path("disk").display());
    let options = format!("{options} --job away");
    assert_code(&with_ssh(&place, place.run_command(&options, &script)).output().expect("starts"), 75);
    place.withdraw("fail-drain");
    // The job's record has the ssh command.
    let output = place.tameike(&["recover", "--job", "away"]).output().expect("starts");
    assert_code(&output, 0);
    assert!(place.shared("from-node-0").exists());
    place.assert_clean();
}

#[test]
fn unreachable_hosts_are_reported() {
    let (place, _) = two_hosts();
    let output = place.run("--hosts no-such-host.invalid,localhost,nor-this.invalid", "true");
    assert_code(&output, 71);
    for host in ["no-such-host.invalid", "nor-this.invalid"] {
        assert!(err(&output).contains(host), "{}", err(&output));
    }
    std::fs::write(place.path("ssh"), "#!/bin/sh\necho no route to $1 >&2\nexit 255\n").expect("written");
    let hosts = format!("--hostfile {}", place.path("hosts").display());
    let output = with_ssh(&place, place.run_command(&hosts, "true")).output().expect("starts");
    assert_code(&output, 71);
    for host in ["alpha", "beta"] {
        assert!(err(&output).contains(&format!("on {host}: ")), "{}", err(&output));
        assert!(err(&output).contains(&format!("no route to {host}")), "{}", err(&output));
    }
    place.assert_clean();
}
