//! Parses the first line of a script, which names its interpreter (`#!`), like Linux.

/// Bytes of a program that the kernel reads to determine its format.
pub const HEAD_SIZE: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interpreter<'a> {
    pub path: &'a [u8],
    /// Its only argument, which may contain blanks.
    pub argument: Option<&'a [u8]>,
}

fn is_blank(byte: &u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// Returns the interpreter of a file that begins with `head` (padded with zeros); `None` if the kernel would not run it as a script.
pub fn interpreter(head: &[u8; HEAD_SIZE]) -> Option<Interpreter<'_>> {
    let rest = head.strip_prefix(b"#!")?;
    let text = rest.split(|byte| *byte == 0).next().unwrap_or_default();
    let line = match text.iter().position(|byte| *byte == b'\n') {
        Some(end) => &text[..end],
        None if text.len() < rest.len() => text,
        // A longer line must contain the whole path. The kernel ignores the last byte of the buffer.
        None => {
            trimmed(text).iter().position(is_blank)?;
            &text[..text.len() - 1]
        }
    };
    let line = trimmed(line);
    let end = line.iter().position(is_blank).unwrap_or(line.len());
    let (path, argument) = line.split_at(end);
    let argument = Some(trimmed(argument)).filter(|argument| !argument.is_empty());
    (!path.is_empty()).then_some(Interpreter { path, argument })
}

/// Removes blanks at both ends.
fn trimmed(text: &[u8]) -> &[u8] {
    let start = text.iter().position(|byte| !is_blank(byte)).unwrap_or(text.len());
    let end = text.iter().rposition(|byte| !is_blank(byte)).map_or(start, |last| last + 1);
    &text[start..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &[u8]) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
        let mut head = [0; HEAD_SIZE];
        let count = text.len().min(HEAD_SIZE);
        head[..count].copy_from_slice(&text[..count]);
        interpreter(&head).map(|found| (found.path.to_vec(), found.argument.map(<[u8]>::to_vec)))
    }

    #[track_caller]
    fn assert_is(text: &[u8], path: &[u8], argument: Option<&[u8]>) {
        assert_eq!(of(text), Some((path.to_vec(), argument.map(<[u8]>::to_vec))));
    }

    #[test]
    fn the_first_line_is_parsed_like_linux() {
        assert_is(b"#!/bin/sh\necho", b"/bin/sh", None);
        assert_is(b"#! \t/bin/sh  \t\n", b"/bin/sh", None);
        assert_is(b"#!/usr/bin/env  -S a  b \n", b"/usr/bin/env", Some(b"-S a  b"));
        assert_is(b"#!/bin/sh", b"/bin/sh", None);
        assert_is(b"#!/bin/sh -x", b"/bin/sh", Some(b"-x"));
        assert_is(b"#!sh\n", b"sh", None);
        for none in [b"".as_slice(), b"#", b"#!", b"#!\n/bin/sh\n", b"#!  \n", b"# !/bin/sh\n", b"\x7fELF"] {
            assert_eq!(of(none), None, "{none:?}");
        }
    }

    /// A truncated path makes the file no script; a truncated argument is used.
    #[test]
    fn long_lines_are_truncated() {
        let path = [b"/".as_slice(), &[b'p'; 400]].concat();
        assert_eq!(of(&[b"#!", path.as_slice(), b"\n"].concat()), None);
        let argument = [b'a'; 400];
        let truncated = &argument[..HEAD_SIZE - b"#!/bin/sh ".len() - 1];
        assert_is(&[b"#!/bin/sh ", argument.as_slice(), b"\n"].concat(), b"/bin/sh", Some(truncated));
        let longest = &path[..HEAD_SIZE - 3];
        assert_is(&[b"#!", longest, b"\n"].concat(), longest, None);
    }
}
