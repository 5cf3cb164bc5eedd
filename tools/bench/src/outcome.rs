//! Errors of this program: one line with the operation and its failure.

use std::fmt::Display;
use std::process::{Command, Stdio};

/// A result, or the message of the error.
pub type Outcome<T> = Result<T, String>;

/// Adds the operation to an error.
pub trait Context<T> {
    /// `doing` is a verb and its object: "open /x/y".
    fn context<D: Display>(self, doing: impl FnOnce() -> D) -> Outcome<T>;
}

impl<T, E: Display> Context<T> for Result<T, E> {
    fn context<D: Display>(self, doing: impl FnOnce() -> D) -> Outcome<T> {
        self.map_err(|error| format!("cannot {}: {error}", doing()))
    }
}

/// Runs a program, which must succeed, and returns its output. `hint` follows the error if it cannot start.
pub fn output_of(command: &mut Command, hint: &str) -> Outcome<String> {
    let program = command.get_program().display().to_string();
    let output = command.stdin(Stdio::null()).output().context(|| format!("start {program}{hint}"))?;
    let [said, failed] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    match output.status.success() {
        true => Ok(said.into_owned()),
        false => Err(format!("{command:?} failed ({}): {}{}", output.status, said.trim(), failed.trim())),
    }
}
