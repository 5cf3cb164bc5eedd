//! Symbolic links, hard links and renames.

use super::*;
use crate::FIRST_OF_HOSTS;
use tameike_core::Timestamp;

fn errno<T>(result: Result<T>) -> Errno {
    result.err().expect("it fails").errno
}

/// All paths below a directory, as a session lists them.
fn walk(session: &Session, dir: &[u8]) -> BTreeSet<Vec<u8>> {
    let mut seen = BTreeSet::new();
    for (name, kind) in session.read_dir(dir).expect("a directory") {
        let path = if dir.is_empty() { name } else { [dir, b"/", &name].concat() };
        if kind == FileKind::Directory {
            seen.extend(walk(session, &path));
        }
        seen.insert(path);
    }
    seen
}

#[test]
fn symbolic_links_are_followed_within_the_container() {
    let dir = tempfile::tempdir().expect("a directory");
    let session = session(dir.path());
    write_file(&session, b"a/b/file", b"content");
    for (path, target) in [
        ("a/near", "b/file"),
        ("c/up", "../a/./near"),
        ("c/dir", "../a/b"),
        ("c/root", ".."),
        ("c/none", "../a/b/none"),
        ("c/loop", "loop"),
        ("c/out", "../../etc/passwd"),
        ("c/absolute", "/etc/passwd"),
    ] {
        session.make_symlink(path.as_bytes(), target.as_bytes()).expect("made");
        assert_eq!(session.read_link(path.as_bytes()).expect("a link"), target.as_bytes());
        let link = session.stat(path.as_bytes()).expect("a link");
        assert_eq!((link.kind, link.size, link.mode), (FileKind::Symlink, target.len() as u64, 0o777));
    }
    for path in ["a/near", "c/up", "c/dir/file", "c/root/a/near", "c/root/c/root/c/dir/file"] {
        assert_eq!(read_file(&session, path.as_bytes()).expect("followed"), b"content");
        assert_eq!(session.resolve(path.as_bytes()).expect("followed"), b"a/b/file");
        assert_eq!(session.stat_followed(path.as_bytes()).expect("there").size, 7);
    }
    assert_eq!(session.stat_followed(b"c/root").expect("the root").kind, FileKind::Directory);
    assert_eq!(errno(session.open_file(b"c/root", READ, 0)), Errno::EISDIR);
    assert_eq!(errno(session.open_file(b"c/loop", READ, 0)), Errno::ELOOP);
    for path in [&b"c/out"[..], b"c/absolute"] {
        let fault = session.resolve(path).expect_err("outside");
        assert!(
            fault.errno == Errno::ENOENT && fault.to_string().contains("out of the container"),
            "{fault}"
        );
    }
    // Files are created at the target of a link.
    assert_eq!(errno(session.open_file(b"c/none", READ, 0)), Errno::ENOENT);
    let exclusive = OpenFlags { exclusive: true, ..CREATE };
    assert_eq!(errno(session.open_file(b"c/none", exclusive, 0)), Errno::EEXIST);
    write_file(&session, b"c/none", b"made");
    write_file(&session, b"c/dir/new/er", b"too");
    assert_eq!(read_file(&session, b"a/b/none").expect("there"), b"made");
    assert_eq!(read_file(&session, b"a/b/new/er").expect("there"), b"too");
    // A file open for writing is found by all paths through links.
    let file = session.open_file(b"c/up", UPDATE, 0).expect("opened");
    session.write(&file, b"C", Some(0)).expect("written");
    assert_eq!(read_file(&session, b"a/near").expect("there"), b"Content");
    session.close(file).expect("closed");
    assert_eq!(errno(session.make_symlink(b"a/b", b"x")), Errno::EEXIST);
    assert_eq!(errno(session.make_symlink(b"x", b"")), Errno::ENOENT);
    assert_eq!(errno(session.make_symlink(b"x", &[b'x'; 5000])), Errno::ENAMETOOLONG);
    for path in [&b""[..], b"a", b"a/b/file"] {
        assert_eq!(errno(session.read_link(path)), Errno::EINVAL);
    }
    let pipe =
        Node { mtime: Timestamp { seconds: 9, nanoseconds: 9 }, ..session.new_node(FileKind::Fifo, 0o640) };
    session.make(b"pipe", pipe.clone()).expect("made");
    assert_eq!(session.stat(b"pipe").expect("there"), Brief::of(&pipe));
    assert_eq!(errno(session.make(b"pipe", pipe.clone())), Errno::EEXIST);
    assert_eq!(errno(session.make(b"x", Node { kind: FileKind::File, ..pipe })), Errno::EINVAL);
    assert_eq!(errno(session.read_link(b"none")), Errno::ENOENT);
    session.unlink(b"c/up").expect("the link is removed");
    assert_eq!(read_file(&session, b"a/b/file").expect("and not the file"), b"Content");
}

