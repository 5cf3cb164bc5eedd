//! Three hosts on one machine: network, mount and host name namespaces, joined by a bridge, with a disk each.
//!
//! Every host sees its own file systems at the same paths. A process holds the namespaces of each host, and ends with this value; the
//! sandbox around this program ends all others.

use crate::outcome::{Context, Outcome, output_of};
use crate::wait::Process;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// How many hosts there are.
pub const COUNT: usize = 3;

const HOLD: &str = "echo ready; exec sleep infinity";
/// Arguments: the number of the host, its device, and the directory of the run.
const SET_UP: &str = "hostname fs$0
    ip address add 10.213.0.$0/24 dev eth0
    ip link set eth0 up
    ip link set lo up
    mount \"$1\" \"$2/disk\"
    for place in /dev/shm /run \"$2/tmp\"; do mount -t tmpfs tmpfs \"$place\"; done";

/// The hosts.
#[derive(Debug)]
pub struct Hosts {
    directory: PathBuf,
    holders: Vec<Process>,
    /// The time limit of a program.
    limit_s: u64,
}

impl Hosts {
    /// Makes them. `directory` is empty and in memory; `devices` hold the file systems of their disks. [`Self::limited`] programs end
    /// after `limit_s` seconds.
    pub fn new(directory: &Path, devices: &[String], limit_s: u64) -> Outcome<Self> {
        let mut hosts = Self { directory: directory.to_owned(), holders: Vec::new(), limit_s };
        for name in ["disk", "tmp", "mpi"] {
            hosts.make(name)?;
        }
        ip("link add bridge0 type bridge")?;
        ip("link set bridge0 up")?;
        for (host, device) in devices.iter().enumerate() {
            hosts.holders.push(hold()?);
            let (number, holder) = (host + 1, hosts.holder(host));
            ip(&format!("link add port{number} type veth peer name eth0 netns {holder}"))?;
            ip(&format!("link set port{number} master bridge0 up"))?;
            let directory = directory.display().to_string();
            hosts.shell(host, SET_UP, &[&number.to_string(), device, &directory])?;
        }
        Ok(hosts)
    }

    /// The name of a host.
    pub fn name(host: usize) -> String {
        format!("fs{}", host + 1)
    }

    /// The address of a host.
    pub fn address(host: usize) -> String {
        format!("10.213.0.{}", host + 1)
    }

    /// The process that holds the namespaces of a host.
    pub fn holder(&self, host: usize) -> u32 {
        self.holders[host].0.id()
    }

    /// A path in the directory of the run, the same on all hosts.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The same as text.
    pub fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Makes a directory there, which all hosts have in common until something is mounted on it.
    pub fn make(&self, name: &str) -> Outcome<()> {
        let path = self.path(name);
        std::fs::create_dir(&path).context(|| format!("make {}", path.display()))
    }

    /// A program on a host.
    pub fn command(&self, host: usize, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        let holder = self.holder(host).to_string();
        command.args(["--target", &holder, "--mount", "--net", "--uts", "--", program]);
        command.stdin(Stdio::null()).env("TMPDIR", self.path("tmp"));
        command
    }

    /// The size of a file on a host; 0 if there is none.
    pub fn size(&self, host: usize, path: &str) -> u64 {
        let seen = format!("/proc/{}/root{path}", self.holder(host));
        std::fs::metadata(seen).map_or(0, |found| found.len())
    }

    /// Processes of a program on a host.
    pub fn processes(&self, host: usize, program: &str) -> Outcome<Vec<u32>> {
        let mounts = |process: u32| std::fs::read_link(format!("/proc/{process}/ns/mnt"));
        let own = mounts(self.holder(host)).context(|| "find the namespaces of a host")?;
        let all = processes_of(&[program])?.into_iter();
        // Some may have ended.
        Ok(all.filter(|process| mounts(*process).is_ok_and(|found| found == own)).collect())
    }

    /// Arguments of `timeout` for a program that must end in time.
    pub fn limited(&self, program: &str) -> [String; 3] {
        ["--kill-after=10".to_owned(), self.limit_s.to_string(), program.to_owned()]
    }

    /// Runs lines of shell on a host, which must succeed. The words are `$0` and so on.
    pub fn shell(&self, host: usize, script: &str, words: &[&str]) -> Outcome<String> {
        let mut command = self.command(host, "sh");
        output_of(command.args(["-euc", script]).args(words), "")
    }
}

/// The processes in this process namespace that run these programs.
pub fn processes_of(programs: &[&str]) -> Outcome<Vec<u32>> {
    let entries = std::fs::read_dir("/proc").context(|| "list the processes")?;
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let runs = |number: &u32| {
        let name = std::fs::read_to_string(format!("/proc/{number}/comm")).unwrap_or_default();
        programs.contains(&name.trim())
    };
    Ok(numbers.filter(runs).collect())
}

/// Starts a process in namespaces of its own.
fn hold() -> Outcome<Process> {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--net", "--uts", "--propagation", "private", "sh", "-c", HOLD]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
    let mut holder = Process(child.context(|| "start unshare")?);
    let mut line = String::new();
    if let Some(output) = holder.0.stdout.take() {
        BufReader::new(output).read_line(&mut line).context(|| "read from the process of a host")?;
    }
    match line.as_str() {
        "ready\n" => Ok(holder),
        _ => Err("cannot make the namespaces of a host".to_owned()),
    }
}

fn ip(words: &str) -> Outcome<()> {
    output_of(Command::new("ip").args(words.split(' ')), " (Debian's iproute2)").map(drop)
}
