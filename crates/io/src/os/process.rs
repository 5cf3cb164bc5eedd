//! Processes and threads: detached starts, identification and signals; and facts about this process.
//!
//! A process is identified by its number and start time, so that a reused number is never mistaken for the earlier process.

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;
use tameike_core::cores::CORES_MAX;
use tameike_core::{CoreSet, Errno, Fault, Result, Timestamp};

/// A process of this host, running or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessId {
    /// The process number.
    pub pid: u32,
    /// The start time, in clock ticks since boot.
    pub start: u64,
}

impl ProcessId {
    /// The calling process.
    ///
    /// # Errors
    /// `/proc` is not mounted.
    pub fn own() -> Result<Self> {
        let pid = std::process::id();
        let start = start_time(pid).ok_or_else(|| Fault::io("reading /proc/self/stat: is /proc mounted?"))?;
        Ok(Self { pid, start })
    }

    /// The current process of this number, if it exists.
    pub fn now(pid: u32) -> Option<Self> {
        start_time(pid).map(|start| Self { pid, start })
    }

    /// True if the process still runs.
    pub fn is_alive(self) -> bool {
        start_time(self.pid) == Some(self.start)
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// `ESRCH` if the process has exited; it belongs to another user; the signal does not exist.
    pub fn signal(self, number: i32) -> Result<()> {
        let failed = |error: rustix::io::Errno| {
            Fault::from_os(format_args!("sending signal {number} to process {}", self.pid), &error.into())
        };
        let gone = || failed(rustix::io::Errno::SRCH);
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw).ok_or_else(gone)?;
        let signal = Signal::from_named_raw(number).ok_or_else(|| Fault::from(Errno::EINVAL))?;
        let handle = pidfd_open(pid, PidfdFlags::empty()).map_err(failed)?;
        // Since the handle is open, a matching start time now proves that it refers to the right process.
        if !self.is_alive() {
            return Err(gone());
        }
        pidfd_send_signal(handle, signal).map_err(failed)
    }
}

/// Waits until all of these processes have ended, or `limit` has passed.
pub fn wait_ended(processes: &[ProcessId], limit: Duration) {
    let end = monotonic() + limit;
    for process in processes {
        let Some(pid) = i32::try_from(process.pid).ok().and_then(Pid::from_raw) else { continue };
        let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        let rest = end.saturating_sub(monotonic());
        let rest = Timespec { tv_sec: rest.as_secs() as i64, tv_nsec: i64::from(rest.subsec_nanos()) };
        // An interrupted or failed wait is only shorter: the caller checks which processes remain.
        if process.is_alive() {
            let _ = rustix::event::poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&rest));
        }
    }
}

/// The other processes in this process's mount namespace.
pub fn sharing_mounts() -> Vec<ProcessId> {
    let Ok(own) = std::fs::read_link("/proc/self/ns/mnt") else { return Vec::new() };
    others(|pid| std::fs::read_link(format!("/proc/{pid}/ns/mnt")).is_ok_and(|link| link == own))
}

/// The other processes of this user that were started with all of these environment variables.
pub fn with_variables(variables: &[(&str, &OsStr)]) -> Vec<ProcessId> {
    let assignment = |(name, value): &(&str, &OsStr)| [name.as_bytes(), b"=", value.as_bytes()].concat();
    let wanted: Vec<_> = variables.iter().map(assignment).collect();
    others(|pid| {
        if !is_of(pid, user()) {
            return false;
        }
        let found = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        wanted.iter().all(|one| found.split(|&byte| byte == 0).any(|variable| variable == one))
    })
}

/// True if all user ids of a process are `user`. Any user can start a process with a given environment.
fn is_of(pid: u32, user: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    users.is_some_and(|users| users.split_ascii_whitespace().all(|found| found.parse() == Ok(user)))
}

/// The other processes for which `is_wanted` is true.
fn others(is_wanted: impl Fn(u32) -> bool) -> Vec<ProcessId> {
    let numbers = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let wanted = numbers.filter(|&pid| pid != std::process::id() && is_wanted(pid));
    wanted.filter_map(ProcessId::now).collect()
}

