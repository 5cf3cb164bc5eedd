//! Format of log records, and parsing of a log after a crash.
//!
//! ```text
//!  0        4        8                  16     17
//! +--------+--------+------------------+------+----------------+
//! | length | crc32c | sequence         | kind | body           |
//! +--------+--------+------------------+------+----------------+
//! ```
//!
//! Numbers are little-endian. `length` is that of the body; the checksum covers all other bytes. Sequence numbers rise
//! by one, across both log files. A record of kind 0, without a body, is a *mark*: its sequence number is that of the
//! last record known to be durable.

use super::RecordKind;
use std::ops::Range;
use tameike_io::Crc32c;

pub(super) const HEADER_SIZE: usize = 17;
/// Largest body, in bytes.
pub const BODY_SIZE_MAX: usize = 16 << 20;
const MARK: u8 = 0;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) sequence: u64,
    pub(super) kind: RecordKind,
    pub(super) start: usize,
    pub(super) body: Range<usize>,
}

fn checksum(length: [u8; 4], rest: &[u8]) -> u32 {
    let mut sum = Crc32c::new();
    sum.update(&length);
    sum.update(rest);
    sum.take()
}

fn push(log: &mut Vec<u8>, sequence: u64, kind: u8, body: &[u8]) {
    let length = (body.len() as u32).to_le_bytes();
    let start = log.len();
    log.extend_from_slice(&length);
    log.extend_from_slice(&[0; 4]);
    log.extend_from_slice(&sequence.to_le_bytes());
    log.push(kind);
    log.extend_from_slice(body);
    let sum = checksum(length, &log[start + 8..]);
    log[start + 4..start + 8].copy_from_slice(&sum.to_le_bytes());
}

/// Appends a record. `body` is at most [`BODY_SIZE_MAX`] long.
pub(super) fn push_record(log: &mut Vec<u8>, sequence: u64, kind: RecordKind, body: &[u8]) {
    push(log, sequence, kind as u8, body);
}

/// Appends a mark: records up to `durable` are durable.
pub(super) fn push_mark(log: &mut Vec<u8>, durable: u64) {
    push(log, durable, MARK, &[]);
}

enum Frame {
    Record(Record),
    Mark { durable: u64, end: usize },
}

/// The frame at `start`, if it is whole and its checksum matches.
fn frame_at(log: &[u8], start: usize) -> Option<Frame> {
    let header = log.get(start..start.checked_add(HEADER_SIZE)?)?;
    let (length, rest) = header.split_first_chunk::<4>()?;
    let (sum, rest) = rest.split_first_chunk::<4>()?;
    let (sequence, rest) = rest.split_first_chunk::<8>()?;
    let kind = RecordKind::from_byte(*rest.first()?);
    let size = u32::from_le_bytes(*length) as usize;
    if size > BODY_SIZE_MAX || (kind.is_none() && (rest[0] != MARK || size != 0)) {
        return None;
    }
    let body = start + HEADER_SIZE..start + HEADER_SIZE + size;
    if checksum(*length, log.get(start + 8..body.end)?) != u32::from_le_bytes(*sum) {
        return None;
    }
    let sequence = u64::from_le_bytes(*sequence);
    Some(match kind {
        Some(kind) => Frame::Record(Record { sequence, kind, start, body }),
        None => Frame::Mark { durable: sequence, end: body.end },
    })
}

/// The number of a record at `start` that has its full length but a wrong checksum. A torn write leaves a record that
/// is shorter than its header says.
pub(super) fn broken_at(log: &[u8], start: usize) -> Option<u64> {
    let header = log.get(start..start.checked_add(HEADER_SIZE)?)?;
    let size = u32::from_le_bytes(*header.first_chunk()?) as usize;
    let sequence = u64::from_le_bytes(*header[8..].first_chunk()?);
    let kind = RecordKind::from_byte(header[16]);
    let whole = size <= BODY_SIZE_MAX && kind.is_some() && start + HEADER_SIZE + size <= log.len();
    (whole && frame_at(log, start).is_none()).then_some(sequence)
}

#[derive(Debug, Default)]
pub(super) struct Contents {
    /// Consecutive records from the file's start up to the first gap.
    pub(super) records: Vec<Record>,
    /// End of the last of them and of the marks after it, in bytes.
    pub(super) end: usize,
    /// The last durable record according to the file's marks; 0 for none.
    pub(super) durable: u64,
    /// Offset and number of the last whole record beyond `end`, if any. The bytes between are damaged, or a power loss
    /// dropped them but not later ones.
    pub(super) beyond: Option<(usize, u64)>,
}

/// Parses a log file. Never fails: damage shows in [`Contents`].
pub(super) fn parse(log: &[u8]) -> Contents {
    let mut contents = Contents::default();
    let mut last = None;
    while let Some(frame) = frame_at(log, contents.end) {
        match frame {
            Frame::Mark { durable, end } => {
                contents.durable = contents.durable.max(durable);
                contents.end = end;
            }
            Frame::Record(record) => {
                if last.is_some_and(|last| record.sequence != last + 1) {
                    break;
                }
                last = Some(record.sequence);
                contents.end = record.body.end;
                contents.records.push(record);
            }
        }
    }
    scan_beyond(log, last.unwrap_or(0), &mut contents);
    contents
}

