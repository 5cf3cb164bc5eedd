//! Sessions: reads, writes, names, crashes, and compaction.

mod attributes;
mod external;
mod names;
mod reports;

use super::*;
use crate::format::subfile;
use crate::split_path;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use tameike_io::os::process::ask_until;
use tameike_io::shared::PosixTree;

const BLOCK_SIZE: u32 = 64 << 10;

fn options(rank: Option<Rank>) -> SessionOptions {
    SessionOptions {
        rank,
        is_collective: false,
        create: true,
        permissions: crate::session::Permissions::ByUmask,
        is_read_only: false,
        refresh: Refresh::Automatic,
        block_size: Some(BLOCK_SIZE),
        subfiles: None,
        codec: Codec::Zstd,
        streams: 0,
        umask: 0o022,
        uid: 7,
        gid: 8,
    }
}

fn tree(dir: &Path) -> Arc<dyn SharedFs> {
    Arc::new(PosixTree::open(dir).expect("a tree"))
}

fn session(dir: &Path) -> Session {
    Session::open(tree(dir), options(None)).expect("a session")
}

const CREATE: OpenFlags = OpenFlags { write: true, create: true, exclusive: false, truncate: true };
const UPDATE: OpenFlags = OpenFlags { write: true, create: true, exclusive: false, truncate: false };
const READ: OpenFlags = OpenFlags { write: false, create: false, exclusive: false, truncate: false };

fn write_file(session: &Session, path: &[u8], content: &[u8]) {
    let file = session.open_file(path, CREATE, 0o666).expect("opened");
    session.write(&file, content, Some(0)).expect("written");
    session.close(file).expect("closed");
}

fn read_file(session: &Session, path: &[u8]) -> Result<Vec<u8>> {
    let file = session.open_file(path, READ, 0)?;
    let mut content = vec![0; session.status(&file).size as usize + 1];
    let count = session.read_at(&file, &mut content, 0)?;
    content.truncate(count);
    session.close(file)?;
    Ok(content)
}

#[derive(Clone, Debug)]
enum Op {
    Write { file: usize, offset: u64, size: usize, seed: u8 },
    Append { file: usize, size: usize, seed: u8 },
    Truncate { file: usize, size: u64 },
    Read { file: usize, offset: u64, size: usize },
    Reopen { file: usize },
    SyncFile { file: usize },
    Sync,
    Rename { file: usize },
    RenameDir { file: usize },
    Unlink { file: usize },
}

fn op() -> impl Strategy<Value = Op> {
    let file = 0..3_usize;
    let size = prop_oneof![1..200_usize, 1000..40_000_usize, 250_000..400_000_usize];
    let offset = prop_oneof![0..500_u64, 0..400_000_u64];
    prop_oneof![
        6 => (file.clone(), offset.clone(), size.clone(), any::<u8>())
            .prop_map(|(file, offset, size, seed)| Op::Write { file, offset, size, seed }),
        4 => (file.clone(), size.clone(), any::<u8>()).prop_map(|(file, size, seed)| Op::Append { file, size, seed }),
        2 => (file.clone(), offset.clone()).prop_map(|(file, size)| Op::Truncate { file, size }),
        6 => (file.clone(), offset, size).prop_map(|(file, offset, size)| Op::Read { file, offset, size }),
        2 => file.clone().prop_map(|file| Op::Reopen { file }),
        1 => file.clone().prop_map(|file| Op::SyncFile { file }),
        1 => Just(Op::Sync),
        1 => file.clone().prop_map(|file| Op::Rename { file }),
        1 => file.clone().prop_map(|file| Op::RenameDir { file }),
        1 => file.prop_map(|file| Op::Unlink { file }),
    ]
}

/// An open file, its path, and its expected content.
struct Model {
    path: Vec<u8>,
    open: Option<OpenFile>,
    content: Vec<u8>,
}

fn write_model(content: &mut Vec<u8>, offset: usize, data: &[u8]) {
    content.resize(content.len().max(offset + data.len()), 0);
    content[offset..offset + data.len()].copy_from_slice(data);
}

