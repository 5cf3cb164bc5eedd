use super::identity::Identity;
use super::tree::{Links, Seen, Tree};
use crate::types::FileNumber;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tameike_core::wire::meta::NewInode;
use tameike_core::{FileKind, InodeId, Layout};
use tameike_io::shared::{PosixTree, SharedFs};

const DIR: FileNumber = FileNumber(10);
const FILE: FileNumber = FileNumber(20);
const OTHER: FileNumber = FileNumber(30);

impl Tree {
    /// Finds a file whose inode number is that of the frontend.
    fn find(&self, dir: FileNumber, name: &[u8], file: FileNumber, links: Links) {
        assert_eq!(self.found(dir, name, seen(file, 0, links)), file);
    }
}

fn seen(file: FileNumber, birth: u64, links: Links) -> Seen {
    Seen { file: Identity { inode: InodeId(file.0), birth }, links }
}

fn tree() -> Tree {
    let tree = Tree::default();
    tree.find(FileNumber::ROOT, b"dir", DIR, Links::Directory);
    tree.find(DIR, b"file", FILE, Links::Several);
    tree
}

#[test]
fn paths_follow_a_rename_of_a_directory_above() {
    let tree = tree();
    assert_eq!(tree.path(FILE), Some(b"dir/file".to_vec()));
    tree.renamed((FileNumber::ROOT, b"dir"), (FileNumber::ROOT, b"new"), false);
    assert_eq!(tree.path(FILE), Some(b"new/file".to_vec()));
    assert_eq!(tree.path(FileNumber::ROOT), Some(Vec::new()));
}

#[test]
fn a_file_with_two_names_keeps_the_other_when_one_goes() {
    let tree = tree();
    tree.find(FileNumber::ROOT, b"link", FILE, Links::Several);
    tree.lost(DIR, b"file");
    assert_eq!(tree.path(FILE), Some(b"link".to_vec()));
    tree.lost(FileNumber::ROOT, b"link");
    assert_eq!(tree.path(FILE), None);
}

#[test]
fn a_replaced_or_exchanged_file_is_known_by_its_right_name() {
    let tree = tree();
    tree.find(DIR, b"other", OTHER, Links::Several);
    tree.renamed((DIR, b"file"), (DIR, b"other"), true);
    assert_eq!(
        (tree.path(FILE), tree.path(OTHER)),
        (Some(b"dir/other".to_vec()), Some(b"dir/file".to_vec()))
    );
    tree.renamed((DIR, b"other"), (DIR, b"file"), false);
    assert_eq!((tree.path(FILE), tree.path(OTHER)), (Some(b"dir/file".to_vec()), None));
}

#[test]
fn what_the_door_forgets_is_forgotten() {
    let tree = tree();
    tree.find(DIR, b"file", FILE, Links::Several);
    assert!(!tree.forget(FILE, 1));
    assert!(tree.forget(FILE, 1));
    assert_eq!(tree.path(FILE), None);
}

/// A file that was opened through the ring and given to the kernel could not be opened once more (`/proc/self/fd`), and had no extended
/// attributes: the kernel had never seen the directory, and the ring had let go of it.
#[test]
fn a_directory_stays_as_long_as_something_in_it_is_held() {
    let tree = tree();
    tree.find(DIR, b"below", OTHER, Links::Directory);
    let far = FileNumber(40);
    tree.find(OTHER, b"far", far, Links::One);
    assert!(tree.forget(OTHER, 1) && tree.forget(DIR, 1));
    assert_eq!(tree.path(far), Some(b"dir/below/far".to_vec()));
    tree.renamed((OTHER, b"far"), (OTHER, b"new"), false);
    tree.find(OTHER, b"newer", far, Links::One);
    assert_eq!(
        tree.path(far),
        Some(b"dir/below/newer".to_vec()),
        "its directory does not go between two names"
    );
    tree.forget(FILE, 1);
    assert!(tree.hold(OTHER));
    assert!(tree.forget(far, 2));
    assert!(tree.identity(DIR).is_some(), "it is on the way to one that is held");
    tree.forget(OTHER, 1);
    assert!([DIR, OTHER, far, FILE].iter().all(|&file| tree.identity(file).is_none()), "all are gone");
}

