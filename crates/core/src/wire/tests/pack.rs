//! Golden bytes of the messages to the packer.

use super::{NOW, check};
use crate::attr::AttrChange;
use crate::wire::meta::RenameMode;
use crate::wire::pack::{Changed, KeptPart, PackReply, PackRequest, PackedOpen, PackedStat, PackerTime};
use std::time::Duration;

const SINCE: PackerTime = PackerTime { packer: 300, time: Duration::new(300, 200) };

#[test]
fn requests_to_the_packer() {
    let path = || b"p".to_vec();
    let (mode, number, call) = (RenameMode::NoReplace, 300, 300);
    let open = PackedOpen { file: 300, packer: 301 };
    let kept = |truncate| PackRequest::Keep(KeptPart { name: path(), truncate, offset: 300, bytes: path() });
    check(&[
        (PackRequest::Stat { path: path() }, "000170"),
        (PackRequest::List { dir: path(), after: Vec::new() }, "01017000"),
        (
            PackRequest::Create { path: path(), number, mode: 0o644, uid: 300, gid: 1, looked: None },
            "020170ac02a403ac020100",
        ),
        (
            PackRequest::Create { path: path(), number, mode: 0o644, uid: 300, gid: 1, looked: Some(SINCE) },
            "020170ac02a403ac020101ac02ac02c801",
        ),
        (PackRequest::Open { path: path() }, "030170"),
        (PackRequest::Reopen { file: 300, path: path() }, "04ac020170"),
        (PackRequest::Close { file: 300 }, "05ac02"),
        (PackRequest::StatOpen { file: 300 }, "06ac02"),
        (PackRequest::Read { file: 300, offset: 200, length: 1 }, "07ac02c80101"),
        (PackRequest::Write { open, offset: Some(200), bytes: path() }, "08ac02ad0201c8010170"),
        (PackRequest::Truncate { file: 300, size: 200 }, "09ac02c801"),
        (
            PackRequest::Change {
                of: Changed::Open(300),
                change: AttrChange { mode: Some(1), ..AttrChange::default() },
            },
            "0a01ac020101000000000000",
        ),
        (
            PackRequest::Change { of: Changed::At(path()), change: AttrChange::default() },
            "0a00017000000000000000",
        ),
        (PackRequest::Sync { open: None }, "0b00"),
        (PackRequest::Sync { open: Some(open) }, "0b01ac02ad02"),
        (PackRequest::Forget, "0c"),
        (PackRequest::Unlink { path: path(), number: None }, "0d017000"),
        (PackRequest::Unlink { path: path(), number: Some(300) }, "0d017001ac02"),
        (PackRequest::Rename { number, from: path(), to: path(), mode }, "0eac020170017001"),
        (PackRequest::MakeDir { call, path: path(), mode: 1 }, "0fac02017001"),
        (PackRequest::RemoveDir { call, path: path() }, "10ac020170"),
        (PackRequest::MoveDir { call, from: path(), to: path(), mode }, "11ac020170017001"),
        (PackRequest::Mark { dir: path(), packs: Some(false) }, "1201700100"),
        (PackRequest::Packs { dir: path() }, "130170"),
        (PackRequest::Named { path: path() }, "140170"),
        (PackRequest::Find { path: path() }, "150170"),
        (PackRequest::Expect { file: 300, size: 200 }, "16ac02c801"),
        (kept(None), "17017000ac020170"),
        (kept(Some(200)), "17017001c801ac020170"),
    ]);
}

#[test]
fn replies_of_the_packer() {
    let stat = PackedStat {
        number: 300,
        mode: 0o644,
        uid: 300,
        gid: 1,
        size: 200,
        nlink: 1,
        atime: NOW,
        mtime: NOW,
        ctime: NOW,
        is_external: true,
    };
    check(&[
        (PackReply::Done, "00"),
        (PackReply::Stat(stat.clone()), "01ac02a403ac0201c8010103ac0203ac0203ac0201"),
        (PackReply::Names(vec![(b"p".to_vec().into(), 300)]), "02010170ac02"),
        (PackReply::Bytes(b"p".to_vec().into()), "030170"),
        (PackReply::Declined, "04"),
        (PackReply::LookupFirst(SINCE), "05ac02ac02c801"),
        (PackReply::Packs(true), "0601"),
        (PackReply::Missing, "07"),
        (PackReply::External { file: 300 }, "08ac02"),
        (PackReply::Opened { stat, packer: 301 }, "09ac02a403ac0201c8010103ac0203ac0203ac0201ad02"),
    ]);
}
