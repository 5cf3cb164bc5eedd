//! Jobs of unprivileged users: with namespaces, and with `fusermount3` if those are refused. Root acts as the user, in a mount
//! namespace in which all users can open `/dev/fuse`, as udev sets it up.

use crate::support::sandbox::Sandbox;
use crate::support::{assert_code, assert_contains, err, is_root, out};
use std::process::Command;

const USER: u32 = 65_534;

/// Gives all users access to `/dev/fuse`, and continues as an unprivileged user.
const ALLOWED: &str = "set -e; mkdir dev; mount -t tmpfs none dev; mknod dev/fuse c 10 229; chmod 666 dev/fuse; \
                       mount --bind dev/fuse /dev/fuse; \
                       exec setpriv --reuid 65534 --regid 65534 --clear-groups sh -c \"$1\"";

/// The same in a user namespace that permits no further ones.
const REFUSED: &str = "set -e; mkdir dev; mount -t tmpfs none dev; mknod dev/fuse c 10 229; chmod 666 dev/fuse; \
                       mount --bind dev/fuse /dev/fuse; mkfifo dev/made dev/mapped; \
                       unshare --user --mount sh -c 'echo made > dev/made; read mapped < dev/mapped; \
                       sh -c \"echo 0 > /proc/sys/user/max_user_namespaces\"; \
                       exec setpriv --reuid 65534 --regid 65534 --clear-groups sh -c \"$1\"' sh \"$1\" & \
                       read made < dev/made; echo 0 0 65536 > /proc/$!/uid_map; \
                       echo 0 0 65536 > /proc/$!/gid_map; echo mapped > dev/mapped; wait $!";

/// Runs a script as an unprivileged user. `$T` is the program, `$S` and `$D` are the shared directory and the disk. `None` if
/// the tests do not run as root.
fn as_user(sandbox: &Sandbox, setting: &str, script: &str) -> Option<std::process::Output> {
    if !is_root() {
        eprintln!("not root: cannot act as another user");
        return None;
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", setting, "sh", script]);
    sandbox.set_up(&mut command);
    command.env("T", &sandbox.program).env("S", sandbox.path("shared")).env("D", sandbox.path("disk"));
    Some(command.output().expect("unshare is installed"))
}

#[test]
fn a_user_gets_namespaces() {
    let sandbox = Sandbox::new();
    let script = "$T run --local 2 --job mine --capacity 16M --shared $S --device $D -- sh -c '\
                  id -u; id -g; echo $TAMEIKE_SHARED; grep -c fuse.tameike /proc/self/mounts; \
                  echo data > $D/tameike-$(id -u)-mine-1/dirty; \
                  $T exec --node 1 -- sh -c \"echo \\$TAMEIKE_NODE \\$TAMEIKE_SHARED; id -u\"; \
                  $T exec --all -- id -u'; echo $?; $T doctor | tail -1";
    let Some(output) = as_user(&sandbox, ALLOWED, script) else { return };
    let shared = sandbox.path("tmp").join(format!("tameike-{USER}/mine/mnt/shared"));
    let shared = shared.display();
    let sum = "`tameike run` can work here";
    let labelled = "[0] 65534\n[1] 65534\n";
    let text = out(&output).replace("[1] 65534\n[0] 65534\n", labelled);
    let expected = format!("{USER}\n{USER}\n{shared}\n3\n1 {shared}\n{USER}\n{labelled}0\n{sum}\n");
    assert_eq!(text, expected, "{}", err(&output));
    assert_eq!(std::fs::read(sandbox.shared("from-node-1")).expect("drained"), b"data\n");
}

#[test]
fn a_user_without_namespaces_gets_mounts_by_helper() {
    let sandbox = Sandbox::new();
    let script = "$T run --local 2 --job helped --capacity 16M --shared $S --device $D -- sh -c '\
                  echo $TAMEIKE_SHARED; grep -c fuse.tameike /proc/self/mounts; \
                  $T exec --node 1 -- sh -c \"echo \\$TAMEIKE_SHARED\"'; echo $?; \
                  grep -c fuse.tameike /proc/self/mounts; $T doctor | grep -o 'slow *namespaces'";
    let Some(output) = as_user(&sandbox, REFUSED, script) else { return };
    let base = sandbox.path("tmp").join(format!("tameike-{USER}/helped"));
    let base = base.display();
    let text = out(&output);
    let slow = "slow     namespaces";
    let expected = format!("{base}/mnt-0/shared\n6\n{base}/mnt-1/shared\n0\n0\n{slow}\n");
    assert_eq!(text, expected, "{}", err(&output));
}

#[test]
fn mounts_of_a_killed_agent_are_removed() {
    let sandbox = Sandbox::new();
    let script = "$T run --local 2 --capacity 16M --shared $S --device $D -- sh -c '\
                  kill -9 $(sed -n \"s/.*\\\"pid\\\": \\([0-9]*\\).*/\\1/p\" $TAMEIKE_JOB_DIR/node-1/node.json); \
                  sleep 1000'; echo $?; grep -c fuse.tameike /proc/self/mounts; $T recover; echo $?";
    let Some(output) = as_user(&sandbox, REFUSED, script) else { return };
    assert_eq!(out(&output), "75\n0\n0\n", "{}", err(&output));
}

#[test]
fn the_directory_of_another_user_is_refused() {
    let sandbox = Sandbox::new();
    let base = sandbox.path("tmp").join(format!("tameike-{USER}"));
    std::fs::create_dir(&base).expect("made");
    let Some(output) = as_user(&sandbox, ALLOWED, "$T run --capacity 16M -- true") else { return };
    assert_code(&output, 71);
    assert_contains(&err(&output), &["belongs to another user"]);
}
