//! Identification of a directory as the store of a stopped node, with its version.

use super::findings::{Findings, Part};
use crate::directory::{FORMAT, FORMAT_NAME, TABLE, boot_id, read_damage};
use crate::ledger::LOG_NAMES;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use tameike_core::{Errno, Fault, Result};
use tameike_io::disk::file::FileLock;

/// Stands for an unknown boot id; differs from every real one.
pub(super) const UNKNOWN_BOOT: &str = "unknown";

/// A store that no other process can open until this is dropped.
pub(super) struct Stopped {
    pub(super) dir: PathBuf,
    /// The machine may have lost power since the store was last open.
    pub(super) after_power_loss: bool,
    /// The file `format` must be written again.
    pub(super) format_broken: bool,
    /// Missing files that a repair creates empty.
    pub(super) absent: Vec<&'static str>,
    _lock: Option<FileLock>,
}

impl Stopped {
    pub(super) fn enter(dir: &Path, findings: &mut Findings) -> Result<Self> {
        is_store(dir)?;
        let mut absent: Vec<_> = LOG_NAMES.into_iter().filter(|name| !dir.join(name).exists()).collect();
        let lock = match FileLock::take_existing(&dir.join("lock")) {
            Ok(lock) => Some(lock),
            Err(fault) if fault.errno == Errno::ENOENT => {
                findings
                    .wrong(Part::Format, "the file lock is missing: two agents could open the store at once");
                absent.push("lock");
                None
            }
            Err(fault) if fault.errno == Errno::EBUSY => {
                let why = format!("a process has the store {} open; end it first ({fault})", dir.display());
                return Err(Fault::new(Errno::EBUSY, why));
            }
            Err(fault) => return Err(fault),
        };
        let (after_power_loss, format_broken) = read_format(dir, findings)?;
        for line in read_damage(dir)? {
            findings.note(Part::Format, format!("found earlier: {line}"));
        }
        Ok(Self { dir: dir.to_owned(), after_power_loss, format_broken, absent, _lock: lock })
    }
}

fn is_store(dir: &Path) -> Result<()> {
    let status = dir.metadata().map_err(|error| Fault::from_os(format!("stat {}", dir.display()), &error))?;
    if !status.is_dir() {
        let why = format!("{} is not a directory; name the device directory of a node", dir.display());
        return Err(Fault::new(Errno::ENOTDIR, why));
    }
    let has = |name: &str| dir.join(name).exists();
    if has("format") || (has(TABLE) && has("extents")) {
        return Ok(());
    }
    let entries =
        dir.read_dir().map_err(|error| Fault::from_os(format!("read {}", dir.display()), &error))?;
    let mut stores: Vec<_> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.join("format").exists())
        .map(|path| path.display().to_string())
        .collect();
    stores.sort();
    let hint = match stores.is_empty() {
        true => "a store is a directory tameike-UID-JOB-NODE below --device, or below /dev/shm without one"
            .to_owned(),
        false => format!("there are stores in it: {}", stores.join(", ")),
    };
    let why = format!("{} is not a node's store; {hint}", dir.display());
    Err(Fault::new(Errno::EINVAL, why))
}

/// Returns whether power may have been lost, and whether the file must be written again.
fn read_format(dir: &Path, findings: &mut Findings) -> Result<(bool, bool)> {
    let path = dir.join("format");
    let text = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            findings.wrong(
                Part::Format,
                "the file format is missing: the agent failed before it had created the store, or the file was removed",
            );
            return Ok((true, true));
        }
        Err(error) => return Err(Fault::from_os(format!("read {}", path.display()), &error)),
    };
    match Identity::of(&text) {
        Identity::Ours { boot_id: found } => {
            let restarted = found != boot_id()?;
            if restarted {
                findings.note(Part::Format, "the machine was rebooted since the store was last open");
            }
            Ok((restarted, false))
        }
        Identity::OtherVersion { text } => Err(Fault::new(
            Errno::EINVAL,
            format!(
                "{} contains {text:?}, but this version of tameike reads {FORMAT:?}: check the store with the version \
                 that created it",
                path.display()
            ),
        )),
        Identity::Damaged => {
            let text = String::from_utf8_lossy(&text);
            findings.wrong(
                Part::Format,
                format!("the file format is damaged: it contains {:?}", text.trim_end()),
            );
            Ok((true, true))
        }
    }
}

/// Parsed content of the file `format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Identity<'a> {
    /// A store of this version, with the boot id of the last start.
    Ours { boot_id: &'a str },
    /// A valid file of another version.
    OtherVersion { text: &'a str },
    /// Text that no version writes.
    Damaged,
}

impl<'a> Identity<'a> {
    pub(crate) fn of(bytes: &'a [u8]) -> Self {
        let Ok(text) = std::str::from_utf8(bytes) else { return Self::Damaged };
        let text = text.trim_end();
        match text.strip_prefix(FORMAT).and_then(|rest| rest.strip_prefix(' ')) {
            Some(boot_id) => Self::Ours { boot_id },
            None if is_version(text) => Self::OtherVersion { text },
            None => Self::Damaged,
        }
    }
}

/// Returns true if the text is a valid file of another version.
fn is_version(text: &str) -> bool {
    let number = text.strip_prefix(FORMAT_NAME).and_then(|rest| rest.split_once(' '));
    number.is_some_and(|(number, _)| number != "1" && number.parse::<u32>().is_ok())
}
