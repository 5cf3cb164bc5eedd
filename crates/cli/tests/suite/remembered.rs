//! Jobs over mounts of the shared directory that cache names and attributes, like NFS and FUSE file systems.

use crate::cluster::network::Cluster;
use crate::support::succeed;

/// Longer than a test: cached entries never expire.
const FOR_EVER: u32 = 3600;

/// Replaces, removes and reads files that the other node replaces and removes too.
const WORKER: &str = include_str!("remembered/worker.py");

/// S13a, S13b, S13c.
#[test]
fn a_node_sees_its_changes_at_once_whichever_node_executed_them() {
    let script = r#"tameike exec --node 1 -- sh -euc '
        cd "$TAMEIKE_CACHE"
        test ! -e d; mkdir d; test -d d; rmdir d; test ! -e d
        mkdir d; mkdir d/e; echo one > d/e/f; test "$(cat d/e/f)" = one
        mv d g; test ! -e d; test "$(cat g/e/f)" = one
        mkdir d; test -z "$(ls d)"; mv g/e d/e; test "$(cat d/e/f)" = one; rmdir g; test ! -e g
        mkdir x; mv x y; mkdir x; mv -T x y; test ! -e x; test -d y
        echo two > d/e/two; mv d/e/two d/e/f; test "$(cat d/e/f)" = two; test "$(ls d/e)" = f
        rm d/e/f; test ! -e d/e/f; rm -r d y; test -z "$(ls)"
        mkdir d; echo three > d/f'"#;
    for options in [&[][..], &["--aggregate"]] {
        let cluster = Cluster::new(&["", ""]);
        cluster.remember(FOR_EVER);
        succeed(&mut cluster.job(options, script));
        let found = succeed(&mut cluster.job(&[], r#"cat "$TAMEIKE_CACHE/d/f""#));
        assert_eq!(found, "three\n");
        cluster.assert_clean();
    }
}

#[test]
fn nodes_that_replace_each_others_files_lose_and_mix_nothing() {
    for options in [&["--verify"][..], &["--verify", "--aggregate"]] {
        let cluster = Cluster::new(&["", ""]);
        cluster.remember(FOR_EVER);
        let worker = cluster.python(WORKER);
        let script = format!("tameike exec --all -- {worker} 4; tameike exec --all -- {worker} 0");
        // It would exit with 75 if the shared directory lacked anything.
        let text = succeed(&mut cluster.job(options, &script));
        assert_eq!(text.matches("no file lost or mixed").count(), 4, "{text}");
        cluster.assert_clean();
    }
}
