//! Programs use a volume by mounts of their own, and in jobs: of its owner, and of another user.

use crate::support::volume::Volume;
use crate::support::{assert_contains, err};

/// S56a.
#[test]
fn a_mount_and_a_job_use_the_same_files() {
    let Some(volume) = Volume::start("both", "2", "2") else { return };
    let said = volume.says(
        r#"mkdir mnt; tameike volume mount $V mnt; echo hello > mnt/f
           tameike run --local 2 --job attached --volume $V -- sh -euc '
               cat "$TAMEIKE_VOLUME/f"; echo of the job > "$TAMEIKE_VOLUME/of-job"
               tameike exec --node 1 -- sh -euc "cat \$TAMEIKE_VOLUME/of-job; echo \$TAMEIKE_VOLUME"
               echo "$TAMEIKE_VOLUME"; tameike mount | grep -c " volume "'
           cat mnt/of-job; tameike volume status $V > status
           tameike volume unmount mnt; ls mnt | wc -l; tameike volume unmount mnt || echo refused"#,
    );
    let path = volume.site.base().join("tameike-0/attached/mnt/volume");
    let path = path.display();
    assert_eq!(said, format!("hello\nof the job\n{path}\n{path}\n2\nof the job\n0\nrefused\n"));
    // It outlives the job and a restart.
    volume.act("stop", &[]);
    let none = volume.script("tameike volume mount $V mnt; echo $?");
    assert_contains(
        &err(&none),
        &["no agent of the volume both-", "runs on this host", "`tameike volume start both-"],
    );
    let job = volume.script("tameike run --volume $V -- true");
    assert_contains(&err(&job), &["no agent of the volume both-", "runs on this host"]);
    volume.act("start", &[]);
    assert_eq!(
        volume.says("tameike volume mount $V mnt; cat mnt/f mnt/of-job; umount mnt"),
        "hello\nof the job\n"
    );
    volume.end();
}

/// S56c. S56d.
#[test]
fn another_user_mounts_a_volume_and_keeps_to_its_permissions() {
    let Some(volume) = Volume::start("other", "1", "1") else { return };
    let said = volume.says(
        r#"mkdir dev; mount -t tmpfs none dev; mknod dev/fuse c 10 229; chmod 666 dev/fuse
           mount --bind dev/fuse /dev/fuse
           mkdir mnt; tameike volume mount $V mnt; (umask 077; echo secret > mnt/private); mkdir -m 1777 mnt/open
           mkdir user; chown nobody user
           setpriv --reuid 65534 --regid 65534 --clear-groups sh -euc '
               tameike volume mount root:$V user
               cat user/private || echo denied; touch user/new || echo denied
               echo mine > user/open/mine; stat -c %u:%g user/open/mine
               chown 0 user/open/mine || echo denied; rm user/private || echo denied
               mkdir user/open/own
               tameike volume unmount user; tameike volume mount $V user || echo none
               TMPDIR=$PWD/user tameike run --capacity 16M --volume root:$V -- sh -euc "
                   cat \$TAMEIKE_VOLUME/open/mine; cat \$TAMEIKE_VOLUME/private || echo denied
                   echo of the job > \$TAMEIKE_VOLUME/open/own/f"' 2> errors || { cat errors; exit 1; }
           cat mnt/open/mine mnt/open/own/f; umount mnt"#,
    );
    assert_eq!(said, "denied\ndenied\n65534:65534\ndenied\ndenied\nnone\nmine\ndenied\nmine\nof the job\n");
    volume.end();
}

/// S55d.
#[test]
fn a_mount_without_its_agent_fails_and_can_be_unmounted() {
    let Some(volume) = Volume::start("alone", "1", "1") else { return };
    let said = volume.says(
        r#"mkdir mnt; tameike volume mount $V mnt; echo kept > mnt/f; exec 3< mnt/f
           tameike volume stop $V
           cat mnt/f 2>&1 | grep -o "not connected"; cat <&3 2>&1 | grep -m1 -o "not connected"
           exec 3<&-; tameike volume unmount mnt; ls mnt | wc -l
           tameike volume start $V; tameike volume mount $V mnt; cat mnt/f; umount mnt"#,
    );
    assert_eq!(said, "not connected\nnot connected\n0\nkept\n");
    volume.end();
}
