//! Errors of packing. Tests of the command line tool pack whole trees.

use crate::tree::content::Input;
use crate::tree::create::Files;
use crate::{PackOptions, Tally, extract, pack, Codec, Container, Node, Xattr};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;
use tameike_core::{Errno, FileKind, Timestamp};
use tameike_io::shared::{PosixTree, SharedFs};

fn tree(dir: &std::path::Path) -> Arc<dyn SharedFs> {
    Arc::new(PosixTree::open(dir).expect("a tree"))
}

const OPTIONS: PackOptions =
    PackOptions { container: 7, version: 1, block_size: 4096, writers: 2, subfiles: 2, codec: Codec::None };

#[test]
fn a_container_is_not_packed_into_twice() {
    let base = tempfile::tempdir().expect("a directory");
    let (source, into) = (base.path().join("source"), base.path().join("into"));
    [&source, &into].into_iter().for_each(|dir| fs::create_dir(dir).expect("a directory"));
    fs::write(source.join("file"), "content").expect("written");
    let tally = Tally::default();
    pack(&*tree(&source), tree(&into), &OPTIONS, &tally).expect("packed");
    assert_eq!((tally.files(), tally.bytes(), tally.faults().len()), (1, 7, 0));
    let again = pack(&*tree(&source), tree(&into), &OPTIONS, &tally);
    assert_eq!(again.expect_err("it is there").errno, Errno::EEXIST);
}

#[test]
fn a_file_whose_entry_exceeds_a_block_is_skipped_and_noted() {
    let base = tempfile::tempdir().expect("a directory");
    let (source, into) = (base.path().join("source"), base.path().join("into"));
    [&source, &into].into_iter().for_each(|dir| fs::create_dir(dir).expect("a directory"));
    // The list of its extents alone exceeds a block of 4 KiB.
    fs::write(source.join("large"), vec![1; 4 << 20]).expect("written");
    fs::write(source.join("small"), "content").expect("written");
    let tally = Tally::default();
    pack(&*tree(&source), tree(&into), &OPTIONS, &tally).expect("packed");
    assert_eq!(tally.files(), 1);
    let [fault] = &tally.faults()[..] else { panic!("{:?}", tally.faults()) };
    assert!(fault.errno == Errno::EFBIG && fault.to_string().contains("large"), "{fault}");
    let back = base.path().join("back");
    fs::create_dir(&back).expect("a directory");
    let container = Container::open(tree(&into)).expect("it opens");
    let entries = container.walk().expect("a walk").collect::<Result<_, _>>().expect("entries");
    extract(
        &container,
        entries,
        &*tree(&back),
        2,
        crate::Preserve { owners: false, ..crate::Preserve::all() },
        &Tally::default(),
    );
    assert_eq!(fs::read(back.join("small")).expect("there"), b"content");
    assert!(!back.join("large").exists());
}

/// Content whose read replaces the file that is being extracted.
struct Swapped<'a>(&'a std::path::Path);

impl Input for Swapped<'_> {
    fn read_at(&mut self, buffer: &mut [u8], _: u64) -> tameike_core::Result<usize> {
        fs::rename(self.0.join("file"), self.0.join("moved")).expect("renamed");
        fs::rename(self.0.join("key"), self.0.join("file")).expect("renamed");
        buffer.fill(1);
        Ok(buffer.len())
    }

    fn data_at(&mut self, offset: u64) -> tameike_core::Result<Option<std::ops::Range<u64>>> {
        Ok((offset == 0).then_some(0..u64::MAX))
    }
}

#[test]
fn permissions_are_not_applied_to_a_file_that_replaced_the_extracted_one() {
    let dir = tempfile::tempdir().expect("a directory");
    let key = fs::File::create(dir.path().join("key")).expect("made");
    key.set_permissions(fs::Permissions::from_mode(0o600)).expect("ours");
    let is_root = tameike_io::os::process::user() == 0;
    let preserve = crate::Preserve { owners: is_root, all: true, mask: 0o777 };
    let xattr = Xattr { name: b"user.note".to_vec(), value: b"note".to_vec() };
    let node = Node::new(FileKind::File, 0o644, (65_534, 65_534), Timestamp::default());
    let node = Node { xattrs: vec![xattr], size: 5, ..node };
    let tree = tree(dir.path());
    let files = Files { into: &*tree, preserve };
    files.put(b"file", &node, &mut Swapped(dir.path()), &Tally::default()).expect("extracted");
    let found = |name: &str| {
        let found = fs::metadata(dir.path().join(name)).expect("it is there");
        (found.mode() & 0o7777, found.uid() == 65_534, tree.xattrs(name.as_bytes()).expect("listed").len())
    };
    assert_eq!(found("file"), (0o600, false, 0), "it is the key");
    assert_eq!(found("moved"), (0o644, is_root, 1));
}
