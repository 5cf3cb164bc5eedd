//! Entry point for fuzzing: frames of both directions.

use super::protocol::{Order, Reply, check_path, read_frame, write_frame};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// Reads bytes as frames. A frame that is read must be written to the same value.
pub fn frames(bytes: &[u8]) {
    each::<Order>(bytes);
    each::<Reply>(bytes);
    if check_path(bytes, false).is_ok() {
        assert!(bytes.split(|&byte| byte == b'/').all(|name| !matches!(name, b"" | b"." | b"..")));
    }
}

fn each<T: Serialize + DeserializeOwned + PartialEq + Debug>(mut bytes: &[u8]) {
    while let Ok(Some((message, data))) = read_frame::<T>(&mut bytes) {
        let mut written = Vec::new();
        if write_frame(&mut written, &message, &data).is_ok() {
            let again = read_frame::<T>(&mut written.as_slice());
            assert_eq!(again.expect("a frame"), Some((message, data)));
        }
    }
}

/// Frames with which a fuzzer begins: orders, and replies.
pub fn seeds() -> [Vec<u8>; 2] {
    let path = b"a/b".to_vec();
    let orders = [
        Order::Hello { version: 1, makes_mirror: true },
        Order::Write { path: path.clone(), is_staged: true, offset: 300 },
        Order::Rename { from: path.clone(), to: b"c".to_vec() },
        Order::Hashes { path: path.clone(), is_staged: false, first: 1, count: 2 },
        Order::Commit { number: 7 },
    ];
    let replies = [
        Reply::Hello { version: 1, is_mirror: true, staged: vec![b"0".to_vec()] },
        Reply::Checksum { file: Some((3, [5; 32])) },
        Reply::Faults { faults: vec![(path, tameike_core::Errno::ENOSPC.into())] },
        Reply::Committed { number: 7 },
    ];
    let mut all = [Vec::new(), Vec::new()];
    orders.iter().for_each(|order| write_frame(&mut all[0], order, b"data").expect("memory takes it"));
    replies.iter().for_each(|reply| write_frame(&mut all[1], reply, b"").expect("memory takes it"));
    all
}
