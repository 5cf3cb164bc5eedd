//! Decoders of the ring, and shared memory with arbitrary content, for fuzz targets.

use crate::WINDOW_SIZE;
use crate::client::Client;
use crate::extent_location::{DEVICES_MAX, ExtentLocation, LOCATION_SIZE, encode};
use crate::greeting::{Welcome, hello, is_hello};
use crate::layout::{LEFT, REQUESTED, SLOTS, Slot, left, pending};
use crate::message::{
    Accepts, FileKey, Path, REPLY_WORDS, Reply, Request, RequestWords, Start, Status, Time,
};
use std::ops::Range;
use std::sync::atomic::Ordering;
use tameike_core::limits::{BLOCK_SIZE, BLOCKS_PER_UNIT, PATH_SIZE_MAX, UNIT_SIZE};
use tameike_core::region::{Terms, Tracking};
use tameike_core::wire::call::Run;
use tameike_core::wire::unit::UnitLocation;
use tameike_core::wire::window::{Access, Elements, Signal, WordChange};

/// Decodes words; missing ones are 0.
fn words<const COUNT: usize>(bytes: &[u8]) -> [u64; COUNT] {
    let (chunks, _) = bytes.as_chunks::<8>();
    std::array::from_fn(|place| chunks.get(place).copied().map_or(0, u64::from_le_bytes))
}

fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A request: what decodes must encode to the same request, and its names must fit in a window.
pub fn request(bytes: &[u8]) {
    if let Some(request) = Request::decode(&words(bytes)) {
        assert!(request.names_size() <= 2 * PATH_SIZE_MAX && request.names_size() <= WINDOW_SIZE);
        assert_eq!(Request::decode(&request.encode()), Some(request));
    }
}

/// A reply: what decodes must encode to the same reply, and counts at most a window.
pub fn reply(bytes: &[u8]) {
    if let Some(reply) = Reply::decode(&words::<REPLY_WORDS>(bytes)) {
        if let Reply::Count(count)
        | Reply::Granted(count)
        | Reply::Located(count)
        | Reply::Appended { count, .. } = reply
        {
            assert!(count as usize <= WINDOW_SIZE);
        }
        assert_eq!(Reply::decode(&reply.encode()), Some(reply));
    }
}

/// Greetings of both sides: a decoded welcome must encode to the same bytes.
pub fn greeting(bytes: &[u8]) {
    assert_eq!(is_hello(bytes), bytes == hello());
    if let Some(welcome) = Welcome::decode(bytes) {
        assert_eq!(welcome.encode(), bytes);
    }
}

/// Locations of a read, after the number of its bytes: a decoded one has whole blocks for these bytes, within a unit.
pub fn extent_location(bytes: &[u8]) {
    let Some((count, rest)) = bytes.split_first_chunk() else { return };
    let (count, size) =
        (u32::from_ne_bytes(*count) as usize % (2 * UNIT_SIZE), rest.len().min(LOCATION_SIZE));
    let mut window = [0; LOCATION_SIZE];
    window[..size].copy_from_slice(&rest[..size]);
    let Some(location) = ExtentLocation::decode(&window, count) else { return };
    let sizes: Vec<usize> = location.parts().map(|run| run.length as usize).collect();
    let total: usize = sizes.iter().sum();
    assert!(location.device < DEVICES_MAX && location.skip < BLOCK_SIZE);
    assert!(sizes.into_iter().all(|size| size > 0 && size.is_multiple_of(BLOCK_SIZE)));
    assert!(total <= UNIT_SIZE && total - location.skip - count < BLOCK_SIZE);
    assert!(location.sums(0).len() >= total / BLOCK_SIZE * 4);
}

