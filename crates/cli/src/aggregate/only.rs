//! `tameike run --aggregate-only`: packs files that an unchanged program has below a directory, without agents and mounts.

use super::{codec, report_faults, tree};
use crate::arguments::{AggregateOnly, RunArguments};
use crate::exit;
use crate::node::preload;
use crate::report::{exit_code, plural, say};
use crate::settings::size::show;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use tameike_container::format::superblock;
use tameike_container::session::block_size_of;
use tameike_container::{Listing, Superblock};
use tameike_core::{Errno, Fault, Result};
use tameike_io::os::process::ProcessId;
use tameike_io::os::signal::watch_ending;
use tameike_spool::{Packed, Spool, SpoolOptions};

/// The library that is preloaded into programs.
const LIBRARY: &str = "libtameike_redirect.so";
/// Default parent of spools: memory.
const SPOOL_BASE: &str = "/dev/shm";
/// Largest number of stray paths that are listed.
const STRAYS_NAMED_MAX: usize = 20;

/// Runs the command. Returns the exit code.
pub fn run(arguments: &RunArguments, container: &Path) -> u8 {
    let started = start(&arguments.aggregate_only, container);
    exit_code(started.map(|(spool, container)| with_spool(spool, &container, arguments)))
}

fn start(options: &AggregateOnly, name: &Path) -> Result<(Spool, PathBuf)> {
    // Fail before anything is created.
    preload::find(LIBRARY, "--aggregate-only")?;
    let name =
        std::path::absolute(name).map_err(|error| Fault::from_os("finding the current directory", &error))?;
    let container = prepare(&name)?;
    let base = options.spool.clone().unwrap_or_else(|| SPOOL_BASE.into());
    let base = std::path::absolute(&base)
        .map_err(|error| Fault::from_os("finding the current directory", &error))?;
    let options = SpoolOptions {
        block_size: block_size_of(&container, false),
        container: container.clone(),
        name,
        base,
        codec: codec(options.compress),
    };
    Ok((Spool::join(options)?, container))
}

/// Returns the real path of the container's directory, which is created, or empty, or a container.
fn prepare(name: &Path) -> Result<PathBuf> {
    let failed = |error: std::io::Error| Fault::from_os(format_args!("creating {}", name.display()), &error);
    match std::fs::create_dir(name) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    let container = name.canonicalize().map_err(failed)?;
    let is_empty = std::fs::read_dir(&container).map_err(failed)?.next().is_none();
    // Another run may be creating it: the session waits for that.
    let header = container.join(OsStr::from_bytes(superblock::NAME));
    let is_begun = std::fs::metadata(header).is_ok_and(|header| header.len() == 0);
    if !is_empty
        && !is_begun
        && let Err(fault) = Superblock::read(&*tree(&container)?)
    {
        let message = format!(
            "{}: neither empty nor a container ({fault}). Choose another directory, or pack this one with `tameike agg \
             create` first",
            name.display()
        );
        return Err(Fault::new(Errno::EEXIST, message));
    }
    Ok(container)
}

fn with_spool(spool: Spool, container: &Path, arguments: &RunArguments) -> u8 {
    let code = match spawn(&spool, arguments) {
        Ok(child) => await_child(child),
        Err(code) => code,
    };
    let code = match spool.finish() {
        Ok(packed) => report_packed(&packed, container, code),
        Err(fault) => {
            say(format_args!("{fault}"));
            exit::DRAIN_INCOMPLETE
        }
    };
    match report_strays(container) {
        Ok(0) => code,
        Ok(_) => exit::DRAIN_INCOMPLETE,
        Err(fault) => {
            say(format_args!("{fault}"));
            exit::DRAIN_INCOMPLETE
        }
    }
}

/// Reports files that programs wrote beside the container without the library. Returns their number.
fn report_strays(container: &Path) -> Result<usize> {
    let strays = Listing::of(&*tree(container)?)?.strays;
    for name in strays.iter().take(STRAYS_NAMED_MAX) {
        let path = container.join(OsStr::from_bytes(name));
        say(format_args!("{}: beside the container, and not in it", path.display()));
    }
    if !strays.is_empty() {
        say(format_args!(
            "{} {} not packed: created by a program without the library (one that is linked statically or has more privileges than \
             its caller), or through a symbolic link outside the directory. Move them elsewhere, and back with `tameike run \
             --aggregate-only {} -- mv ...`",
            strays.len(),
            if strays.len() == 1 { "path is" } else { "paths are" },
            container.display()
        ));
    }
    Ok(strays.len())
}

fn spawn(spool: &Spool, arguments: &RunArguments) -> std::result::Result<Child, u8> {
    let program = &arguments.command[0];
    let mut command = Command::new(program);
    command.args(&arguments.command[1..]).envs(spool.variables());
    let variable = preload::find(LIBRARY, "--aggregate-only").and_then(|library| preload::with(&library));
    match variable {
        Ok((name, value)) => command.env(name, value),
        Err(fault) => {
            say(format_args!("{fault}"));
            return Err(exit::FAILED);
        }
    };
    command.spawn().map_err(|error| {
        say(format_args!("{}: {error}", program.display()));
        exit::of_start_error(&error)
    })
}

/// Waits for the command, and forwards signals to it.
fn await_child(mut child: Child) -> u8 {
    let process = ProcessId::now(child.id());
    let watched = watch_ending(move |arrived| {
        // The command receives signals of the terminal itself.
        if let Some(process) = process.filter(|_| arrived.from_process) {
            // It may have exited.
            let _ = process.signal(arrived.signal);
        }
    });
    if let Err(fault) = watched {
        say(format_args!("{fault}"));
    }
    child.wait().map_or(exit::FAILED, exit::of_status)
}

fn report_packed(packed: &Packed, container: &Path, code: u8) -> u8 {
    report_faults(&packed.faults);
    say(format_args!(
        "packed {} {}, {}, into {}",
        packed.files,
        plural(packed.files as usize, "file"),
        show(packed.bytes),
        container.display()
    ));
    let Some(kept) = &packed.kept else { return code };
    say(format_args!(
        "{} {} could not be packed: see above. Files that are not in the container are kept in {}: the next run with the same \
         container on this host packs them",
        packed.faults.len(),
        plural(packed.faults.len(), "path"),
        kept.display()
    ));
    exit::DRAIN_INCOMPLETE
}
