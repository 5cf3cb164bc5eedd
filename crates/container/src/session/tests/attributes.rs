//! Attributes and extended attributes.

use super::*;
use tameike_core::Timestamp;
use tameike_core::attr::{AttrChange, SetTime};

const THEN: Timestamp = Timestamp { seconds: 1_000_000_007, nanoseconds: 9 };

fn to_then() -> AttrChange {
    AttrChange { mtime: Some(SetTime::To(THEN)), ..AttrChange::default() }
}

fn to_mode(mode: u16) -> AttrChange {
    AttrChange { mode: Some(mode), ..AttrChange::default() }
}

#[test]
fn attributes_are_set_on_files_of_any_kind() {
    let dir = tempfile::tempdir().expect("a directory");
    let session = session(dir.path());
    write_file(&session, b"dir/small", b"small");
    write_file(&session, b"dir/large", &[7; 300_000]);
    session.make_symlink(b"dir/link", b"small").expect("made");
    let open = session.open_file(b"dir/open", CREATE, 0o666).expect("opened");
    let paths = [&b"dir"[..], b"dir/small", b"dir/large", b"dir/link", b"dir/open"];
    for path in paths {
        let before = session.stat(path).expect("there");
        let change = AttrChange { mode: Some(0o2751), atime: Some(SetTime::To(THEN)), ..to_then() };
        session.set_attributes(path, &change).expect("set");
        session.set_attributes(path, &AttrChange { gid: Some(9), ..AttrChange::default() }).expect("set");
        let after = session.stat(path).expect("there");
        assert_eq!(after, Brief { mode: 0o2751, gid: 9, mtime: THEN, ..before });
        let now = AttrChange { mtime: Some(SetTime::Now), uid: Some(3), ..AttrChange::default() };
        session.set_attributes(path, &now).expect("set");
        let after = session.stat(path).expect("there");
        assert!(after.mtime > before.mtime && (after.uid, after.gid) == (3, 9));
    }
    assert_eq!(session.stat_followed(b"dir/link").expect("there").mode, 0o2751);
    session.close(open).expect("closed");
    assert_eq!(read_file(&session, b"dir/small").expect("there"), b"small");
    assert!(read_file(&session, b"dir/large").expect("there") == [7; 300_000]);
    let errno = |path: &[u8], change| session.set_attributes(path, &change).expect_err("refused").errno;
    assert_eq!(errno(b"", to_then()), Errno::EPERM);
    assert_eq!(errno(b"none", to_then()), Errno::ENOENT);
    assert_eq!(errno(b"dir", AttrChange { size: Some(0), ..AttrChange::default() }), Errno::EINVAL);
    session.finish().expect("finished");
    let container = Container::open(tree(dir.path())).expect("it opens");
    for path in paths {
        let node = container.file(path).expect("there").node().clone();
        assert_eq!((node.mode, node.uid, node.gid, node.atime), (0o2751, 3, 9, THEN));
    }
}

#[test]
fn an_mtime_that_was_set_stays_until_the_next_write() {
    let dir = tempfile::tempdir().expect("a directory");
    let session = session(dir.path());
    let file = session.open_file(b"file", CREATE, 0o666).expect("opened");
    session.write(&file, b"content", None).expect("written");
    session.set_file_attributes(&file, &to_then()).expect("set");
    session.sync_file(&file).expect("synced");
    assert_eq!(session.status(&file).mtime, THEN);
    session.close(file).expect("closed");
    assert_eq!(session.stat(b"file").expect("there").mtime, THEN);
    // Open for writing, without a write.
    let file = session.open_file(b"file", UPDATE, 0).expect("opened");
    session.set_file_attributes(&file, &to_mode(0o600)).expect("set");
    session.close(file).expect("closed");
    let attributes = session.stat(b"file").expect("there");
    assert_eq!((attributes.mtime, attributes.mode), (THEN, 0o600));
    // Open for reading only.
    let file = session.open_file(b"file", READ, 0).expect("opened");
    session.set_file_attributes(&file, &to_mode(0o640)).expect("set");
    assert_eq!((session.status(&file).mode, session.stat(b"file").expect("there").mode), (0o640, 0o640));
    session.close(file).expect("closed");
    let file = session.open_file(b"file", UPDATE, 0).expect("opened");
    session.write(&file, b"more", None).expect("written");
    assert!(session.status(&file).mtime > THEN);
    session.close(file).expect("closed");
    assert!(session.stat(b"file").expect("there").mtime > THEN);
    // Truncation keeps permissions and owner.
    let change = AttrChange { mode: Some(0o666), uid: Some(3), ..to_then() };
    session.set_attributes(b"file", &change).expect("set");
    write_file(&session, b"file", b"new");
    let attributes = session.stat(b"file").expect("there");
    assert!((attributes.mode, attributes.uid) == (0o666, 3) && attributes.mtime > THEN);
}

#[test]
fn extended_attributes_are_set_and_kept() {
    let dir = tempfile::tempdir().expect("a directory");
    let session = session(dir.path());
    let one = |value: &[u8]| vec![Xattr { name: b"user.one".to_vec(), value: value.to_vec() }];
    let open = session.open_file(b"dir/file", CREATE, 0o666).expect("opened");
    session.set_xattrs(b"dir/file", one(b"open")).expect("set");
    assert_eq!(session.xattrs(b"dir/file").expect("there"), one(b"open"));
    session.write(&open, b"content", None).expect("written");
    session.close(open).expect("closed");
    assert_eq!(session.xattrs(b"dir/file").expect("there"), one(b"open"));
    session.set_xattrs(b"dir", one(b"closed")).expect("set");
    session.set_xattrs(b"dir/file", one(&[1; 1000])).expect("set");
    session.rename(b"dir", b"moved").expect("renamed");
    assert_eq!(session.xattrs(b"moved").expect("there"), one(b"closed"));
    assert_eq!(session.xattrs(b"moved/file").expect("there"), one(&[1; 1000]));
    assert_eq!(read_file(&session, b"moved/file").expect("there"), b"content");
    assert_eq!(session.xattrs(b"").expect("the root"), []);
    let errno = |path: &[u8], xattrs| session.set_xattrs(path, xattrs).expect_err("refused").errno;
    assert_eq!(errno(b"", one(b"")), Errno::EPERM);
    assert_eq!(errno(b"none", one(b"")), Errno::ENOENT);
    assert_eq!(errno(b"moved", one(&[0; 70_000])), Errno::ERANGE);
    assert_eq!(errno(b"moved", vec![Xattr { name: vec![b'x'; 256], value: Vec::new() }]), Errno::ERANGE);
}
