//! A host of a job with replicas is cut off, in both directions or in one, or its agent is stopped, while programs on all hosts change files and check all
//! that they see.

use crate::cluster::network::Cluster;
use crate::support::jobs::{Background, Random, seed, signal, sleep_ms, wait_for};
use crate::support::trial::Checkers;
use crate::support::{assert_code, assert_contains, err, is_soak, shown, utf8};
use serde_json::Value;
use std::time::Duration;
use tameike_io::os::process::monotonic;

/// The host that is cut off. Its programs use neither locks nor files that are removed while open, since it may lose these.
const VICTIM: u32 = 2;
/// The nodes of the other hosts.
const OTHERS: &[u32] = &[0, 1];
/// Longest call of their programs: the silence after which the host counts as unreachable, its lease, and the takeover, on a busy machine.
const LONGEST_CALL: Duration = Duration::from_secs(8);

/// An outage and its end.
struct Outage {
    name: &'static str,
    begin: fn(&Cluster),
    end: fn(&Cluster),
    message: &'static str,
}

/// Nothing reaches the host, nor leaves it.
const CUT: Outage = Outage {
    name: "cut",
    begin: |cluster| cluster.isolate(VICTIM),
    end: |cluster| cluster.rejoin(VICTIM),
    message: "does not answer",
};

/// The host sends, and receives nothing; ssh works.
const DEAF: Outage = Outage {
    name: "deaf",
    begin: |cluster| cluster.deafen(VICTIM),
    end: Cluster::lose_nothing,
    message: "cannot be reached by others",
};

/// The host receives, and nothing that it sends arrives.
const MUTE: Outage =
    Outage { name: "mute", begin: |cluster| cluster.mute(VICTIM), end: Cluster::lose_nothing, ..DEAF };

/// The agent of the host is stopped.
const STOPPED: Outage = Outage {
    name: "stopped",
    begin: |cluster| assert!(signal(cluster.agent(VICTIM), "STOP")),
    end: |cluster| assert!(signal(cluster.agent(VICTIM), "CONT")),
    message: "does not answer",
};

/// A job on three hosts, with programs that check on all of them. Outages follow each other; after each, all data gets its copies again
/// without a command. No program sees an error or a wrong byte.
fn check_outages(outages: &[Outage]) {
    let (seed, cluster) = (seed(), Cluster::with_relays(&["", "", ""]));
    let checkers = Checkers::new(&[0, 1, VICTIM], cluster.plain_dir("account"), seed);
    check_job(outages, &cluster, &checkers, seed, &[]);
    checkers.check(cluster.shared());
    cluster.assert_clean();
}

/// Such a job on any hosts, with more options.
fn check_job(outages: &[Outage], cluster: &Cluster, checkers: &Checkers, seed: u64, more: &[&str]) {
    let (mut random, receipt) = (Random::new(seed), checkers.receipt());
    let options = [&["--replicas", "2", "--receipt", utf8(&receipt)], more].concat();
    let script = checkers.script(VICTIM, "0 1 2", "");
    let mut running = checkers.await_begin(Background::start(&mut cluster.job(&options, &script)));
    let (rounds, milliseconds) = if is_soak() { (4, 30_000) } else { (1, 5500) };
    let mut times = Vec::new();
    for outage in outages.iter().cycle().take(rounds * outages.len()) {
        sleep_ms(random.below(500));
        times.push((outage.name, monotonic()));
        (outage.begin)(cluster);
        sleep_ms(milliseconds);
        (outage.end)(cluster);
        wait_for("all copies", || (!running.runs() || lacking(cluster)? == (0, 0)).then_some(()));
    }
    times.push(("end", monotonic()));
    checkers.stop();
    let output = running.output();
    assert_code(&output, 0);
    let messages = err(&output);
    for outage in outages {
        assert_contains(&messages, &[outage.message, "answers again, and others reach it"]);
    }
    println!("{} operations", checkers.operations());
    for both in times.windows(2) {
        let longest = checkers.longest_call(OTHERS, both[0].1, both[1].1);
        println!("{}: longest call on other hosts {} ms", both[0].0, longest.as_millis());
        assert!(longest < LONGEST_CALL, "{}: {longest:?}", both[0].0);
    }
}

