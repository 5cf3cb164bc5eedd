//! Jobs on three hosts with a network, started from a hostfile, while links fail and recover.

pub mod network;

use crate::support::interactive::Interactive;
use crate::support::jobs::code_of_recovery;
use crate::support::{Run, assert_contains, err, is_soak, json, shown, succeed, utf8};
use network::Cluster;
use std::fs;
use std::process::Command;

/// Longest time in seconds of a call to an unreachable node: the documented limit, with reserve for a busy machine.
const CALL_LIMIT_SECONDS: f64 = 10.0 + 5.0;

/// The program that runs in the views.
const WORKER: &str = include_str!("cluster/worker.py");

/// The worker's command line for a task.
fn worker(cluster: &Cluster, task: &str) -> String {
    format!("{} {task} {}", cluster.python(WORKER), cluster.plain_dir("account").display())
}

/// Checks the files in the shared directory.
fn check_shared(cluster: &Cluster) {
    let check = format!("{} {}", worker(cluster, "check"), cluster.shared().display());
    succeed(Command::new("sh").args(["-euc", &check]));
}

/// S2a. S6a.
#[test]
fn three_hosts_have_the_same_views() {
    let cluster = Cluster::new(&["", "", ""]);
    let text = cluster.run(
        r#"for view in "$TAMEIKE_SHARED" "$TAMEIKE_CACHE"; do
               mkdir "$view/dir"
               for k in 0 1 2; do
                   tameike exec --node $k --env view="$view" -- sh -euc 'cd "$view/dir"; seq 1 300000 > "by $TAMEIKE_NODE"; sha256sum "by $TAMEIKE_NODE" >> sums'
               done
               tameike exec --all --env view="$view" -- sh -euc '
                   cd "$view/dir"; sha256sum --quiet -c sums
                   i=0; while [ $i -lt 50 ]; do echo "node $TAMEIKE_NODE line $i" >> log; i=$((i+1)); done'
               test $(wc -l < "$view/dir/log") = 150
               for k in 0 1 2; do test $(grep -c "^node $k line [0-9]*$" "$view/dir/log") = 50; done
           done
           tameike exec --all -- sh -euc 'echo $TAMEIKE_NODE > "$TAMEIKE_NODE_LOCAL/own"; ls "$TAMEIKE_NODE_LOCAL"'
           tameike exec --all -- sh -euc 'test "$(cat "$TAMEIKE_NODE_LOCAL/own")" = $TAMEIKE_NODE; ip -br addr show eth0'
           # From inside every node, to all of them.
           tameike exec --all -- tameike exec --all -- sh -euc 'echo "to $TAMEIKE_NODE" >> "$TAMEIKE_SHARED/nested"'
           for k in 0 1 2; do test $(grep -c "^to $k$" "$TAMEIKE_SHARED/nested") = 3; done
           tameike status"#,
    );
    for node in 0..3 {
        assert_contains(&text, &[&format!("[{node}] own"), &format!("10.213.0.{}/24", node + 1)]);
    }
    let dir = cluster.shared().join("dir");
    succeed(Command::new("sha256sum").args(["--quiet", "-c", "sums"]).current_dir(&dir));
    assert_eq!(fs::read_to_string(dir.join("log")).expect("the log").lines().count(), 150);
    cluster.assert_clean();
}

/// Reads until each of `nodes` has printed `count` more lines that begin with `word`.
fn read_until(job: &mut Interactive, nodes: &[u32], word: &str, count: usize) {
    let mut counts = vec![0; nodes.len()];
    while counts.iter().any(|&seen| seen < count) {
        let line = job.line();
        assert!(line.is_some(), "it ended before {word}: {:#?}", job.lines);
        let line = line.unwrap_or_default();
        for (&node, seen) in nodes.iter().zip(&mut counts) {
            *seen += usize::from(line.starts_with(&format!("[{node}] {word}")));
        }
    }
}

