//! Reads of several chunks.

use super::*;
use crate::format::record;
use std::os::unix::fs::FileExt;

const CHUNK: usize = record::CHUNK_SIZE as usize;

#[test]
fn a_damaged_chunk_affects_only_reads_that_touch_it() {
    let bed = Bed::new(Geometry { block_size: 16 << 20, lanes: 1 });
    let mut writer = bed.writer(0, 0);
    let data = bytes(2, 9 * CHUNK + 1000);
    writer.put(b"file", 1, node(FileKind::File), &data).expect("put");
    writer.sync().expect("synced");
    drop(writer);
    bed.close(100);
    let subfile = bed.subfile(0);
    let kept = std::fs::read(&subfile).expect("a subfile");
    let start = kept.windows(64).position(|window| *window == data[..64]).expect("content");
    let file = std::fs::File::options().write(true).open(&subfile).expect("a subfile");
    file.write_all_at(&[!data[6 * CHUNK + 7]], (start + 6 * CHUNK + 7) as u64).expect("damaged");

    let container = Container::open(bed.fs()).expect("it opens");
    let mut reader = container.file(b"file").expect("its head is intact");
    let mut read = |from: usize, to: usize| {
        let mut into = vec![1; to - from];
        reader.read_at(&mut into, from as u64).map_err(|fault| fault.errno).map(|count| {
            assert!(count == to - from && into == data[from..to], "{from} to {to}");
        })
    };
    assert_eq!(read(0, data.len()), Err(Errno::EIO));
    for (from, to) in [(0, 6 * CHUNK), (7 * CHUNK, data.len()), (100, 6 * CHUNK), (5 * CHUNK + 1, 6 * CHUNK)]
    {
        assert_eq!(read(from, to), Ok(()));
    }
    for (from, to) in [(6 * CHUNK, 6 * CHUNK + 1), (3 * CHUNK, 8 * CHUNK), (7 * CHUNK - 1, data.len())] {
        assert_eq!(read(from, to), Err(Errno::EIO));
    }
    let mut shown = 0;
    let whole = reader.visit(0..data.len() as u64, &mut |at, bytes| {
        assert!(at == shown as u64 && bytes == &data[shown..shown + bytes.len()]);
        shown += bytes.len();
        Ok(())
    });
    assert_eq!((whole.map_err(|fault| fault.errno), shown), (Err(Errno::EIO), 6 * CHUNK));
}
