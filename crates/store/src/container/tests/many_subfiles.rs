//! Subfiles that are opened by several threads are all looked at.

use super::many_readers::open_files;
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

#[test]
fn no_more_subfiles_are_open_than_a_process_can_spare() {
    const SUBFILES: u32 = 600;
    let bed = Bed::new(Geometry { block_size: 64 << 10, lanes: 1 });
    for subfile in 0..SUBFILES {
        let mut writer = bed.writer(subfile, 0);
        put(&mut writer, format!("{subfile}").as_bytes(), 1, b"content");
        writer.finish().expect("ended");
    }
    bed.close(SUBFILES as usize);
    let container = Container::open(bed.fs()).expect("it opens");
    let open = || (0..SUBFILES).map(|number| open_files(&bed.subfile(number))).sum::<usize>();
    assert!(open() < 300, "{} are open", open());
    for subfile in 0..SUBFILES {
        let found = content(&container, format!("{subfile}").as_bytes());
        assert_eq!(found, Ok(b"content".to_vec()), "{subfile}");
    }
    assert!(open() < 300, "{} are open", open());
}
