//! Runs a command in mount, network, IPC and process namespaces that end with it, and with all processes that it has started.

use crate::outcome::{Context, Outcome};
use crate::wait::{self, Interrupt};
use std::process::Command;
use std::time::Duration;

const NAMESPACES: &str = "--mount --net --ipc --pid --fork --kill-child --mount-proc --propagation private";

/// The command that runs a line of shell in new namespaces. Arguments that are added to it are `$0` and so on of that line.
pub fn command(script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(NAMESPACES.split(' ')).args(["sh", "-c", script]);
    command
}

/// Runs such a command to its end. A signal to this program ends the command first.
pub fn run(command: &mut Command, interrupt: &Interrupt) -> Outcome<()> {
    let mut child = command.spawn().context(|| "start unshare")?;
    let mut status = None;
    wait::until("the command", Duration::MAX, || {
        if interrupt.check().is_err() {
            // All processes of the namespace end with this one.
            child.kill().context(|| "end the command")?;
        }
        status = child.try_wait().context(|| "wait for the command")?;
        Ok(status.is_some())
    })?;
    match status {
        Some(status) if !status.success() => {
            interrupt.check()?;
            Err(format!("the command failed: {status}"))
        }
        _ => Ok(()),
    }
}
