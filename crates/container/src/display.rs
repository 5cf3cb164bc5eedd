//! Names as listings and messages show them: no two names look alike, and none has bytes that a terminal obeys.
//!
//! Control characters and bytes that are not UTF-8 are written as coreutils writes them for a terminal: `'a'$'\n''b'`.

use tameike_core::limits::PATH_SIZE_MAX;

/// Of a path that is longer than the system allows, so many bytes are shown at its beginning and at its end.
const BEGINNING_SIZE: usize = 128;
const END_SIZE: usize = 64;
/// What a shell does not take as it is.
const SPECIAL: &str = " !\"$&'()*;<=>?[\\^`|";

/// A path in a message: as it is, or in quotes where that is not plain. One that is longer than the system allows is shown in part.
pub fn shown(path: &[u8]) -> String {
    if path.len() <= PATH_SIZE_MAX {
        return quoted(path, false);
    }
    let (beginning, end) = (&path[..BEGINNING_SIZE], &path[path.len() - END_SIZE..]);
    let short = [beginning, b"...", end].concat();
    format!("{} ({} bytes)", quoted(&short, false), path.len())
}

/// A name in a listing: in quotes where it is not text without control characters, and where it begins as one that is in quotes. `for_shell`: also where a
/// shell would take it for something else, as coreutils does it on a terminal.
pub fn quoted(name: &[u8], for_shell: bool) -> String {
    let text = std::str::from_utf8(name).ok().filter(|text| !text.chars().any(char::is_control));
    match text {
        Some(text) if !(text.starts_with(['\'', '"']) || for_shell && is_special(text)) => text.to_owned(),
        Some(text) if text.contains('\'') && !text.contains(is_special_in_quotes) => format!("\"{text}\""),
        _ => in_quotes(name),
    }
}

fn is_special(text: &str) -> bool {
    matches!(text, "" | "{" | "}") || text.starts_with(['#', '~']) || text.contains(|c| SPECIAL.contains(c))
}

/// What has a meaning between double quotes, or might.
fn is_special_in_quotes(c: char) -> bool {
    SPECIAL.contains(c) && c != ' ' && c != '\''
}

fn in_quotes(name: &[u8]) -> String {
    let mut out = Quotes { text: "'".to_owned(), is_escaping: false };
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                _ if c.is_control() => {
                    c.encode_utf8(&mut [0; 4]).bytes().for_each(|byte| out.escape(byte));
                }
                '\'' => out.plain("'\\''"),
                _ => out.plain(c.encode_utf8(&mut [0; 4])),
            }
        }
        chunk.invalid().iter().for_each(|byte| out.escape(*byte));
    }
    out.text.push('\'');
    out.text
}

/// Text in quotes, of the one kind or of the other.
struct Quotes {
    text: String,
    is_escaping: bool,
}

impl Quotes {
    fn plain(&mut self, text: &str) {
        if std::mem::take(&mut self.is_escaping) {
            self.text.push_str("''");
        }
        self.text.push_str(text);
    }

    fn escape(&mut self, byte: u8) {
        if !std::mem::replace(&mut self.is_escaping, true) {
            self.text.push_str("'$'");
        }
        let letter = match byte {
            7 => 'a',
            8 => 'b',
            b'\t' => 't',
            b'\n' => 'n',
            11 => 'v',
            12 => 'f',
            b'\r' => 'r',
            _ => return self.text.push_str(&format!("\\{byte:03o}")),
        };
        self.text.extend(['\\', letter]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As `ls` of coreutils 9.1 writes them to a terminal.
    #[test]
    fn names_are_quoted_as_coreutils_does() {
        for (name, expected) in [
            (&b"plain-1.txt"[..], "plain-1.txt"),
            (b"a b", "'a b'"),
            (b"it's", "\"it's\""),
            (b"it's $x", r"'it'\''s $x'"),
            (b"a\nb", r"'a'$'\n''b'"),
            (b"\n", r"''$'\n'"),
            (b"\xff\xfe no", r"''$'\377\376'' no'"),
            (b"\x1b[31m", r"''$'\033''[31m'"),
            (b"#a", "'#a'"),
            (b"a#", "a#"),
            (b"\xc2\x9b", r"''$'\302\233'"),
            ("\u{fc}".as_bytes(), "\u{fc}"),
        ] {
            assert_eq!(quoted(name, true), expected);
        }
        assert_eq!(quoted(b"a b", false), "a b");
        assert_eq!(quoted(b"'a b'", false), "\"'a b'\"");
    }

    #[test]
    fn paths_that_are_too_long_are_shortened() {
        let path = b"directory/".repeat(500);
        assert!(shown(&path).len() < 256 && shown(&path).ends_with(" (5000 bytes)"), "{}", shown(&path));
    }

    proptest! {
        #[test]
        fn no_two_names_look_alike(
            one in proptest::collection::vec(proptest::sample::select(b"a'\"$\\n\n\xff\t ".to_vec()), 0..8),
            other in proptest::collection::vec(proptest::sample::select(b"a'\"$\\n\n\xff\t ".to_vec()), 0..8),
            for_shell in any::<bool>(),
        ) {
            prop_assert_eq!(one == other, quoted(&one, for_shell) == quoted(&other, for_shell));
        }
    }
}
