//! The checks. Each tests one feature by using it, if that is harmless.

use super::Check;
use crate::node::probe::{self, Probe};
use crate::place::base::{self, Base, JobDir};
use crate::place::stores;
use crate::settings::RAM_DIR;
use crate::settings::size::show;
use rustix::process::{Resource, getrlimit};
use std::collections::BTreeSet;
use std::fs::File;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tameike_agent::control::Isolation;
use tameike_core::region::Tracking;
use tameike_core::{FaultKind, JobId, Result};
use tameike_dsm::fault::try_out;
use tameike_fabric::ofi;
use tameike_io::disk::uring;
use tameike_io::os::mount::{FUSE_DEVICE, FUSE_HELPER, find_program};

/// Number of reserved huge pages that are free.
const FREE_HUGE_PAGES: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
/// Setting of huge pages for shared memory.
const SHMEM_HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
/// Limit of locked memory in bytes that suffices to register frames of the default size with network devices.
const MEMLOCK_MIN: u64 = 512 << 20;
/// Free bytes in `/dev/shm` below which a RAM device is hardly useful.
const RAM_MIN: u64 = 1 << 30;
/// Least number of open files of agents.
const FILES_MIN: u64 = 4096;

/// Runs all checks, the most important first.
pub fn all(devices: &[PathBuf]) -> Vec<Check> {
    let probe = probe::in_child()
        .unwrap_or_else(|fault| Probe { isolation: Err(fault.to_string()), mount: Err(fault.to_string()) });
    let mut checks = vec![fuse_device(), namespaces(&probe), mounts(&probe), fuse_helper(&probe)];
    checks.extend([
        base_directory(),
        loopback(),
        ram_directory(),
        open_files(),
        locked_memory(),
        huge_pages(),
    ]);
    checks.extend([io_uring(), fuse_rings(), region_faults(), libfabric(), ssh(), leftovers(devices)]);
    checks
}

/// Opens the device like a mount; `fusermount3` also opens it as the user.
fn open_device() -> std::io::Result<File> {
    File::options().read(true).write(true).open(FUSE_DEVICE)
}

fn fuse_device() -> Check {
    let name = "FUSE device";
    if !Path::new(FUSE_DEVICE).exists() {
        return Check::missing(name, format!("{FUSE_DEVICE} does not exist"), "as root: modprobe fuse");
    }
    match open_device() {
        Ok(_) => Check::ok(name, format!("{FUSE_DEVICE} opens")),
        Err(error) => {
            let mend = format!("as root: chmod 666 {FUSE_DEVICE} (udev does so at boot if it runs)");
            Check::missing(name, format!("{FUSE_DEVICE}: {error}"), mend)
        }
    }
}

fn namespaces(probe: &Probe) -> Check {
    let name = "namespaces";
    match &probe.isolation {
        Ok(Isolation::MountNamespace) => Check::ok(name, "a mount namespace (as root)"),
        Ok(Isolation::UserNamespace) => Check::ok(name, "a user and a mount namespace, without root"),
        Ok(Isolation::None) => Check::ok(name, "not needed"),
        Err(why) => Check::slow(
            name,
            format!("refused ({why}): the whole host sees the views, at different paths for each node"),
            "as root: sysctl -w user.max_user_namespaces=10000 kernel.unprivileged_userns_clone=1 \
             kernel.apparmor_restrict_unprivileged_userns=0 (those that exist)",
        ),
    }
}

/// Returns true if `fusermount3` exists and may mount.
fn helper_works() -> bool {
    let set_user_id = |path: &Path| path.metadata().is_ok_and(|found| found.mode() & libc::S_ISUID != 0);
    find_program(FUSE_HELPER).is_some_and(|path| set_user_id(&path))
}

fn mounts(probe: &Probe) -> Check {
    let name = "mounts";
    match probe.clone().usable() {
        Ok(_) => Check::ok(name, "FUSE file systems can be mounted in namespaces"),
        Err(why) if open_device().is_err() => Check::missing(name, why, "fix the FUSE device above"),
        Err(why) if helper_works() => {
            Check::slow(name, format!("through {FUSE_HELPER} only ({why})"), "fix the namespaces above")
        }
        Err(why) => {
            let mend = format!("fix the namespaces above, or as root: apt install fuse3 ({FUSE_HELPER})");
            Check::missing(name, why, mend)
        }
    }
}

