//! Volumes outlive their drivers: agents run on, and the next driver connects to them.

use crate::support::jobs::{Random, runs, seed, signal, sleep_ms, wait_for};
use crate::support::volume::Volume;
use crate::support::{Run, assert_contains, err, is_soak, out};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

/// Waits for a driver that is not this one, and returns it.
fn next_driver(volume: &Volume, last: u32) -> u32 {
    wait_for("the next driver", || Some(volume.driver()).filter(|driver| *driver != last && runs(*driver)))
}

/// S58a. S58b.
#[test]
fn the_agents_of_a_volume_start_the_next_driver_when_one_is_killed() {
    let Some(volume) = Volume::start("driver", "3", "2") else { return };
    let mut writer = volume.writer();
    let mut random = Random::new(seed());
    for _ in 0..if is_soak() { 50 } else { 3 } {
        sleep_ms(random.below(1000));
        let driver = volume.driver();
        assert!(signal(driver, "KILL"));
        next_driver(&volume, driver);
        writer.await_more();
    }
    // It controls the volume as the first one did.
    volume.act("grow", &["--local", "1"]);
    volume.act("restart", &["--nodes", "3"]);
    volume.act("shrink", &["--nodes", "3"]);
    println!("longest pause: {} ms", writer.end());
    volume.check_copies();
    volume.act("stop", &[]);
    volume.check_stores();
    volume.act("start", &[]);
    volume.says("tameike volume mount $V mnt; sha256sum --check --quiet sums; umount mnt");
    volume.end();
}

/// S58b.
#[test]
fn the_next_driver_excludes_an_agent_that_is_killed_with_the_last_one() {
    let Some(volume) = Volume::start("both", "3", "2") else { return };
    let mut writer = volume.writer();
    let driver = volume.driver();
    assert!(signal(driver, "STOP"));
    volume.kill_agent(2);
    assert!(signal(driver, "KILL"));
    next_driver(&volume, driver);
    writer.await_more();
    volume.act("restart", &["--nodes", "2"]);
    writer.await_more();
    println!("longest pause: {} ms", writer.end());
    volume.check_copies();
    volume.end();
}

/// S58c.
#[test]
fn a_driver_that_was_stopped_leaves_the_volume_to_the_next_one() {
    let Some(volume) = Volume::start("paused", "3", "2") else { return };
    let mut writer = volume.writer();
    let driver = volume.driver();
    let mut refused = volume.start_elsewhere();
    assert_contains(&err(&refused.exits(71)), &["another driver serves the volume"]);
    assert!(signal(driver, "STOP"));
    // The agents may be faster.
    wait_for("a driver on another host", || {
        let output = volume.start_elsewhere().output().expect("it starts");
        println!("{}", err(&output));
        (output.status.success() || volume.driver() != driver).then_some(())
    });
    next_driver(&volume, driver);
    writer.await_more();
    assert!(signal(driver, "CONT"));
    wait_for("the end of the first driver", || (!runs(driver)).then_some(()));
    writer.await_more();
    writer.end();
    volume.check_copies();
    volume.end();
}

/// S58a.
#[test]
fn a_driver_connects_again_to_an_agent_after_its_connection_broke() {
    let Some(volume) = Volume::start("broken", "3", "2") else { return };
    let mut writer = volume.writer();
    let first = volume.driver();
    assert!(signal(first, "KILL"));
    let driver = next_driver(&volume, first);
    // Its children pass lines on between it and the agents.
    let connections = || {
        let text = fs::read_to_string(format!("/proc/{driver}/task/{driver}/children")).unwrap_or_default();
        text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()
    };
    let before = wait_for("the connections", || Some(connections()).filter(|found| found.len() == 3));
    assert!(signal(before[2], "KILL"));
    wait_for("the next connection", || {
        let now = connections();
        (now.len() == 3 && !now.contains(&before[2])).then_some(())
    });
    writer.await_more();
    writer.end();
    volume.check_copies();
    volume.end();
}

/// S58a.
#[test]
fn the_driver_of_a_volume_on_one_node_is_started_by_hand() {
    let Some(volume) = Volume::start("alone", "1", "1") else { return };
    let mut writer = volume.writer();
    let driver = volume.driver();
    assert!(signal(driver, "KILL"));
    writer.await_more();
    let mut start = volume.tameike("start", &[]);
    assert_contains(&err(&start.exits(0)), &["its agents ran without one"]);
    writer.end();
    volume.end();
}

/// A volume between two drivers runs, as opposed to one whose agents were killed.
#[test]
fn the_status_of_a_volume_without_a_driver_says_whether_its_agents_run() {
    let Some(volume) = Volume::start("between", "3", "2") else { return };
    let status = || out(&volume.tameike("status", &[]).exits(0));
    let (driver, agents) = volume.processes();
    // Stopped agents start no driver.
    assert!(agents.iter().all(|(_, agent)| signal(*agent, "STOP")));
    assert!(signal(driver, "KILL"));
    wait_for("the end of the driver", || (!runs(driver)).then_some(()));
    assert_contains(&status(), &["has no driver: its agents run, and start the next one within seconds"]);
    assert_contains(&out(&volume.tameike("status", &["--json"]).exits(0)), &[r#""state": "no-driver""#]);
    assert!(agents.iter().all(|(_, agent)| signal(*agent, "CONT")));
    next_driver(&volume, driver);
    wait_for("the next driver", || status().contains("node").then_some(()));
    volume.kill();
    // The kernel may be closing their stores.
    wait_for("the end of the agents", || status().contains("killed").then_some(()));
    volume.act("start", &[]);
    volume.end();
}

/// Regression: the agent kept what arrived in memory until the line ended, and went on after lines that are no commands.
#[test]
fn an_agent_ends_connections_that_send_no_commands() {
    let Some(volume) = Volume::start("noise", "3", "2") else { return };
    let mut writer = volume.writer();
    let before = volume.processes();
    let socket = volume.site.base().join(format!("tameike-0/volume-{}/node-1/ctrl", volume.name));
    let endless = vec![b'x'; 65 << 20];
    for (noise, why) in [
        (&b"garbage\n"[..], "must be started by a driver"),
        (b"{\"id\":1,\"request\":\"status\"}\n", "different versions"),
        (b"\xff\xfe\n", "is no text"),
        (&endless, "longer than 64 MiB"),
    ] {
        let mut connection = UnixStream::connect(&socket).expect("the agent accepts it");
        // The agent may end the connection before.
        let _ = connection.write_all(noise);
        let mut reply = Vec::new();
        let _ = connection.read_to_end(&mut reply);
        assert_contains(&String::from_utf8_lossy(&reply), &[why]);
    }
    writer.await_more();
    assert_eq!(volume.processes(), before);
    writer.end();
    volume.end();
}
