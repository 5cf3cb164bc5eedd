use super::tree::Tree;
use crate::vfs::FileNumber;

const DIR: FileNumber = FileNumber(10);
const FILE: FileNumber = FileNumber(20);
const OTHER: FileNumber = FileNumber(30);

fn tree() -> Tree {
    let tree = Tree::default();
    tree.found(FileNumber::ROOT, b"dir", DIR);
    tree.found(DIR, b"file", FILE);
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
    tree.found(FileNumber::ROOT, b"link", FILE);
    tree.lost(DIR, b"file");
    assert_eq!(tree.path(FILE), Some(b"link".to_vec()));
    tree.lost(FileNumber::ROOT, b"link");
    assert_eq!(tree.path(FILE), None);
}

#[test]
fn a_replaced_or_exchanged_file_is_known_by_its_right_name() {
    let tree = tree();
    tree.found(DIR, b"other", OTHER);
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
    tree.found(DIR, b"file", FILE);
    assert!(!tree.forget(FILE, 1));
    assert!(tree.forget(FILE, 1));
    assert_eq!(tree.path(FILE), None);
}