fn fuse_helper(probe: &Probe) -> Check {
    let needed = probe.clone().usable().is_err();
    match find_program(FUSE_HELPER) {
        Some(path) if helper_works() => Check::ok(FUSE_HELPER, path.display().to_string()),
        Some(path) if needed => {
            let mend = format!("as root: chmod u+s {}", path.display());
            Check::slow(FUSE_HELPER, format!("{} is not set-user-id root", path.display()), mend)
        }
        None if needed => Check::slow(FUSE_HELPER, "not found", "as root: apt install fuse3"),
        Some(_) | None => Check::ok(FUSE_HELPER, "not needed: namespaces work"),
    }
}

fn base_directory() -> Check {
    let (name, path) = ("job directory", base::path());
    match Base::open(&path).and_then(|base| base.try_write()) {
        Ok(()) => Check::ok(name, path.display().to_string()),
        Err(fault) if fault.kind() == FaultKind::Full => {
            Check::missing(name, fault.to_string(), "free space there, or set TMPDIR to another directory")
        }
        Err(fault) => Check::missing(name, fault.to_string(), "set TMPDIR to a directory that you own"),
    }
}

fn loopback() -> Check {
    let name = "loopback";
    match TcpListener::bind("127.0.0.1:0") {
        Ok(_) => Check::ok(name, "ports are free on 127.0.0.1"),
        Err(error) => Check::missing(name, error.to_string(), "as root: ip link set lo up"),
    }
}

fn ram_directory() -> Check {
    let name = "RAM device";
    match rustix::fs::statvfs(RAM_DIR) {
        Ok(found) => {
            let (free, all) = (found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize);
            let text = format!("{RAM_DIR}: {} free of {}", show(free), show(all));
            let mend = format!("use --device DIR, or as root: mount -o remount,size=50% {RAM_DIR}");
            if free >= RAM_MIN { Check::ok(name, text) } else { Check::slow(name, text, mend) }
        }
        Err(error) => Check::slow(name, format!("{RAM_DIR}: {error}"), "use --device DIR on a local disk"),
    }
}

fn open_files() -> Check {
    let name = "open files";
    match getrlimit(Resource::Nofile).maximum {
        Some(limit) if limit < FILES_MIN => Check::slow(
            name,
            format!("at most {limit}"),
            format!("as root, in /etc/security/limits.d/tameike.conf: * hard nofile {FILES_MIN}"),
        ),
        Some(limit) => Check::ok(name, format!("up to {limit}")),
        None => Check::ok(name, "no limit"),
    }
}

fn locked_memory() -> Check {
    let name = "locked memory";
    match getrlimit(Resource::Memlock).current {
        Some(limit) if limit < MEMLOCK_MIN => Check::slow(
            name,
            format!("at most {}", show(limit)),
            "as root, in /etc/security/limits.d/tameike.conf: * - memlock unlimited",
        ),
        Some(limit) => Check::ok(name, format!("up to {}", show(limit))),
        None => Check::ok(name, "no limit"),
    }
}

fn huge_pages() -> Check {
    let name = "huge pages";
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let reserved = read(FREE_HUGE_PAGES).trim().parse::<u64>().unwrap_or(0);
    if reserved > 0 {
        return Check::ok(name, format!("{reserved} of 2 MiB are free, for agents whose frames fit them"));
    }
    let switch = read(SHMEM_HUGE_PAGES);
    if ["[always]", "[within_size]", "[advise]", "[force]"].iter().any(|given| switch.contains(given)) {
        return Check::ok(name, "shared memory uses transparent huge pages");
    }
    Check::slow(
        name,
        "none are reserved, and shared memory does not use them",
        format!("as root: echo advise > {SHMEM_HUGE_PAGES}"),
    )
}

fn io_uring() -> Check {
    let name = "io_uring";
    match uring::available() {
        Ok(()) => Check::ok(name, "disks are accessed without the page cache"),
        Err(why) => Check::slow(
            name,
            format!("{why}: disks are accessed through the page cache"),
            "as root: sysctl -w kernel.io_uring_disabled=0; in a container, allow io_uring_setup",
        ),
    }
}

