//! Units that are written in pieces.

use super::*;
use tameike_core::limits::PIECES_MAX;

/// Record size that makes records of different nodes share units at odd offsets.
const RECORD: usize = 47_008;

/// Two nodes fill `units` units with alternate records. Returns the number of write messages of one node's flush.
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
fn the_pieces_of_a_unit_share_one_message() {
    assert_eq!(messages_of_records(16, 4), 4);
}

#[test]
fn pieces_are_sent_separately_without_a_free_frame() {
    assert!(messages_of_records(4, 4) > 4);
}

/// Single-byte writes to every second byte of a unit caused half a million concurrent messages, more than the fabric accepts: the bytes
/// were lost.
#[test]
fn a_unit_in_many_pieces_is_sent_in_bounded_batches() {
    const PIECES: usize = 3000;
    let bench = Bench::new(5, 4);
    let file = bench.open(0);
    bench.write(0, &file, 0, vec![1; INLINE_SIZE_MAX + 1]);
    bench.flush(0, &file).expect("flushed");
    bench.homes.lock().in_flight = (0, 0);
    for piece in 0..PIECES {
        bench.write(0, &file, 2 * piece as u64, vec![2]);
        assert!(file.unsent_pieces(0) <= 2 * PIECES_MAX + 1);
    }
    bench.flush(0, &file).expect("flushed");
    assert!(bench.homes.lock().in_flight.1 <= 20, "{:?} in flight", bench.homes.lock().in_flight);
    let other = bench.open(1);
    let found = bench.read(1, &other, 0, 2 * PIECES as u32);
    let expected =
        |place: usize| if place.is_multiple_of(2) { 2 } else { u8::from(place <= INLINE_SIZE_MAX) };
    for (place, byte) in found.into_iter().enumerate() {
        assert_eq!(byte, expected(place), "byte {place}");
    }
}

/// With pieces of the unit in flight and more waiting, the frame of a whole-unit write was lost, and then accessed.
#[test]
fn a_whole_unit_write_succeeds_while_pieces_wait() {
    let bench = Bench::new(5, 4);
    let file = bench.open(0);
    for piece in 0..2 * PIECES_MAX {
        assert_eq!(bench.engines[0].write_now(&file, 8192 * piece as u64, &[1]), Ok(1), "piece {piece}");
    }
    assert_eq!(bench.engines[0].write_now(&file, 3, &[1]), Ok(0), "the write waits for the first pieces");
    let mut frame = bench.engines[0].frame_now().expect("a frame is free");
    frame.fill(2);
    let whole = bench.engines[0].write_now(&file, 0, &FrameBytes::new(frame));
    assert_eq!(whole, Ok(UNIT_SIZE));
    bench.flush(0, &file).expect("flushed");
    let found = bench.read(1, &bench.open(1), 0, UNIT_SIZE as u32);
    assert!(found.iter().all(|&byte| byte == 2));
}
