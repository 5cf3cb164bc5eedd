//! Remote memory windows of C programs on several nodes.

use crate::kit::Kit;
use crate::regions::{TRANSPORTS, on_nodes};
use crate::support::jobs::{Background, code_of_recovery, new_job, wait_for};
use crate::support::{Site, assert_code, out, shown, succeed, utf8};
use std::path::Path;

/// Runs a task of the program `win` with one process on each of these nodes, over each transport.
fn run(task: &str, nodes: &[u32], arguments: &str) {
    let kit = Kit::new();
    let program = kit.build("win");
    let arguments = format!("{} {arguments}", nodes.len());
    for fabric in TRANSPORTS {
        let script = on_nodes(&program, task, nodes, &arguments);
        let script = format!("{script}test -z \"$(ls \"$TAMEIKE_SHARED\")\"");
        succeed(&mut Site::new().job(2, &["--fabric", fabric], &script));
    }
}

/// S50a. S50b. S50e. S50f. S50g. S50h.
#[test]
fn all_calls_reach_ranks_of_the_node_and_of_another_one() {
    run("calls", &[0, 1, 0, 1], "2");
    run("calls", &[1], "1");
    run("calls", &[1, 1, 1], "3");
}

/// S50d. S50f.
#[test]
fn a_rank_that_sees_a_signal_sees_the_bytes_before_it() {
    run("order", &[0, 1, 1, 0], "60");
}

/// S50h.
#[test]
fn messages_of_four_producers_on_two_nodes_arrive_in_order() {
    run("queue", &[0, 0, 1, 0, 1], "10000");
}

/// S51a. S51b.
#[test]
fn calls_that_wait_fail_when_a_rank_is_killed() {
    for nodes in [[0, 0, 0, 1, 1], [1, 1, 1, 1, 0]] {
        let kit = Kit::new();
        let script = on_nodes(&kit.build("win"), "left", &nodes, "5 kill");
        // The exit code of the killed process is not that of the others.
        let script = script.replace("for pid in $pids", "set -- $pids; for pid in $1 $2 $3 $4");
        succeed(&mut Site::new().job(2, &[], &script));
    }
}

/// S51b.
#[test]
fn only_barriers_fail_when_a_rank_detaches() {
    for nodes in [[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]] {
        let kit = Kit::new();
        let script = on_nodes(&kit.build("win"), "left", &nodes, "5 detach");
        succeed(&mut Site::new().job(2, &[], &script));
    }
}

/// S50b. S50c.
#[test]
fn windows_that_cannot_be_created_are_refused() {
    let kit = Kit::new();
    let program = kit.build("win");
    let site = Site::new();
    let script = format!(
        r#"for node in 0 1; do
            for other in "$TAMEIKE_CACHE/other" "$TAMEIKE_NODE_LOCAL/other" {}/other; do
                tameike exec --node $node -- {} errors "$TAMEIKE_SHARED/window" "$other"
            done
        done
        test -z "$(ls "$TAMEIKE_SHARED")""#,
        site.plain().display(),
        program.display()
    );
    succeed(&mut site.job(2, &[], &script));
}

/// S51e.
#[test]
fn a_child_does_not_have_the_window() {
    let kit = Kit::new();
    let script = format!("{} child \"$TAMEIKE_SHARED/window\"", kit.build("win").display());
    succeed(&mut Site::new().job(2, &[], &script));
}

#[test]
fn windows_need_a_ring() {
    let kit = Kit::new();
    let script = format!("{} unavailable \"$TAMEIKE_SHARED/window\"", kit.build("win").display());
    succeed(&mut Site::new().job(1, &["--no-ring"], &script));
}

/// S50a. S50d. S50e. S50g. S50h.
#[test]
fn programs_in_fortran_use_windows() {
    let kit = Kit::new();
    let source = kit.source("windows").with_extension("f90");
    let program = kit.compile_fortran(&source, "windows");
    for (nodes, near) in [(&[0, 1, 0, 1][..], 2), (&[1, 1, 1], 3)] {
        let arguments = format!("{} {near}", nodes.len());
        let script = on_nodes(&program, "", nodes, &arguments);
        succeed(&mut Site::new().job(2, &[], &format!("{script}test -z \"$(ls \"$TAMEIKE_SHARED\")\"")));
    }
}

/// S51c. S51d.
#[test]
fn calls_that_wait_fail_after_the_failure_of_an_agent() {
    let kit = Kit::new();
    let program = kit.build("win");
    let (site, job) = new_job("window-lost");
    let ready = site.plain().join("ready");
    let script = on_nodes(&program, "lost", &[0, 1], utf8(&ready));
    let script = script.replace("done\n", "done; echo both ended\n");
    let options = ["--job", &job.name, "--keep-going"];
    let both = site.plain().join("ready.1");
    let running = Background::start_until(&mut site.job(2, &options, &script), &both);
    wait_for("the other process", || site.plain().join("ready.0").exists().then_some(()));
    assert!(job.kill_agent(1));
    let output = running.output();
    assert!(out(&output).contains("both ended"), "{}", shown(&output));
    let recovered = site.tameike(&["recover", "--job", &job.name]).output().expect("it starts");
    assert_code(&recovered, code_of_recovery(&shown(&recovered)));
}

#[test]
fn the_example_passes_blocks_around_a_ring() {
    let kit = Kit::new();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/dsm/ring.c");
    let program = kit.compile(&source, "ring");
    let script = format!(
        "for rank in 0 1 2; do tameike exec --node $((rank % 2)) -- {} \"$TAMEIKE_SHARED/ring\" $rank 3 & done; wait",
        program.display()
    );
    let text = succeed(&mut Site::new().job(2, &[], &script));
    assert!(text.contains("3 blocks of 3 ranks are correct"), "{text}");
}
