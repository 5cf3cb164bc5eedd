//! A container is opened by another process's state.

use super::*;

/// The state as another process decodes it.
fn sent(container: &Container) -> Option<Snapshot> {
    container.snapshot().map(|snapshot| Snapshot::decode(&snapshot.encode()).expect("it can be read"))
}

#[test]
fn a_known_container_opens_without_opening_its_subfiles() {
    let bed = Bed::new(GEOMETRY);
    let snapshot = sent(&Container::open(bed.fs()).expect("it opens")).expect("it is empty");
    let empty = Container::open_snapshot(bed.fs(), &snapshot).expect("it is this one");
    assert!(paths(&empty).is_empty() && sent(&empty) == Some(snapshot));
    for subfile in [0, 1] {
        let mut writer = bed.writer(subfile, 0);
        put(&mut writer, format!("file{subfile}").as_bytes(), 1, b"content");
        writer.finish().expect("ended");
    }
    bed.close(8);
    let snapshot = sent(&Container::open(bed.fs()).expect("it opens")).expect("its index is complete");
    // The open of a subfile would fail now.
    std::fs::remove_file(bed.subfile(1)).expect("removed");
    std::fs::create_dir(bed.subfile(1)).expect("made");
    assert!(Container::open(bed.fs()).is_err());
    let container = Container::open_snapshot(bed.fs(), &snapshot).expect("it is this one");
    assert_eq!(paths(&container), [b"file0", b"file1"]);
    assert_eq!(content(&container, b"file0"), Ok(b"content".to_vec()));
}

/// A path of 1000 bytes.
fn long_path(number: usize) -> Vec<u8> {
    [format!("{number:0199}/").repeat(4), format!("{number:0200}")].concat().into_bytes()
}

/// A container with an index of this many files.
fn indexed(files: usize) -> Bed {
    let bed = Bed::new(GEOMETRY);
    let mut writer = bed.writer(0, 0);
    for number in 0..files {
        put(&mut writer, &long_path(number), 1, b"content");
    }
    writer.finish().expect("ended");
    bed.close(8);
    bed
}

#[test]
fn a_small_index_is_sent_whole_and_not_read_from_its_file() {
    let bed = indexed(200);
    let first = Container::open(bed.fs()).expect("it opens");
    let (all, snapshot) = (paths(&first), sent(&first).expect("its index is complete"));
    let index = bed.dir.path().join("index");
    let bytes = std::fs::read(&index).expect("read");
    let container = Container::open_snapshot(bed.fs(), &snapshot).expect("it is this one");
    // The index is not read from its file; a changed file makes the state stale.
    std::fs::write(&index, vec![0; bytes.len()]).expect("written");
    assert!(Container::open_snapshot(bed.fs(), &snapshot).is_none());
    assert_eq!(paths(&container), all);
    assert_eq!(content(&container, &long_path(199)), Ok(b"content".to_vec()));
    assert_eq!(sent(&container), Some(snapshot), "the state is passed on unchanged");
}

#[test]
fn a_large_index_is_read_by_each_process() {
    let bed = indexed(1200);
    let snapshot = sent(&Container::open(bed.fs()).expect("it opens")).expect("its index is complete");
    assert!(snapshot.encode().len() < 100);
    let container = Container::open_snapshot(bed.fs(), &snapshot).expect("it is this one");
    assert_eq!(paths(&container).len(), 1200);
    std::fs::write(bed.dir.path().join("index"), b"").expect("written");
    assert!(Container::open_snapshot(bed.fs(), &snapshot).is_none());
}

#[test]
fn a_container_that_needs_a_scan_has_no_state_to_send() {
    let bed = Bed::new(GEOMETRY);
    let mut writer = bed.writer(0, 0);
    put(&mut writer, b"one", 1, b"content");
    writer.sync().expect("synced");
    // Without an index.
    assert_eq!(sent(&Container::open(bed.fs()).expect("it opens")), None);
    // With one, while a writer may go on.
    bed.close(8);
    assert_eq!(sent(&Container::open(bed.fs()).expect("it opens")), None);
    put(&mut writer, b"two", 2, b"content");
    writer.finish().expect("ended");
    assert_eq!(sent(&Container::open(bed.fs()).expect("it opens")), None);
    bed.close(8);
    assert!(sent(&Container::open(bed.fs()).expect("it opens")).is_some());
    assert_eq!(sent(&bed.by_records()), None);
}

#[test]
fn a_stale_state_does_not_open_a_container() {
    let bed = Bed::new(GEOMETRY);
    let empty = sent(&Container::open(bed.fs()).expect("it opens")).expect("it is empty");
    let mut all = vec![empty];
    for name in [b"one", b"two"] {
        let mut writer = bed.writer(0, 0);
        put(&mut writer, name, 1, b"content");
        writer.finish().expect("ended");
        bed.close(8);
        all.push(sent(&Container::open(bed.fs()).expect("it opens")).expect("its index is complete"));
    }
    // Another index than it was then.
    assert!(Container::open_snapshot(bed.fs(), &all[1]).is_none());
    assert!(Container::open_snapshot(bed.fs(), &all[2]).is_some());
    // Another container, and none.
    let other = Bed { dir: tempfile::tempdir().expect("a directory"), superblock: bed.superblock };
    assert!(all.iter().all(|snapshot| Container::open_snapshot(other.fs(), snapshot).is_none()));
    Superblock { container: 7, ..bed.superblock }.create(&*other.fs()).expect("a container");
    assert!(all.iter().all(|snapshot| Container::open_snapshot(other.fs(), snapshot).is_none()));
}

#[test]
fn invalid_bytes_do_not_decode_to_a_state() {
    assert_eq!(
        [Snapshot::decode(&[]), Snapshot::decode(&[0; 48]), Snapshot::decode(&[7; 48])],
        [None, None, None]
    );
    let bed = Bed::new(GEOMETRY);
    let snapshot = Container::open(bed.fs()).expect("it opens").snapshot().expect("it is empty").encode();
    assert!((0..snapshot.len()).all(|size| Snapshot::decode(&snapshot[..size]).is_none()));
}