/// Input, output, exit code and signals of a command on another host are those of a local one.
#[test]
fn a_job_from_a_login_node_behaves_like_a_local_one() {
    let cluster = Cluster::from_login_node(&["", ""]);
    let script = r#"
        echo "ready on node $TAMEIKE_NODE of $TAMEIKE_NODES"; read -r word; echo "$word" > "$TAMEIKE_CACHE/word"
        trap 'echo ended > "$TAMEIKE_CACHE/ended"; exit 17' TERM
        echo waiting
        while :; do sleep 0.1; done"#;
    let mut job = Interactive::start(&mut cluster.job(&[], script));
    assert_eq!(job.line().as_deref(), Some("ready on node 0 of 2"));
    let exec = ["exec", "--job", cluster.job_name()];
    let all = [&exec[..], &["--all", "--", "sh", "-c", "hostname -I; exit 0"]].concat();
    let messages = succeed(&mut cluster.tameike(&all));
    assert_contains(&messages, &["[0] 10.213.0.1", "[1] 10.213.0.2"]);
    cluster.tameike(&[&exec[..], &["--node", "1", "--", "sh", "-c", "exit 9"]].concat()).exits(9);
    job.send_line("hello");
    assert_eq!(job.line().as_deref(), Some("waiting"));
    job.signal("-TERM");
    let (lines, code) = job.end();
    assert_eq!(code, Some(17), "{lines:#?}");
    assert_eq!(fs::read_to_string(cluster.shared().join("word")).expect("a word"), "hello\n");
    assert_eq!(fs::read_to_string(cluster.shared().join("ended")).expect("the end"), "ended\n");
    cluster.assert_clean();
}

/// Checks the calls of workers: only the documented error, only within the documented time.
fn assert_documented(lines: &[String]) {
    assert!(!lines.iter().any(|line| line.contains("WRONG")), "wrong bytes: {lines:#?}");
    for line in lines.iter().filter(|line| line.contains("] failed ")) {
        assert!(line.contains("] failed EHOSTDOWN "), "an undocumented error: {line}");
    }
    let calls = lines.iter().filter(|line| line.contains("] failed ") || line.contains("] slow "));
    for line in calls {
        let seconds = line.rsplit(' ').next().and_then(|last| last.parse::<f64>().ok());
        assert!(seconds.is_some_and(|seconds| seconds < CALL_LIMIT_SECONDS), "too slow: {line}\n{lines:#?}");
    }
}

/// S18a, S18b.
#[test]
fn a_failed_link_gives_errors_in_time_and_recovers() {
    let cluster = Cluster::new(&["", "", ""]);
    let account = cluster.plain_dir("account");
    let [work, check] = ["work", "check"].map(|task| worker(&cluster, task));
    let script = format!("tameike exec --all -- {work}\ntameike exec --all -- {check}");
    let receipt = cluster.plain_dir("receipt").join("receipt.json");
    let options = ["--verify", "--receipt", utf8(&receipt)];
    let mut job = Interactive::start(&mut cluster.job(&options, &script));
    read_until(&mut job, &[0, 1, 2], "whole", 2);
    // A short failure only delays calls.
    cluster.cut(2);
    succeed(Command::new("sleep").arg("2"));
    cluster.heal(2);
    read_until(&mut job, &[0, 1, 2], "whole", 2);
    assert!(!job.lines.iter().any(|line| line.contains("] failed ")), "{:#?}", job.lines);
    let rounds = if is_soak() { 12 } else { 1 };
    for round in 0..rounds {
        let host = (2 + round) % 3;
        cluster.cut(host);
        read_until(&mut job, &[0, 1, 2], "failed", 2);
        cluster.heal(host);
        read_until(&mut job, &[0, 1, 2], "whole", 2);
    }
    fs::write(account.join("stop"), "").expect("the file that stops the workers");
    let (lines, code) = job.end();
    assert_documented(&lines);
    assert_eq!(code, Some(0), "{lines:#?}");
    assert_eq!(lines.iter().filter(|line| line.contains("] checked ")).count(), 3, "{lines:#?}");

    let document = json(&receipt);
    assert_eq!(document["complete"], true, "{document:#}");
    assert!(!document.to_string().contains("another program"), "own flushes are changes: {document:#}");
    check_shared(&cluster);
    cluster.assert_clean();
}

