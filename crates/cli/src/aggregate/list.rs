//! `tameike agg ls`: lists files of a container.

use super::{inner, open, printing};
use crate::arguments::ListArguments;
use std::io::{BufWriter, IsTerminal, Write};
use tameike_container::{Brief, Container, IndexEntry, quoted, shown};
use tameike_core::attr::{S_ISGID, S_ISUID, S_ISVTX};
use tameike_core::{Errno, Fault, FileKind, Result, Timestamp};
use time::OffsetDateTime;

/// Lists files. Returns the exit code.
pub(super) fn list(arguments: &ListArguments) -> Result<u8> {
    let container = open(&arguments.container)?;
    let path = arguments.path.as_deref().map_or(&b""[..], |path| inner(path));
    // Like `ls`: an argument that is a symbolic link is followed, except with --long.
    let followed = container.follow(path)?;
    let is_link = |entry: &IndexEntry| entry.node.is_some_and(|node| node.kind == FileKind::Symlink);
    let describes_link = arguments.long && container.find(path)?.as_ref().is_some_and(is_link);
    let path = if describes_link { path } else { &followed[..] };
    let out = std::io::stdout().lock();
    let style = match (arguments.null, out.is_terminal()) {
        (true, _) => Style::Bytes,
        (false, for_shell) => Style::Quoted { for_shell },
    };
    let mut out = BufWriter::new(out);
    let mut print = |entry: &IndexEntry| {
        let line = line(&container, entry, arguments.long, style)?;
        out.write_all(&line).map_err(|error| printing(&error))
    };
    if path.is_empty() && arguments.recursive {
        for entry in container.walk()? {
            print(&entry?)?;
        }
    } else {
        let found = container.find(path)?;
        let mut count = 0;
        match &found {
            Some(file) if !is_dir(file) => print(file)?,
            _ if arguments.recursive => {
                for entry in container.below(path)? {
                    count += 1;
                    print(&entry?)?;
                }
            }
            _ => {
                for entry in container.children(path)? {
                    count += 1;
                    print(&entry?)?;
                }
            }
        }
        if found.is_none() && count == 0 && !path.is_empty() {
            let message = format!("{}: it is not in the container", shown(path));
            return Err(Fault::new(Errno::ENOENT, message));
        }
    }
    out.flush().map_err(|error| printing(&error))?;
    Ok(0)
}

pub(super) fn is_dir(entry: &IndexEntry) -> bool {
    entry.node.is_some_and(|node| node.kind == FileKind::Directory)
}

#[derive(Clone, Copy)]
enum Style {
    /// Unquoted, lines end with NUL.
    Bytes,
    /// Quoted if they are not plain text; with `for_shell`, also if a shell would interpret them.
    Quoted { for_shell: bool },
}

impl Style {
    fn name(self, name: &[u8]) -> Vec<u8> {
        match self {
            Self::Bytes => name.to_vec(),
            Self::Quoted { for_shell } => quoted(name, for_shell).into_bytes(),
        }
    }
}

fn line(container: &Container, entry: &IndexEntry, is_long: bool, style: Style) -> Result<Vec<u8>> {
    let mut line = Vec::new();
    let brief = if is_long { container.brief(entry)? } else { None };
    if let Some(Brief { kind, mode, uid, gid, mtime, size }) = brief {
        let (kind, mode, mtime) = (letter(kind), bits(mode), date(mtime));
        line = format!("{kind}{mode} {uid:>5} {gid:>5} {size:>14} {mtime} ").into_bytes();
    }
    line.extend(style.name(&entry.path));
    if brief.is_some_and(|brief| brief.kind == FileKind::Symlink) {
        line.extend(b" -> ");
        line.extend(style.name(&container.node(entry)?.target));
    }
    line.push(if matches!(style, Style::Bytes) { 0 } else { b'\n' });
    Ok(line)
}

fn letter(kind: FileKind) -> char {
    match kind {
        FileKind::File => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
        FileKind::CharacterDevice => 'c',
        FileKind::BlockDevice => 'b',
    }
}

/// Formats permission bits like `ls`.
fn bits(mode: u16) -> String {
    let special = [(S_ISUID, 's', 'S'), (S_ISGID, 's', 'S'), (S_ISVTX, 't', 'T')];
    let mut shown = String::with_capacity(9);
    for (class, (bit, set, unset)) in special.into_iter().enumerate() {
        let rights = mode >> (6 - 3 * class) & 7;
        shown.push(if rights & 4 != 0 { 'r' } else { '-' });
        shown.push(if rights & 2 != 0 { 'w' } else { '-' });
        shown.push(match (mode & bit != 0, rights & 1 != 0) {
            (true, true) => set,
            (true, false) => unset,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    shown
}

/// Formats a time like RFC 3339 in UTC. Years outside 0 to 9999 are seconds since 1970, which `date --date` accepts.
fn date(time: Timestamp) -> String {
    match OffsetDateTime::from_unix_timestamp(time.seconds) {
        Ok(moment) if (0..=9999).contains(&moment.year()) => {
            let (date, month) = (moment.date(), u8::from(moment.month()));
            let (hour, minute, second) = moment.to_hms();
            format!("{:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", date.year(), date.day())
        }
        _ => format!("@{}", time.seconds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_formatted_like_ls() {
        let shown = [0o755, 0o640, 0o4755, 0o2644, 0o1777, 0o1776, 0].map(bits);
        let expected =
            ["rwxr-xr-x", "rw-r-----", "rwsr-xr-x", "rw-r-Sr--", "rwxrwxrwt", "rwxrwxrwT", "---------"];
        assert_eq!(shown, expected);
    }

    #[test]
    fn times_are_shown_in_utc() {
        let time = |seconds| date(Timestamp { seconds, nanoseconds: 5 });
        assert_eq!(time(1_700_000_000), "2023-11-14T22:13:20Z");
        assert_eq!(time(-5), "1969-12-31T23:59:55Z");
        assert_eq!(time(-62_167_219_200), "0000-01-01T00:00:00Z");
        assert_eq!(time(253_402_300_799), "9999-12-31T23:59:59Z");
        for seconds in [-62_167_219_201, 253_402_300_800, 1 << 62, i64::MAX, i64::MIN] {
            assert_eq!(time(seconds), format!("@{seconds}"));
        }
    }
}
