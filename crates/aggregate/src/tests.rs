//! Faults of file systems; whole trees are packed by the tests of the program.

use crate::{PackOptions, Tally, extract, pack};
use std::fs;
use std::sync::Arc;
use tameike_core::Errno;
use tameike_io::shared::{PosixTree, SharedFs};
use tameike_store::container::{Codec, Container};

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
fn what_does_not_fit_a_block_is_left_out_and_told() {
    let base = tempfile::tempdir().expect("a directory");
    let (source, into) = (base.path().join("source"), base.path().join("into"));
    [&source, &into].into_iter().for_each(|dir| fs::create_dir(dir).expect("a directory"));
    // Its pieces alone need more than a block of 4 KiB to be named.
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
        crate::Keeps { owners: false, ..crate::Keeps::all() },
        &Tally::default(),
    );
    assert_eq!(fs::read(back.join("small")).expect("there"), b"content");
    assert!(!back.join("large").exists());
}