/// A link fails during the drain: the receipt reports what is missing, and `recover` drains it.
#[test]
fn a_link_failure_during_the_drain_is_reported_and_recovered() {
    let cluster = Cluster::new(&["", "", ""]);
    let account = cluster.plain_dir("account");
    // The workers exit at their first error, and the job drains while the link is down.
    let script = format!("tameike exec --all -- {}; echo over; read -r end", worker(&cluster, "work"));
    let receipt = cluster.plain_dir("receipt").join("receipt.json");
    let options = ["--receipt", utf8(&receipt)];
    let mut job = Interactive::start(&mut cluster.job(&options, &script));
    read_until(&mut job, &[0, 1, 2], "whole", 3);
    cluster.cut(2);
    fs::write(account.join("stop"), "").expect("the file that stops the workers");
    while job.line().is_some_and(|line| line != "over") {}
    job.send_line("end");
    let (lines, code) = job.end();
    assert_eq!(code, Some(75), "{lines:#?}");
    let document = json(&receipt);
    assert_eq!(document["complete"], false, "{document:#}");

    cluster.heal(2);
    let recovered =
        cluster.tameike(&["recover", "--job", cluster.job_name(), "--verify"]).output().expect("a recovery");
    // A file that a worker was writing has only its temporary name, which the receipt lists.
    let messages = err(&recovered);
    let interrupted: Vec<_> = messages.lines().filter(|line| line.contains("INTERRUPTED")).collect();
    assert!(interrupted.iter().all(|line| line.contains(".part ")), "{messages}");
    let code = code_of_recovery(&messages);
    assert_eq!(recovered.status.code(), Some(code), "{}\n{document:#}", shown(&recovered));
    check_shared(&cluster);
    cluster.assert_clean();
}

/// Nodes without a device use that of a node of their group.
#[test]
fn a_host_without_a_device_uses_its_groups() {
    let cluster = Cluster::new(&["group=1", "group=2", "device=no group=2 slots=4"]);
    let text = cluster.run(
        r#"tameike exec --node 2 -- sh -euc '
               seq 1 1000000 > "$TAMEIKE_NODE_LOCAL/own"
               mkdir "$TAMEIKE_NODE_LOCAL/dir"; mv "$TAMEIKE_NODE_LOCAL/own" "$TAMEIKE_NODE_LOCAL/dir/own"
               seq 1 1000000 | cmp - "$TAMEIKE_NODE_LOCAL/dir/own"
               seq 1 1000000 > "$TAMEIKE_SHARED/far"
               seq 1 1000000 > "$TAMEIKE_CACHE/far"'
           for k in 0 1; do
               tameike exec --node $k -- sh -euc 'test -z "$(ls "$TAMEIKE_NODE_LOCAL")"'
           done
           seq 1 1000000 | cmp - "$TAMEIKE_SHARED/far"
           seq 1 1000000 | cmp - "$TAMEIKE_CACHE/far"
           seq 1 1000000 > "$TAMEIKE_SHARED/near"
           tameike exec --node 2 -- sh -euc 'cmp "$TAMEIKE_SHARED/near" "$TAMEIKE_NODE_LOCAL/dir/own"; df "$TAMEIKE_NODE_LOCAL" >&2'
           tameike status --json"#,
    );
    let status: serde_json::Value = serde_json::from_str(&text).expect(&text);
    let text = status.to_string();
    let nodes = status.pointer("/0/running/nodes").expect(&text);
    let used = |node: usize, view: usize| {
        nodes[node]["status"]["space"][view]["used"].as_u64().unwrap_or_else(|| panic!("{text}"))
    };
    // Node 1 of the same group stores node 2's file, and node 2 stores nothing.
    assert!(used(1, 0) >= 6_888_896 && used(0, 0) < 1_000_000, "{text}");
    assert!((0..3).all(|view| used(2, view) == 0), "{text}");
    assert!(used(0, 1) > 0 && used(1, 1) > 0, "{text}");
    let drained = fs::read_to_string(cluster.shared().join("far")).expect("the drained file");
    assert_eq!(drained.lines().count(), 1_000_000);
    cluster.assert_clean();
}