#[test]
fn a_hard_link_is_an_independent_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let session = session(dir.path());
    for size in [0, 5, 200_000_usize] {
        let content = vec![7; size];
        let (one, other) = (format!("one-{size}").into_bytes(), format!("d/other-{size}").into_bytes());
        let file = session.open_file(&one, CREATE, 0o640).expect("opened");
        session.write(&file, &content, Some(0)).expect("written");
        // While it is open.
        session.link(&one, &other).expect("linked");
        session.write(&file, b"more", None).expect("written");
        session.close(file).expect("closed");
        assert!(read_file(&session, &other).expect("there") == content);
        assert_eq!(read_file(&session, &one).expect("there").len(), size + 4);
        assert_eq!(session.stat(&other).expect("there").mode, 0o640);
        session.unlink(&one).expect("removed");
        assert!(read_file(&session, &other).expect("still there") == content);
    }
    assert_eq!(errno(session.link(b"d", b"e")), Errno::EPERM);
    assert_eq!(errno(session.link(b"none", b"e")), Errno::ENOENT);
    assert_eq!(errno(session.link(b"d/other-0", b"d/other-5")), Errno::EEXIST);
    assert_eq!(errno(session.link(b"d/other-0", b"d")), Errno::EEXIST);
    session.finish().expect("finished");
    assert_eq!(contents(dir.path()).len(), 4);
    compact(dir.path()).expect("compacted");
    assert!(contents(dir.path())[&b"d/other-200000"[..]] == vec![7; 200_000]);
}

#[test]
fn a_directory_is_renamed_with_everything_below_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let session = session(dir.path());
    for number in 0..40 {
        write_file(
            &session,
            format!("old/{}/{number}", number % 3).as_bytes(),
            &vec![number; 10 * usize::from(number)],
        );
    }
    // Neighbours in the order of names, which are not renamed.
    for path in ["old!/x", "old-/x", "old0", "ol/x"] {
        write_file(&session, path.as_bytes(), b"stays");
    }
    session.make_symlink(b"old/link", b"0/3").expect("made");
    session.make_dir(b"empty", 0o700).expect("made");
    let open = session.open_file(b"old/1/open", CREATE, 0o600).expect("opened");
    session.write(&open, b"before", None).expect("written");
    let before = walk(&session, b"old");
    session.rename(b"old", b"empty").expect("the target is empty");
    session.write(&open, b" and after", None).expect("written");
    session.rename(b"empty", b"new/parent").expect("and again");
    let after: BTreeSet<Vec<u8>> = before.iter().map(|path| [b"new/parent", &path[3..]].concat()).collect();
    assert!(walk(&session, b"new/parent") == after);
    session.close(open).expect("closed");
    assert_eq!(errno(session.stat(b"old")), Errno::ENOENT);
    assert_eq!(read_file(&session, b"new/parent/1/open").expect("there"), b"before and after");
    assert_eq!(read_file(&session, b"new/parent/link").expect("there"), [3; 30]);
    assert_eq!(walk(&session, b"").len(), after.len() + 2 + 7);
    // The old path can be used again.
    write_file(&session, b"old/1/2", b"new");
    assert_eq!(errno(session.rename(b"new", b"new/parent/x")), Errno::EINVAL);
    assert_eq!(errno(session.rename(b"new", b"old")), Errno::ENOTEMPTY);
    assert_eq!(errno(session.rename(b"new/parent", b"new")), Errno::ENOTEMPTY);
    assert_eq!(errno(session.rename(b"new", b"old0")), Errno::ENOTDIR);
    assert_eq!(errno(session.rename(b"old0", b"new")), Errno::EISDIR);
    assert_eq!(errno(session.rename(b"none", b"new")), Errno::ENOENT);
    assert_eq!(errno(session.rename(b"new/parent/1", &[b'x'; 256])), Errno::ENAMETOOLONG);
    session.rename(b"new", b"new").expect("nothing to do");
    session.finish().expect("finished");
    let scanned = Container::open_by_records(tree(dir.path())).expect("it opens");
    assert_eq!(scanned.damage(), &[]);
    assert_eq!(scanned.walk().expect("a walk").count(), after.len() + 2 + 7 + 3);
}