/// Another node had renamed a directory; this node then found it under its new name, but went on using the
/// old one, which sorts first, for everything below.
#[test]
fn a_directory_that_another_node_has_renamed_is_known_by_its_new_name_only() {
    let tree = tree();
    tree.find(OTHER, b"moved", DIR, Links::Directory);
    tree.find(FileNumber::ROOT, b"new", OTHER, Links::Directory);
    assert_eq!(tree.path(FILE), Some(b"new/moved/file".to_vec()));
    tree.find(FileNumber::ROOT, b"dir", FileNumber(40), Links::Directory);
    assert_eq!(tree.path(FILE), Some(b"new/moved/file".to_vec()));
}

#[test]
fn a_name_that_another_node_has_taken_away_gives_way_to_the_others() {
    let tree = tree();
    tree.find(FileNumber::ROOT, b"link", FILE, Links::Several);
    assert_eq!(tree.path(FILE), Some(b"link".to_vec()));
    assert!(tree.not_at(FILE, b"link"));
    assert!(tree.not_at(FILE, b"link"), "what is no longer believed is not lost twice");
    assert_eq!(tree.path(FILE), Some(b"dir/file".to_vec()));
    assert!(!tree.not_at(FILE, b"dir/file"));
}

/// A process in a directory that another node renames, or renames something above, goes on in it. It was told
/// that its directory is gone.
#[test]
fn a_directory_follows_what_other_nodes_do_to_its_path() {
    let tree = tree();
    tree.moved(DIR, b"dir", b"new");
    assert_eq!(tree.path(FILE), Some(b"new/file".to_vec()));
    // To a place that this node does not know; what is above it moves on.
    tree.moved(DIR, b"new", b"far/away/dir");
    assert_eq!(tree.path(FILE), Some(b"far/away/dir/file".to_vec()));
    tree.moved(OTHER, b"far/away", b"near");
    assert_eq!(tree.path(FILE), Some(b"near/dir/file".to_vec()));
    assert_eq!(tree.path(OTHER), None, "nobody has looked it up");
    // This node's own renames, too: here both change places.
    tree.rebase(&[(b"near", b"there"), (b"there", b"near")]);
    assert_eq!(tree.path(FILE), Some(b"there/dir/file".to_vec()));
    tree.rebase(&[(b"the", b"no"), (b"there/di", b"no")]);
    assert_eq!(tree.path(FILE), Some(b"there/dir/file".to_vec()), "a name is not a part of another");
    // Found again by its name.
    tree.find(FileNumber::ROOT, b"there", OTHER, Links::Directory);
    tree.find(OTHER, b"dir", DIR, Links::Directory);
    assert_eq!(tree.path(FILE), Some(b"there/dir/file".to_vec()));
    tree.moved(OTHER, b"there", b"last");
    assert_eq!(tree.path(FILE), Some(b"last/dir/file".to_vec()));
    assert_eq!(tree.path(OTHER), Some(b"last".to_vec()));
}

/// What a path leads to by the names that are known need not be what is there.
#[test]
fn a_directory_that_was_moved_below_another_moved_one_is_known_by_its_path() {
    let tree = tree();
    tree.find(FileNumber::ROOT, b"other", OTHER, Links::Directory);
    tree.find(FileNumber::ROOT, b"new", FileNumber(40), Links::Directory);
    tree.moved(OTHER, b"other", b"far/other");
    tree.moved(DIR, b"dir", b"far/other/dir");
    assert_eq!(tree.path(FILE), Some(b"far/other/dir/file".to_vec()));
    tree.moved(DIR, b"far/other/dir", b"new/dir");
    assert_eq!(tree.path(FILE), Some(b"new/dir/file".to_vec()));
}

