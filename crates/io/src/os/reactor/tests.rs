#![expect(clippy::disallowed_methods, reason = "these tests measure the real clock from outside")]

use super::Watched;
use crate::os::runtime::promise;
use crate::os::system::System;
use parking_lot::Mutex;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

fn system() -> System {
    System::start(3).expect("threads and descriptors")
}

#[test]
fn a_task_is_polled_at_once_by_its_spawner_and_then_by_the_reactor() {
    let system = system();
    let (resolver, promise) = promise();
    let (sender, receiver) = channel::<ThreadId>();
    system.runtime().spawn(async move {
        sender.send(std::thread::current().id()).expect("the receiver exists");
        promise.await;
        sender.send(std::thread::current().id()).expect("the receiver exists");
    });
    assert_eq!(receiver.try_recv().expect("polled before spawn returned"), std::thread::current().id());
    resolver.resolve(());
    assert_ne!(receiver.recv().expect("woken"), std::thread::current().id());
}

#[test]
fn no_wakeup_is_lost_and_no_task_runs_twice_at_once() {
    const ROUNDS: usize = 3000;
    let system = system();
    let (done, end) = channel();
    let wakers: Arc<Mutex<Vec<std::task::Waker>>> = Arc::default();
    for _ in 0..4 {
        let (left, inside, done) = (AtomicUsize::new(ROUNDS), AtomicUsize::new(0), done.clone());
        let wakers = wakers.clone();
        system.runtime().spawn(std::future::poll_fn(move |context| {
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
            let ended = left.fetch_sub(1, Ordering::SeqCst) == 1;
            if ended {
                done.send(()).expect("the receiver exists");
            } else {
                wakers.lock().push(context.waker().clone());
            }
            inside.fetch_sub(1, Ordering::SeqCst);
            if ended { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        }));
    }
    drop(done);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                // Ends when all four tasks have stopped waking each other.
                let mut idle = Instant::now();
                while idle.elapsed() < Duration::from_millis(500) {
                    let taken = std::mem::take(&mut *wakers.lock());
                    if !taken.is_empty() {
                        idle = Instant::now();
                    }
                    for waker in taken {
                        waker.wake_by_ref();
                        waker.wake();
                    }
                }
            });
        }
    });
    for _ in 0..4 {
        end.recv_timeout(Duration::from_secs(5)).expect("every task ends");
    }
}

#[test]
fn timers_fire_in_order_and_not_early() {
    let system = system();
    let (sender, receiver) = channel();
    let begun = Instant::now();
    for time_ms in [40_u64, 10, 25, 10, 0] {
        let (sender, sleep) = (sender.clone(), system.runtime().sleep(Duration::from_millis(time_ms)));
        system.runtime().spawn(async move {
            sleep.await;
            sender.send((time_ms, begun.elapsed())).expect("the receiver exists");
        });
    }
    let fired: Vec<_> = (0..5).map(|_| receiver.recv().expect("all timers fire")).collect();
    assert_eq!(fired.iter().map(|(time_ms, _)| *time_ms).collect::<Vec<_>>(), [0, 10, 10, 25, 40]);
    assert!(fired.iter().all(|(time_ms, elapsed)| *elapsed >= Duration::from_millis(*time_ms)));
}

#[test]
fn a_time_limit_ends_a_pending_future() {
    let system = system();
    let (sender, receiver) = channel();
    let runtime = system.runtime().clone();
    system.runtime().spawn(async move {
        let ended = runtime.timeout(Duration::from_millis(5), std::future::pending::<()>()).await;
        let quick = runtime.timeout(Duration::from_secs(60), async { 7 }).await;
        sender.send((ended, quick)).expect("the receiver exists");
    });
    assert_eq!(receiver.recv().expect("the limit passes"), (None, Some(7)));
}

#[test]
fn blocking_calls_block_no_tasks_and_are_never_lost() {
    let system = system();
    let count = Arc::new(AtomicUsize::new(0));
    let (sender, receiver) = channel();
    for _ in 0..50 {
        let (count, sender) = (count.clone(), sender.clone());
        let blocked = system.runtime().block(move || {
            std::thread::sleep(Duration::from_millis(2));
            count.fetch_add(1, Ordering::SeqCst)
        });
        system.runtime().spawn(async move {
            blocked.await;
            let _ = sender.send(());
        });
    }
    receiver.recv_timeout(Duration::from_secs(5)).expect("the results arrive");
    let panicked = system.runtime().block(|| panic!("on purpose"));
    drop(panicked);
    system.stop();
    assert_eq!(count.load(Ordering::SeqCst), 50);
    drop(system.runtime().block(move || count.fetch_add(1, Ordering::SeqCst)));
}

#[test]
fn a_task_that_panics_affects_no_other() {
    let system = system();
    let (sender, receiver) = channel();
    system.runtime().spawn(async { panic!("on purpose") });
    let sleep = system.runtime().sleep(Duration::from_millis(1));
    system.runtime().spawn(async move {
        sleep.await;
        sender.send(()).expect("the receiver exists");
    });
    receiver.recv_timeout(Duration::from_secs(5)).expect("the reactor continues");
}

/// Returns the number of times that the reactor's thread has slept.
fn switches(system: &System) -> impl Fn() -> u64 {
    let (sender, receiver) = channel();
    let thread = || rustix::thread::gettid().as_raw_nonzero().get();
    let sleep = system.runtime().sleep(Duration::from_millis(1));
    system.runtime().spawn(async move {
        sleep.await;
        sender.send(thread()).expect("the receiver exists");
    });
    let thread = receiver.recv().expect("runs on the reactor");
    move || {
        let status =
            std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).expect("the thread runs");
        let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches")).expect("Linux");
        line.split_whitespace().last().and_then(|count| count.parse::<u64>().ok()).expect("a number")
    }
}

/// The reactor's thread may use no processor time while idle: not even one wake-up in half a second.
#[test]
fn an_idle_reactor_sleeps() {
    let system = system();
    let switches = switches(&system);
    std::thread::sleep(Duration::from_millis(50));
    let before = switches();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(switches(), before);
}

#[test]
fn reads_of_the_peer_wake_only_a_writer_that_waits() {
    let system = system();
    let (own, mut peer) = UnixStream::pair().expect("a socket");
    own.set_nonblocking(true).expect("a socket");
    let own = Arc::new(Watched::new(system.reactor(), own).expect("registered"));
    let switches = switches(&system);
    std::thread::sleep(Duration::from_millis(50));
    let before = switches();
    for _ in 0..100 {
        own.get().write_all(&[7; 100]).expect("there is room");
        peer.read_exact(&mut [0; 100]).expect("it was written");
    }
    assert!(switches() < before + 10, "the reactor woke up for reads of the peer");

    let mut written = 0;
    while let Ok(count) = own.get().write(&[7; 4096]) {
        written += count;
    }
    let (sender, receiver) = channel();
    let writer = own.clone();
    system.runtime().spawn(async move {
        sender.send(writer.writable().await.is_ok()).expect("the receiver exists");
    });
    assert!(receiver.try_recv().is_err(), "the socket is full");
    peer.read_exact(&mut vec![0; written]).expect("it was written");
    assert!(receiver.recv_timeout(Duration::from_secs(5)).expect("writable"));
    own.get().write_all(&[7; 100]).expect("there is room again");
}
