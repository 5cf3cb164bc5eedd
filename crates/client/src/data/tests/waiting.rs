//! Writes without a free frame.

use super::*;

#[test]
fn a_write_without_free_frames_returns_its_progress() {
    let bench = Bench::new(1, 2);
    let file = bench.open(0);
    let data: Vec<u8> = (0..4 * UNIT_SIZE).map(|place| (place / 997) as u8).collect();
    assert_eq!(bench.engines[0].write_now(&file, 1000, &data), Ok(2 * UNIT_SIZE - 1000));
    assert_eq!(bench.engines[0].write_now(&file, 2 * UNIT_SIZE as u64, &data), Ok(0), "no frame is free");
    assert_eq!(file.newer().map(|(size, _)| size), Some(2 * UNIT_SIZE as u64));
    // The first part is kept and in flight; the rest gets frames when that is sent.
    let written = 2 * UNIT_SIZE - 1000;
    bench.write(0, &file, 2 * UNIT_SIZE as u64, data[written..].to_vec());
    bench.flush(0, &file).expect("the flush");
    for part in 0..4 {
        let bytes = bench.read(0, &file, 1000 + (part * UNIT_SIZE) as u64, UNIT_SIZE as u32);
        assert!(bytes == data[part * UNIT_SIZE..(part + 1) * UNIT_SIZE], "part {part}");
    }
}
