//! A GlusterFS volume over the hosts, set up as its manual says: a daemon on each host, bricks on their disks, a mount on each host.
//!
//! With two copies, each host has two bricks, and each pair of hosts has one subvolume: GlusterFS keeps copies on pairs of bricks, so three
//! bricks alone cannot hold two copies of everything. All options keep their defaults.

use super::hosts::{COUNT, Hosts};
use crate::clock::Stopwatch;
use crate::outcome::{Outcome, output_of};
use crate::place::Limits;
use crate::wait;
use std::process::Command;
use std::time::Duration;

/// Where the volume is mounted on each host.
pub const MOUNT: &str = "glusterfs";
/// Its processes, for their processor time.
pub const PROGRAMS: &[&str] = &["glusterd", "glusterfsd", "glusterfs"];

const READY_LIMIT: Duration = Duration::from_secs(60);
const NAME: &str = "bench";
const INSTALL: &str = " (Debian's glusterfs-server)";
/// Argument: the disk.
const START: &str =
    "for place in /var/lib/glusterd /var/log/glusterfs; do mkdir -p $place; mount -t tmpfs tmpfs $place; done
    mkdir -p /run/gluster \"$0/brick-0\" \"$0/brick-1\"
    glusterd";

/// Time for a heal, at most.
const HEAL_LIMIT: Duration = Duration::from_secs(1800);
/// Arguments: the bricks. Counts their files with content.
const FILES: &str = "find \"$0\" \"$1\" -name .glusterfs -prune -o -type f -size +0 -printf x | wc -c";
/// Arguments: the bricks. Counts the inodes in use on their disk.
const INODES: &str = "echo $(($(stat --file-system --format '%c - %d' \"$0\")))";

/// Starts a volume with so many copies of each file, mounted on all hosts.
pub fn start(hosts: &Hosts, replicas: u32, limits: &Limits) -> Outcome<()> {
    let disk = hosts.text("disk");
    for host in 0..COUNT {
        hosts.shell(host, START, &[&disk])?;
    }
    for host in 0..COUNT {
        wait_for(&format!("glusterd of {}", Hosts::name(host)), limits, || {
            Ok(gluster(hosts, host, &["pool", "list"]).output().is_ok_and(|done| done.status.success()))
        })?;
        if host > 0 {
            call(hosts, &["peer", "probe", &Hosts::address(host)])?;
        }
    }
    wait_for("the pool of GlusterFS", limits, || {
        let listed = |host| output_of(&mut gluster(hosts, host, &["pool", "list"]), INSTALL);
        let all = (0..COUNT).map(listed).collect::<Outcome<Vec<String>>>()?;
        Ok(all.iter().all(|pool| pool.matches("Connected").count() == COUNT))
    })?;
    create(hosts, replicas, &disk)?;
    hosts.make(MOUNT)?;
    for host in 0..COUNT {
        let volume = format!("{}:/{NAME}", Hosts::address(host));
        hosts.shell(host, "mount -t glusterfs \"$0\" \"$1\"", &[&volume, &hosts.text(MOUNT)])?;
    }
    Ok(())
}

/// Empties the bricks of the last host, and returns the seconds until they have all files again.
pub fn repair(hosts: &Hosts, limits: &Limits) -> Outcome<f64> {
    let lost = COUNT - 1;
    let bricks = [0, 1].map(|brick| hosts.text(&format!("disk/brick-{brick}")));
    let count = |script| -> Outcome<u64> {
        let text = hosts.shell(lost, script, &[&bricks[0], &bricks[1]])?;
        text.trim().parse().map_err(|_| format!("cannot count the files of a brick: {text}"))
    };
    let files = count(FILES)?;
    let places = bricks.each_ref().map(|brick| format!("{}:{brick}", Hosts::address(lost)));
    for (place, brick) in places.iter().zip(&bricks) {
        call(hosts, &["volume", "reset-brick", NAME, place, "start"])?;
        hosts.shell(lost, "rm -r \"$0\"; mkdir \"$0\"", &[brick])?;
    }
    let inodes = count(INODES)? + files;
    let watch = Stopwatch::start();
    for place in &places {
        call(hosts, &["volume", "reset-brick", NAME, place, place, "commit", "force"])?;
    }
    // It is refused until the new bricks are connected.
    wait_for("the start of the heal", limits, || Ok(call(hosts, &["volume", "heal", NAME, "full"]).is_ok()))?;
    wait::until("the heal of GlusterFS", HEAL_LIMIT, || {
        limits.interrupt.check()?;
        // Inodes are cheap to count, so that the rest need not be asked all the time. A large file has its size before its bytes.
        Ok(count(INODES)? >= inodes && count(FILES)? == files && is_healed(hosts)?)
    })?;
    Ok(watch.elapsed().as_secs_f64())
}

/// Whether no brick lists a file that another one lacks.
fn is_healed(hosts: &Hosts) -> Outcome<bool> {
    let listed = output_of(&mut gluster(hosts, 0, &["volume", "heal", NAME, "info"]), INSTALL)?;
    let mut counts = listed.lines().filter_map(|line| line.strip_prefix("Number of entries: ")).peekable();
    Ok(counts.peek().is_some() && counts.all(|count| count.trim() == "0"))
}

/// Creates and starts the volume.
fn create(hosts: &Hosts, replicas: u32, disk: &str) -> Outcome<()> {
    let mut words = vec!["volume", "create", NAME];
    let count = replicas.to_string();
    if replicas > 1 {
        words.extend(["replica", &count]);
    }
    // One brick after another, host after host: with two copies, fs1 and fs2, fs3 and fs1, fs2 and fs3.
    let bricks = COUNT * replicas as usize;
    let places: Vec<String> = (0..bricks)
        .map(|brick| format!("{}:{disk}/brick-{}", Hosts::address(brick % COUNT), brick / COUNT))
        .collect();
    words.extend(places.iter().map(String::as_str));
    call(hosts, &words)?;
    call(hosts, &["volume", "start", NAME])
}

/// The management program on a host.
fn gluster(hosts: &Hosts, host: usize, words: &[&str]) -> Command {
    let mut command = hosts.command(host, "gluster");
    command.arg("--mode=script").args(words);
    command
}

fn call(hosts: &Hosts, words: &[&str]) -> Outcome<()> {
    output_of(&mut gluster(hosts, 0, words), INSTALL).map(drop)
}

fn wait_for(what: &str, limits: &Limits, ready: impl Fn() -> Outcome<bool>) -> Outcome<()> {
    wait::until(what, READY_LIMIT, || {
        limits.interrupt.check()?;
        ready()
    })
}
