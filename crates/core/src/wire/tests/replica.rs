//! Golden bytes of the messages to the backups of homes.

use super::{INODE, WIDE, check};
use crate::homes::HomeSet;
use crate::ids::{Generation, HomeId, InodeId, UnitId};
use crate::limits::UNIT_SIZE;
use crate::wire::codec::encode;
use crate::wire::replica::{
    DIRTY_UNITS_MAX, RECORD_BYTES_MAX, RECORD_PARTS_MAX, RecordPart, ReplicaReply, ReplicaRequest,
};
use crate::wire::space::SpaceChange;
use serde_bytes::ByteBuf;

const HOME: HomeId = HomeId(130);
const UNIT: UnitId = UnitId { inode: INODE, index: 300 };

#[test]
fn requests_to_a_backup() {
    let part = RecordPart { home: HOME, number: 300, offset: 200, ends: true, bytes: b"r".to_vec() };
    let units = vec![(300, (1..2).into())];
    let homes = HomeSet::from_iter([HOME]);
    check(&[
        (ReplicaRequest::Records(vec![part]), "00018201ac02c801010172"),
        (
            ReplicaRequest::Write {
                home: HOME,
                unit: UNIT,
                ranges: (1..300).into(),
                generation: Generation(5),
            },
            "018201838404ac020101ac0205",
        ),
        (ReplicaRequest::Patch { home: HOME, unit: UNIT }, "028201838404ac02"),
        (
            ReplicaRequest::SetNumber { home: HOME, unit: UNIT, offset: 8, value: 300 },
            "038201838404ac0208ac02",
        ),
        (ReplicaRequest::Clean { inode: INODE, units, generation: Generation(5) }, "0483840401ac0201010205"),
        (ReplicaRequest::Truncate { homes: homes.clone(), inode: INODE, size: 300 }, "0501018201838404ac02"),
        (
            ReplicaRequest::Space {
                homes: HomeSet::All,
                inode: INODE,
                change: SpaceChange::Punch,
                start: 1,
                end: 300,
                layout: WIDE,
            },
            "06008384040101ac020102",
        ),
        (ReplicaRequest::Sync, "07"),
        (ReplicaRequest::BeginCopy { home: HOME }, "088201"),
        (
            ReplicaRequest::CopyEntries {
                home: HOME,
                entries: vec![(ByteBuf::from(b"k".to_vec()), ByteBuf::from(b"va".to_vec()))],
            },
            "09820101016b027661",
        ),
        (
            ReplicaRequest::Examine { home: HOME, unit: UNIT, data: (1..300).into(), is_exact: true },
            "0a8201838404ac020101ac0201",
        ),
        (
            ReplicaRequest::ReadBlocks { home: HOME, unit: UNIT, first: 3, count: 200 },
            "0b8201838404ac0203c801",
        ),
        (ReplicaRequest::DigestEntries { home: HOME }, "0c8201"),
        (
            ReplicaRequest::OnlyDirty { home: HOME, units: vec![(UNIT, (1..300).into())] },
            "0d820101838404ac020101ac02",
        ),
        (ReplicaRequest::EndCopy { home: HOME }, "0e8201"),
    ]);
}

#[test]
fn replies_of_a_backup() {
    let digest = format!("04ac02{}", "07".repeat(32));
    let examined = format!("020173{}0101020103ac02", "05".repeat(32));
    check(&[
        (ReplicaReply::Done, "00"),
        (ReplicaReply::Appended { differing: vec![HOME] }, "01018201"),
        (
            ReplicaReply::Examined {
                sums: b"s".to_vec(),
                digest: [5; 32],
                bad: (1..2).into(),
                surplus: (3..300).into(),
            },
            &examined,
        ),
        (ReplicaReply::Blocks(ByteBuf::from(b"b".to_vec())), "030162"),
        (ReplicaReply::Digest { number: 300, digest: [7; 32] }, &digest),
        (ReplicaReply::CopyBegun { has_units: true }, "0501"),
    ]);
}

#[test]
fn the_largest_message_with_records_fits() {
    let bytes = vec![7; RECORD_BYTES_MAX / RECORD_PARTS_MAX];
    let part = RecordPart { home: HomeId(u16::MAX), number: u64::MAX, offset: 9, ends: true, bytes };
    encode(&ReplicaRequest::Records(vec![part; RECORD_PARTS_MAX])).expect("it fits");
    let unit = UnitId { inode: InodeId(u64::MAX), index: u64::MAX };
    let units = vec![(unit, (UNIT_SIZE as u32 - 1..UNIT_SIZE as u32).into()); DIRTY_UNITS_MAX];
    encode(&ReplicaRequest::OnlyDirty { home: HomeId(u16::MAX), units }).expect("it fits");
}
