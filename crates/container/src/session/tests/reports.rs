//! Reports of finished ranks to rank 0, which writes the index.

use super::*;
use std::os::unix::fs::FileExt;

fn rank(dir: &Path, rank: u32) -> Session {
    let rank = Some(Rank { rank, size: 2, is_guess: false });
    Session::open(tree(dir), SessionOptions { is_collective: true, ..options(rank) }).expect("a session")
}

/// A report as another process decodes it.
fn sent(report: Option<Report>) -> Report {
    let bytes = report.and_then(|report| report.encode()).expect("it is small");
    assert_eq!([Report::decode(&bytes[1..]), Report::decode(&bytes[..bytes.len() - 1])], [None, None]);
    Report::decode(&bytes).expect("it is one")
}

/// Overwrites the records of rank 1; the header of its subfile stays.
fn spoil(dir: &Path) {
    let path = dir.join(String::from_utf8(subfile::name(1)).expect("a name"));
    let file = std::fs::File::options().write(true).open(path).expect("open");
    let size = file.metadata().expect("metadata").len() as usize - BLOCK_SIZE as usize;
    file.write_all_at(&vec![7; size], BLOCK_SIZE.into()).expect("written");
}

fn indexed(dir: &Path) -> Vec<Vec<u8>> {
    let container = Container::open(tree(dir)).expect("it opens");
    assert!(container.is_indexed());
    container.walk().expect("a walk").map(|entry| entry.expect("an entry").path).collect()
}

#[test]
fn reported_entries_are_indexed_without_a_scan() {
    for (is_sent, refreshes) in [(false, false), (true, false), (true, true)] {
        let dir = tempfile::tempdir().expect("a directory");
        let [first, second] = [0, 1].map(|number| rank(dir.path(), number));
        write_file(&first, b"first", b"1");
        for (name, content) in [(b"second", b"2"), (b"fourth", b"4")] {
            write_file(&second, name, content);
        }
        second.write_out().expect("written");
        if refreshes {
            first.refresh().expect("refreshed");
        }
        second.unlink(b"fourth").expect("removed");
        write_file(&first, b"fourth", b"of the first");
        let report = sent(second.finish_reporting().expect("finished"));
        spoil(dir.path());
        if is_sent {
            first.take_report(report);
        }
        first.finish().expect("finished");
        let all: [&[u8]; 3] = [b"first", b"fourth", b"second"];
        assert_eq!(indexed(dir.path()), if is_sent { &all[..] } else { &all[..2] });
        assert_eq!(read_file(&session(dir.path()), b"fourth").expect("read"), b"of the first");
    }
}

#[test]
fn a_subfile_with_reports_of_all_its_writers_is_not_opened_for_the_index() {
    let dir = tempfile::tempdir().expect("a directory");
    let [first, second] = [0, 1].map(|number| rank(dir.path(), number));
    write_file(&second, b"file", b"content");
    first.take_report(sent(second.finish_reporting().expect("finished")));
    let [there, away] = [&subfile::name(1)[..], b"away"]
        .map(|name| dir.path().join(String::from_utf8(name.to_vec()).expect("a name")));
    std::fs::rename(&there, &away).expect("moved");
    // The open of the subfile would fail now.
    std::fs::create_dir(&there).expect("made");
    first.finish().expect("finished");
    std::fs::remove_dir(&there).expect("removed");
    std::fs::rename(&away, &there).expect("moved back");
    assert_eq!(indexed(dir.path()), [b"file"]);
    assert_eq!(read_file(&session(dir.path()), b"file").expect("read"), b"content");
}

#[test]
fn a_lane_with_unknown_earlier_entries_is_scanned() {
    let dir = tempfile::tempdir().expect("a directory");
    let first = rank(dir.path(), 0);
    for name in [b"before", b"behind"] {
        let second = rank(dir.path(), 1);
        write_file(&second, name, b"content");
        let report = sent(second.finish_reporting().expect("finished"));
        if name == b"behind" {
            first.take_report(report);
        }
    }
    first.finish().expect("finished");
    assert_eq!(indexed(dir.path()), [b"before", b"behind"]);
}

#[test]
fn a_writer_whose_entry_was_replaced_makes_no_report() {
    let dir = tempfile::tempdir().expect("a directory");
    let [first, second] = [0, 1].map(|number| rank(dir.path(), number));
    write_file(&second, b"file", b"durable");
    second.sync().expect("synced");
    // The newer entry is not durable yet.
    write_file(&first, b"file", b"newer");
    first.write_out().expect("written");
    second.refresh().expect("refreshed");
    assert_eq!(second.finish_reporting(), Ok(None));
    first.finish().expect("finished");
    assert_eq!(indexed(dir.path()), [b"file"]);
}

#[test]
fn a_report_of_another_container_is_ignored() {
    let [dir, other] = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    let [first, second] = [0, 1].map(|number| rank(dir.path(), number));
    let [_, stranger] = [0, 1].map(|number| rank(other.path(), number));
    write_file(&second, b"second", b"2");
    write_file(&stranger, b"stranger", b"3");
    second.finish().expect("finished");
    first.take_report(sent(stranger.finish_reporting().expect("finished")));
    first.finish().expect("finished");
    assert_eq!(indexed(dir.path()), [b"second"]);
}

#[test]
fn a_read_only_session_makes_no_report() {
    let dir = tempfile::tempdir().expect("a directory");
    rank(dir.path(), 0).finish().expect("finished");
    let reader = Session::open(tree(dir.path()), SessionOptions { is_read_only: true, ..options(None) });
    assert_eq!(reader.expect("a session").finish_reporting(), Ok(None));
}