/// Parses a damaged log file: collects all whole records, whatever lies between them. `beyond` stays empty.
pub(super) fn parse_damaged(log: &[u8]) -> Contents {
    let mut contents = Contents::default();
    let (mut place, mut last) = (0, 0);
    while place + HEADER_SIZE <= log.len() {
        match frame_at(log, place) {
            Some(Frame::Record(record)) if record.sequence > last => {
                last = record.sequence;
                place = record.body.end;
                contents.end = place;
                contents.records.push(record);
            }
            Some(Frame::Mark { durable, end }) => {
                contents.durable = contents.durable.max(durable);
                place = end;
                contents.end = place;
            }
            Some(Frame::Record(_)) | None => place += 1,
        }
    }
    contents
}

/// Searches for whole records after the first damage, byte by byte. Records of an earlier use of the file have lower
/// numbers and do not count.
fn scan_beyond(log: &[u8], last: u64, contents: &mut Contents) {
    let mut place = contents.end + 1;
    while place + HEADER_SIZE <= log.len() {
        match frame_at(log, place) {
            Some(Frame::Record(record)) if record.sequence > last => {
                contents.beyond = Some((place, record.sequence));
                place = record.body.end;
            }
            Some(Frame::Mark { durable, end }) => {
                contents.durable = contents.durable.max(durable);
                place = end;
            }
            Some(Frame::Record(_)) | None => place += 1,
        }
    }
}

#[cfg(feature = "fuzz")]
pub(crate) fn fuzz(bytes: &[u8]) {
    let sound = |log: &[u8], contents: &Contents| {
        let mut last = None;
        for record in &contents.records {
            assert!(last.is_none_or(|last| record.sequence > last) && record.body.end <= contents.end);
            let mut again = Vec::new();
            push_record(&mut again, record.sequence, record.kind, &log[record.body.clone()]);
            assert_eq!(again, log[record.start..record.body.end]);
            last = Some(record.sequence);
        }
        assert!(contents.end <= log.len());
    };
    sound(bytes, &parse(bytes));
    sound(bytes, &parse_damaged(bytes));
    broken_at(bytes, 0);
    // Random bytes never match a checksum: build a log of records with these bytes, flip a bit, truncate it.
    let [place, bit, length, bodies @ ..] = bytes else { return };
    let (mut log, mut ends) = (Vec::new(), vec![0]);
    for (sequence, body) in (1..).zip(bodies.chunks(9)) {
        let kind = RecordKind::from_byte(1 + body[0] % 3).unwrap_or(RecordKind::Names);
        push_record(&mut log, sequence, kind, body);
        ends.push(log.len());
    }
    let at = |byte: u8| usize::from(byte) * log.len() / 256;
    let (place, length) = (at(*place), log.len() - at(*length));
    assert_eq!(parse(&log).end, log.len());
    log.truncate(length);
    if let Some(byte) = log.get_mut(place) {
        *byte ^= 1 << (bit % 8);
    }
    let contents = parse(&log);
    sound(&log, &contents);
    let whole = ends.iter().rev().find(|end| **end <= place.min(length)).copied().unwrap_or(0);
    assert_eq!(contents.end, whole, "up to the damage, and no further");
    sound(&log, &parse_damaged(&log));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let mut log = Vec::new();
        push_record(&mut log, 7, RecordKind::Names, b"body");
        push_mark(&mut log, 7);
        push_record(&mut log, 8, RecordKind::Cache, b"");
        log
    }

    #[test]
    fn the_log_format_is_stable() {
        let golden = concat!(
            "0400000064e0e564070000000000000001626f6479",
            "00000000fe6b3b7b070000000000000000",
            "0000000087a47817080000000000000003",
        );
        let hex: String = sample().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, golden);
    }

    #[test]
    fn a_truncated_log_gives_its_whole_records() {
        let log = sample();
        assert_eq!(parse(&log).records.len(), 2);
        for length in 0..log.len() {
            let contents = parse(&log[..length]);
            let expected = usize::from(length >= 21);
            assert_eq!((contents.records.len(), contents.beyond), (expected, None), "truncated at {length}");
            assert!(contents.end <= length);
        }
    }

    #[test]
    fn every_damaged_byte_is_detected() {
        let log = sample();
        for place in 0..21 {
            let mut damaged = log.clone();
            damaged[place] ^= 0x10;
            let contents = parse(&damaged);
            assert!(contents.records.is_empty(), "byte {place}");
            assert_eq!((contents.beyond, contents.durable), (Some((38, 8)), 7), "byte {place}");
        }
    }

    #[test]
    fn whole_records_of_a_damaged_log_are_found() {
        let mut log = sample();
        log[3] ^= 1;
        let contents = parse_damaged(&log);
        assert_eq!(contents.records.iter().map(|record| record.sequence).collect::<Vec<_>>(), [8]);
        assert_eq!((contents.durable, contents.beyond), (7, None));
    }

    #[test]
    fn records_of_an_earlier_use_of_the_file_do_not_count() {
        let mut log = Vec::new();
        push_record(&mut log, 20, RecordKind::Names, b"new");
        push_record(&mut log, 3, RecordKind::Names, b"old");
        let contents = parse(&log);
        assert_eq!((contents.records.len(), contents.beyond), (1, None));
    }
}
