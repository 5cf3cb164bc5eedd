//! Jobs with replicas, whose nodes fail, hang or are cut off, with the recording agent.

use crate::support::jobs::{signal, wait_for};
use crate::support::sandbox::Sandbox;
use crate::support::{Run, assert_contains, err, json, out};

/// A script that has functions of a job: a signal to the agent of a node, and a wait for a line of `status`, with or without a text.
fn script(sandbox: &Sandbox, body: &str) -> String {
    let program = sandbox.program.display();
    let disk = sandbox.path("disk");
    let disk = disk.display();
    format!(
        r#"set -e
        agent() {{ sed -n 's/.*"pid": \([0-9]*\).*/\1/p' $TAMEIKE_JOB_DIR/node-$1/node.json; }}
        signal() {{ kill -$1 $(agent $2); }}
        replicas() {{ {program} status --job $TAMEIKE_JOB | grep '^replicas: '; }}
        shows() {{ until replicas | grep -q "$1"; do sleep 0.05; done; }}
        shows_no() {{ while replicas | grep -q "$1"; do sleep 0.05; done; }}
        dirty() {{ echo data > {disk}/tameike-$(id -u)-$TAMEIKE_JOB-$1/dirty; }}
        {body}"#
    )
}

#[test]
fn the_loss_of_a_node_with_replicas_is_not_the_end_of_the_job() {
    let sandbox = Sandbox::new();
    let body = "replicas; dirty 0; dirty 1; signal KILL 1; shows 'excluded node: 1'; replicas; exit 3";
    let output = sandbox.run("--local 3 --replicas 2 --job replaced", &script(&sandbox, body)).exits(3);
    let lines = out(&output);
    assert_contains(&lines, &["replicas: 2\n", "of 64 homes have one copy only, excluded node: 1\n"]);
    let words = [
        "node 1 on localhost has failed (signal: 9 (SIGKILL)): other nodes serve its data",
        "drain complete: 1 file",
    ];
    assert_contains(&err(&output), &words);
    assert!(!err(&output).contains("terminating"), "{}", err(&output));
    // What the failed node has is an old copy.
    assert!(sandbox.shared("from-node-0").exists() && !sandbox.shared("from-node-1").exists());
    sandbox.assert_clean();
}

/// The drain asks all nodes again: they may have taken over files after they have replied.
#[test]
fn a_node_with_replicas_may_fail_during_the_drain() {
    let sandbox = Sandbox::new();
    sandbox.request("wait-drain-2");
    let options = "--local 3 --replicas 2 --job late";
    let run = sandbox.start(options, &script(&sandbox, "agent 1 > agent; echo ready"));
    wait_for("the drain", || sandbox.shared("draining-2").exists().then_some(()));
    let agent = std::fs::read_to_string(sandbox.path("agent")).expect("written");
    assert!(signal(agent.trim().parse().expect("a process"), "KILL"));
    let user = tameike_io::os::process::user();
    let record = sandbox.path(&format!("tmp/tameike-{user}/late/job.json"));
    wait_for("the exclusion", || (json(&record)["map"]["excluded"][0] == 1).then_some(()));
    std::fs::write(sandbox.path(&format!("disk/tameike-{user}-late-0/dirty")), "data")
        .expect("the job's own");
    sandbox.cancel("wait-drain-2");
    let output = run.exits(0);
    assert_contains(&err(&output), &["node 1 on localhost has failed", "drain complete: 1 file"]);
    assert!(sandbox.shared("from-node-0").exists());
}

#[test]
fn a_stopped_node_with_replicas_is_excluded_and_readmitted() {
    let sandbox = Sandbox::new();
    let body =
        "signal STOP 2; shows 'excluded node: 2'; signal CONT 2; shows_no excluded; replicas; echo end";
    let output = sandbox.run("--local 3 --replicas 3 --job stopped", &script(&sandbox, body)).exits(0);
    assert!(out(&output).ends_with("replicas: 3\nend\n"), "{}", out(&output));
    let words = [
        "node 2 on localhost does not answer: other nodes serve its data",
        "node 2 on localhost answers again",
    ];
    assert_contains(&err(&output), &words);
}

#[test]
fn a_job_ends_although_a_node_with_replicas_stays_stopped() {
    let sandbox = Sandbox::new();
    let body = "dirty 2; signal STOP 2; shows 'excluded node: 2'; exit 5";
    let output = sandbox.run("--local 3 --replicas 2 --job hangs", &script(&sandbox, body)).exits(5);
    assert_contains(&err(&output), &["node 2 on localhost does not answer"]);
    sandbox.assert_clean();
}

#[test]
fn a_node_that_others_do_not_reach_is_excluded() {
    let sandbox = Sandbox::new();
    let cut = sandbox.shared("cut-0-1");
    let body = format!("touch {0}; shows 'excluded node: 1'; rm {0}; shows_no excluded", cut.display());
    let output = sandbox.run("--local 3 --replicas 2 --job cut", &script(&sandbox, &body)).exits(0);
    assert_contains(&err(&output), &["node 1 on localhost cannot be reached by others: other nodes serve"]);
}

/// S20b. S52h.
#[test]
fn a_node_whose_device_has_failed_is_excluded() {
    let sandbox = Sandbox::new();
    let failed = sandbox.shared("store-failed-2");
    let body = format!("touch {0}; shows 'excluded node: 2'", failed.display());
    let output = sandbox.run("--local 3 --replicas 2 --job device", &script(&sandbox, &body)).exits(0);
    let words = ["node 2 on localhost: its device has failed: other nodes serve its data"];
    assert_contains(&err(&output), &words);
}

#[test]
fn the_loss_of_all_copies_or_of_the_node_of_the_command_ends_the_job() {
    let sandbox = Sandbox::new();
    let body = "dirty 1; signal KILL 1; shows 'excluded node: 1'; signal KILL 2; sleep 1000";
    let output = sandbox.run("--local 3 --replicas 2 --job both", &script(&sandbox, body)).exits(75);
    let words = [
        "node 1 on localhost has failed",
        "the agent of node 2 on localhost failed",
        "terminating the command",
    ];
    assert_contains(&err(&output), &words);
    sandbox.tameike(&["recover", "--job", "both"]).exits(0);
    let output = sandbox
        .run("--local 3 --replicas 2 --job first", &script(&sandbox, "signal KILL 0; exec sleep 1000"))
        .exits(70);
    let words = [
        "node 0 on localhost has failed",
        "other nodes serve its data",
        "terminating the command",
        "drain complete",
    ];
    assert_contains(&err(&output), &words);
    let output = sandbox.run("--local 2 --replicas 3", "true").exits(71);
    assert_contains(
        &err(&output),
        &["--replicas: 3 replicas need as many nodes with a device, and the job has 2"],
    );
}

/// The homes of an excluded node stay with the nodes that have taken them over.
#[test]
fn a_recovery_continues_with_the_last_home_map() {
    let sandbox = Sandbox::new();
    let body = "signal KILL 1; shows 'excluded node: 1'; cat $TAMEIKE_JOB_DIR/job.json > map; dirty 0; echo ready; sleep 1000";
    let run = sandbox.start("--local 3 --replicas 2 --job again", &script(&sandbox, body));
    run.signal("KILL");
    run.output();
    let record = json(&sandbox.path("map"));
    assert_eq!(record["map"]["excluded"][0], 1);
    assert!(record["map"]["primaries"].as_array().is_some_and(|nodes| nodes.iter().all(|node| node != 1)));
    sandbox.await_end("again");
    sandbox.tameike(&["recover", "--job", "again"]).exits(0);
    assert!(sandbox.shared("from-node-0").exists());
}
