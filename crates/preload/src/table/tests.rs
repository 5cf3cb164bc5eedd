use super::*;

/// Tests share the table: each uses other numbers.
fn opened(number: i32, handle: u64) -> &'static Entry {
    let entry = entry(number).unwrap();
    entry.install(number, Opened { handle, key: None, flags: 0, view: 0 });
    entry
}

fn hold(entry: &'static Entry) -> Hold {
    match entry.hold() {
        Resolved::File(file) => file,
        other => panic!("{other:?}"),
    }
}

#[test]
fn unused_numbers_belong_to_the_kernel() {
    assert!(entry(100).unwrap().is_free());
    assert!(matches!(entry(100).unwrap().hold(), Resolved::Kernel));
    assert!(entry(-1).is_none());
    assert!(entry(NUMBERS as i32).is_none());
}

#[test]
fn the_last_close_returns_the_handle_and_frees_the_number() {
    let entry = opened(101, 7);
    assert_eq!(entry.begin_close(), Closed::Last(7));
    assert!(matches!(entry.hold(), Resolved::Invalid));
    assert_eq!(entry.begin_close(), Closed::Invalid);
    entry.free();
    assert!(matches!(entry.hold(), Resolved::Kernel));
}

#[test]
fn a_close_during_a_call_leaves_the_handle_to_the_call() {
    let entry = opened(102, 8);
    let (first, second) = (hold(entry), hold(entry));
    assert_eq!(entry.begin_close(), Closed::Deferred(8));
    assert!(matches!(entry.hold(), Resolved::Kernel));
    // The kernel may reuse the number at once, the ring not yet.
    assert!(!entry.is_free());
    assert_eq!(first.entry.end_call(), None);
    std::mem::forget(first);
    assert_eq!(second.entry.end_call(), Some(8));
    std::mem::forget(second);
    assert!(entry.is_free());
}

#[test]
fn an_upgrade_takes_the_offset_from_calls_in_flight() {
    let entry = opened(103, 9);
    let file = hold(entry);
    assert!(file.move_offset(0, 5));
    assert_eq!(entry.begin_upgrade().unwrap().unwrap().handle, 9);
    assert_eq!(entry.take_offset(), 5);
    assert!(!file.move_offset(5, 6) && !file.set_offset(6));
    assert_eq!(file.offset(), None);
    assert_eq!(entry.end_upgrade(), None);
    assert!(matches!(entry.hold(), Resolved::Kernel) && !file.is_current());
    assert_eq!(entry.begin_upgrade().unwrap(), None);
}

#[test]
fn a_failed_upgrade_restores_the_file() {
    let entry = opened(104, 10);
    assert!(entry.begin_upgrade().unwrap().is_some());
    let offset = entry.take_offset();
    entry.fail_upgrade(Some(offset));
    assert_eq!(hold(entry).offset(), Some(0));
}

#[test]
fn calls_during_an_upgrade_wait() {
    let entry = opened(105, 11);
    assert!(entry.begin_upgrade().unwrap().is_some());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| matches!(entry.hold(), Resolved::Kernel));
        assert_eq!(entry.end_upgrade(), Some(11));
        assert!(waiting.join().unwrap());
    });
}

/// Threads read one file while another one closes and reopens it: each handle is closed once, never while it is held.
#[test]
fn concurrent_holds_and_closes_close_each_handle_once() {
    const ROUNDS: u64 = 20_000;
    let entry = entry(106).unwrap();
    let returned = [const { AtomicU32::new(0) }; ROUNDS as usize];
    let close = |handle: u64| returned[handle as usize].fetch_add(1, Ordering::SeqCst);
    let done = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while done.load(Ordering::SeqCst) == 0 {
                    let Resolved::File(file) = entry.hold() else { continue };
                    assert_eq!(returned[file.opened().handle as usize].load(Ordering::SeqCst), 0);
                    if let Some(handle) = file.entry.end_call() {
                        close(handle);
                    }
                    std::mem::forget(file);
                }
            });
        }
        for handle in 0..ROUNDS {
            while !entry.is_free() {
                std::thread::yield_now();
            }
            entry.install(106, Opened { handle, key: None, flags: 0, view: 0 });
            if handle % 2 == 0 {
                if let Closed::Last(handle) = entry.begin_close() {
                    close(handle);
                    entry.free();
                }
            } else if entry.begin_upgrade().unwrap().is_some()
                && let Some(handle) = entry.end_upgrade()
            {
                close(handle);
            }
        }
        done.store(1, Ordering::SeqCst);
    });
    assert!(returned.iter().all(|count| count.load(Ordering::SeqCst) == 1));
}
