//! Calls of programs.

use super::bed::{Bed, HALF_DECLINED, PATIENCE, ROOT};
use crate::WINDOW_SIZE;
use crate::client::{Answer, Client, ConnectError, Transfer};
use crate::layout::SLOTS;
use crate::message::Status;
use crate::server::{CLIENTS_MAX, THREADS};
use std::sync::mpsc::channel;
use std::time::Duration;
use tameike_core::limits::UNIT_SIZE;
use tameike_io::os::process::start_thread;

fn open(client: &Client, path: &[u8]) -> u64 {
    super::bed::open(client, path).handle
}

#[test]
fn calls_are_answered() {
    let bed = Bed::new();
    let client = bed.client();
    assert_eq!(client.views()[0], b"/view");
    let handle = open(&client, b"a/file");
    let bytes: Vec<u8> = (0..2 * WINDOW_SIZE + 5000).map(|place| (place % 251) as u8).collect();
    let parts = [&bytes[..10], &bytes[10..10], &bytes[10..WINDOW_SIZE + 7], &bytes[WINDOW_SIZE + 7..]];
    assert_eq!(client.write(handle, 3, &parts), Answer::Done(bytes.len()));
    let mut found = vec![1; bytes.len() + 100];
    let (first, second) = found.split_at_mut(WINDOW_SIZE - 1);
    assert_eq!(client.read(handle, None, 0, &mut [first, second]), Answer::Done(bytes.len() + 3));
    assert!(found[..3] == [0; 3] && found[3..bytes.len() + 3] == bytes && found[bytes.len() + 3] == 1);
    assert_eq!(client.append(handle, &[b"at ", b"the end"]), Answer::Done((10, bytes.len() as u64 + 13)));
    assert_eq!(client.append(handle, &[&bytes]), Answer::Declined, "it would not be atomic");
    let status = Status { size: bytes.len() as u64 + 13, ..Status::default() };
    assert_eq!(client.status(handle), Answer::Done(status));
    assert_eq!(client.rename((ROOT, b"a/file"), (ROOT, b"b"), 0), Answer::Done(()));
    assert_eq!(client.status_at(ROOT, b"a/file", true), Answer::Failed(2));
    assert_eq!(client.status_at(ROOT, b"b", true), Answer::Done(status));
    assert_eq!(client.status_at(ROOT, &[b'x'; 5000], true), Answer::Declined, "the path is too long");
    assert_eq!(client.unlink(ROOT, b"b"), Answer::Done(()));
    assert_eq!(client.make_dir(ROOT, b"b", 0o755), Answer::Declined);
    assert_eq!(client.close(handle), Answer::Done(()));
    assert_eq!(client.close(handle), Answer::Failed(9));
    assert_eq!(client.write(handle, 0, &[]), Answer::Done(0));
    let usage = bed.server.usage();
    assert_eq!((usage.clients, usage.declined), (1, 1));
}

/// Once, a read was truncated at the point where the agent had declined to continue.
#[test]
fn a_read_declined_in_the_middle_is_declined_as_a_whole() {
    let bed = Bed::new();
    let client = bed.client();
    let handle = open(&client, HALF_DECLINED);
    assert_eq!(client.write(handle, 0, &[&[1; UNIT_SIZE]]), Answer::Done(UNIT_SIZE));
    let start = UNIT_SIZE as u64 - 20_000;
    let read = |start, size| client.read(handle, None, start, &mut [&mut vec![0; size]]);
    assert_eq!(read(start, 20_000), Answer::Done(20_000));
    assert_eq!(read(start, 47_008), Answer::Declined);
    assert_eq!(client.write(handle, 0, &[&[1; UNIT_SIZE + 1]]), Answer::Declined);
}

/// Once, a panic ended the serving thread, and two of them ended the ring.
#[test]
fn a_panicking_request_does_not_affect_others() {
    let bed = Bed::new();
    let client = bed.client();
    for _ in 0..2 * THREADS {
        assert_eq!(client.hand_over(1, &mut [0; 64]), Answer::Failed(5));
    }
    assert_eq!(client.close(1), Answer::Failed(9));
}

#[test]
fn threads_share_the_slots_of_a_program() {
    let bed = Bed::new();
    let client = bed.client();
    std::thread::scope(|scope| {
        for thread in 0..2 * SLOTS as u64 {
            let client = &client;
            scope.spawn(move || {
                let handle = open(client, format!("{thread}").as_bytes());
                for round in 0..200_u64 {
                    let bytes = (thread << 32 | round).to_le_bytes();
                    assert_eq!(client.write(handle, 8 * round, &[&bytes]), Answer::Done(8));
                    let mut found = [0; 8];
                    assert_eq!(client.read(handle, None, 8 * round, &mut [&mut found]), Answer::Done(8));
                    assert_eq!(found, bytes);
                }
            });
        }
    });
}

/// Both sides poll and then sleep; random pauses between calls meet each side in every state. A lost wake-up shows as a
/// call that does not end.
#[test]
fn no_wake_up_is_lost() {
    let bed = Bed::new();
    let (done, ended) = channel();
    for program in 0..3_u64 {
        let (client, done) = (bed.client(), done.clone());
        let run = move || {
            let handle = open(&client, &program.to_le_bytes());
            let mut random = program + 1;
            for _ in 0..1500 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let pause = Duration::from_nanos((random >> 33) % 120_000);
                let begun = tameike_io::os::process::monotonic();
                while (random >> 60) > 4 && tameike_io::os::process::monotonic() - begun < pause {
                    std::hint::spin_loop();
                }
                assert_eq!(client.write(handle, 0, &[b"x"]), Answer::Done(1));
            }
            done.send(()).expect("the test waits");
        };
        start_thread("program", run).expect("a thread");
    }
    for _ in 0..3 {
        ended.recv_timeout(PATIENCE).expect("every call ends");
    }
}

