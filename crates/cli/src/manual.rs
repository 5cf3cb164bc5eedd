//! Man pages and shell completions, from the one definition of the command line.

use crate::arguments::Cli;
use crate::exit;
use crate::report;
use clap::{Command, CommandFactory, ValueHint};
use clap_complete::Shell;
use std::path::Path;

/// Prints the completion script of a shell. Returns the exit code.
pub fn completions(shell: Shell) -> u8 {
    clap_complete::generate(shell, &mut completed(Cli::command()), "tameike", &mut std::io::stdout());
    0
}

/// The command line with file names offered only for arguments that are paths: shells offer files for every value about
/// which nothing is said.
fn completed(command: Command) -> Command {
    let said = command.mut_args(|argument| {
        let is_unknown =
            argument.get_action().takes_values() && argument.get_value_hint() == ValueHint::Unknown;
        if is_unknown { argument.value_hint(ValueHint::Other) } else { argument }
    });
    said.mut_subcommands(completed)
}

/// Writes a man page for `tameike` and for each of its commands. Returns the exit code.
pub fn man(directory: &Path) -> u8 {
    let written =
        std::fs::create_dir_all(directory).and_then(|()| clap_mangen::generate_to(Cli::command(), directory));
    match written {
        Ok(()) => 0,
        Err(error) => {
            report::say(format_args!("writing man pages into {}: {error}", directory.display()));
            exit::FAILED
        }
    }
}