/// A file system gives the inode number of a removed file to the next one that is made. The kernel, which may still hold
/// the removed one, took the new one for it: nothing could be made in a directory, and who opened a file just when another
/// node replaced it read the next one, cut to the size of the last.
#[test]
fn a_new_file_with_an_old_inode_number_gets_another_number() {
    let (tree, dir, file) = (tree(), seen(DIR, 0, Links::Directory), seen(DIR, 0, Links::One));
    assert_eq!(tree.found(FileNumber::ROOT, b"dir", dir), DIR);
    tree.removed(FileNumber::ROOT, b"dir");
    let second = tree.found(FileNumber::ROOT, b"made elsewhere", dir);
    assert_ne!(second, DIR);
    assert_eq!(tree.found(FileNumber::ROOT, b"made elsewhere", dir), second);
    let third = tree.made(FileNumber::ROOT, b"new", dir);
    assert!(third != second && third != DIR, "its removal was not seen yet");
    tree.renamed((FileNumber::ROOT, b"other"), (FileNumber::ROOT, b"new"), false);
    let fourth = tree.made(FileNumber::ROOT, b"file", file);
    assert!(fourth != third && fourth != DIR);
    // What was only renamed elsewhere, or has another name, is the same file.
    tree.lost(FileNumber::ROOT, b"file");
    assert_eq!(tree.found(FileNumber::ROOT, b"renamed", file), fourth);
    // The kernel holds them no more.
    for (number, lookups) in [(DIR, 2), (second, 2), (third, 1), (fourth, 2)] {
        assert!(tree.forget(number, lookups));
    }
    assert_eq!(tree.made(FileNumber::ROOT, b"new", dir), DIR);
}

#[test]
fn files_with_one_inode_number_are_told_apart_by_their_birth() {
    let (tree, name) = (Tree::default(), b"name");
    let [old, new] = [1, 2].map(|birth| seen(FILE, birth, Links::One));
    let number = tree.found(FileNumber::ROOT, name, old);
    assert!(tree.is(number, &old) && !tree.is(number, &new));
    let next = tree.found(FileNumber::ROOT, name, new);
    assert!(next != number && tree.is(next, &new) && tree.is(number, &old));
    assert_eq!((tree.number(new.file.inode), tree.identity(next)), (Some(next), Some(new.file)));
    assert_eq!((tree.path(number), tree.path(next)), (None, Some(name.to_vec())));
    // The old one is forgotten late.
    assert!(tree.forget(number, 1));
    assert_eq!(tree.found(FileNumber::ROOT, name, new), next);
    assert!(tree.is(next, &seen(FILE, 0, Links::One)), "where the file system does not tell, nobody knows");
}

/// An agent of root makes directories for other users. Who may rename files where it does can put another directory of root in the place of a new one.
#[test]
fn no_directory_that_takes_the_place_of_a_new_one_is_given_away() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir_all(at("private/below")).expect("made");
    if std::fs::metadata(at("private")).expect("there").uid() != 0 {
        return;
    }
    let tree = PosixTree::open(dir.path()).expect("a tree");
    let new = NewInode {
        kind: FileKind::Directory,
        mode: 0o755,
        uid: 65_534,
        gid: 65_534,
        rdev: 0,
        layout: Layout::Striped,
        symlink: Vec::new(),
    };
    let (ends, mut given) = (AtomicBool::new(false), 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Relaxed) {
                let moved = std::fs::rename(at("made"), at("moved"));
                let _ = moved.and_then(|()| std::fs::rename(at("private"), at("made")));
                let _ = std::fs::rename(at("made"), at("private"));
                let _ = std::fs::remove_dir(at("moved"));
            }
        });
        for _ in 0..1000 {
            given += u32::from(super::make(&tree, b"made", new.clone()).is_ok_and(|made| made.uid == 65_534));
            let _ = tree.rmdir(b"made");
        }
        ends.store(true, Relaxed);
    });
    assert_eq!(std::fs::metadata(at("private")).expect("there").uid(), 0);
    assert!(given > 0);
}
