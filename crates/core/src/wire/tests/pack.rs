//! Golden bytes of the messages to the packer.

use super::{NOW, check};
use crate::attr::AttrChange;
use crate::wire::meta::RenameMode;
use crate::wire::pack::{Changed, PackReply, PackRequest, PackedStat};
use std::time::Duration;

/// Time of the packer's clock.
const SINCE: Duration = Duration::new(300, 200);

#[test]
fn requests_to_the_packer() {
    let path = || b"p".to_vec();
    let mode = RenameMode::NoReplace;
    check(&[
        (PackRequest::Stat { path: path() }, "000170"),
        (PackRequest::List { dir: path(), after: Vec::new() }, "01017000"),
        (
            PackRequest::Create { path: path(), mode: 0o644, uid: 300, gid: 1, looked: None },
            "020170a403ac020100",
        ),
        (
            PackRequest::Create { path: path(), mode: 0o644, uid: 300, gid: 1, looked: Some(SINCE) },
            "020170a403ac020101ac02c801",
        ),
        (PackRequest::Open { path: path() }, "030170"),
        (PackRequest::Close { file: 300 }, "04ac02"),
        (PackRequest::StatOpen { file: 300 }, "05ac02"),
        (PackRequest::Read { file: 300, offset: 200, length: 1 }, "06ac02c80101"),
        (PackRequest::Write { file: 300, offset: Some(200), bytes: path() }, "07ac0201c8010170"),
        (PackRequest::Truncate { file: 300, size: 200 }, "08ac02c801"),
        (
            PackRequest::Change {
                of: Changed::Open(300),
                change: AttrChange { mode: Some(1), ..AttrChange::default() },
            },
            "0901ac020101000000000000",
        ),
        (
            PackRequest::Change { of: Changed::At(path()), change: AttrChange::default() },
            "0900017000000000000000",
        ),
        (PackRequest::Sync { file: None }, "0a00"),
        (PackRequest::Forget, "0b"),
        (PackRequest::Unlink { path: path() }, "0c0170"),
        (PackRequest::Rename { from: path(), to: path(), mode }, "0d0170017001"),
        (PackRequest::MakeDir { path: path(), mode: 1 }, "0e017001"),
        (PackRequest::RemoveDir { path: path() }, "0f0170"),
        (PackRequest::MoveDir { from: path(), to: path(), mode }, "100170017001"),
        (PackRequest::Mark { dir: path(), packs: Some(false) }, "1101700100"),
        (PackRequest::Packs { dir: path() }, "120170"),
        (PackRequest::Named { path: path() }, "130170"),
        (PackRequest::Find { path: path() }, "140170"),
        (PackRequest::Expect { file: 300, size: 200 }, "15ac02c801"),
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
        (PackReply::Stat(stat), "01ac02a403ac0201c8010103ac0203ac0203ac0201"),
        (PackReply::Names(vec![(b"p".to_vec().into(), 300)]), "02010170ac02"),
        (PackReply::Bytes(b"p".to_vec().into()), "030170"),
        (PackReply::Declined, "04"),
        (PackReply::LookupFirst(SINCE), "05ac02c801"),
        (PackReply::Packs(true), "0601"),
        (PackReply::Missing, "07"),
        (PackReply::External { file: 300 }, "08ac02"),
    ]);
}
