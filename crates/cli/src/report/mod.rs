//! Output for the user: messages, progress, receipts, tables.

pub mod cache;
pub mod copies;
pub mod files;
pub mod network;
pub mod progress;
pub mod receipt;
pub mod status;
pub mod storms;

use crate::exit;
use std::fmt;
use std::io::Write;
use tameike_core::Result;

/// Prints a message on standard error; a closed standard error is not an error.
pub fn say(message: fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr().lock(), "tameike: {}", printable(&message.to_string()));
}

/// Returns the exit code of a command, whose fault it prints.
pub fn exit_code(outcome: Result<u8>) -> u8 {
    outcome.unwrap_or_else(|fault| {
        say(format_args!("{fault}"));
        exit::FAILED
    })
}

/// Escapes control characters: names come from programs and other users, and must not control the terminal.
pub fn printable(words: &str) -> String {
    words.chars().flat_map(|c| if c.is_control() { c.escape_debug().collect() } else { vec![c] }).collect()
}

/// Returns `noun` with an s unless `count` is one.
pub fn plural(count: usize, noun: &str) -> String {
    if count == 1 { noun.to_owned() } else { format!("{noun}s") }
}

/// Prints rows in columns; `right` selects those that are aligned to the right.
pub fn table<const COLUMNS: usize>(
    rows: &[[String; COLUMNS]],
    right: [bool; COLUMNS],
    out: &mut dyn Write,
) -> std::io::Result<()> {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; COLUMNS] = std::array::from_fn(width);
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let blanks = " ".repeat(widths[column] - cell.chars().count());
            let (before, after) = if right[column] { (blanks.as_str(), "") } else { ("", blanks.as_str()) };
            line.push_str(&format!("{before}{cell}{after}  "));
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}
