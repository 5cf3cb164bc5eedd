//! A hostile program: it sends invalid requests, and changes requests while the agent reads them.

use super::{bed, opened};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tameike_ring::client::{Answer, Client};
use tameike_ring::fuzz::ask;
use tameike_ring::message::REQUEST_WORDS;

/// File outside the view that no path may reach.
const OUTSIDE: &str = "outside";
const NAMES: [&[u8]; 12] = [
    b"a",
    b"b",
    b"a/b",
    b"dir/a",
    b"dir/../a",
    b"..",
    b"../outside",
    b"/etc/passwd",
    b"a\0b",
    b"dir//a/",
    b"link",
    b"link/../../outside",
];
/// Boundary values of request words.
const EDGES: [u64; 12] =
    [0, 1, 2, 9, 4096, 4097, 1 << 20, (1 << 20) + 1, 1 << 32 | 4, i64::MAX as u64, u64::MAX, 1 << 63];

/// Sends random requests until `ended` is set.
fn send_garbage(evil: &Client, mut random: u64, ended: &AtomicBool) {
    let mut next = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    while !ended.load(Ordering::Relaxed) {
        let name = NAMES[next(NAMES.len() as u64) as usize];
        let (edge, small) = (EDGES[next(EDGES.len() as u64) as usize], next(8));
        let code = next(26);
        let has_path = matches!(code, 1 | 6 | 11 | 12 | 13);
        let words: [u64; REQUEST_WORDS] = std::array::from_fn(|place| match place {
            0 => code,
            // A path: its size, or one that is not; then where it starts.
            1 if has_path && small > 0 => name.len() as u64,
            2 if has_path && small > 1 => 1,
            3 | 4 if code == 13 => 1,
            _ if next(2) == 0 => edge,
            _ => next(300),
        });
        ask(evil, next(16) as usize, &words, name);
    }
}

/// Counts panics of serving threads, as requests get a reply even after one.
fn count_panics() -> &'static AtomicUsize {
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let thread = std::thread::current();
        if thread.name().is_some_and(|name| name.starts_with("tameike")) {
            PANICS.fetch_add(1, Ordering::Relaxed);
        }
        before(info);
    }));
    &PANICS
}

#[test]
fn a_program_that_corrupts_its_arena_harms_only_itself() {
    let panics = count_panics();
    let bed = bed();
    let outside = bed.below.with_file_name(OUTSIDE);
    std::fs::write(&outside, "as it was").expect("a file");
    std::fs::create_dir(bed.below.join("dir")).expect("a directory");
    std::os::unix::fs::symlink("..", bed.below.join("link")).expect("a link");
    let (good, evil) = (bed.client(), bed.client());
    let handle = opened(&good, "good", libc::O_RDWR | libc::O_CREAT);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 1..3 {
            let (evil, ended) = (&evil, &ended);
            scope.spawn(move || send_garbage(evil, seed, ended));
        }
        for round in 0..3000_u64 {
            let bytes = round.to_le_bytes();
            assert_eq!(good.write(handle, 0, &[&bytes]), Answer::Done(8));
            let mut found = [0; 8];
            assert_eq!(good.read(handle, None, 0, &mut [&mut found]), Answer::Done(8));
            assert_eq!(found, bytes);
        }
        ended.store(true, Ordering::Relaxed);
    });
    let declined = bed.server.usage();
    assert!(declined.declined > 0 && declined.answered > 6000, "the agent served its requests: {declined:?}");
    drop(evil);
    bed.server.settle();
    pollster::block_on(bed.frontend.settled());
    assert_eq!(bed.server.usage().clients, 1);
    assert_eq!(good.close(handle), Answer::Done(()));
    assert_eq!(panics.load(Ordering::Relaxed), 0);
    assert_eq!(std::fs::read(&outside).expect("it is there"), b"as it was");
    let beside = std::fs::read_dir(bed.below.parent().expect("a directory")).expect("it is there");
    assert_eq!(beside.count(), 3, "the view's directory, the socket, and what is outside");
}
