//! Containers with many subfiles, which several threads open.

use super::many_readers::open_files;
use super::*;
use crate::reader::records::Records;

#[test]
fn entries_added_to_any_of_many_subfiles_are_found() {
    let bed = Bed::new(Geometry { block_size: 64 << 10, lanes: 1 });
    for subfile in 0..30 {
        let mut writer = bed.writer(subfile, 0);
        put(&mut writer, format!("{subfile:02}").as_bytes(), 1, b"before");
        writer.finish().expect("ended");
    }
    bed.close(8);
    let opened_before = Container::open(bed.fs()).expect("it opens");
    assert_eq!(paths(&opened_before).len(), 30);
    for subfile in [0, 13, 29] {
        let mut writer = bed.writer(subfile, 0);
        put(&mut writer, format!("{subfile:02}").as_bytes(), 2, b"after");
        writer.finish().expect("ended");
    }
    let mut refreshed = opened_before;
    refreshed.refresh().expect("refreshed");
    for container in [Container::open(bed.fs()).expect("it opens"), refreshed, bed.by_records()] {
        assert_eq!(paths(&container).len(), 30);
        for subfile in 0..30 {
            let is_after = [0, 13, 29].contains(&subfile);
            let expected = if is_after { b"after".to_vec() } else { b"before".to_vec() };
            assert_eq!(content(&container, format!("{subfile:02}").as_bytes()), Ok(expected), "{subfile}");
        }
    }
    std::fs::remove_file(bed.subfile(17)).expect("removed");
    std::fs::create_dir(bed.subfile(17)).expect("made");
    assert_eq!(Container::open(bed.fs()).map(drop).map_err(|fault| fault.errno), Err(Errno::EINVAL));
}

#[test]
fn the_number_of_open_subfiles_is_limited() {
    let bed = Bed::new(Geometry { block_size: 64 << 10, lanes: 1 });
    let numbers: Vec<u32> = (0..100).collect();
    numbers.iter().for_each(|&subfile| bed.writer(subfile, 0).finish().map(drop).expect("ended"));
    let records = Records::with_files(bed.fs(), bed.superblock, 20);
    let open = || numbers.iter().map(|&number| open_files(&bed.subfile(number))).sum::<usize>();
    let subfile = records.subfile(3).expect("it is there");
    for _ in 0..2 {
        let lanes = records.lanes(&numbers).expect("they are there");
        assert!(lanes.len() == 100 && lanes.iter().all(|(_, lanes)| lanes[0].is_finished));
        assert!(open() <= 30, "{} are open", open());
    }
    assert!(subfile.lanes().expect("it is still open")[0].is_finished);
}
