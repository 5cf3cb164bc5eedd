//! The agent's log, a file in the node's directory: one line per message with the time of day.

use log::{LevelFilter, Log, Metadata, Record};
use parking_lot::Mutex;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use tameike_core::{Fault, Result};
use tameike_io::os::process;

struct LogFile(Mutex<File>);

impl Log for LogFile {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let day = process::wall_seconds().rem_euclid(86_400);
        let (hours, minutes, seconds) = (day / 3600, day / 60 % 60, day % 60);
        let line = format!(
            "{hours:02}:{minutes:02}:{seconds:02}Z {:5} {}: {}\n",
            record.level(),
            record.target(),
            record.args()
        );
        // A log that cannot be written must not stop the agent.
        let _ = self.0.lock().write_all(line.as_bytes());
    }

    fn flush(&self) {}
}

/// Writes the log messages of this process to `path`.
pub fn open(path: &Path, level: &str) -> Result<()> {
    let level: LevelFilter = level.parse().map_err(|_| {
        Fault::io(format!("TAMEIKE_LOG={level}: expected off, error, warn, info, debug or trace"))
    })?;
    let file = File::options()
        .append(true)
        .create(true)
        .open(path)
        .map_err(|error| Fault::from_os(format_args!("creating the log {}", path.display()), &error))?;
    log::set_max_level(level);
    log::set_boxed_logger(Box::new(LogFile(Mutex::new(file)))).map_err(|error| Fault::io(error.to_string()))
}
