//! Several processes write an index at the same time.

use super::*;

/// If two processes finish at the same time, the one that scanned first may write its index last.
#[test]
fn an_index_with_more_entries_is_not_replaced() {
    let bed = Bed::new(GEOMETRY);
    let number = bed.superblock.container;
    let builder = || IndexBuilder::new(bed.fs(), number).expect("a builder");
    let index_of = |paths: &[&[u8]], ends: &[LaneEnd]| {
        let container = bed.by_records();
        let mut index = builder();
        for path in paths {
            index.add(container.find(path).expect("found").expect("there")).expect("added");
        }
        index.finish_unless_behind(ends).expect("no fault");
        paths_of_index(&bed)
    };
    let (mut one, mut other) = (bed.writer(0, 0), bed.writer(0, 1));
    put(&mut one, b"a", 1, b"1");
    put(&mut other, b"b", 2, b"2");
    let first = one.finish().expect("ended");
    let second = other.finish().expect("ended");
    let both = [&first[..], &second].concat();
    assert_eq!(index_of(&[b"a"], &first), [b"a"]);
    assert_eq!(index_of(&[b"a", b"b"], &both), [b"a", b"b"], "an index with more replaces one with less");
    assert_eq!(index_of(&[b"a"], &first), [b"a", b"b"], "an index with less does not");
    // If neither contains the other, or both are equal, the newer one replaces the older one.
    let mut third = bed.writer(0, 0);
    put(&mut third, b"c", 3, b"3");
    let ends = third.finish().expect("ended");
    assert_eq!(index_of(&[b"a", b"c"], &ends), [b"a", b"c"]);
    assert_eq!(index_of(&[b"c"], &ends), [b"c"]);
    // A rebuild replaces the index unconditionally.
    builder().finish(&first).expect("an index");
    assert!(paths_of_index(&bed).is_empty());
    let names = std::fs::read_dir(bed.dir.path()).expect("a directory");
    let left = names
        .filter(|name| name.as_ref().expect("a name").file_name().as_encoded_bytes().starts_with(b"index."));
    assert_eq!(left.count(), 0, "no temporary files remain");
}

/// The index of a container that was compacted meanwhile names other subfiles.
#[test]
fn an_index_of_old_subfiles_does_not_replace_that_of_a_compacted_container() {
    let bed = Bed::new(GEOMETRY);
    let mut writer = bed.writer(0, 0);
    put(&mut writer, b"a", 1, b"1");
    let old = writer.finish().expect("ended");
    let mut writer = bed.writer(1, 0);
    put(&mut writer, b"a", 1, b"1");
    writer.finish().expect("ended");
    std::fs::remove_file(bed.subfile(0)).expect("removed");
    bed.close(100);
    let index = IndexBuilder::new(bed.fs(), bed.superblock.container).expect("a builder");
    index.finish_unless_behind(&old).expect("no fault");
    assert_eq!(paths_of_index(&bed), [b"a"]);
    let container = Container::open(bed.fs()).expect("it opens");
    assert_eq!(content(&container, b"a"), Ok(b"1".to_vec()));
}

fn paths_of_index(bed: &Bed) -> Vec<Vec<u8>> {
    let index = index::Index::of_container(&*bed.fs(), bed.superblock.container).expect("read");
    let entries = index.iter().flat_map(index::Index::iter);
    entries.map(|entry| entry.expect("an entry").path).collect()
}
