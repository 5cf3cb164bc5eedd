use super::*;
use tameike_core::wire::window::{Atomic, Elements, Signal, WordChange};

/// Accesses to windows, with the number of their bytes in the slot's window.
fn accesses() -> impl Iterator<Item = (Access, u32)> {
    let to = Elements { offset: u64::MAX, size: 4, stride: 77, count: 300 };
    let signal = |change| Some(Signal { offset: u64::MAX - 7, change });
    let atomic = |operation| (Access::Atomic { offset: 8, operation }, 0);
    [
        (Access::Put { to, signal: None }, 1200),
        (Access::Put { to, signal: signal(WordChange::Set(u64::MAX)) }, 1200),
        (Access::Put { to, signal: signal(WordChange::Add(5)) }, 1200),
        (Access::Get { from: Elements::contiguous(0, WINDOW_SIZE as u32) }, 0),
        atomic(Atomic::Fetch),
        atomic(Atomic::Add(u64::MAX)),
        atomic(Atomic::Swap(3)),
        atomic(Atomic::CompareSwap { expected: u64::MAX, value: 4 }),
        (Access::Send { queue: 64 }, 100),
    ]
    .into_iter()
}

fn requests() -> Vec<Request> {
    let path = |view, size| Path { at: Start { view, dir: u64::MAX - 1 }, size };
    let handle = u64::MAX;
    [
        Request::Open { path: path(255, 4096), flags: -1, mode: u32::MAX },
        Request::Read {
            handle,
            offset: u64::MAX,
            size: WINDOW_SIZE as u32,
            accepts: Accepts { granted: true, located: false, stale: true },
        },
        Request::Write { handle, offset: 1, size: 0 },
        Request::Append { handle, size: 3 },
        Request::Status { handle },
        Request::StatusAt { path: path(0, 0), follow: true },
        Request::SetSize { handle, size: u64::MAX },
        Request::Sync { handle },
        Request::Close { handle },
        Request::Seek { handle, data: false, offset: 9 },
        Request::Unlink { path: path(2, 1) },
        Request::MakeDir { path: path(2, 1), mode: 0o755 },
        Request::Rename { from: path(1, 7), to: path(1, 4096), flags: 1 },
        Request::HandOver { handle },
        Request::RegionOpen {
            handle,
            terms: Terms { processes: u32::MAX, one_writer: false, tracking: Tracking::OwnTwins },
            reserve: false,
        },
        Request::RegionOpen {
            handle,
            terms: Terms { processes: 1, one_writer: true, tracking: Tracking::WrittenPages },
            reserve: true,
        },
        Request::RegionMapped { region: handle, address: 1 << 46 },
        Request::RegionFetch { region: handle, page: u32::MAX, write: true },
        Request::RegionFlush { region: handle },
        Request::RegionUpdate { region: handle },
        Request::RegionBarrier { region: handle },
        Request::RegionLock { region: handle, lock: u32::MAX },
        Request::RegionUnlock { region: handle, lock: u32::MAX },
        Request::RegionFetchAdd { region: handle, offset: u64::MAX, addend: u64::MAX },
        Request::RegionAllocate { region: handle, bytes: u64::MAX, alignment: 1 << 63 },
        Request::RegionFree { region: handle, offset: u64::MAX },
        Request::RegionClose { region: handle },
        Request::WindowOpen { handle, rank: u32::MAX, ranks: 1, bytes: u64::MAX },
        Request::WindowRanks { region: handle },
    ]
    .into_iter()
    .chain(accesses().map(|(access, size)| Request::WindowAccess {
        region: handle,
        rank: u32::MAX,
        access,
        size,
    }))
    .collect()
}

