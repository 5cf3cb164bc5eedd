//! The pool of open descriptors for readers of large files.

use super::*;
use crate::reader::records::{PooledFile, Reader, Records};

/// Number of this process's descriptors for a path.
pub(super) fn open_files(path: &std::path::Path) -> usize {
    let open = std::fs::read_dir("/proc/self/fd").expect("descriptors").flatten();
    open.filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|of| of == path)).count()
}

#[test]
fn concurrent_readers_of_large_files_use_up_to_eight_descriptors() {
    const SIZE: usize = 3 << 20;
    let bed = Bed::new(Geometry { block_size: 4 << 20, lanes: 1 });
    let mut writer = bed.writer(0, 0);
    (0..20).for_each(|file| put(&mut writer, format!("{file}").as_bytes(), 1, &bytes(2 * file, SIZE)));
    put(&mut writer, b"small", 1, b"content");
    writer.finish().expect("ended");
    bed.close(8);
    let container = Container::open(bed.fs()).expect("it opens");
    let subfile = bed.subfile(0);
    let open = |file: u64| container.file(format!("{file}").as_bytes()).expect("a file");
    let mut files: Vec<_> = (0..20).map(open).collect();
    let mut part = vec![0; SIZE / 2];
    // Sequential readers share one descriptor.
    for file in 0..3 {
        assert_eq!(open(file).read_at(&mut part, 7).expect("read"), part.len());
        assert_eq!(open_files(&subfile), 1);
    }
    for (count, (number, file)) in (1..).zip((0..).zip(&mut files)) {
        assert_eq!(file.read_at(&mut part, 7).expect("read"), part.len());
        assert!(part == bytes(2 * number, SIZE)[7..7 + SIZE / 2], "{number}");
        assert_eq!(open_files(&subfile), usize::min(count, 8));
    }
    // Interleaved reads.
    for at in (0..SIZE).step_by(SIZE / 2) {
        for (number, file) in (0..).zip(&mut files) {
            assert_eq!(file.read_at(&mut part, at as u64).expect("read"), part.len());
            assert!(part == bytes(2 * number, SIZE)[at..at + SIZE / 2], "{number}");
        }
    }
    assert_eq!(content(&container, b"small"), Ok(b"content".to_vec()));
    assert_eq!(open_files(&subfile), 8);
    files.clear();
    // Descriptors are reused.
    assert_eq!(open(5).read_at(&mut part, 0).expect("read"), part.len());
    assert_eq!(open_files(&subfile), 8);
}

/// Once, open files that were not being read held descriptors, so that all others shared one.
#[test]
fn idle_readers_hold_no_descriptor() {
    let bed = Bed::new(Geometry { block_size: 4 << 20, lanes: 1 });
    bed.writer(0, 0).finish().expect("ended");
    bed.close(1);
    let fs = bed.fs();
    let records = Arc::new(Records::new(fs.clone(), Superblock::read(&*fs).expect("a container")));
    let readers: Vec<_> = (0..12).map(|_| Reader::default()).collect();
    let borrow = |reader: &Reader| records.borrow(0, reader).expect("it is there");
    let is_same = |one: &PooledFile, other: &PooledFile| Arc::ptr_eq(one.file(), other.file());
    let one_by_one: Vec<_> = readers.iter().map(|reader| borrow(reader).file().clone()).collect();
    let at_once: Vec<_> = readers[4..].iter().map(borrow).collect();
    for (number, pooled) in at_once.iter().enumerate() {
        assert!(at_once[..number].iter().all(|other| !is_same(other, pooled)), "{number} has it alone");
        assert!(Arc::ptr_eq(pooled.file(), &one_by_one[number + 4]), "{number} has the one that it had");
    }
    let beyond = borrow(&readers[0]);
    assert!(at_once.iter().any(|pooled| is_same(pooled, &beyond)), "there are no more than eight");
    drop(at_once);
    let again = borrow(&readers[0]);
    assert!(!is_same(&again, &borrow(&readers[1])), "that one is not taken for its own");
}
