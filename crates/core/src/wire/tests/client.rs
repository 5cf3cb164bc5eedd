//! Golden bytes of the messages to views.

use super::region::{arrival, release};
use super::{GENERATION, INODE, OWNER, UNIT, check};
use crate::errno::{Errno, Fault};
use crate::wire::client::{ClientReply, ClientRequest};
use crate::wire::window::{Access, Atomic, Elements, Signal, WindowReply, WindowRequest, WordChange};

#[test]
fn requests_to_views() {
    check(&[
        (ClientRequest::Revoke { inodes: vec![INODE] }, "0001838404"),
        (
            ClientRequest::Moved { dir: INODE, from: b"a".to_vec(), to: b"b/c".to_vec() },
            "01838404016103622f63",
        ),
        (ClientRequest::LockWaits { owner: OWNER }, "02c8018201"),
        (ClientRequest::Removing { inode: INODE }, "03838404"),
        (ClientRequest::Kept { inode: INODE }, "04838404"),
        (
            ClientRequest::ReadHeld { unit: UNIT, offset: 1, length: 300, generation: GENERATION },
            "05838404820101ac0209",
        ),
        (ClientRequest::Arrive(arrival()), "06838404ac02c80101c80101020103ac02f40305"),
        (ClientRequest::RegionBroken { region: INODE, barrier: 300, failed: true }, "07838404ac0201"),
        (
            window(Access::Put { to: Elements::contiguous(300, 8), signal: None }),
            "08838404c80100ac0208080100",
        ),
        (
            window(Access::Put {
                to: Elements { offset: 1, size: 2, stride: 3, count: 4 },
                signal: Some(Signal { offset: 16, change: WordChange::Set(300) }),
            }),
            "08838404c8010001020304011000ac02",
        ),
        (
            window(Access::Put {
                to: Elements::contiguous(0, 1),
                signal: Some(Signal { offset: 8, change: WordChange::Add(1) }),
            }),
            "08838404c801000001010101080101",
        ),
        (window(Access::Get { from: Elements::contiguous(0, 300) }), "08838404c8010100ac02ac0201"),
        (window(Access::Atomic { offset: 8, operation: Atomic::Fetch }), "08838404c801020800"),
        (window(Access::Atomic { offset: 8, operation: Atomic::Add(1) }), "08838404c80102080101"),
        (window(Access::Atomic { offset: 8, operation: Atomic::Swap(2) }), "08838404c80102080202"),
        (
            window(Access::Atomic { offset: 8, operation: Atomic::CompareSwap { expected: 1, value: 2 } }),
            "08838404c8010208030102",
        ),
        (window(Access::Send { queue: 64 }), "08838404c8010340"),
    ]);
}

fn window(access: Access) -> ClientRequest {
    ClientRequest::Window(WindowRequest { window: INODE, rank: 200, access })
}

#[test]
fn replies_of_views() {
    check(&[
        (ClientReply::Done, "00"),
        (ClientReply::Waits(vec![INODE]), "0101838404"),
        (ClientReply::Held(Fault::new(Errno::EIO, "gone")), "020a04676f6e65"),
        (ClientReply::Read, "03"),
        (ClientReply::NotHeld, "04"),
        (ClientReply::Busy, "05"),
        (ClientReply::Released(release()), "06ad0282010101c80101020103ac02f403050100c801"),
        (ClientReply::Redirected, "07"),
        (ClientReply::Failed(Fault::new(Errno::EIO, "gone")), "080a04676f6e65"),
        (ClientReply::Window(WindowReply::Done), "0900"),
        (ClientReply::Window(WindowReply::Read), "0901"),
        (ClientReply::Window(WindowReply::Previous(300)), "0902ac02"),
        (ClientReply::Window(WindowReply::Full), "0903"),
    ]);
}
