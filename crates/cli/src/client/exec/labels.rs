//! Merges the output of many nodes: complete lines, each with its node's number.

use parking_lot::Mutex;
use std::io::{BufRead, BufReader, Read, Write};

/// Longest line that is not split, in bytes.
const LINE_SIZE_MAX: u64 = 1 << 20;

/// Serializes writers of standard output and standard error, so that lines stay complete.
static TURN: Mutex<()> = Mutex::new(());

/// Copies lines of `input` to `output`, each with the prefix `[node] `, until the input ends.
pub fn copy(node: u32, input: impl Read, mut output: impl Write) {
    let mut reader = BufReader::new(input);
    loop {
        let mut line = format!("[{node}] ").into_bytes();
        let label = line.len();
        match reader.by_ref().take(LINE_SIZE_MAX).read_until(b'\n', &mut line) {
            Ok(_) if line.len() > label => {}
            _ => return,
        }
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        let _turn = TURN.lock();
        if output.write_all(&line).and_then(|()| output.flush()).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_has_its_node() {
        let mut out = Vec::new();
        copy(12, &b"one\n\nno end"[..], &mut out);
        assert_eq!(out, b"[12] one\n[12] \n[12] no end\n");
    }
}
