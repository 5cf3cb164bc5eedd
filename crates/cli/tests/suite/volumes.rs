//! Volumes outlive jobs, kills of all their processes, and the loss of nodes.

use crate::support::jobs::{Background, Random, seed, sleep_ms, wait_for};
use crate::support::volume::Volume;
use crate::support::{Run, assert_contains, err, out, shown, utf8};
use serde_json::Value;
use std::fs;
use std::process::Command;

/// Writes files until one fails, and notes in `acknowledged` the checksum of each that was synced, with its name.
const WRITER: &str = r#"
    tameike volume mount $V mnt
    mkdir -p mnt/$1; : > acknowledged-$1; number=0
    while number=$((number + 1)); do
        size=$((number * 7919 % 40000))
        head -c $size /dev/urandom > content-$1
        cp content-$1 mnt/$1/$number || break
        sync mnt/$1/$number && mv mnt/$1/$number mnt/$1/file-$number && sync mnt/$1 || break
        sum=$(sha256sum < content-$1); echo "${sum%-}mnt/$1/file-$number" >> acknowledged-$1
    done 2> errors-$1
    cat errors-$1"#;

/// Checks that all files are there which [`WRITER`] has noted. Says how many.
const CHECK: &str = r#"
    tameike volume mount $V mnt
    for writer in "$@"; do sha256sum --check --quiet acknowledged-$writer; wc -l < acknowledged-$writer; done
    umount mnt"#;

fn with_writers(script: &str, writers: &str) -> String {
    format!("set -- {writers}\nmkdir -p mnt\n{script}")
}

fn check(volume: &Volume, writers: &str) {
    let counts = volume.says(&with_writers(CHECK, writers));
    println!("files: {}", counts.trim());
    assert!(counts.lines().all(|count| count.parse::<u32>().expect("a number") > 5), "{counts}");
}

fn of_volume(volume: &Volume, words: &[&str]) -> Command {
    volume.tameike(words[0], &words[1..])
}

fn status(volume: &Volume) -> Value {
    let text = out(&of_volume(volume, &["status", "--json"]).exits(0));
    serde_json::from_str::<Value>(&text).expect("JSON")[0].clone()
}

/// Waits until the copies of all data have been compared.
fn await_comparison(volume: &Volume) {
    let compares = || status(volume)["agents"]["volume"]["compares_copies"].as_bool().expect("a boolean");
    wait_for("the comparison of the copies", || (!compares()).then_some(()));
}

