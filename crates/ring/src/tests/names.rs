//! Published names, which programs look up without a request.

use super::bed::{Bed, PATIENCE, ROOT};
use crate::client::{Answer, Client};
use crate::message::{Start, Status, Time};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tameike_io::os::process::monotonic;

const ENOENT: i32 = 2;

/// Attributes whose fields all have the same number.
fn status(number: u32) -> Status {
    let time = Time { seconds: number.into(), nanoseconds: number };
    let (ino, size, blocks, rdev) = (number.into(), number.into(), number.into(), number.into());
    let (atime, mtime, ctime) = (time, time, time);
    let (mode, nlink, uid, gid, blksize) = (number, number, number, number, number);
    Status { ino, size, blocks, atime, mtime, ctime, mode, nlink, uid, gid, rdev, blksize }
}

fn later() -> Duration {
    monotonic() + PATIENCE
}

/// A test agent that publishes the view's root and a directory in it with inode number 7.
fn bed() -> Bed {
    let bed = Bed::new();
    // Names are published only after a program has connected.
    drop(bed.client());
    bed.names.show_directory(0, (1, b""), 1, 0, later());
    bed.names.show_directory(0, (1, b"dir"), 7, 0, later());
    bed
}

fn show(bed: &Bed, dir: u64, name: &[u8], number: u32) {
    assert!(bed.names.show_file(0, dir, name, &status(number), later()));
}

fn look_up(client: &Client, path: &[u8]) -> Answer<Status> {
    client.status_at(ROOT, path, true)
}

/// The lookup is a request, and the agent has no such file.
fn assert_asked(client: &Client, path: &[u8]) {
    assert_eq!(look_up(client, path), Answer::Failed(ENOENT), "{}", path.escape_ascii());
}

#[test]
fn published_names_need_no_request() {
    let bed = bed();
    let client = bed.client();
    show(&bed, 1, b"file", 3);
    show(&bed, 7, b"file", 4);
    for path in [&b"file"[..], b"dir/file", b"dir//file"] {
        let number = if path == b"file" { 3 } else { 4 };
        assert_eq!(look_up(&client, path), Answer::Done(status(number)), "{}", path.escape_ascii());
    }
    let usage = bed.server.usage();
    assert_eq!((usage.answered, usage.looked_up), (0, 3));
    let in_dir = Start { view: 0, dir: 7 };
    assert_eq!(
        client.status_at(in_dir, b"file", true),
        Answer::Failed(ENOENT),
        "that directory is not published"
    );
    for path in
        [&b"dir"[..], b"file/file", b"dir/other", b"fil", b"dir/../file", b"file/", b"./file", b"/file", b""]
    {
        assert_asked(&client, path);
    }
    assert_eq!(client.status_at(Start { view: 255, dir: 1 }, b"file", true), Answer::Failed(ENOENT));
    bed.names.hide_file(0, 7, b"file");
    assert_asked(&client, b"dir/file");
    assert_eq!(look_up(&client, b"file"), Answer::Done(status(3)));
    drop(client);
    bed.server.settle();
    assert_eq!(bed.server.usage().looked_up, 4, "also after the program has disconnected");
}

#[test]
fn names_are_compared_whole() {
    let bed = bed();
    let client = bed.client();
    let (fits, long) = ([b'n'; 64], [b'n'; 65]);
    show(&bed, 1, &fits, 3);
    assert!(!bed.names.show_file(0, 1, &long, &status(4), later()), "the name is too long");
    assert_eq!(look_up(&client, &fits), Answer::Done(status(3)));
    assert_asked(&client, &long);
    assert_asked(&client, &fits[1..]);
}

#[test]
fn entries_are_not_used_beyond_their_validity() {
    let bed = bed();
    let client = bed.client();
    bed.names.show_file(0, 1, b"file", &status(3), monotonic());
    assert_asked(&client, b"file");
    show(&bed, 7, b"file", 4);
    assert!(matches!(look_up(&client, b"dir/file"), Answer::Done(_)));
    bed.names.show_directory(0, (1, b"dir"), 7, 0, monotonic());
    assert_asked(&client, b"dir/file");
}

#[test]
fn files_are_not_used_beyond_the_limit_of_their_view() {
    let bed = bed();
    let client = bed.client();
    show(&bed, 7, b"file", 4);
    bed.names.limit_files(1, monotonic());
    assert_eq!(look_up(&client, b"dir/file"), Answer::Done(status(4)));
    bed.names.limit_files(0, monotonic());
    assert_asked(&client, b"dir/file");
    bed.names.limit_files(0, later());
    assert_eq!(look_up(&client, b"dir/file"), Answer::Done(status(4)));
}

#[test]
fn changed_directories_are_not_walked() {
    let bed = bed();
    let client = bed.client();
    show(&bed, 7, b"file", 4);
    bed.names.directories_changed(0, 5);
    assert_asked(&client, b"dir/file");
    bed.names.show_directory(0, (1, b""), 1, 5, later());
    assert_asked(&client, b"dir/file");
    // A directory that was looked up before the change, and published after it.
    bed.names.show_directory(0, (1, b"dir"), 7, 4, later());
    assert_asked(&client, b"dir/file");
    bed.names.show_directory(0, (1, b"dir"), 7, 5, later());
    bed.names.directories_changed(0, 4);
    assert_eq!(look_up(&client, b"dir/file"), Answer::Done(status(4)));
}

#[test]
fn the_file_whose_validity_ends_first_is_replaced() {
    let bed = bed();
    let client = bed.client();
    let name = |number: u32| format!("{number}").into_bytes();
    let count = 200_000;
    let start = later();
    for number in 0..count {
        let until = start + Duration::from_micros(number.into());
        assert!(bed.names.show_file(0, 1, &name(number), &status(number), until));
    }
    // The directory is still published, and most of the files that fit.
    let found = (0..count).filter(|&number| match look_up(&client, &name(number)) {
        Answer::Done(found) => found == status(number),
        _ => false,
    });
    let found: Vec<u32> = found.collect();
    assert!(found.contains(&(count - 1)) && found.iter().filter(|&&number| number < 10_000).count() < 10);
    assert!((30_000..=32_768).contains(&found.len()), "{} are left", found.len());
}

/// Once, a mixture of two states was returned.
#[test]
fn entries_being_written_are_not_used() {
    let bed = bed();
    let (client, is_over) = (bed.client(), AtomicBool::new(false));
    let (mut seen, mut last) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 1.. {
                show(&bed, 7, b"file", number);
                if number % 64 == 0 {
                    bed.names.hide_file(0, 7, b"file");
                }
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        while seen < 20_000 {
            match look_up(&client, b"dir/file") {
                Answer::Done(found) => {
                    assert_eq!(found, status(found.mode));
                    assert!(found.mode >= last, "time goes on");
                    (seen, last) = (seen + 1, found.mode);
                }
                other => assert_eq!(other, Answer::Failed(ENOENT)),
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn names_of_a_failed_agent_are_not_used() {
    let bed = bed();
    let client = bed.client();
    show(&bed, 1, b"file", 3);
    bed.server.stop();
    assert_eq!(look_up(&client, b"file"), Answer::Broken);
    assert!(client.is_broken());
}
