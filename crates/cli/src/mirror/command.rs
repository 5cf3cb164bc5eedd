//! `tameike mirror DIR HOST:DIR2`: makes a mirror equal to a directory, as after an incomplete job.

use super::outcome::grouped;
use super::target::MirrorTarget;
use super::worker::{Mirror, MirrorEnd, MirrorEvent, MirrorPlan};
use crate::arguments::MirrorArguments;
use crate::driver::launch::remote_line;
use crate::exit;
use crate::report;
use crate::settings;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;
use tameike_core::{Fault, Result};
use tameike_io::os::signal;
use tameike_io::shared::PosixTree;

/// Time for which a mirror may be unreachable that was reached before.
const OUTAGE_LIMIT: Duration = Duration::from_secs(60);

enum Event {
    Mirror(MirrorEvent),
    Signal,
}

/// The command that starts the receiver of a mirror.
pub fn receiver(target: &MirrorTarget, ssh: &[String], remote_program: &Path) -> Command {
    let words = ["receive".as_ref(), target.dir.as_os_str()];
    match &target.host {
        None => {
            let mut command = Command::new("/proc/self/exe");
            command.arg0("tameike").args(words);
            command
        }
        Some(host) => {
            let mut command = Command::new(&ssh[0]);
            let line = std::iter::once(remote_program.as_os_str()).chain(words);
            command.args(&ssh[1..]).arg(host).arg(remote_line(line));
            command
        }
    }
}

/// Makes the mirror equal. Returns the exit code.
pub fn mirror(arguments: &MirrorArguments) -> u8 {
    report::exit_code(run(arguments))
}

fn run(arguments: &MirrorArguments) -> Result<u8> {
    report::receipt::check_place(arguments.receipt.as_deref())?;
    let source = settings::shared_dir(&arguments.source)?;
    let target = arguments.target.clone().resolve(&source)?;
    let (ssh, remote_program) = settings::remote(arguments.config.as_deref())?;
    let command = {
        let target = target.clone();
        move || receiver(&target, &ssh, &remote_program)
    };
    let plan = MirrorPlan {
        target: target.clone(),
        command: Box::new(command),
        is_explicit: true,
        checks_content: arguments.verify,
        outage_limit: OUTAGE_LIMIT,
    };
    let (sender, events) = channel();
    let signals = sender.clone();
    // The receiver lives until the process exits.
    signal::watch_ending(move |_| drop(signals.send(Event::Signal)))?;
    let tree = Arc::new(PosixTree::open(&source)?);
    let mirror = Mirror::start(plan, tree, move |event| drop(sender.send(Event::Mirror(event))))?;
    mirror.finish(std::iter::empty());
    loop {
        match events.recv() {
            Ok(Event::Mirror(MirrorEvent::Message(text))) => report::say(format_args!("{text}")),
            Ok(Event::Mirror(MirrorEvent::Ended(end))) => return Ok(conclude(arguments, &target, &end)),
            Ok(Event::Signal) => mirror.abort(),
            Err(_) => return Err(Fault::io("the thread of the mirror has ended")),
        }
    }
}

fn conclude(arguments: &MirrorArguments, target: &MirrorTarget, end: &MirrorEnd) -> u8 {
    let is_kept = report::receipt::keep(&end.receipt, arguments.receipt.as_deref());
    if !end.receipt.is_complete() {
        let messages = super::outcome::messages(target, &arguments.source, end);
        messages.iter().for_each(|message| report::say(format_args!("{message}")));
        return exit::DRAIN_INCOMPLETE;
    }
    let how = if arguments.verify { "checksum" } else { "size and time" };
    let (files, differing) = (grouped(end.compared.files), grouped(end.compared.differing));
    report::say(format_args!(
        "mirror {target}: {files} {} equal by {how}, {differing} differing {} sent or removed",
        report::plural(end.compared.files as usize, "file"),
        report::plural(end.compared.differing as usize, "name"),
    ));
    if is_kept { 0 } else { exit::FAILED }
}