/// A process that crashes during a rename of a directory has put the first of its records.
#[test]
fn an_interrupted_rename_of_a_directory_loses_no_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let session = session(dir.path());
    let files: Vec<_> = (0..12_u8).map(|number| format!("{}/{number}", number % 3).into_bytes()).collect();
    for (number, path) in (0_u8..).zip(&files) {
        write_file(&session, &[b"old/", &path[..]].concat(), &[number; 100]);
    }
    session.sync().expect("synced");
    let subfile = dir.path().join(std::str::from_utf8(&subfile::name(FIRST_OF_HOSTS)).expect("a name"));
    let before = std::fs::read(&subfile).expect("read");
    session.rename(b"old", b"new").expect("renamed");
    session.sync().expect("synced");
    drop(session);
    let after = std::fs::read(&subfile).expect("read");
    let mut moved = BTreeSet::new();
    for end in (before.len()..after.len()).step_by(64).chain([after.len()]) {
        std::fs::write(&subfile, &after[..end]).expect("written");
        let container = Container::open(tree(dir.path())).expect("it opens");
        let mut count = 0;
        for (number, path) in (0_u8..).zip(&files) {
            let found = container.file(&[b"new/", &path[..]].concat());
            count += u32::from(found.is_ok());
            let mut file =
                found.or_else(|_| container.file(&[b"old/", &path[..]].concat())).expect("one of them");
            let mut content = [0; 101];
            assert!(file.read_at(&mut content, 0).expect("whole") == 100 && content[99] == number);
        }
        moved.insert(count);
    }
    assert_eq!(moved.len(), 13, "the files are renamed one by one");
    assert!(contents(dir.path()).keys().all(|path| path.starts_with(b"new")));
}

#[test]
fn a_session_refreshes_on_request() {
    let dir = tempfile::tempdir().expect("a directory");
    let one = session(dir.path());
    let asked = SessionOptions { refresh: Refresh::OnRequest, ..options(None) };
    let other = Session::open(tree(dir.path()), asked).expect("a session");
    write_file(&one, b"dir/file", b"content");
    // Nothing has been written.
    other.refresh().expect("refreshed");
    assert_eq!(errno(other.stat(b"dir/file")), Errno::ENOENT);
    one.write_out().expect("written");
    assert_eq!(errno(other.stat(b"dir/file")), Errno::ENOENT);
    assert_eq!(errno(read_file(&other, b"dir/file")), Errno::ENOENT);
    assert_eq!(other.read_dir(b"").expect("the root"), []);
    other.refresh().expect("refreshed");
    assert_eq!(read_file(&other, b"dir/file").expect("there"), b"content");
    assert_eq!(other.read_dir(b"").expect("the root").len(), 1);
    // The directory was replaced by a symbolic link.
    one.rename(b"dir", b"else").expect("renamed");
    one.make_symlink(b"dir", b"else").expect("made");
    one.write_out().expect("written");
    other.refresh().expect("refreshed");
    write_file(&other, b"dir/new", b"through it");
    assert_eq!(read_file(&other, b"else/new").expect("there"), b"through it");
}
