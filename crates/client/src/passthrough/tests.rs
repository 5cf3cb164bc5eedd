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
    /// Looks up a file whose inode number equals its number of the frontend.
    fn find(&self, dir: FileNumber, name: &[u8], file: FileNumber, links: Links) {
        assert_eq!(self.found(dir, name, seen(file, 0, links)), file);
    }
}

fn seen(file: FileNumber, handle_hash: u64, links: Links) -> Seen {
    Seen { file: Identity { inode: InodeId(file.0), handle_hash }, links }
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
fn removing_one_hard_link_keeps_the_other() {
    let tree = tree();
    tree.find(FileNumber::ROOT, b"link", FILE, Links::Several);
    tree.lost(DIR, b"file");
    assert_eq!(tree.path(FILE), Some(b"link".to_vec()));
    tree.lost(FileNumber::ROOT, b"link");
    assert_eq!(tree.path(FILE), None);
}

#[test]
fn paths_follow_a_replacing_rename_and_an_exchange() {
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
fn files_without_lookups_are_dropped() {
    let tree = tree();
    tree.find(DIR, b"file", FILE, Links::Several);
    assert!(!tree.forget(FILE, 1));
    assert!(tree.forget(FILE, 1));
    assert_eq!(tree.path(FILE), None);
}

/// A file opened through the ring and passed to the kernel could not be opened again (`/proc/self/fd`) and had no extended attributes: the
/// kernel had never looked up the directory, and the ring had forgotten it.
#[test]
fn a_directory_stays_while_an_entry_in_it_is_held() {
    let tree = tree();
    tree.find(DIR, b"below", OTHER, Links::Directory);
    let far = FileNumber(40);
    tree.find(OTHER, b"far", far, Links::One);
    assert!(tree.forget(OTHER, 1) && tree.forget(DIR, 1));
    assert_eq!(tree.path(far), Some(b"dir/below/far".to_vec()));
    tree.renamed((OTHER, b"far"), (OTHER, b"new"), false);
    tree.find(OTHER, b"newer", far, Links::One);
    assert_eq!(tree.path(far), Some(b"dir/below/newer".to_vec()), "the directory stays during a rename");
    tree.forget(FILE, 1);
    assert!(tree.hold(OTHER));
    assert!(tree.forget(far, 2));
    assert!(tree.identity(DIR).is_some(), "it is an ancestor of a held file");
    tree.forget(OTHER, 1);
    assert!([DIR, OTHER, far, FILE].iter().all(|&file| tree.identity(file).is_none()), "all are gone");
}

/// This node looked up a directory under the new name that another node had given it, but kept using the old name, which sorts first, for
/// all paths below.
#[test]
fn a_remote_rename_of_a_directory_replaces_its_old_name() {
    let tree = tree();
    tree.find(OTHER, b"moved", DIR, Links::Directory);
    tree.find(FileNumber::ROOT, b"new", OTHER, Links::Directory);
    assert_eq!(tree.path(FILE), Some(b"new/moved/file".to_vec()));
    tree.find(FileNumber::ROOT, b"dir", FileNumber(40), Links::Directory);
    assert_eq!(tree.path(FILE), Some(b"new/moved/file".to_vec()));
}

#[test]
fn a_name_removed_by_another_node_is_replaced_by_another_hard_link() {
    let tree = tree();
    tree.find(FileNumber::ROOT, b"link", FILE, Links::Several);
    assert_eq!(tree.path(FILE), Some(b"link".to_vec()));
    assert!(tree.not_at(FILE, b"link"));
    assert!(tree.not_at(FILE, b"link"), "a second report of the same name changes nothing");
    assert_eq!(tree.path(FILE), Some(b"dir/file".to_vec()));
    assert!(!tree.not_at(FILE, b"dir/file"));
}

/// A process keeps working in a directory while another node renames the directory or its parents. It got `ENOENT` before.
#[test]
fn paths_follow_renames_by_other_nodes() {
    let tree = tree();
    tree.moved(DIR, b"dir", b"new");
    assert_eq!(tree.path(FILE), Some(b"new/file".to_vec()));
    // The new parent is unknown to this node, and is renamed afterwards.
    tree.moved(DIR, b"new", b"far/away/dir");
    assert_eq!(tree.path(FILE), Some(b"far/away/dir/file".to_vec()));
    tree.moved(OTHER, b"far/away", b"near");
    assert_eq!(tree.path(FILE), Some(b"near/dir/file".to_vec()));
    assert_eq!(tree.path(OTHER), None, "it was never looked up");
    // Renames by this node count as well: this one exchanges both.
    tree.rebase(&[(b"near", b"there"), (b"there", b"near")]);
    assert_eq!(tree.path(FILE), Some(b"there/dir/file".to_vec()));
    tree.rebase(&[(b"the", b"no"), (b"there/di", b"no")]);
    assert_eq!(tree.path(FILE), Some(b"there/dir/file".to_vec()), "a name that is a prefix does not match");
    // A lookup by name.
    tree.find(FileNumber::ROOT, b"there", OTHER, Links::Directory);
    tree.find(OTHER, b"dir", DIR, Links::Directory);
    assert_eq!(tree.path(FILE), Some(b"there/dir/file".to_vec()));
    tree.moved(OTHER, b"there", b"last");
    assert_eq!(tree.path(FILE), Some(b"last/dir/file".to_vec()));
    assert_eq!(tree.path(OTHER), Some(b"last".to_vec()));
}

/// A path built from known names may lead elsewhere after renames by other nodes.
#[test]
fn a_directory_moved_below_a_moved_directory_keeps_its_full_path() {
    let tree = tree();
    tree.find(FileNumber::ROOT, b"other", OTHER, Links::Directory);
    tree.find(FileNumber::ROOT, b"new", FileNumber(40), Links::Directory);
    tree.moved(OTHER, b"other", b"far/other");
    tree.moved(DIR, b"dir", b"far/other/dir");
    assert_eq!(tree.path(FILE), Some(b"far/other/dir/file".to_vec()));
    tree.moved(DIR, b"far/other/dir", b"new/dir");
    assert_eq!(tree.path(FILE), Some(b"new/dir/file".to_vec()));
}

/// File systems reuse the inode number of a removed file. The kernel, which may still hold the removed file, took the new file for it:
/// creates in a directory failed, and a process that opened a file during its replacement read the next one, truncated to the old size.
#[test]
fn a_reused_inode_number_gets_a_new_file_number() {
    let (tree, dir, file) = (tree(), seen(DIR, 0, Links::Directory), seen(DIR, 0, Links::One));
    assert_eq!(tree.found(FileNumber::ROOT, b"dir", dir), DIR);
    tree.removed(FileNumber::ROOT, b"dir");
    let second = tree.found(FileNumber::ROOT, b"made elsewhere", dir);
    assert_ne!(second, DIR);
    assert_eq!(tree.found(FileNumber::ROOT, b"made elsewhere", dir), second);
    let third = tree.made(FileNumber::ROOT, b"new", dir);
    assert!(third != second && third != DIR, "this node has not noticed the removal yet");
    tree.renamed((FileNumber::ROOT, b"other"), (FileNumber::ROOT, b"new"), false);
    let fourth = tree.made(FileNumber::ROOT, b"file", file);
    assert!(fourth != third && fourth != DIR);
    // A file renamed by another node, or found by another name, is the same file.
    tree.lost(FileNumber::ROOT, b"file");
    assert_eq!(tree.found(FileNumber::ROOT, b"renamed", file), fourth);
    // The kernel forgets both.
    for (number, lookups) in [(DIR, 2), (second, 2), (third, 1), (fourth, 2)] {
        assert!(tree.forget(number, lookups));
    }
    assert_eq!(tree.made(FileNumber::ROOT, b"new", dir), DIR);
}

#[test]
fn the_creation_time_distinguishes_files_with_one_inode_number() {
    let (tree, name) = (Tree::default(), b"name");
    let [old, new] = [1, 2].map(|handle_hash| seen(FILE, handle_hash, Links::One));
    let number = tree.found(FileNumber::ROOT, name, old);
    assert!(tree.is(number, &old) && !tree.is(number, &new));
    let next = tree.found(FileNumber::ROOT, name, new);
    assert!(next != number && tree.is(next, &new) && tree.is(number, &old));
    assert_eq!((tree.number(new.file.inode), tree.identity(next)), (Some(next), Some(new.file)));
    assert_eq!((tree.path(number), tree.path(next)), (None, Some(name.to_vec())));
    // The kernel forgets the old file late.
    assert!(tree.forget(number, 1));
    assert_eq!(tree.found(FileNumber::ROOT, name, new), next);
    assert!(tree.is(next, &seen(FILE, 0, Links::One)), "without a creation time, files count as the same");
}

/// The agent of root creates directories for other users. A user who can rename entries there can replace the new directory by another one
/// of root.
#[test]
fn a_directory_swapped_in_for_a_new_one_keeps_its_owner() {
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir_all(at("private/below")).expect("made");
    if std::fs::metadata(at("private")).expect("the directory exists").uid() != 0 {
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
    assert_eq!(std::fs::metadata(at("private")).expect("the directory exists").uid(), 0);
    assert!(given > 0);
}