/// The start time of a process that is not a zombie, from field 22 of its `stat`.
fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the name in parentheses, which may contain blanks and parentheses.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    (state != "Z" && state != "X").then(|| fields.nth(18)?.parse().ok())?
}

/// Starts `command` in a new session, so that neither Ctrl-C nor a hang-up of the terminal reaches it.
pub fn detach(command: &mut Command) -> &mut Command {
    let new_session = || {
        // Fails only for the leader of a process group, which a new child is not.
        rustix::process::setsid().map(drop).map_err(std::io::Error::from)
    };
    // SAFETY: between fork and exec the closure makes one system call, and accesses no memory that other threads could hold
    // locked.
    unsafe { command.pre_exec(new_session) }
}

/// Runs `job` on a new thread, named for debuggers.
pub fn start_thread<T: Send + 'static>(
    name: &str,
    job: impl FnOnce() -> T + Send + 'static,
) -> Result<std::thread::JoinHandle<T>> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(job)
        .map_err(|error| Fault::from_os(format_args!("starting thread {name}"), &error))
}

/// The id of all users that a user namespace does not map, unless the host configures another.
const OVERFLOW_USER: u32 = 65534;

/// True if the user id may denote any user, because this process is in a user namespace that does not map all users.
pub fn may_be_any_user(user: u32) -> bool {
    let maps_every_user = || {
        let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
    };
    user == OVERFLOW_USER && !maps_every_user()
}

/// The umask of this process. Read from `/proc`, since `umask(2)` would change it for a moment.
pub fn umask() -> Option<u16> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let mask = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
    u16::from_str_radix(mask.trim(), 8).ok()
}

/// The limit of open files of this process.
pub fn open_files_max() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Monotonic time since boot.
pub fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.try_into().unwrap_or(0), now.tv_nsec.try_into().unwrap_or(0))
}

/// As [`monotonic`], up to some milliseconds old, and cheaper.
pub fn monotonic_coarse() -> Duration {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    Duration::new(now.tv_sec.try_into().unwrap_or(0), now.tv_nsec.try_into().unwrap_or(0))
}

/// Polls `ask` every `step` for changes by other processes that have no notification, in a process without a runtime. `None`
/// after `most`.
pub fn ask_until<T>(most: Duration, step: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let until = monotonic() + most;
    loop {
        if let Some(found) = ask() {
            return Some(found);
        }
        if monotonic() >= until {
            return None;
        }
        let step = Timespec { tv_sec: step.as_secs() as i64, tv_nsec: step.subsec_nanos().into() };
        // An early wake-up is harmless.
        let _ = rustix::thread::nanosleep(&step);
    }
}

/// The current time of day.
pub fn wall() -> Timestamp {
    let now = clock_gettime(ClockId::Realtime);
    Timestamp { seconds: now.tv_sec, nanoseconds: u32::try_from(now.tv_nsec).unwrap_or(0) }
}

/// The current time of day, in seconds since 1970-01-01 UTC.
pub fn wall_seconds() -> i64 {
    clock_gettime(ClockId::Realtime).tv_sec
}

/// Random bytes of the kernel, suitable for secrets.
///
/// # Errors
/// `/dev/urandom` is missing.
pub fn random_bytes<const COUNT: usize>() -> Result<[u8; COUNT]> {
    use std::io::Read;
    let mut bytes = [0; COUNT];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|error| Fault::from_os("reading /dev/urandom", &error))?;
    Ok(bytes)
}

/// The effective user id.
pub fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The effective group id.
pub fn group() -> u32 {
    rustix::process::getegid().as_raw()
}

/// Resident memory of this process in bytes, including huge pages; 0 if unknown.
pub fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kibibytes = |line: &str| line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok();
    let counted = |line: &&str| line.starts_with("VmRSS:") || line.starts_with("HugetlbPages:");
    status.lines().filter(counted).filter_map(kibibytes).sum::<u64>() << 10
}