fn apply(session: &Session, model: &mut Model, op: &Op, number: usize) {
    let Model { path, open, content } = model;
    let file = open.as_ref().expect("open");
    match *op {
        Op::Write { offset, size, seed, .. } => {
            let data = vec![seed; size];
            session.write(file, &data, Some(offset)).expect("written");
            write_model(content, offset as usize, &data);
        }
        Op::Append { size, seed, .. } => {
            let data = vec![seed; size];
            let end = session.write(file, &data, None).expect("written");
            content.extend(&data);
            assert_eq!(end, content.len() as u64);
        }
        Op::Truncate { size, .. } => {
            session.truncate(file, size).expect("truncated");
            content.resize(size as usize, 0);
        }
        Op::Read { offset, size, .. } => {
            let mut data = vec![0xee; size];
            let count = session.read_at(file, &mut data, offset).expect("read");
            let start = content.len().min(offset as usize);
            assert!(data[..count] == content[start..content.len().min(start + size)], "{op:?}");
        }
        Op::Reopen { .. } => {
            session.close(open.take().expect("open")).expect("closed");
            assert!(read_file(session, path).expect("there") == *content);
            *open = Some(session.open_file(path, UPDATE, 0o666).expect("opened"));
        }
        Op::SyncFile { .. } => session.sync_file(file).expect("synced"),
        Op::Sync => session.sync().expect("synced"),
        Op::Rename { .. } => {
            let to = format!("renamed/{number}").into_bytes();
            session.rename(path, &to).expect("renamed");
            assert_eq!(session.stat(path).expect_err("gone").errno, Errno::ENOENT);
            *path = to;
        }
        // See `rename_dir`, which affects several files.
        Op::RenameDir { .. } => {}
        Op::Unlink { .. } => {
            session.unlink(path).expect("removed");
            let mut data = vec![0; content.len()];
            assert_eq!(session.read_at(file, &mut data, 0).expect("still open"), content.len());
            assert!(data == *content);
            session.close(open.take().expect("open")).expect("closed");
            *open = Some(session.open_file(path, UPDATE, 0o666).expect("created again"));
            content.clear();
        }
    }
    let size = session.status(open.as_ref().expect("open")).size;
    assert_eq!(size, content.len() as u64);
}

