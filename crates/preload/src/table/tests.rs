use super::*;

/// Each test has numbers of its own: the table is one.
fn opened(number: i32, handle: u64) -> &'static Entry {
    let entry = entry(number).unwrap();
    entry.install(number, Opened { handle, key: None, flags: 0, view: 0 });
    entry
}

fn hold(entry: &'static Entry) -> Hold {
    match entry.hold() {
        Met::File(file) => file,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_number_that_was_never_used_is_the_kernels() {
    assert!(entry(100).unwrap().is_free());
    assert!(matches!(entry(100).unwrap().hold(), Met::Kernel));
    assert!(entry(-1).is_none());
    assert!(entry(NUMBERS as i32).is_none());
}

#[test]
fn the_last_close_gives_the_handle_and_the_number_is_free_after() {
    let entry = opened(101, 7);
    assert_eq!(entry.begin_close(), Closed::Last(7));
    assert!(matches!(entry.hold(), Met::Nothing));
    assert_eq!(entry.begin_close(), Closed::Nothing);
    entry.free();
    assert!(matches!(entry.hold(), Met::Kernel));
}

#[test]
fn a_close_amid_a_call_leaves_the_number_to_the_kernel_and_the_handle_to_the_call() {
    let entry = opened(102, 8);
    let (first, second) = (hold(entry), hold(entry));
    assert_eq!(entry.begin_close(), Closed::Left(8));
    assert!(matches!(entry.hold(), Met::Kernel));
    // The kernel may give the number to another file at once; the ring not yet.
    assert!(!entry.is_free());
    assert_eq!(first.entry.end_call(), None);
    std::mem::forget(first);
    assert_eq!(second.entry.end_call(), Some(8));
    std::mem::forget(second);
    assert!(entry.is_free());
}

#[test]
fn an_upgrade_takes_the_offset_from_calls_under_way() {
    let entry = opened(103, 9);
    let file = hold(entry);
    assert!(file.move_offset(0, 5));
    assert_eq!(entry.begin_upgrade().unwrap().unwrap().handle, 9);
    assert_eq!(entry.take_offset(), 5);
    assert!(!file.move_offset(5, 6) && !file.set_offset(6));
    assert_eq!(file.offset(), None);
    assert_eq!(entry.end_upgrade(), None);
    assert!(matches!(entry.hold(), Met::Kernel) && !file.is_current());
    assert_eq!(entry.begin_upgrade().unwrap(), None);
}

#[test]
fn an_upgrade_that_fails_leaves_all_as_it_was() {
    let entry = opened(104, 10);
    assert!(entry.begin_upgrade().unwrap().is_some());
    let offset = entry.take_offset();
    entry.fail_upgrade(Some(offset));
    assert_eq!(hold(entry).offset(), Some(0));
}

#[test]
fn who_comes_amid_an_upgrade_waits_for_its_end() {
    let entry = opened(105, 11);
    assert!(entry.begin_upgrade().unwrap().is_some());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| matches!(entry.hold(), Met::Kernel));
        assert_eq!(entry.end_upgrade(), Some(11));
        assert!(waiting.join().unwrap());
    });
}

/// Readers of one file while others close it and open it again: each handle is given back once, never while it is held.
#[test]
fn threads_that_hold_and_close_one_number_give_each_handle_back_once() {
    const ROUNDS: u64 = 20_000;
    let entry = entry(106).unwrap();
    let returned = [const { AtomicU32::new(0) }; ROUNDS as usize];
    let give_back = |handle: u64| returned[handle as usize].fetch_add(1, Ordering::SeqCst);
    let done = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while done.load(Ordering::SeqCst) == 0 {
                    let Met::File(file) = entry.hold() else { continue };
                    assert_eq!(returned[file.opened().handle as usize].load(Ordering::SeqCst), 0);
                    if let Some(handle) = file.entry.end_call() {
                        give_back(handle);
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
                    give_back(handle);
                    entry.free();
                }
            } else if entry.begin_upgrade().unwrap().is_some()
                && let Some(handle) = entry.end_upgrade()
            {
                give_back(handle);
            }
        }
        done.store(1, Ordering::SeqCst);
    });
    assert!(returned.iter().all(|count| count.load(Ordering::SeqCst) == 1));
}