/// Encoded requests.
pub fn request_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let path = Path { at: Start { view: 1, dir: 77 }, size: 9 };
    let seeds = [
        ("open", Request::Open { path, flags: 0o102, mode: 0o644 }),
        (
            "read",
            Request::Read {
                handle: 5,
                offset: 1 << 40,
                size: WINDOW_SIZE as u32,
                accepts: Accepts { granted: true, located: true, stale: false },
            },
        ),
        ("write", Request::Write { handle: 5, offset: 4096, size: 100 }),
        ("append", Request::Append { handle: 5, size: 100 }),
        ("status", Request::Status { handle: 5 }),
        ("status-at", Request::StatusAt { path, follow: true }),
        ("set-size", Request::SetSize { handle: 5, size: 1 << 30 }),
        ("sync", Request::Sync { handle: 5 }),
        ("close", Request::Close { handle: 5 }),
        ("seek", Request::Seek { handle: 5, data: true, offset: 100 }),
        ("unlink", Request::Unlink { path }),
        ("make-dir", Request::MakeDir { path, mode: 0o755 }),
        ("rename", Request::Rename { from: path, to: Path { size: 4, ..path }, flags: 1 }),
        ("hand-over", Request::HandOver { handle: 5 }),
        (
            "region-open",
            Request::RegionOpen {
                handle: 5,
                terms: Terms { processes: 8, one_writer: true, tracking: Tracking::WrittenPages },
                reserve: true,
            },
        ),
        ("region-mapped", Request::RegionMapped { region: 2, address: 0x7f00_0000_0000 }),
        ("region-fetch", Request::RegionFetch { region: 2, page: 1000, write: true }),
        ("region-flush", Request::RegionFlush { region: 2 }),
        ("region-update", Request::RegionUpdate { region: 2 }),
        ("region-barrier", Request::RegionBarrier { region: 2 }),
        ("region-lock", Request::RegionLock { region: 2, lock: 3 }),
        ("region-unlock", Request::RegionUnlock { region: 2, lock: 3 }),
        ("region-fetch-add", Request::RegionFetchAdd { region: 2, offset: 8, addend: 3 }),
        ("region-allocate", Request::RegionAllocate { region: 2, bytes: 100, alignment: 8 }),
        ("region-free", Request::RegionFree { region: 2, offset: 16 }),
        ("region-close", Request::RegionClose { region: 2 }),
        ("window-open", Request::WindowOpen { handle: 5, rank: 3, ranks: 8, bytes: 1 << 20 }),
        ("window-ranks", Request::WindowRanks { region: 2 }),
        (
            "window-put",
            Request::WindowAccess {
                region: 2,
                rank: 3,
                access: Access::Put {
                    to: Elements { offset: 64, size: 8, stride: 80, count: 10 },
                    signal: Some(Signal { offset: 8, change: WordChange::Add(1) }),
                },
                size: 80,
            },
        ),
        (
            "window-send",
            Request::WindowAccess { region: 2, rank: 3, access: Access::Send { queue: 64 }, size: 100 },
        ),
    ];
    seeds.map(|(name, request)| (name, bytes_of(&request.encode()))).into()
}

/// Encoded replies.
pub fn reply_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let time = Time { seconds: -5, nanoseconds: 999_999_999 };
    let (atime, mtime, ctime) = (time, time, time);
    let status =
        Status { ino: 77, size: 5, mode: 0o100_644, nlink: 1, atime, mtime, ctime, ..Status::default() };
    let seeds = [
        ("declined", Reply::Declined),
        ("failed", Reply::Failed(-2)),
        ("done", Reply::Done),
        ("count", Reply::Count(4096)),
        ("granted", Reply::Granted(4096)),
        ("located", Reply::Located(4096)),
        ("appended", Reply::Appended { count: 4096, end: 1 << 40 }),
        ("offset", Reply::Offset(100)),
        ("attributes", Reply::Status(status)),
        ("opened", Reply::Opened { handle: 5, key: FileKey::new(4099), status }),
        ("region", Reply::Region { number: 2, owner: 3, pages: 1000 }),
    ];
    seeds.map(|(name, reply)| (name, bytes_of(&reply.encode()))).into()
}

/// Encoded locations, after the numbers of their bytes.
pub fn extent_location_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let halves = [1 << 30, 1 << 20].map(|at| Run { at, length: UNIT_SIZE as u32 / 2 });
    let place = UnitLocation { runs: halves.into(), sums: vec![7; 4 * BLOCKS_PER_UNIT], time: 300 };
    let seed = |range: &Range<u32>| {
        let bytes = encode(1, &place, range).expect("two parts");
        [&(range.len() as u32).to_ne_bytes()[..], &bytes].concat()
    };
    vec![("whole", seed(&(0..UNIT_SIZE as u32))), ("record", seed(&(500_000..547_008)))]
}

/// Encoded greetings.
pub fn greeting_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let mounts = vec![b"/run/job/shared".to_vec(), b"/run/job/cache".to_vec()];
    let views = Welcome::Views { mounts, frames: 240 };
    vec![("hello", hello().to_vec()), ("views", views.encode()), ("full", Welcome::Full.encode())]
}

/// Puts any request, like a program that breaks the rules: without waiting, also into a slot in use, over words and names that the agent may
/// be reading. The first slot also leaves handles.
pub fn ask(client: &Client, slot: usize, words: &RequestWords, names: &[u8]) {
    let slot = Slot::new(&client.arena, slot % SLOTS);
    client.arena.copy_in(slot.window(), &names[..names.len().min(WINDOW_SIZE)]);
    slot.set_request(words);
    slot.state().store(REQUESTED, Ordering::Relaxed);
    let mut bits = slot.bit();
    if bits == 1 {
        left(&client.arena).zip(words).for_each(|(place, word)| place.store(*word, Ordering::Relaxed));
        bits |= LEFT;
    }
    pending(&client.arena).fetch_or(bits, Ordering::SeqCst);
}