#[test]
fn requests_and_replies_round_trip() {
    for request in requests() {
        assert_eq!(Request::decode(&request.encode()), Some(request));
    }
    let time = |seconds| Time { seconds, nanoseconds: 999_999_999 };
    let status = Status {
        ino: 1,
        size: 2,
        blocks: 3,
        atime: time(-4),
        mtime: time(5),
        ctime: time(i64::MIN),
        mode: 6,
        nlink: 7,
        uid: 8,
        gid: 9,
        rdev: 10,
        blksize: 11,
    };
    let replies = [
        Reply::Declined,
        Reply::Failed(116),
        Reply::Done,
        Reply::Count(WINDOW_SIZE as u32),
        Reply::Granted(WINDOW_SIZE as u32),
        Reply::Appended { count: 5, end: u64::MAX },
        Reply::Offset(u64::MAX),
        Reply::Status(status),
        Reply::Opened { handle: u64::MAX, key: FileKey::new(7), status },
        Reply::Opened { handle: u64::MAX, key: None, status },
        Reply::Region { number: u64::MAX, owner: u16::MAX, pages: u32::MAX },
    ];
    for reply in replies {
        assert_eq!(Reply::decode(&reply.encode()), Some(reply));
    }
}

#[test]
fn requests_beyond_a_limit_are_rejected() {
    let with = |request: &Request, place: usize, word| {
        let mut words = request.encode();
        words[place] = word;
        Request::decode(&words)
    };
    for request in requests() {
        assert_eq!(with(&request, 0, 0), None);
        assert_eq!(with(&request, 0, WINDOW_ACCESS + 1), None);
        match request {
            Request::Read { .. } | Request::Write { .. } | Request::Append { .. } => {
                assert_eq!(with(&request, 3, WINDOW_SIZE as u64 + 1), None);
                assert_eq!(with(&request, 3, 1 << 32), None);
            }
            Request::Seek { .. } => assert_eq!(with(&request, 3, 2), None),
            Request::RegionOpen { .. } => {
                for (place, word) in [(2, 0), (2, 1 << 32), (3, 2), (4, 3), (5, 2)] {
                    assert_eq!(with(&request, place, word), None);
                }
            }
            Request::RegionMapped { .. } => {
                assert_eq!(with(&request, 2, 0), None);
                assert_eq!(with(&request, 2, 4095), None);
            }
            Request::RegionFetch { .. } => {
                assert_eq!(with(&request, 2, 1 << 32), None);
                assert_eq!(with(&request, 3, 2), None);
            }
            Request::WindowOpen { .. } => {
                for (place, word) in [(2, 1 << 32), (3, 0), (3, 1 << 32), (4, 0)] {
                    assert_eq!(with(&request, place, word), None);
                }
            }
            Request::WindowAccess { access, .. } => {
                assert_eq!(with(&request, 2, 0), None, "no kind");
                assert_eq!(with(&request, 2, 10 << 32), None);
                match access {
                    Access::Put { .. } | Access::Get { .. } => {
                        assert_eq!(with(&request, 4, 1 << 32 | (WINDOW_SIZE as u64 + 1)), None);
                        assert_eq!(with(&request, 4, u64::MAX), None);
                    }
                    Access::Send { .. } => assert_eq!(with(&request, 4, WINDOW_SIZE as u64 + 1), None),
                    Access::Atomic { .. } => {}
                }
            }
            _ if request.names_size() > 0 => {
                assert_eq!(with(&request, 1, PATH_SIZE_MAX as u64 + 1), None);
                assert_eq!(with(&request, 1, 256 << 32), None);
            }
            _ => {}
        }
    }
    assert_eq!(Reply::decode(&[0; REPLY_WORDS]), None);
    let mut words = Reply::Count(1).encode();
    words[1] = WINDOW_SIZE as u64 + 1;
    assert_eq!(Reply::decode(&words), None);
    for (place, word) in [(2, 1 << 16), (3, 0), (3, 1 << 32)] {
        let mut words = Reply::Region { number: 1, owner: 2, pages: 3 }.encode();
        words[place] = word;
        assert_eq!(Reply::decode(&words), None);
    }
}
