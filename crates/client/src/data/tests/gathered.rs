//! Units that are written in pieces.

use super::*;
use tameike_core::limits::PIECES_MAX;

/// A size of records at which units of several nodes meet at odd places.
const RECORD: usize = 47_008;

/// Messages with bytes that a flush of the node's records took, out of `units` units that two nodes fill in turns.
fn messages_of_records(frames: u32, units: u64) -> u32 {
    let bench = Bench::new(7, frames);
    let files = [bench.open(0), bench.open(1)];
    let records = units * UNIT_SIZE as u64 / RECORD as u64;
    for record in 0..records {
        let node = record as usize % 2;
        bench.write(node, &files[node], record * RECORD as u64, vec![record as u8 + 1; RECORD]);
    }
    bench.flush(1, &files[1]).expect("flushed");
    bench.homes.lock().writes = 0;
    bench.flush(0, &files[0]).expect("flushed");
    let messages = bench.homes.lock().writes;
    let reader = bench.open(1);
    for record in 0..records {
        let found = bench.read(1, &reader, record * RECORD as u64, RECORD as u32);
        assert!(found.iter().all(|&byte| byte == record as u8 + 1), "record {record}");
    }
    messages
}

#[test]
fn the_pieces_of_a_unit_go_together() {
    assert_eq!(messages_of_records(16, 4), 4);
}

#[test]
fn without_a_frame_to_gather_them_pieces_go_alone() {
    assert!(messages_of_records(4, 4) > 4);
}

/// Every second byte of a unit, written one by one, once were half a million messages at the same time, more than the fabric
/// takes: the bytes were lost.
#[test]
fn a_unit_in_many_pieces_goes_out_a_few_at_a_time() {
    const PIECES: usize = 3000;
    let bench = Bench::new(5, 4);
    let file = bench.open(0);
    bench.write(0, &file, 0, vec![1; INLINE_SIZE_MAX + 1]);
    bench.flush(0, &file).expect("flushed");
    bench.homes.lock().under_way = (0, 0);
    for piece in 0..PIECES {
        bench.write(0, &file, 2 * piece as u64, vec![2]);
        assert!(file.unsent_pieces(0) <= 2 * PIECES_MAX + 1);
    }
    bench.flush(0, &file).expect("flushed");
    assert!(bench.homes.lock().under_way.1 <= 20, "{:?} at once", bench.homes.lock().under_way);
    let other = bench.open(1);
    let found = bench.read(1, &other, 0, 2 * PIECES as u32);
    let expected =
        |place: usize| if place.is_multiple_of(2) { 2 } else { u8::from(place <= INLINE_SIZE_MAX) };
    for (place, byte) in found.into_iter().enumerate() {
        assert_eq!(byte, expected(place), "byte {place}");
    }
}

/// While pieces of the unit were on their way, and more waited, the frame of a write of all of it was lost, and then looked into.
#[test]
fn all_of_a_unit_is_written_at_once_whatever_pieces_of_it_wait() {
    let bench = Bench::new(5, 4);
    let file = bench.open(0);
    for piece in 0..2 * PIECES_MAX {
        assert_eq!(bench.engines[0].write_now(&file, 8192 * piece as u64, &[1]), Ok(1), "piece {piece}");
    }
    assert_eq!(bench.engines[0].write_now(&file, 3, &[1]), Ok(0), "it waits for the first ones");
    let mut frame = bench.engines[0].frame_now().expect("one is free");
    frame.fill(2);
    let whole = bench.engines[0].write_now(&file, 0, &FrameBytes::new(frame));
    assert_eq!(whole, Ok(UNIT_SIZE));
    bench.flush(0, &file).expect("flushed");
    let found = bench.read(1, &bench.open(1), 0, UNIT_SIZE as u32);
    assert!(found.iter().all(|&byte| byte == 2));
}
