use super::tree::{Links, Tree};
use crate::vfs::FileNumber;

const DIR: FileNumber = FileNumber(10);
const FILE: FileNumber = FileNumber(20);
const OTHER: FileNumber = FileNumber(30);

fn tree() -> Tree {
    let tree = Tree::default();
    tree.found(FileNumber::ROOT, b"dir", DIR, Links::Directory);
    tree.found(DIR, b"file", FILE, Links::Several);
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
    tree.found(FileNumber::ROOT, b"link", FILE, Links::Several);
    tree.lost(DIR, b"file");
    assert_eq!(tree.path(FILE), Some(b"link".to_vec()));
    tree.lost(FileNumber::ROOT, b"link");
    assert_eq!(tree.path(FILE), None);
}

#[test]
fn a_replaced_or_exchanged_file_is_known_by_its_right_name() {
    let tree = tree();
    tree.found(DIR, b"other", OTHER, Links::Several);
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
    tree.found(DIR, b"file", FILE, Links::Several);
    assert!(!tree.forget(FILE, 1));
    assert!(tree.forget(FILE, 1));
    assert_eq!(tree.path(FILE), None);
}

/// Another node had renamed a directory; this node then found it under its new name, but went on using the
/// old one, which sorts first, for everything below.
#[test]
fn a_directory_that_another_node_has_renamed_is_known_by_its_new_name_only() {
    let tree = tree();
    tree.found(OTHER, b"moved", DIR, Links::Directory);
    tree.found(FileNumber::ROOT, b"new", OTHER, Links::Directory);
    assert_eq!(tree.path(FILE), Some(b"new/moved/file".to_vec()));
    tree.found(FileNumber::ROOT, b"dir", FileNumber(40), Links::Directory);
    assert_eq!(tree.path(FILE), Some(b"new/moved/file".to_vec()));
}

#[test]
fn a_name_that_another_node_has_taken_away_gives_way_to_the_others() {
    let tree = tree();
    tree.found(FileNumber::ROOT, b"link", FILE, Links::Several);
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
    tree.found(FileNumber::ROOT, b"there", OTHER, Links::Directory);
    tree.found(OTHER, b"dir", DIR, Links::Directory);
    assert_eq!(tree.path(FILE), Some(b"there/dir/file".to_vec()));
    tree.moved(OTHER, b"there", b"last");
    assert_eq!(tree.path(FILE), Some(b"last/dir/file".to_vec()));
    assert_eq!(tree.path(OTHER), Some(b"last".to_vec()));
}

/// What a path leads to by the names that are known need not be what is there.
#[test]
fn a_directory_that_was_moved_below_another_moved_one_is_known_by_its_path() {
    let tree = tree();
    tree.found(FileNumber::ROOT, b"other", OTHER, Links::Directory);
    tree.found(FileNumber::ROOT, b"new", FileNumber(40), Links::Directory);
    tree.moved(OTHER, b"other", b"far/other");
    tree.moved(DIR, b"dir", b"far/other/dir");
    assert_eq!(tree.path(FILE), Some(b"far/other/dir/file".to_vec()));
    tree.moved(DIR, b"far/other/dir", b"new/dir");
    assert_eq!(tree.path(FILE), Some(b"new/dir/file".to_vec()));
}

/// A file system gives the number of a removed file to the next one that is made. The kernel, which may still hold
/// the removed directory, took the new one for it: nothing could be made in it.
#[test]
fn a_new_file_with_an_old_number_has_another_generation() {
    let tree = tree();
    assert_eq!(tree.found(FileNumber::ROOT, b"dir", DIR, Links::Directory), 0);
    tree.removed(FileNumber::ROOT, b"dir");
    assert_eq!(tree.found(FileNumber::ROOT, b"made elsewhere", DIR, Links::Directory), 1);
    assert_eq!(tree.found(FileNumber::ROOT, b"made elsewhere", DIR, Links::Directory), 1);
    assert_eq!(tree.made(FileNumber::ROOT, b"new", DIR, Links::Directory), 2, "its removal was not seen yet");
    tree.renamed((FileNumber::ROOT, b"other"), (FileNumber::ROOT, b"new"), false);
    assert_eq!(tree.made(FileNumber::ROOT, b"file", DIR, Links::One), 3);
    // What was only renamed elsewhere, or has another name, is the same file.
    tree.lost(FileNumber::ROOT, b"file");
    assert_eq!(tree.found(FileNumber::ROOT, b"renamed", DIR, Links::One), 3);
    // The kernel holds it no more.
    assert!(tree.forget(DIR, 7));
    assert_eq!(tree.made(FileNumber::ROOT, b"new", DIR, Links::Directory), 0);
}
