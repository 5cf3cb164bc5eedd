//! The exit codes of `tameike`, and their description in the help text.

/// `check` has found damage and repaired all of it (as `fsck`).
pub const REPAIRED: u8 = 1;
/// `check` has found damage that it has not repaired (as `fsck`).
pub const DAMAGED: u8 = 4;
/// Wrong use of the command line (the parser's code).
pub const USAGE: u8 = 2;
/// An agent failed or was lost while the job ran.
pub const AGENT_LOST: u8 = 70;
/// The job could not start, or the command could not be carried out.
pub const FAILED: u8 = 71;
/// The drain is incomplete: the shared file system lacks data of the job, which a journal holds; or the mirror lacks some.
pub const DRAIN_INCOMPLETE: u8 = 75;
/// The command was found but cannot be run (as in shells).
pub const CANNOT_RUN: u8 = 126;
/// The command was not found (as in shells).
pub const NOT_FOUND: u8 = 127;
/// Added to the number of the signal that terminated a command (as in shells).
pub const SIGNAL_BASE: u8 = 128;

/// The exit codes in the help of `run`.
pub const HELP: &str = "\
Exit codes:
  0-69, ...  the code of CMD; 128+N if signal N terminated it
  2          wrong use of the command line
  70         an agent failed or was lost while CMD ran (see --keep-going)
  71         the job could not start, or its receipt could not be written
  75         the drain is incomplete: some files are not completely on the shared
             file system, and `tameike recover` drains the rest from the journals;
             or the mirror lacks something, and `tameike mirror` completes it;
             or a program outside the job wrote below the mount point of a view
  126, 127   CMD cannot be run; CMD was not found";

/// Returns the code for a command that exited with `status`.
pub fn of_status(status: std::process::ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code).unwrap_or(u8::MAX),
        (None, Some(signal)) => SIGNAL_BASE.saturating_add(u8::try_from(signal).unwrap_or(0)),
        (None, None) => u8::MAX,
    }
}

/// Returns the code for a command that could not be started.
pub fn of_start_error(error: &std::io::Error) -> u8 {
    if error.kind() == std::io::ErrorKind::NotFound { NOT_FOUND } else { CANNOT_RUN }
}
