//! Measures shared memory regions, by the scripts of `bench/dsm`.

use crate::options::DsmOptions;
use crate::outcome::{Context, Outcome};
use std::path::Path;
use std::process::Command;

/// Runs the scripts one after the other. Each writes a directory of the output.
pub fn run(options: &DsmOptions) -> Outcome<()> {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/dsm");
    let repetitions = options.repetitions.to_string();
    let start = |script: &str, arguments: &[&Path]| {
        let mut command = Command::new(scripts.join(script).with_extension("sh"));
        command.arg(options.output.join(script)).args(arguments).arg(&repetitions);
        let status = command.status().context(|| format!("start {script}.sh in {}", scripts.display()))?;
        if status.success() { Ok(()) } else { Err(format!("{script}.sh: {status}")) }
    };
    start("micro", &[])?;
    start("compare", &[])?;
    match &options.disk {
        Some(disk) => start("wisconsin", &[disk]),
        None => Ok(()),
    }
}