/// Major and minor version of the running kernel.
pub fn kernel_version() -> (u32, u32) {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(|sign: char| !sign.is_ascii_digit()).map_while(|word| word.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// The cores on which the calling thread may run; `None` if unknown.
pub fn own_cores() -> Option<CoreSet> {
    let mask = sched_getaffinity(None).ok()?;
    CoreSet::new((0..CORES_MAX).filter(|&core| mask.is_set(core as usize)))
}

/// Binds the calling thread, and threads that it starts later, to some of its permitted cores.
///
/// # Errors
/// `EINVAL` if a core is not permitted, and the errors of the system.
pub fn bind_to_cores(cores: &CoreSet) -> Result<()> {
    let allowed = own_cores();
    if let Some(others) = allowed.as_ref().and_then(|allowed| cores.without(allowed)) {
        let allowed = allowed.map_or_else(String::new, |allowed| allowed.to_string());
        let why = format!("the agent may use the cores {allowed} of this host, but not {others}");
        return Err(Fault::new(Errno::EINVAL, why));
    }
    let mut mask = CpuSet::new();
    cores.iter().for_each(|core| mask.set(core as usize));
    sched_setaffinity(None, &mask).map_err(|error| {
        Fault::from_os(format_args!("binding the agent to the cores {cores}"), &error.into())
    })
}

/// The number of possible cores of this host, which determines the kernel's per-core counts.
///
/// # Errors
/// `/sys` is not mounted.
pub fn cores_possible() -> std::io::Result<u16> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let cores: CoreSet = text.trim().parse().map_err(std::io::Error::other)?;
    Ok(cores.iter().count() as u16)
}

/// Binds the calling thread to one core, if permitted.
pub fn prefer_core(core: u32) {
    if let Some(cores) = CoreSet::new([core])
        && let Err(fault) = bind_to_cores(&cores)
    {
        log::debug!("{fault}");
    }
}

/// The name of this host.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Stdio};

    #[test]
    fn a_process_is_identified_by_number_and_start() {
        let own = ProcessId::own().expect("/proc is mounted");
        assert!(own.is_alive());
        let impostor = ProcessId { start: own.start + 1, ..own };
        assert!(!impostor.is_alive());
        assert_eq!(impostor.signal(9).map_err(|fault| fault.errno), Err(Errno(3)));
    }

    #[test]
    fn signals_reach_the_process_and_zombies_count_as_ended() {
        let mut command = Command::new("sleep");
        let mut child = detach(command.arg("1000")).spawn().expect("sleep is installed");
        let process = ProcessId::now(child.id()).expect("just started");
        process.signal(15).expect("the child runs");
        let status = child.wait().expect("a child of this process");
        assert_eq!(status.signal(), Some(15));
        assert!(!process.is_alive());
    }

    /// Starts `cat` with these variables. Waits for its exec, since the environment is visible only then.
    fn cat(variables: &[(&str, &str)], user: u32) -> Child {
        let mut command = Command::new("cat");
        command.envs(variables.iter().copied()).uid(user).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("cat");
        child.stdin.as_mut().expect("piped").write_all(b"x").expect("cat reads");
        child.stdout.as_mut().expect("piped").read_exact(&mut [0]).expect("cat writes");
        child
    }

    /// Ends a child and returns its number.
    fn end(mut child: Child) -> u32 {
        child.kill().expect("a child of this process");
        child.wait().expect("a child of this process");
        child.id()
    }

    #[test]
    fn processes_are_found_by_their_environment() {
        let child = cat(&[("FOUND", "here"), ("BY", "us")], user());
        let found = with_variables(&[("BY", "us".as_ref()), ("FOUND", "here".as_ref())]);
        let part = with_variables(&[("BY", "us".as_ref()), ("FOUND", "her".as_ref())]);
        assert_eq!(found.iter().map(|process| process.pid).collect::<Vec<_>>(), [end(child)]);
        assert_eq!(part, []);
    }

    #[test]
    fn processes_of_other_users_are_not_found() {
        if user() != 0 {
            return;
        }
        let children = [65_533, 0].map(|user| cat(&[("FOUND", "of others")], user));
        let found = with_variables(&[("FOUND", "of others".as_ref())]);
        let [_, own] = children.map(end);
        assert_eq!(found.iter().map(|process| process.pid).collect::<Vec<_>>(), [own]);
    }

    #[test]
    fn random_bytes_differ() {
        assert_ne!(random_bytes::<32>().expect("urandom"), random_bytes::<32>().expect("urandom"));
    }
}
