//! Man pages and shell completions, generated from the definition of the command line.

use crate::arguments::Cli;
use crate::exit;
use crate::report;
use clap::CommandFactory;
use clap_complete::env::Shells;
use clap_complete::{CompleteEnv, Shell};
use std::io::Write;
use std::path::Path;
use tameike_core::Fault;

/// Variable by which completion scripts request completions from this program.
const COMPLETE_VARIABLE: &str = "TAMEIKE_COMPLETE";
/// Zsh loads the script at the first completion, as the body of the function that must answer it.
const ZSH_FIRST_CALL: &str = "[ \"${funcstack[1]}\" = _tameike ] && _clap_dynamic_completer_tameike\n";

/// Prints the completion script of a shell. Returns the exit code.
pub fn completions(shell: Shell) -> u8 {
    let shells = Shells::builtins();
    let Some(completer) = shells.completer(&shell.to_string()) else {
        report::say(format_args!("completions for {shell} are not supported"));
        return exit::FAILED;
    };
    let mut script = Vec::new();
    let written: std::io::Result<()> = completer
        .write_registration(COMPLETE_VARIABLE, "tameike", "tameike", "tameike", &mut script)
        .and_then(|()| {
            if shell == Shell::Zsh {
                script.extend_from_slice(ZSH_FIRST_CALL.as_bytes());
            }
            std::io::stdout().write_all(&script)
        });
    let failed = |error| Fault::io(format!("writing the completion script: {error}"));
    report::exit_code(written.map(|()| 0).map_err(failed))
}

/// Answers a request of a completion script, if there is one. Returns the exit code.
pub fn complete() -> Option<u8> {
    let dir = std::env::current_dir().ok();
    let completed = CompleteEnv::with_factory(Cli::command)
        .var(COMPLETE_VARIABLE)
        .try_complete(std::env::args_os(), dir.as_deref());
    match completed {
        Ok(is_done) => is_done.then_some(0),
        Err(error) => {
            report::say(format_args!("completing a command line: {error}"));
            Some(exit::USAGE)
        }
    }
}

/// Writes a man page for `tameike` and for each of its commands. Returns the exit code.
pub fn man(directory: &Path) -> u8 {
    let written: std::io::Result<()> =
        std::fs::create_dir_all(directory).and_then(|()| clap_mangen::generate_to(Cli::command(), directory));
    let failed = |error| Fault::io(format!("writing man pages into {}: {error}", directory.display()));
    report::exit_code(written.map(|()| 0).map_err(failed))
}
