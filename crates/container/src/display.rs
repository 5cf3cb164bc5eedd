//! Quoting of names for listings and messages: unambiguous, and without bytes that a terminal interprets.
//!
//! Control characters and bytes that are not UTF-8 are written as coreutils writes them for a terminal: `'a'$'\n''b'`.

use tameike_core::limits::PATH_SIZE_MAX;

/// Bytes shown of the beginning and the end of a path longer than `PATH_MAX`.
const BEGINNING_SIZE: usize = 128;
const END_SIZE: usize = 64;
/// Characters that a shell interprets.
const SPECIAL: &str = " !\"$&'()*;<=>?[\\^`|";

/// A path for a message: quoted if it is not plain text, and shortened if it is longer than `PATH_MAX`.
pub fn shown(path: &[u8]) -> String {
    if path.len() <= PATH_SIZE_MAX {
        return quoted(path, false);
    }
    let (beginning, end) = (&path[..BEGINNING_SIZE], &path[path.len() - END_SIZE..]);
    let short = [beginning, b"...", end].concat();
    format!("{} ({} bytes)", quoted(&short, false), path.len())
}

/// A name for a listing. Quotes names with control characters or invalid UTF-8, and names that begin with a quote. `for_shell` also quotes
/// names that a shell would interpret, as coreutils does on a terminal.
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

/// Characters that may have a meaning inside double quotes.
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

/// Quoted text, with a state for `'...'` and `$'...'`.
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

    /// Expected values from `ls` of coreutils 9.1 on a terminal.
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
        fn quoting_is_injective(
            one in proptest::collection::vec(proptest::sample::select(b"a'\"$\\n\n\xff\t ".to_vec()), 0..8),
            other in proptest::collection::vec(proptest::sample::select(b"a'\"$\\n\n\xff\t ".to_vec()), 0..8),
            for_shell in any::<bool>(),
        ) {
            prop_assert_eq!(one == other, quoted(&one, for_shell) == quoted(&other, for_shell));
        }
    }
}