#[test]
fn a_blocked_request_does_not_block_others() {
    let bed = Bed::new();
    let (client, other) = (bed.client(), bed.client());
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..SLOTS - 1).map(|_| scope.spawn(|| client.sync(1))).collect();
        bed.files.wait_for_held(SLOTS - 1);
        let handle = open(&other, b"other");
        assert_eq!(client.status(handle), Answer::Done(Status::default()));
        bed.files.answer_held();
        for waiting in waiting {
            assert_eq!(waiting.join().expect("an end"), Answer::Done(()));
        }
    });
}

/// Context switches of the threads of this process with a name.
fn switches(name: &str) -> Vec<u64> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux").flatten();
    let statuses = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok());
    let named = statuses.filter(|status| status.lines().next() == Some(&format!("Name:\t{name}")));
    let of = |status: String| {
        let lines = status.lines().filter(|line| line.contains("ctxt_switches"));
        lines.filter_map(|line| line.split_whitespace().last()?.parse::<u64>().ok()).sum()
    };
    named.map(of).collect()
}

/// Runs in its own process, as other tests have serving threads, too.
#[test]
#[ignore = "started by all_threads_sleep_without_requests"]
#[expect(clippy::disallowed_methods, reason = "the absence of an event needs a wait by time")]
fn idle_program() {
    let bed = Bed::new();
    assert_eq!(switches("tameike-ring"), Vec::<u64>::new(), "a thread without a client");
    let client = bed.client();
    open(&client, b"file");
    std::thread::sleep(Duration::from_millis(100));
    let before = switches("tameike-ring");
    assert_eq!(before.len(), THREADS);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(switches("tameike-ring"), before, "a wake-up without a request");
}

#[test]
fn all_threads_sleep_without_requests() {
    let mut idle = super::bed::start("tests::calls::idle_program", std::path::Path::new("/none"));
    assert!(idle.wait().expect("it is our child").success());
}

#[test]
fn a_program_beyond_the_maximum_is_refused() {
    let bed = Bed::new();
    let clients: Vec<Client> = (0..CLIENTS_MAX).map(|_| bed.client()).collect();
    assert!(matches!(Client::connect(&bed.socket, |_| {}), Err(ConnectError::Full)));
    assert_eq!(bed.server.usage().clients, CLIENTS_MAX as u64);
    drop(clients);
    bed.files.wait_for_state(|state| state.ended == CLIENTS_MAX);
    assert_eq!(bed.client().close(1), Answer::Failed(9));
}

fn begun(answer: Answer<Option<Transfer<'_>>>) -> Option<Transfer<'_>> {
    match answer {
        Answer::Done(transfer) => transfer,
        other => panic!("{other:?}"),
    }
}

#[test]
fn transfers_leave_slots_for_calls() {
    let bed = Bed::new();
    let client = bed.client();
    let handle = open(&client, b"file");
    let bytes: Vec<u8> = (0..100_000).map(|place| (place % 251) as u8).collect();
    let begin = |number: usize| {
        let part = &bytes[1000 * number..][..1000];
        begun(client.begin_write(handle, 1000 * number as u64, part))
    };
    let in_flight: Vec<_> = (0..SLOTS).map_while(begin).collect();
    assert!(in_flight.len() < SLOTS, "some slots are reserved for calls");
    let count = in_flight.len();
    assert!(matches!(client.status(handle), Answer::Done(_)));
    assert!(in_flight.iter().all(|transfer| transfer.wait(None)));
    drop(in_flight);
    let read = begun(client.begin_read(handle, 0, bytes.len())).expect("a slot is free");
    let mut found = vec![0; bytes.len()];
    assert_eq!(read.end(&mut found), Answer::Done(1000 * count));
    assert_eq!(found[..1000 * count], bytes[..1000 * count]);
    let empty = begun(client.begin_read(handle, 5, 0)).expect("a slot is free");
    assert_eq!(empty.end(&mut []), Answer::Done(0));
    let failing = begun(client.begin_write(77, 0, b"bytes")).expect("a slot is free");
    assert_eq!(failing.end(&mut []), Answer::Failed(9));
}

#[test]
fn a_transfer_ends_with_the_agent() {
    let bed = Bed::new();
    let client = bed.client();
    let handle = open(&client, b"file");
    bed.server.stop();
    let answer = match client.begin_read(handle, 0, 10) {
        Answer::Done(Some(transfer)) => transfer.end(&mut [0; 10]),
        other => other.map(|_| 0),
    };
    assert_eq!(answer, Answer::Broken);
    assert!(client.is_broken());
}

/// Handles beyond the shared places are closed by requests.
#[test]
fn left_handles_are_closed_without_waiting() {
    let bed = Bed::new();
    let client = bed.client();
    let (first, handles) = (open(&client, b"file"), [(); 100].map(|()| open(&client, b"file")));
    let before = bed.server.usage().answered;
    assert_eq!(client.leave(first), Answer::Done(()));
    bed.files.wait_for_state(|state| state.closed == [first]);
    assert_eq!(bed.server.usage().answered, before, "a left handle is no request");
    for handle in handles {
        assert_eq!(client.leave(handle), Answer::Done(()));
    }
    let by_requests = (bed.server.usage().answered - before) as usize;
    bed.files.wait_for_state(|state| state.closed.len() + by_requests == 1 + handles.len());
    for handle in handles {
        assert_eq!(client.close(handle), Answer::Failed(9), "it is closed");
    }
    assert_eq!(client.leave(0), Answer::Failed(9));
}
