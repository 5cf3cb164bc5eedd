//! Subfiles that are opened by several threads are all looked at.

use super::*;

#[test]
fn what_was_added_to_any_of_many_subfiles_is_seen() {
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
    refreshed.refresh().expect("looked at");
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