/// Renames the directory of a file; files in it stay open.
fn rename_dir(session: &Session, files: &mut [Model], file: usize, number: usize) {
    let dir = split_path(&files[file].path).0.to_vec();
    let to = format!("moved/{number}/{number}").into_bytes();
    session.rename(&dir, &to).expect("renamed");
    assert_eq!(session.stat(&dir).expect_err("gone").errno, Errno::ENOENT);
    for Model { path, .. } in files {
        if let Some(rest) = path.strip_prefix(&dir[..]).filter(|rest| rest.starts_with(b"/")) {
            *path = [&to, rest].concat();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn files_hold_what_was_written(ops in proptest::collection::vec(op(), 1..50), streams in 0..4_usize) {
        let dir = tempfile::tempdir().expect("a directory");
        let session = Session::open(tree(dir.path()), SessionOptions { streams, ..options(None) }).expect("a session");
        let mut files: Vec<_> = (0..3)
            .map(|number| {
                let path = format!("dir{number}/file").into_bytes();
                let open = session.open_file(&path, CREATE, 0o666).expect("opened");
Model { path, open: Some(open), content: Vec::new() }
            })
            .collect();
        for (number, op) in ops.iter().enumerate() {
            let file = match op {
                Op::Write { file, .. } | Op::Append { file, .. } | Op::Truncate { file, .. } | Op::Read { file, .. } => *file,
                Op::Reopen { file } | Op::SyncFile { file } | Op::Rename { file } | Op::Unlink { file } => *file,
                Op::RenameDir { file } => {
                    rename_dir(&session, &mut files, *file, number);
                    *file
                }
                Op::Sync => 0,
            };
            apply(&session, &mut files[file], op, number);
        }
        for file in &mut files {
            session.close(file.open.take().expect("open")).expect("closed");
        }
        session.finish().expect("finished");
        let container = Container::open(tree(dir.path())).expect("it opens");
        prop_assert!(container.is_indexed());
        for Model { path, content, .. } in &files {
            let mut file = container.file(path).expect("there");
            let mut found = vec![0; content.len() + 1];
            let count = file.read_at(&mut found, 0).expect("read");
            prop_assert!(found[..count] == content[..], "{}", String::from_utf8_lossy(path));
        }
        let scanned = Container::open_by_records(tree(dir.path())).expect("it opens");
        prop_assert_eq!(scanned.damage(), &[]);
    }
}

#[test]
fn synced_files_are_visible_to_another_session() {
    let dir = tempfile::tempdir().expect("a directory");
    let (one, other) = (session(dir.path()), session(dir.path()));
    write_file(&one, b"a/b/c", b"first");
    assert_eq!(read_file(&one, b"a/b/c").expect("its own"), b"first");
    one.sync().expect("synced");
    assert_eq!(read_file(&other, b"a/b/c").expect("synced"), b"first");
    assert_eq!(other.read_dir(b"a").expect("a directory"), [(b"b".to_vec(), FileKind::Directory)]);
    // Each session changes a part.
    let file = other.open_file(b"a/b/c", UPDATE, 0).expect("opened");
    other.write(&file, b"F", Some(0)).expect("written");
    other.write(&file, b"!", None).expect("written");
    other.close(file).expect("closed");
    other.sync().expect("synced");
    one.refresh().expect("refreshed");
    assert_eq!(read_file(&one, b"a/b/c").expect("there"), b"First!");
    one.unlink(b"a/b/c").expect("removed");
    one.sync().expect("synced");
    other.refresh().expect("refreshed");
    assert_eq!(read_file(&other, b"a/b/c").expect_err("gone").errno, Errno::ENOENT);
    one.finish().expect("finished");
    assert!(!Container::open(tree(dir.path())).expect("it opens").has_index());
    other.finish().expect("finished");
    let container = Container::open(tree(dir.path())).expect("it opens");
    assert!(container.is_indexed());
    let left: Vec<_> = container.walk().expect("a walk").map(|entry| entry.expect("an entry").path).collect();
    assert_eq!(left, [&b"a"[..], b"a/b"]);
}

#[test]
fn errors_are_those_of_a_file_system() {
    let dir = tempfile::tempdir().expect("a directory");
    let session = session(dir.path());
    write_file(&session, b"d/file", b"x");
    let errno = |result: Result<OpenFile>| result.err().expect("it fails").errno;
    assert_eq!(errno(session.open_file(b"none", READ, 0)), Errno::ENOENT);
    assert_eq!(errno(session.open_file(b"d", READ, 0)), Errno::EISDIR);
    assert_eq!(errno(session.open_file(b"d", CREATE, 0)), Errno::EISDIR);
    assert_eq!(errno(session.open_file(b"d/file/x", CREATE, 0)), Errno::ENOTDIR);
    assert_eq!(errno(session.open_file(b"a//b", CREATE, 0)), Errno::EINVAL);
    let exclusive = OpenFlags { exclusive: true, ..CREATE };
    assert_eq!(errno(session.open_file(b"d/file", exclusive, 0)), Errno::EEXIST);
    assert_eq!(session.make_dir(b"d", 0o777).expect_err("there").errno, Errno::EEXIST);
    assert_eq!(session.unlink(b"d").expect_err("a directory").errno, Errno::EISDIR);
    assert_eq!(session.remove_dir(b"d").expect_err("not empty").errno, Errno::ENOTEMPTY);
    assert_eq!(session.read_dir(b"d/file").expect_err("a file").errno, Errno::ENOTDIR);
    let file = session.open_file(b"d/file", READ, 0).expect("opened");
    assert_eq!(session.write(&file, b"x", None).expect_err("for reading").errno, Errno::EBADF);
    // Also while it is open for writing.
    let writer = session.open_file(b"d/file", UPDATE, 0).expect("opened");
    let reader = session.open_file(b"d/file", READ, 0).expect("opened");
    assert_eq!(session.write(&reader, b"x", None).expect_err("for reading").errno, Errno::EBADF);
    assert_eq!(session.truncate(&reader, 0).expect_err("for reading").errno, Errno::EBADF);
    session.close(reader).expect("closed");
    session.write(&writer, b"y", Some(0)).expect("written");
    session.close(writer).expect("closed");
    session.unlink(b"d/file").expect("removed");
    session.remove_dir(b"d").expect("empty");
    assert_eq!(session.stat(b"d").expect_err("gone").errno, Errno::ENOENT);
    session.make_dir(b"x/y/z", 0o750).expect("made");
    assert_eq!(session.stat(b"x/y/z").expect("there").mode, 0o750);
    let parent = session.stat(b"x").expect("created with the child");
    assert_eq!((parent.kind, parent.uid, parent.gid), (FileKind::Directory, 7, 8));
}

#[test]
fn many_threads_and_sessions_write_at_the_same_time() {
    let dir = tempfile::tempdir().expect("a directory");
    std::thread::scope(|scope| {
        for number in 0..4_u32 {
            let dir = dir.path();
            scope.spawn(move || {
                let rank = Rank { rank: number, size: 4, is_guess: false };
                let session = Session::open(tree(dir), options(Some(rank))).expect("a session");
                std::thread::scope(|scope| {
                    for thread in 0..3 {
                        let session = &session;
                        scope.spawn(move || {
                            for file in 0..40_usize {
                                let path = format!("{number}/{thread}/{file}").into_bytes();
                                write_file(session, &path, &path.repeat(file * 97));
                            }
                        });
                    }
                });
                session.finish().expect("finished");
            });
        }
    });
    let container = Container::open(tree(dir.path())).expect("it opens");
    let mut seen = BTreeSet::new();
    for entry in container.walk().expect("a walk") {
        let entry = entry.expect("an entry");
        if entry.node.is_some_and(|node| node.kind == FileKind::File) {
            let mut content = vec![0; 1 << 20];
            let count = container.open_entry(&entry).expect("whole").read_at(&mut content, 0).expect("read");
            let number: usize = String::from_utf8_lossy(split_last(&entry.path)).parse().expect("a number");
            assert!(content[..count] == entry.path.repeat(number * 97));
            seen.insert(entry.path);
        }
    }
    assert_eq!(seen.len(), 4 * 3 * 40);
}

fn split_last(path: &[u8]) -> &[u8] {
    path.rsplit(|&byte| byte == b'/').next().unwrap_or_default()
}

#[test]
fn a_rank_waits_for_rank_0_and_no_rank_begins_twice() {
    let dir = tempfile::tempdir().expect("a directory");
    let rank = |rank| options(Some(Rank { rank, size: 2, is_guess: false }));
    std::thread::scope(|scope| {
        let dir = dir.path();
        let second = scope.spawn(move || Session::open(tree(dir), rank(1)).expect("a session"));
        let pause = std::time::Duration::from_millis(50);
        assert!(ask_until(pause, pause, || None::<()>).is_none());
        let first = Session::open(tree(dir), rank(0)).expect("a session");
        write_file(&first, b"0", b"0");
        write_file(&second.join().expect("no panic"), b"1", b"1");
        let twice = Session::open(tree(dir), rank(0)).expect("a session");
        let taken = twice.open_file(b"x", CREATE, 0o666).err().expect("taken");
        assert!(taken.errno == Errno::EBUSY && taken.to_string().contains("rank 0"), "{taken}");
        // A child inherits its parent's environment, and gets another lane.
        let guess = options(Some(Rank { rank: 0, size: 2, is_guess: true }));
        let child = Session::open(tree(dir), guess).expect("a session");
        write_file(&child, b"child", b"c");
        child.finish().expect("finished");
    });
    let none = SessionOptions { create: false, ..options(None) };
    let empty = tempfile::tempdir().expect("a directory");
    let fault = Session::open(tree(empty.path()), none).err().expect("no container");
    assert!(fault.to_string().contains("no container"), "{fault}");
}

#[test]
fn rank_0_writes_the_index_of_a_collective_session() {
    let dir = tempfile::tempdir().expect("a directory");
    let begin = |rank| {
        let rank = Some(Rank { rank, size: 3, is_guess: false });
        Session::open(tree(dir.path()), SessionOptions { is_collective: true, ..options(rank) })
    };
    let [first, second, third] = [0, 1, 2].map(|rank| begin(rank).expect("a session"));
    for (name, session) in [(b"a", &first), (b"b", &second), (b"c", &third)] {
        write_file(session, name, name);
    }
    // Other ranks do not check for remaining writers and write no index.
    first.sync().expect("synced");
    let has_index = || Container::open(tree(dir.path())).expect("it opens").has_index();
    for session in [third, second] {
        session.finish().expect("finished");
        assert!(!has_index());
    }
    first.finish().expect("finished");
    let container = Container::open(tree(dir.path())).expect("it opens");
    assert!(container.is_indexed());
    let seen = session(dir.path());
    for name in [b"a", b"b", b"c"] {
        assert_eq!(read_file(&seen, name).expect("read"), name);
    }
}

#[test]
fn ranks_open_by_the_state_of_rank_0() {
    let dir = tempfile::tempdir().expect("a directory");
    for round in [b"one", b"two"] {
        let options = |rank| {
            let rank = Some(Rank { rank, size: 3, is_guess: false });
            SessionOptions { is_collective: true, ..options(rank) }
        };
        let first = Session::open(tree(dir.path()), options(0)).expect("a session");
        let snapshot = first.snapshot().expect("it is empty, or has an index of all");
        let join = |rank| Session::join(tree(dir.path()), options(rank), &snapshot).expect("a session");
        let others = [1, 2].map(join);
        for (rank, session) in (0..).zip([&first].into_iter().chain(&others)) {
            write_file(session, format!("{rank}").as_bytes(), round);
            assert_eq!(read_file(session, format!("{rank}").as_bytes()).expect("read"), round);
        }
        others.into_iter().for_each(|session| session.finish().expect("finished"));
        first.finish().expect("finished");
        // A reader that joins sees the files of all ranks.
        let seen = session(dir.path());
        let reader = SessionOptions { is_read_only: true, ..options(1) };
        let reader = Session::join(tree(dir.path()), reader, &seen.snapshot().expect("it has an index"))
            .expect("a session");
        for rank in 0..3 {
            assert_eq!(read_file(&reader, format!("{rank}").as_bytes()).expect("read"), round);
        }
    }
    let snapshot = session(dir.path()).snapshot().expect("it has an index");
    let read_only = |rank| {
        let rank = Some(Rank { rank, size: 3, is_guess: false });
        SessionOptions { is_collective: true, is_read_only: true, create: false, ..options(rank) }
    };
    // A directory without a container.
    let elsewhere = tempfile::tempdir().expect("a directory");
    assert!(
        Session::join(tree(elsewhere.path()), SessionOptions { rank: None, ..read_only(1) }, &snapshot)
            .is_err()
    );
    // A subfile that is not needed is not opened.
    let subfile = dir.path().join(String::from_utf8(subfile::name(2)).expect("a name"));
    std::fs::remove_file(&subfile).expect("removed");
    std::fs::create_dir(&subfile).expect("made");
    assert!(Session::open(tree(dir.path()), read_only(1)).is_err());
    let reader = Session::join(tree(dir.path()), read_only(1), &snapshot).expect("a session");
    assert_eq!(read_file(&reader, b"0").expect("read"), b"two");
}

fn contents(dir: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let container = Container::open(tree(dir)).expect("it opens");
    let mut found = BTreeMap::new();
    for entry in container.walk().expect("a walk") {
        let entry = entry.expect("an entry");
        let mut reader = container.open_entry(&entry).expect("whole");
        let mut content = vec![0; reader.node().size as usize];
        if reader.node().kind == FileKind::File {
            reader.read_at(&mut content, 0).expect("whole");
        }
        found.insert(entry.path, content);
    }
    found
}

fn compact(dir: &Path) -> Result<crate::Compacted> {
    crate::compact(&tree(dir), Codec::None, 3, &crate::Tally::default())
}

#[test]
fn compaction_keeps_live_files_and_reclaims_space() {
    let dir = tempfile::tempdir().expect("a directory");
    let plain = || SessionOptions { codec: Codec::None, ..options(None) };
    for round in 0..4_u8 {
        let session = Session::open(tree(dir.path()), plain()).expect("a session");
        for file in 0..20_u8 {
            write_file(
                &session,
                format!("d{}/{file}", file % 3).as_bytes(),
                &vec![round ^ file; 30_000 + usize::from(file)],
            );
        }
        // More than a block, with extents of several incarnations.
        let large = session.open_file(b"large", UPDATE, 0o600).expect("opened");
        session.write(&large, &vec![round; 300_000], Some(200_000 * u64::from(round))).expect("written");
        session.close(large).expect("closed");
        session.unlink(format!("d0/{}", 3 * round).as_bytes()).expect("removed");
        session.finish().expect("finished");
    }
    let before = contents(dir.path());
    let writing = session(dir.path());
    write_file(&writing, b"last", b"x");
    assert_eq!(compact(dir.path()).expect_err("it is written to").errno, Errno::EBUSY);
    writing.unlink(b"last").expect("removed");
    writing.finish().expect("finished");
    let mut old = Container::open_by_records(tree(dir.path())).expect("it opens");
    let done = compact(dir.path()).expect("compacted");
    assert!(done.after < done.before / 2, "{done:?}");
    assert!(contents(dir.path()) == before);
    let container = Container::open_by_records(tree(dir.path())).expect("it opens");
    assert_eq!((container.damage(), container.removed().count()), (&[][..], 0));
    // An open container follows the compaction.
    old.refresh().expect("refreshed");
    assert_eq!(old.walk().expect("a walk").count(), before.len());
    // Writers continue, and it is compacted again.
    let session = session(dir.path());
    write_file(&session, b"new", b"y");
    session.finish().expect("finished");
    compact(dir.path()).expect("compacted");
    let mut expected = before;
    expected.insert(b"new".to_vec(), b"y".to_vec());
    assert!(contents(dir.path()) == expected);
}

/// The container is the same for any number of removed old subfiles.
#[test]
fn interrupted_compaction_loses_nothing_and_restores_nothing_removed() {
    let dir = tempfile::tempdir().expect("a directory");
    for round in 0..3_u8 {
        let rank = Some(Rank { rank: u32::from(round), size: 24, is_guess: false });
        let session = Session::open(tree(dir.path()), options(rank)).expect("a session");
        (0..6_u8).for_each(|file| write_file(&session, &[b'f', b'0' + file], &vec![round; 1000]));
        session.unlink(&[b'f', b'0' + round]).expect("removed");
        session.finish().expect("finished");
    }
    let before = contents(dir.path());
    assert_eq!(before.len(), 5);
    let rewritten = crate::compact::rewrite(&tree(dir.path()), Codec::None, 2, &crate::Tally::default())
        .expect("rewritten");
    assert_eq!(rewritten.old.len(), 3);
    for number in rewritten.old.iter().chain([&rewritten.tombs]) {
        assert!(contents(dir.path()) == before, "before {number} was removed");
        let scanned = Container::open_by_records(tree(dir.path())).expect("it opens");
        assert!(scanned.damage().is_empty() && scanned.walk().expect("a walk").count() == before.len());
        tree(dir.path()).unlink(&subfile::name(*number)).expect("removed");
    }
    assert!(contents(dir.path()) == before);
}

/// A file written by one call is kept with its entry. A file that continues goes to the lane.
#[test]
fn a_file_of_one_write_is_one_record() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = SessionOptions { block_size: Some(4 << 20), codec: Codec::None, ..options(None) };
    let session = Session::open(tree(dir.path()), options).expect("a session");
    write_file(&session, b"once", &vec![1; 1 << 20]);
    let larger = session.open_file(b"larger", CREATE, 0o666).expect("opened");
    for _ in 0..4 {
        session.write(&larger, &vec![2; 512 << 10], None).expect("written");
    }
    session.close(larger).expect("closed");
    session.finish().expect("finished");
    let container = Container::open(tree(dir.path())).expect("it opens");
    let sizes: BTreeMap<_, _> = container
        .walk()
        .expect("a walk")
        .map(|entry| entry.expect("an entry"))
        .map(|entry| (entry.path, entry.record_size))
        .collect();
    assert!(sizes[&b"once"[..]] > 1 << 20 && sizes[&b"larger"[..]] < 1 << 10, "{sizes:?}");
}

/// A session claims a lane with entries added after its last refresh: its index contains them.
#[test]
fn entries_of_a_lane_claimed_from_another_session_are_indexed() {
    let dir = tempfile::tempdir().expect("a directory");
    session(dir.path()).finish().expect("ended");
    let options = SessionOptions { refresh: Refresh::OnRequest, ..options(None) };
    let open = || Session::open(tree(dir.path()), options.clone()).expect("a session");
    let (first, second) = (open(), open());
    write_file(&first, b"first", b"one");
    first.finish().expect("ended");
    write_file(&second, b"second", b"two");
    second.finish().expect("ended");
    let container = Container::open(tree(dir.path())).expect("opened");
    assert!(container.has_index() && container.ends().iter().any(|end| end.incarnation() == 2));
    let paths: Vec<_> =
        container.walk().expect("a walk").map(|entry| entry.expect("an entry").path).collect();
    assert_eq!(paths, [b"first".to_vec(), b"second".to_vec()]);
}
