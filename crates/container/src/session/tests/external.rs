//! External content, in a golden container.

use super::{CREATE, READ, UPDATE, session, tree};
use crate::verify::unless_changed;
use crate::{Codec, Container, Format, Tally, compact, export, verify};
use std::fs;
use std::path::Path;
use tameike_core::Errno;

/// Size of the largest file.
const SIZE: u64 = 300_000;

fn copy() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../container/tests/golden/container-1-packed");
    for name in fs::read_dir(golden).expect("it is there") {
        let name = name.expect("a name");
        fs::copy(name.path(), dir.path().join(name.file_name())).expect("copied");
    }
    dir
}

#[test]
fn external_content_is_readable_and_cannot_be_changed() {
    let dir = copy();
    let session = session(dir.path());
    assert_eq!(session.stat(b"outside").expect("there").size, SIZE);
    assert_eq!(session.stat_followed(b"leaving").expect("there").size, 10_000);
    assert_eq!(session.stat(b"lost").expect("there").size, 0);
    let file = session.open_file(b"outside", READ, 0).expect("it opens");
    let (mut shown, mut sum) = (0, 0);
    let mut show = |at, bytes: &[u8]| {
        assert_eq!(at, shown);
        shown += bytes.len() as u64;
        sum += bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        Ok(())
    };
    session.visit(&file, &mut show).expect("read");
    assert_eq!((session.status(&file).size, shown), (SIZE, SIZE));
    assert_eq!(sum, (0..SIZE).map(|at| at * at % 251).sum::<u64>());
    for flags in [CREATE, UPDATE] {
        let refused = session.open_file(b"outside", flags, 0o600).map(drop).expect_err("it is a job's");
        assert_eq!(refused.errno, Errno::EROFS, "{refused}");
    }
    assert_eq!(session.link(b"outside", b"other").expect_err("it has one name").errno, Errno::EROFS);
    // Entries that are still in the writer's buffer.
    for flags in [CREATE, UPDATE, CREATE] {
        let file = session.open_file(b"empty", flags, 0o600).expect("made");
        session.close(file).expect("closed");
        assert_eq!(session.stat(b"empty").expect("there").size, 0);
        assert_eq!(session.stat_followed(b"empty").expect("there").size, 0);
    }
    session.finish().expect("finished");
}

#[test]
fn a_file_removed_during_verification_is_not_damaged() {
    let dir = copy();
    let mut container = Container::open(tree(dir.path())).expect("it opens");
    let files = vec![(b"lost".to_vec(), String::new()), (b"outside".to_vec(), String::new())];
    let still = unless_changed(&mut container, files.clone());
    assert_eq!(still, files);
    let session = session(dir.path());
    session.unlink(b"lost").expect("removed");
    session.finish().expect("finished");
    assert_eq!(unless_changed(&mut container, still), files[1..]);
}

#[test]
fn compaction_keeps_external_content() {
    let dir = copy();
    let fs = tree(dir.path());
    for is_compacted in [false, true] {
        if is_compacted {
            compact(&fs, Codec::None, 2, &Tally::default()).expect("compacted");
        }
        let container = Container::open(fs.clone()).expect("it opens");
        let mut file = container.file(b"outside").expect("it opens");
        let mut bytes = vec![0; SIZE as usize];
        assert_eq!(file.read_at(&mut bytes, 0).expect("read"), bytes.len());
        assert!((0..).zip(bytes).all(|(at, byte)| at * at % 251 == u64::from(byte)));
        assert_eq!(container.file(b"arrived").map(drop).expect_err("it was promoted").errno, Errno::ENOENT);
        let found = verify(&fs, 2, false, &Tally::default()).expect("verified");
        let [(path, why)] = &found.files[..] else { panic!("{:?}", found.files) };
        assert!(path == b"lost" && why.contains("tameike recover"), "{why}");
        assert!(found.damage.is_empty() && found.index.is_empty());
        let (mut archive, tally) = (Vec::new(), Tally::default());
        export(&container, &mut archive, Format::Tar, 2, &tally).expect("exported");
        assert_eq!((tally.files(), tally.faults().len()), (3, 2), "{:?}", tally.faults());
        assert!(archive.len() > SIZE as usize + 10_300);
    }
}