fn count(path: &std::path::Path) -> usize {
    fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

/// S55a. S55c.
#[test]
fn what_was_synced_survives_the_kill_of_all_processes() {
    let mut random = Random::new(seed());
    for replicas in ["1", "2"] {
        let Some(volume) = Volume::start("killed", "3", replicas) else { return };
        for round in ["a", "b"] {
            let writer = Background::start(&mut volume.command(&with_writers(WRITER, round)));
            let noted = volume.directory().join(format!("acknowledged-{round}"));
            wait_for("the writer", || (count(&noted) > 20).then_some(()));
            sleep_ms(random.below(1500));
            volume.kill();
            let output = writer.output();
            assert!(output.status.success(), "{}", shown(&output));
            let started = err(&of_volume(&volume, &["start"]).exits(0));
            assert_eq!(started.contains("the copies of all data are compared"), replicas == "2", "{started}");
            let writers = if round == "a" { "a" } else { "a b" };
            check(&volume, writers);
            if replicas == "2" {
                await_comparison(&volume);
                volume.check_copies();
            }
        }
        volume.act("stop", &[]);
        volume.check_stores();
        volume.act("start", &[]);
        check(&volume, "a b");
        volume.end();
    }
}

/// S55a.
#[test]
fn files_that_were_closed_long_before_survive_the_kill_of_all_processes() {
    let Some(volume) = Volume::start("closed", "2", "1") else { return };
    volume.says(
        r#"mkdir mnt; tameike volume mount $V mnt; mkdir mnt/made
           for number in $(seq 50); do head -c $((number * 7000)) /dev/urandom > mnt/made/$number; done
           sha256sum mnt/made/* > sums; umount mnt"#,
    );
    sleep_ms(5000);
    volume.kill();
    volume.act("start", &[]);
    volume.says("tameike volume mount $V mnt; sha256sum --check --quiet sums; umount mnt");
    volume.end();
}

/// S55b.
#[test]
fn a_volume_starts_without_a_node_and_gets_it_back() {
    let Some(volume) = Volume::start("missing", "3", "2") else { return };
    let writer = Background::start(&mut volume.command(&with_writers(WRITER, "a")));
    wait_for("the writer", || (count(&volume.directory().join("acknowledged-a")) > 30).then_some(()));
    volume.act("stop", &[]);
    assert!(writer.output().status.success());
    let (store, away) = (volume.store(1), volume.directory().join("away"));
    fs::rename(&store, &away).expect("moved");
    let started = err(&of_volume(&volume, &["start"]).exits(0));
    assert_contains(
        &started,
        &["the volume starts without node 1 on localhost", "is missing: is its disk mounted?"],
    );
    check(&volume, "a");
    let refused = err(&of_volume(&volume, &["restart", "--nodes", "1"]).exits(71));
    assert_contains(&refused, &["is missing: is its disk mounted?"]);
    fs::rename(&away, &store).expect("moved");
    of_volume(&volume, &["restart", "--nodes", "1"]).exits(0);
    check(&volume, "a");
    // A disk that is lost is replaced by an empty one.
    volume.kill_agent(2);
    fs::remove_dir_all(volume.store(2)).expect("removed");
    wait_for("the exclusion", || {
        (status(&volume)["agents"]["replicas"]["excluded"] == serde_json::json!([2])).then_some(())
    });
    of_volume(&volume, &["restart", "--nodes", "2", "--new-store"]).exits(0);
    assert_eq!(status(&volume)["agents"]["replicas"]["homes_with_one_copy"], 0);
    check(&volume, "a");
    volume.check_copies();
    // The volume does not start without both of two copies.
    volume.act("stop", &[]);
    for node in [0, 1] {
        fs::rename(volume.store(node), volume.directory().join(format!("away-{node}"))).expect("moved");
    }
    let refused = err(&of_volume(&volume, &["start"]).exits(71));
    assert_contains(
        &refused,
        &["node 0 on localhost", "node 1 on localhost", "is missing: is its disk mounted?"],
    );
    for node in [0, 1] {
        fs::rename(volume.directory().join(format!("away-{node}")), volume.store(node)).expect("moved");
    }
    volume.act("start", &[]);
    check(&volume, "a");
    volume.end();
}

/// S54a. S54b. S54c. S54d.
#[test]
fn nodes_of_a_volume_are_added_restarted_and_removed_while_programs_write() {
    let Some(volume) = Volume::start("changed", "2", "2") else { return };
    let noted = volume.directory().join("acknowledged-a");
    let mut writer = Background::start(&mut volume.command(&with_writers(WRITER, "a")));
    // The agent that serves the mount stays.
    wait_for("the writer", || (count(&noted) > 10).then_some(()));
    let mut more = |words: &[&str]| {
        let before = count(&noted);
        of_volume(&volume, words).exits(0);
        wait_for("the writer", || (count(&noted) > before + 10 || !writer.runs()).then_some(()));
        let errors = fs::read_to_string(volume.directory().join("errors-a")).unwrap_or_default();
        assert!(writer.runs(), "{words:?}: {errors}");
    };
    more(&["grow", "--local", "2"]);
    more(&["restart", "--nodes", "2,3"]);
    more(&["shrink", "--nodes", "3"]);
    assert!(!volume.store(3).exists());
    let hosts = status(&volume)["agents"]["nodes"].as_array().expect("nodes").len();
    assert_eq!(hosts, 3);
    volume.check_copies();
    volume.act("stop", &[]);
    assert!(writer.output().status.success());
    volume.act("start", &[]);
    check(&volume, "a");
    volume.end();
}

/// S55d.
#[test]
fn a_stop_keeps_what_programs_have_written_to_open_files() {
    let Some(volume) = Volume::start("open", "2", "2") else { return };
    let said = volume.says(
        r#"mkdir mnt; tameike volume mount $V mnt
           head -c 3000000 /dev/urandom > content; exec 3> mnt/open; cat content >&3
           tameike volume stop $V; exec 3>&- || true; umount mnt
           tameike volume status | tail -1 | cut -c1-60 | tr -s ' ' | cut -d' ' -f2
           tameike volume start $V; tameike volume mount $V mnt; cmp content mnt/open && echo same; umount mnt"#,
    );
    assert_eq!(said, "stopped\nsame\n");
    volume.end();
}

#[test]
fn df_counts_each_file_once_although_it_has_two_copies() {
    let Some(volume) = Volume::start("df", "2", "2") else { return };
    let said = volume.says(
        r#"mkdir mnt; tameike volume mount $V mnt; head -c 8M /dev/urandom > mnt/file; sync mnt/file
           df --block-size=1M --output=size,used mnt | tail -1; umount mnt"#,
    );
    assert_eq!(said.split_whitespace().collect::<Vec<_>>(), ["64", "8"]);
    volume.end();
}

#[test]
fn impossible_actions_on_volumes_are_refused() {
    let Some(volume) = Volume::start("refused", "1", "1") else { return };
    let refused = |words: &[&str]| err(&of_volume(&volume, words).exits(71));
    assert_contains(&refused(&["start"]), &["runs on ", "or is being started"]);
    assert_contains(&refused(&["remove"]), &["runs on "]);
    let disk = utf8(volume.site.disk()).to_owned();
    assert_contains(&refused(&["create", "--local", "1", "--device", &disk]), &["runs on "]);
    assert_contains(&refused(&["grow", "--local", "1"]), &["start it with --replicas 2 or 3"]);
    volume.act("stop", &[]);
    assert_contains(&refused(&["create", "--local", "1", "--device", &disk]), &["exists already"]);
    assert_contains(&refused(&["stop"]), &["has no driver on this host"]);
    // A store of another volume is not taken.
    let label = volume.store(0).join("volume.json");
    let text = fs::read_to_string(&label).expect("a label");
    let number: Value = serde_json::from_str(&text).expect("JSON");
    let other = text.replace(number["volume"].as_str().expect("text"), "other");
    fs::write(&label, other).expect("written");
    assert_contains(&refused(&["start"]), &["has the store of another volume"]);
    assert_contains(&refused(&["remove"]), &["has the store of another volume", "--force"]);
    fs::write(&label, text).expect("written");
    let none =
        volume.site.tameike(&["volume", "start", "none"]).env("XDG_DATA_HOME", volume.site.plain()).exits(71);
    assert_contains(&err(&none), &["this user has no volume none"]);
    volume.act("start", &[]);
    volume.end();
}
