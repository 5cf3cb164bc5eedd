//! Volumes outlive their drivers: agents run on, and the next driver connects to them.

use crate::support::jobs::{Background, Random, seed, signal, sleep_ms, wait_for};
use crate::support::volume::Volume;
use crate::support::{Run, assert_contains, err, is_soak};
use std::fs;
use std::path::PathBuf;

/// Writes files, one after another, and renames each when it is synced, until the file `end` is there. Checks all of them then. Notes the
/// longest time that one took in milliseconds.
const WRITER: &str = r#"
    mkdir mnt; tameike volume mount $V mnt; mkdir mnt/made
    number=0; longest=0; before=$(date +%s%3N)
    until [ -e end ]; do
        number=$((number + 1))
        head -c $((number * 7919 % 60000)) /dev/urandom > content
        cp content mnt/made/new; sync mnt/made/new; mv mnt/made/new mnt/made/$number
        echo "$(sha256sum < content | cut -d' ' -f1)  mnt/made/$number" >> sums
        now=$(date +%s%3N); took=$((now - before)); before=$now
        [ $took -le $longest ] || longest=$took
    done
    sha256sum --check --quiet sums; umount mnt; echo $longest > longest"#;

struct Writer {
    sums: PathBuf,
    process: Background,
}

impl Writer {
    fn start(volume: &Volume) -> Self {
        let process = Background::start(&mut volume.command(WRITER));
        let mut writer = Self { sums: volume.directory().join("sums"), process };
        writer.await_more();
        writer
    }

    fn count(&self) -> usize {
        fs::read_to_string(&self.sums).map_or(0, |text| text.lines().count())
    }

    fn await_more(&mut self) {
        let before = self.count();
        wait_for("the writer", || (self.count() > before + 10 || !self.process.runs()).then_some(()));
        assert!(self.process.runs(), "the writer has failed");
    }

    /// Returns the longest time that a file took, in milliseconds.
    fn end(self, volume: &Volume) -> u64 {
        fs::write(volume.directory().join("end"), "").expect("written");
        let output = self.process.output();
        assert!(output.status.success(), "{}", err(&output));
        let longest = fs::read_to_string(volume.directory().join("longest")).expect("written");
        longest.trim().parse().expect("a number")
    }
}

/// Whether a process runs, and is no zombie.
fn runs(process: u32) -> bool {
    let state = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    state.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

/// Waits for a driver that is not this one, and returns it.
fn next_driver(volume: &Volume, last: u32) -> u32 {
    wait_for("the next driver", || Some(volume.driver()).filter(|driver| *driver != last && runs(*driver)))
}

/// S58a. S58b.
#[test]
fn the_agents_of_a_volume_start_the_next_driver_when_one_is_killed() {
    let Some(volume) = Volume::start("driver", "3", "2") else { return };
    let mut writer = Writer::start(&volume);
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
    println!("longest pause: {} ms", writer.end(&volume));
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
    let mut writer = Writer::start(&volume);
    let driver = volume.driver();
    assert!(signal(driver, "STOP"));
    volume.kill_agent(2);
    assert!(signal(driver, "KILL"));
    next_driver(&volume, driver);
    writer.await_more();
    volume.act("restart", &["--nodes", "2"]);
    writer.await_more();
    println!("longest pause: {} ms", writer.end(&volume));
    volume.check_copies();
    volume.end();
}

/// S58c.
#[test]
fn a_driver_that_was_stopped_leaves_the_volume_to_the_next_one() {
    let Some(volume) = Volume::start("paused", "3", "2") else { return };
    let mut writer = Writer::start(&volume);
    let driver = volume.driver();
    let mut refused = volume.start_elsewhere();
    assert_contains(&err(&refused.exits(71)), &["another driver serves the volume"]);
    assert!(signal(driver, "STOP"));
    wait_for("a driver on another host", || {
        let output = volume.start_elsewhere().output().expect("it starts");
        println!("{}", err(&output));
        output.status.success().then_some(())
    });
    next_driver(&volume, driver);
    writer.await_more();
    assert!(signal(driver, "CONT"));
    wait_for("the end of the first driver", || (!runs(driver)).then_some(()));
    writer.await_more();
    writer.end(&volume);
    volume.check_copies();
    volume.end();
}

/// S58a.
#[test]
fn a_driver_connects_again_to_an_agent_after_its_connection_broke() {
    let Some(volume) = Volume::start("broken", "3", "2") else { return };
    let mut writer = Writer::start(&volume);
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
    writer.end(&volume);
    volume.check_copies();
    volume.end();
}

/// S58a.
#[test]
fn the_driver_of_a_volume_on_one_node_is_started_by_hand() {
    let Some(volume) = Volume::start("alone", "1", "1") else { return };
    let mut writer = Writer::start(&volume);
    let driver = volume.driver();
    assert!(signal(driver, "KILL"));
    writer.await_more();
    let mut start = volume.tameike("start", &[]);
    assert_contains(&err(&start.exits(0)), &["its agents ran without one"]);
    writer.end(&volume);
    volume.end();
}