/// The number of excluded nodes, and of homes with one copy.
fn lacking(cluster: &Cluster) -> Option<(usize, u64)> {
    let arguments = ["status", "--job", cluster.job_name(), "--json"];
    let output = cluster.tameike(&arguments).output().expect("it runs");
    let status: Value = serde_json::from_slice(&output.stdout).ok()?;
    let replicas = &status[0]["running"]["replicas"];
    Some((replicas["excluded"].as_array()?.len(), replicas["homes_with_one_copy"].as_u64()?))
}

/// S18b. S52a. S52b. S52e. S52g.
#[test]
fn a_host_that_is_cut_off_is_excluded_and_readmitted() {
    check_outages(&[CUT, STOPPED]);
}

/// S18b. S52a. S52b. S52e.
#[test]
fn a_host_that_loses_messages_in_one_direction_is_excluded_and_readmitted() {
    check_outages(&[DEAF, MUTE]);
}

/// The host is that of the packer, since the ones before have no device. It is cut off while the shared directory is not.
///
/// S18b. S38b. S52a. S52b. S52e.
#[test]
fn a_packer_on_a_host_that_is_cut_off_is_replaced_and_damages_nothing() {
    let (seed, cluster) = (seed(), Cluster::with_relays(&["device=no", "device=no", "", "", ""]));
    let account = cluster.plain_dir("account");
    let checkers = Checkers::new(&[0, 1, VICTIM], account.clone(), seed).with_packed_files();
    check_job(&[CUT, STOPPED], &cluster, &checkers, seed, &["--aggregate=on"]);
    let copy = account.join("copy");
    let script = format!(r#"cp -a "$TAMEIKE_CACHE" {}"#, copy.display());
    assert_code(&cluster.job(&["--aggregate=on"], &script).output().expect("it runs"), 0);
    checkers.check(&copy);
    let container = cluster.shared().join(".tameike-packed");
    assert_code(&cluster.tameike(&["agg", "verify", utf8(&container)]).output().expect("it runs"), 0);
    cluster.assert_clean();
}

/// Time in which a job ends that need not wait for a host.
const END: Duration = Duration::from_secs(30);

/// The calls of programs on the host wait, and the end of the job does not wait for them. S52e.
#[test]
fn a_job_ends_while_a_host_is_cut_off() {
    let cluster = Cluster::with_relays(&["", "", ""]);
    let account = cluster.plain_dir("account");
    let script = format!(
        r#"tameike exec --node {VICTIM} -- sh -c 'cd "$TAMEIKE_CACHE"; seq 9999 > file; touch {0}/begun; while :; do seq 9999 > file; done' &
           until test -e {0}/end; do sleep 0.05; done"#,
        account.display()
    );
    let receipt = account.join("receipt");
    let options = ["--replicas", "2", "--receipt", utf8(&receipt)];
    let running = Background::start_until(&mut cluster.job(&options, &script), &account.join("begun"));
    cluster.deafen(VICTIM);
    wait_for("the exclusion", || (lacking(&cluster)?.0 == 1).then_some(()));
    sleep_ms(2000);
    let begin = monotonic();
    std::fs::write(account.join("end"), "").expect("written");
    let output = running.output();
    let time = monotonic() - begin;
    println!("ended after {} ms", time.as_millis());
    // Without the writer, a part of its file is there.
    assert!(matches!(output.status.code(), Some(0 | 75)), "{}", shown(&output));
    assert!(time < END, "{time:?}: {}", shown(&output));
    assert_contains(&err(&output), &["cannot be reached by others"]);
    cluster.lose_nothing();
    cluster.assert_clean();
}
