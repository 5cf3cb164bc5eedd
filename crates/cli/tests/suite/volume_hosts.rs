//! A volume on several hosts loses the host of its driver: agents of other hosts start the next one there.

use crate::cluster::network::Cluster;
use crate::support::jobs::{runs, signal, sleep_ms, wait_for};
use crate::support::volume::Writer;
use crate::support::{Run, assert_code, assert_contains, json, out, processes_naming, utf8};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// The hosts with programs.
const USERS: [u32; 2] = [1, 2];
/// Longest time of a file, in milliseconds. Calls wait a minute at most.
const LONGEST_PAUSE: u64 = 60_000;

/// A volume on three hosts with two replicas, whose driver runs on the first.
struct Volume {
    cluster: Cluster,
    name: String,
}

impl Drop for Volume {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.cluster.site().kill_processes();
        }
    }
}

impl Volume {
    fn start(name: &str) -> Self {
        let cluster = Cluster::with_relays(&["", "", ""]);
        let volume = Self { name: format!("{name}-{}", std::process::id()), cluster };
        let (hostfile, disk) = (volume.cluster.hostfile(), volume.cluster.site().disk().to_owned());
        let places = ["--hostfile", utf8(&hostfile), "--device", utf8(&disk)];
        let options = [&places[..], &["--capacity", "64M", "--replicas", "2"]].concat();
        for arguments in [
            &[&["volume", "create", &volume.name], &options[..]].concat()[..],
            &["volume", "start", &volume.name],
        ] {
            volume.cluster.tameike(arguments).env("HOME", volume.home()).env_remove("XDG_DATA_HOME").exits(0);
        }
        volume
    }

    /// The home directory of the owner, which all hosts share.
    fn home(&self) -> PathBuf {
        self.cluster.plain_dir("home")
    }

    fn record(&self) -> Value {
        json(&self.home().join(format!(".local/share/tameike/volumes/{}.json", self.name)))
    }

    /// The host of its driver, and the process.
    fn driver(&self) -> (u32, u32) {
        let record = self.record();
        let host = (0..3).find(|host| record["driver_host"] == self.cluster.host_name(*host).as_str());
        (host.expect("a host of the volume"), number(&record["job"]["driver_pid"]))
    }

    fn agent(&self, node: u32) -> u32 {
        let record = self.record();
        let mut nodes = record["job"]["nodes"].as_array().expect("nodes").iter();
        number(&nodes.find(|agent| agent["node"] == node).expect("it runs")["pid"])
    }

    fn script(&self, host: u32, script: &str) -> Command {
        let mut command = self.cluster.script(host, &format!("export V={}; {script}", self.name));
        command.env("HOME", self.home());
        command
    }

    fn writers(&self) -> [Writer; 2] {
        USERS.map(|host| {
            let directory = self.cluster.plain_dir(&format!("writer-{host}"));
            Writer::start(directory.clone(), |script| {
                fs::write(directory.join("script"), script).expect("written");
                self.script(host, &format!("cd {}; exec timeout 500 sh -eu script", directory.display()))
            })
        })
    }

    /// Waits for a driver on another host, and returns that host.
    fn next_driver(&self, last: u32) -> u32 {
        let (host, _) = wait_for("the next driver", || {
            Some(self.driver()).filter(|(host, process)| *host != last && runs(*process))
        });
        println!("the next driver is on host {host}");
        host
    }

    /// Waits until no node is excluded and all data has its copies, as the driver on a host reports.
    fn await_copies(&self, host: u32) {
        wait_for("all copies", || {
            let output = self.script(host, "tameike volume status $V --json").output().expect("it runs");
            let status: Value = serde_json::from_slice(&output.stdout).ok()?;
            let replicas = &status[0]["agents"]["replicas"];
            let excluded = replicas["excluded"].as_array()?.len();
            (excluded == 0 && replicas["homes_with_one_copy"] == 0).then_some(())
        });
    }

    /// Ends the programs, which have seen no error, compares all copies, and removes the volume.
    fn end(self, writers: [Writer; 2], host: u32, clean_up: impl FnOnce(&Cluster)) {
        for writer in writers {
            let longest = writer.end();
            println!("longest pause: {longest} ms");
            assert!(longest < LONGEST_PAUSE);
        }
        // Homes move back to the node that was excluded.
        let compared = wait_for("the comparison", || {
            let output =
                self.script(host, "tameike check --replicas --job volume-$V").output().expect("it runs");
            (!out(&output).contains("is not compared completely")).then_some(output)
        });
        assert_code(&compared, 0);
        let drivers = processes_naming(utf8(self.cluster.site().base()));
        let drivers: Vec<_> = drivers.iter().filter(|line| line.starts_with("tameike supervise")).collect();
        assert_eq!(drivers.len(), 1, "{drivers:?}");
        self.script(host, "tameike volume stop $V; tameike volume remove $V").exits(0);
        self.cluster.site().await_processes();
        clean_up(&self.cluster);
        self.cluster.assert_clean();
    }
}

fn number(value: &Value) -> u32 {
    value.as_u64().and_then(|number| number.try_into().ok()).expect("a number")
}

/// S58a. S58b.
#[test]
fn programs_go_on_when_the_host_of_the_driver_fails() {
    let volume = Volume::start("lost");
    let mut writers = volume.writers();
    let (host, driver) = volume.driver();
    assert_eq!(host, 0);
    volume.cluster.isolate(host);
    for process in [driver, volume.agent(host)] {
        assert!(signal(process, "KILL"));
    }
    let next = volume.next_driver(host);
    writers.iter_mut().for_each(Writer::await_more);
    volume.cluster.rejoin(host);
    volume.script(next, "tameike volume restart $V --nodes 0").exits(0);
    writers.iter_mut().for_each(Writer::await_more);
    volume.await_copies(next);
    volume.end(writers, next, |cluster| {
        // The next job of the host removes what the driver has left that was killed.
        let shared = cluster.shared();
        cluster.tameike(&["run", "--local", "1", "--shared", utf8(shared), "--", "true"]).exits(0);
    });
}

/// S58a. S58b. S58c.
#[test]
fn the_driver_of_a_host_that_is_cut_off_leaves_the_volume_to_the_next_one() {
    let volume = Volume::start("apart");
    let mut writers = volume.writers();
    let (host, driver) = volume.driver();
    volume.cluster.isolate(host);
    sleep_ms(20_000);
    let next = volume.next_driver(host);
    writers.iter_mut().for_each(Writer::await_more);
    assert!(runs(driver), "it does not know of the next one");
    volume.cluster.rejoin(host);
    wait_for("the end of the first driver", || (!runs(driver)).then_some(()));
    volume.await_copies(next);
    writers.iter_mut().for_each(Writer::await_more);
    let status = out(&volume.script(host, "tameike volume status $V").exits(0));
    assert_contains(&status, &["is controlled from", &volume.cluster.host_name(next)]);
    volume.end(writers, next, |_| ());
}
