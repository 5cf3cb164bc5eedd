//! Golden bytes of the messages to views.

use super::region::{arrival, release};
use super::{GENERATION, INODE, OWNER, UNIT, check};
use crate::errno::{Errno, Fault};
use crate::wire::client::{ClientReply, ClientRequest};

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
    ]);
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
    ]);
}
