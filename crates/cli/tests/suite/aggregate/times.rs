//! Times of files far from the present.

use super::{Dirs, agg};
use crate::support::{Run, out};

/// `ls --long` panicked.
#[test]
fn any_time_is_listed() {
    let dirs = Dirs::in_memory();
    for (name, time) in [
        ("end", "@4611686018427387904"),
        ("new", "2020-02-02T02:02:02.5Z"),
        ("old", "1950-01-06T00:00:00.25Z"),
    ] {
        dirs.put(name, time);
    }
    dirs.pack();
    let text = out(&agg(&[&"ls", &"--long", &dirs.container]).exits(0));
    let times: Vec<_> = text.lines().map(|line| line.split(' ').rev().nth(1).unwrap_or_default()).collect();
    assert_eq!(times, ["@4611686018427387904", "2020-02-02T02:02:02Z", "1950-01-06T00:00:00Z"], "{text}");
}