fn fuse_rings() -> Check {
    let (name, path) = ("FUSE rings", "/sys/module/fuse/parameters/enable_uring");
    match std::fs::read_to_string(path) {
        Ok(text) if text.trim() != "Y" => {
            Check::slow(name, "switched off", format!("as root: echo Y > {path}"))
        }
        Ok(_) => Check::ok(name, "available"),
        Err(_) => Check::ok(name, "not in this kernel (requires Linux 6.14)"),
    }
}

/// Lists the providers of the installed libfabric that work between hosts, and the reasons why others do not.
fn libfabric() -> Check {
    let name = "libfabric";
    let offers = match ofi::offers() {
        Ok(offers) => offers,
        Err(why) => {
            let mend = "as root: apt install libfabric1, or add the site's library to LD_LIBRARY_PATH";
            return Check::slow(name, format!("{why}: nodes use TCP (--fabric auto)"), mend);
        }
    };
    // Group providers by state, in the order of preference.
    let mut states: Vec<(&Result<(), String>, Vec<&str>)> = Vec::new();
    for (provider, state) in &offers.providers {
        match states.iter_mut().find(|(known, _)| *known == state) {
            Some((_, names)) => names.push(provider.name()),
            None => states.push((state, vec![provider.name()])),
        }
    }
    let describe = |(state, names): &(&Result<(), String>, Vec<&str>)| match state {
        Ok(()) => format!("available: {}", names.join(", ")),
        Err(why) => format!("not {}: {why}", names.join(", ")),
    };
    states.sort_by_key(|(state, _)| state.is_err());
    let found = format!("{}; {}", offers.version, states.iter().map(describe).collect::<Vec<_>>().join("; "));
    match offers.providers.iter().find(|(provider, state)| provider.has_device() && state.is_ok()) {
        Some((provider, _)) => Check::ok(name, format!("{found} (use --fabric ofi:{provider})")),
        None => Check::ok(name, found),
    }
}

fn region_faults() -> Check {
    let name = "page faults of shared memory regions";
    let written = match try_out(Tracking::WrittenPages) {
        Ok(()) => "with one writer per page, the kernel records stores".into(),
        Err(error) => {
            format!("with one writer per page, pages are compared (PAGEMAP_SCAN of Linux 6.7: {error})")
        }
    };
    match try_out(Tracking::Twins) {
        Ok(()) => Check::ok(name, format!("userfaultfd; {written}")),
        Err(error) => Check::slow(
            name,
            format!("mprotect (userfaultfd: {error}): each process has memory of its own"),
            "Linux 5.19 or newer, in a container with a seccomp profile that allows userfaultfd",
        ),
    }
}

fn ssh() -> Check {
    match find_program("ssh") {
        Some(path) => Check::ok("ssh", path.display().to_string()),
        None => {
            Check::slow("ssh", "not found: jobs on this machine only", "as root: apt install openssh-client")
        }
    }
}

fn leftovers(devices: &[PathBuf]) -> Check {
    let name = "leftovers";
    match crashed_jobs(devices) {
        Ok(jobs) if jobs.is_empty() => Check::ok(name, "none"),
        Ok(jobs) => {
            let devices: String = devices.iter().map(|dir| format!(" --device {}", dir.display())).collect();
            Check::slow(
                name,
                format!("of interrupted jobs: {}", jobs.into_iter().collect::<Vec<_>>().join(", ")),
                format!("tameike recover{devices} (finishes their drains, and removes the rest)"),
            )
        }
        Err(fault) => Check::slow(name, fault.to_string(), "see the job directory above"),
    }
}

/// Returns crashed jobs, found by their directories or, if they had another TMPDIR, by their stores.
fn crashed_jobs(devices: &[PathBuf]) -> Result<BTreeSet<String>> {
    let today = Base::open(&base::path())?;
    let found = stores::find(&stores::roots(&today, &stores::search_dirs(devices)?)?);
    let mut dead: BTreeSet<_> = stores::orphaned(&found).into_keys().map(String::from).collect();
    for base in stores::bases(&today, &found) {
        dead.extend(base.unless_gone(crashed_jobs_in(&base))?.into_iter().map(String::from));
    }
    Ok(dead)
}

fn crashed_jobs_in(base: &Base) -> Result<Vec<JobId>> {
    let lock = base.lock()?;
    let has_crashed = |job: &JobId| matches!(JobDir::lock_ended(base, &lock, job), Ok(Some(_)));
    Ok(base.jobs()?.into_iter().filter(has_crashed).collect())
}
