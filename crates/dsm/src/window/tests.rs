use super::*;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tameike_io::os::process::monotonic;

const BYTES: u64 = 10_000;

/// The memory as the agent and as a process see it.
fn both(ranks: u32, bytes: u64) -> (WindowMemory, WindowMemory, OwnedFd) {
    let shape = Shape::new(ranks, bytes).expect("a shape");
    let (agent, file) = WindowMemory::create(shape).expect("memory");
    let process = WindowMemory::map(&file, shape).expect("the same memory");
    (agent, process, file)
}

fn loaded(memory: &WindowMemory, rank: u32, offset: u64, size: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; size];
    memory.load(rank, offset, &mut bytes).expect("in the memory");
    bytes
}

fn waiter(rank: u32, milliseconds: u64) -> Waiter<'static> {
    Waiter { rank, until: Some(monotonic() + Duration::from_millis(milliseconds)), gives_up: &|| false }
}

#[test]
fn shapes_have_limits() {
    assert_eq!(Shape::new(0, 1), Err(Errno::EINVAL));
    assert_eq!(Shape::new(1, 0), Err(Errno::EINVAL));
    assert_eq!(Shape::new(RANKS_MAX + 1, 1), Err(Errno::EINVAL));
    assert_eq!(Shape::new(1, u64::MAX), Err(Errno::ENOMEM));
    assert_eq!(Shape::new(RANKS_MAX, SIZE_MAX / u64::from(RANKS_MAX)), Err(Errno::ENOMEM));
    let shape = Shape::new(3, 4097).expect("a shape");
    assert_eq!((shape.stride(), shape.size(), shape.rank(2).bytes), (3 * 4096, 9 * 4096, 4097));
}

#[test]
fn ranks_have_memory_of_their_own() {
    let (agent, process, file) = both(3, BYTES);
    for rank in 0..3 {
        process.reserve(&file, rank).expect("little memory");
        process.store(rank, 0, &[rank as u8 + 1; BYTES as usize]).expect("the whole memory");
    }
    for rank in 0..3 {
        assert_eq!(loaded(&agent, rank, 0, BYTES as usize), [rank as u8 + 1; BYTES as usize]);
        agent.check_whole(rank).expect("stores do not reach the control page");
        assert_eq!(process.address(rank), Ok(process.arena.start() + rank as usize * 4 * 4096 + 4096));
    }
    for (rank, offset, size) in
        [(3, 0, 1), (0, BYTES, 1), (0, BYTES - 3, 4), (0, u64::MAX, 2), (0, 1 << 40, 0)]
    {
        assert_eq!(process.store(rank, offset, &vec![0; size]), Err(Errno::EINVAL));
        assert_eq!(process.load(rank, offset, &mut vec![0; size]), Err(Errno::EINVAL));
    }
    assert_eq!(process.store(0, BYTES, &[]), Ok(()), "nothing at the end");
    assert_eq!(process.reserve(&file, 3), Err(Errno::EINVAL));
}

#[test]
fn memory_that_is_not_free_is_refused() {
    let (_, process, file) = both(2, 1 << 44);
    assert_eq!(process.reserve(&file, 0), Err(Errno::ENOMEM));
}

#[test]
fn elements_are_stored_and_loaded_at_their_places() {
    let (memory, _, _) = both(1, BYTES);
    for (offset, size, stride, count) in
        [(0, 8, 24, 5), (3, 5, 7, 9), (8, 4, 4, 6), (1, 1, 2, 40), (64, 8, 0, 1)]
    {
        memory.store(0, 0, &[0; 512]).expect("the start");
        let elements = Elements { offset, size, stride, count };
        let bytes: Vec<u8> = (1..=size * count).map(|number| number as u8).collect();
        memory.store_elements(0, &elements, &bytes).expect("in the memory");
        let mut expected = vec![0; 512];
        for (number, element) in bytes.chunks(size as usize).enumerate() {
            let start = offset as usize + number * stride as usize;
            expected[start..start + size as usize].copy_from_slice(element);
        }
        assert_eq!(loaded(&memory, 0, 0, 512), expected);
        let mut found = vec![0; bytes.len()];
        memory.load_elements(0, &elements, &mut found).expect("in the memory");
        assert_eq!(found, bytes);
    }
    let beyond = Elements { offset: 0, size: 8, stride: BYTES / 2, count: 3 };
    assert_eq!(memory.store_elements(0, &beyond, &[1; 24]), Err(Errno::EINVAL));
    let elements = Elements { offset: 0, size: 8, stride: 8, count: 2 };
    assert_eq!(memory.store_elements(0, &elements, &[1; 15]), Err(Errno::EINVAL), "another size");
    let nothing = Elements { offset: BYTES, size: 8, stride: 8, count: 0 };
    assert_eq!(memory.store_elements(0, &nothing, &[]), Ok(()));
}

/// S50e. A reader of a word never sees a part of a store, also in the middle of a larger one.
#[test]
fn aligned_words_change_as_a_whole() {
    let (agent, process, _) = both(1, BYTES);
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..40_000_u64 {
                // Four words behind three bytes, each with eight equal bytes.
                agent.store(0, 5, &[round as u8; 3 + 32 + 2]).expect("in the memory");
            }
            ends.store(true, Ordering::Release);
        });
        while !ends.load(Ordering::Acquire) {
            let seen = loaded(&process, 0, 8, 32);
            for word in seen.chunks(8) {
                assert!(word.iter().all(|byte| *byte == word[0]), "{seen:?}");
            }
        }
    });
}

#[test]
fn atomic_operations_return_the_value_before() {
    let (memory, _, _) = both(2, BYTES);
    assert_eq!(memory.atomic(1, 8, Atomic::Add(5)), Ok(0));
    assert_eq!(memory.atomic(1, 8, Atomic::Add(u64::MAX)), Ok(5));
    assert_eq!(memory.atomic(1, 8, Atomic::CompareSwap { expected: 5, value: 9 }), Ok(4));
    assert_eq!(memory.atomic(1, 8, Atomic::CompareSwap { expected: 4, value: 9 }), Ok(4));
    assert_eq!(memory.atomic(1, 8, Atomic::Swap(7)), Ok(9));
    assert_eq!(memory.atomic(1, 8, Atomic::Fetch), Ok(7));
    assert_eq!(memory.atomic(0, 8, Atomic::Fetch), Ok(0));
    for offset in [4, BYTES - BYTES % 8, BYTES - 4, u64::MAX - 7] {
        assert_eq!(memory.atomic(1, offset, Atomic::Fetch), Err(Errno::EINVAL));
        assert_eq!(memory.change(1, offset, WordChange::Set(1)), Err(Errno::EINVAL));
    }
    memory.change(1, 16, WordChange::Set(3)).expect("a word");
    memory.change(1, 16, WordChange::Add(4)).expect("a word");
    assert_eq!(memory.atomic(1, 16, Atomic::Fetch), Ok(7));
}

#[test]
fn comparisons_are_unsigned() {
    use Comparison::*;
    for (comparison, expected) in [
        (Equal, [false, true, false]),
        (NotEqual, [true, false, true]),
        (Greater, [false, false, true]),
        (GreaterOrEqual, [false, true, true]),
        (Less, [true, false, false]),
        (LessOrEqual, [true, true, false]),
    ] {
        assert_eq!([4, 5, u64::MAX].map(|word| comparison.holds(word, 5)), expected, "{comparison:?}");
    }
}

/// Signals back and forth: a lost wake-up would cost the slice of a sleep each time.
#[test]
fn waiters_see_signals_and_the_bytes_before_them() {
    const ROUNDS: u64 = 5000;
    let (agent, process, _) = both(2, BYTES);
    std::thread::scope(|scope| {
        for (memory, rank) in [(&agent, 0), (&process, 1)] {
            scope.spawn(move || {
                for round in 1..=ROUNDS {
                    memory.store(1 - rank, 100, &round.to_ne_bytes()).expect("in the memory");
                    memory.change(1 - rank, 8, WordChange::Set(round)).expect("a word");
                    memory.changed(1 - rank).expect("a rank");
                    let until = (Comparison::GreaterOrEqual, round);
                    memory.wait_until(&waiter(rank, 20_000), 8, until).expect("the signal");
                    let seen = loaded(memory, rank, 100, 8);
                    assert!(u64::from_ne_bytes(seen.try_into().expect("eight")) >= round);
                }
            });
        }
    });
    assert_eq!(agent.arena.word(WAITERS).load(Ordering::Relaxed), 0, "no thread waits any more");
}

#[test]
fn waits_end_in_time_or_with_the_error_of_the_window() {
    let (agent, process, _) = both(2, BYTES);
    let never = (Comparison::Equal, 1);
    assert_eq!(process.wait_until(&waiter(1, 0), 8, never), Err(Errno::EAGAIN));
    assert_eq!(process.wait_until(&waiter(1, 30), 8, never), Err(Errno::EAGAIN));
    assert_eq!(process.wait_until(&waiter(1, 30), 7, never), Err(Errno::EINVAL));
    let gone = Waiter { rank: 1, until: None, gives_up: &|| true };
    assert_eq!(process.wait_until(&gone, 8, never), Err(Errno::EIO));
    std::thread::scope(|scope| {
        let unlimited = Waiter { rank: 1, until: None, gives_up: &|| false };
        let process = &process;
        let waiting = scope.spawn(move || process.wait_until(&unlimited, 8, never));
        while agent.arena.word(agent.part(1).expect("a rank") + WAITERS).load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        agent.set_broken(1, Errno::EOWNERDEAD).expect("a rank");
        agent.set_broken(1, Errno::EHOSTDOWN).expect("a rank");
        assert_eq!(waiting.join().expect("no panic"), Err(Errno::EOWNERDEAD));
    });
    assert_eq!((process.check_whole(1), process.check_whole(0)), (Err(Errno::EOWNERDEAD), Ok(())));
    process.store(1, 8, &1_u64.to_ne_bytes()).expect("in the memory");
    assert_eq!(process.wait_until(&waiter(1, 0), 8, never), Ok(()), "the value was there before");
}

/// Stores of a program itself.
#[test]
fn stores_that_wake_no_waiter_are_found() {
    let (agent, process, _) = both(1, BYTES);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| process.wait_until(&waiter(0, 20_000), 8, (Comparison::Equal, 1)));
        while agent.arena.word(WAITERS).load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        agent.store(0, 8, &1_u64.to_ne_bytes()).expect("in the memory");
        assert_eq!(waiting.join().expect("no panic"), Ok(()));
    });
}

#[test]
fn a_queue_is_full_and_empty_at_its_ends() {
    let (agent, process, _) = both(1, BYTES);
    assert!(Queue::open(&agent, (0, 64)).is_err(), "there is none");
    for (slots, size) in [(1, 0), (1, 5), (2, 8), (3, 100)] {
        let queue = Queue::create(&process, (0, 64), slots, size).expect("a small queue");
        let other = Queue::open(&agent, (0, 64)).expect("the same queue");
        let mut into = [0; 100];
        for round in 0..5 {
            assert_eq!(queue.receive(&mut into), Ok(None));
            for number in 0..slots {
                let message = vec![(round + number) as u8; (size - size.min(number)) as usize];
                assert_eq!(other.send(&message), Ok(true));
            }
            assert_eq!(other.send(&[]), Ok(false));
            for number in 0..slots {
                let expected = vec![(round + number) as u8; (size - size.min(number)) as usize];
                if !expected.is_empty() {
                    assert_eq!(queue.receive(&mut into[..expected.len() - 1]), Err(Errno::EMSGSIZE));
                }
                assert_eq!(queue.receive(&mut into), Ok(Some(expected.len())));
                assert_eq!(into[..expected.len()], expected);
            }
        }
        assert_eq!(other.send(&vec![0; size as usize + 1]), Err(Errno::EMSGSIZE));
    }
}

#[test]
fn queues_must_fit_the_memory() {
    let (memory, _, _) = both(1, BYTES);
    let fits = |offset, slots, size| Queue::create(&memory, (0, offset), slots, size).is_ok();
    let size = queue_size(10, 20).expect("small");
    assert_eq!(size, 192 + 10 * 40);
    assert!(fits(BYTES - size, 10, 20) && !fits(BYTES - size + 8, 10, 20));
    assert!(!fits(0, 0, 8) && !fits(4, 1, 8) && !fits(0, u64::MAX, 8) && !fits(0, 1, u64::MAX));
    // A program may change the head of its own queue: nothing beyond its memory is touched.
    Queue::create(&memory, (0, 0), 4, 8).expect("a queue");
    for (at, value) in [(SLOTS_AT, 0), (SLOTS_AT, u64::MAX), (SLOTS_AT, BYTES), (SIZE_AT, u64::MAX)] {
        memory.store(0, at, &value.to_ne_bytes()).expect("in the memory");
        assert!(Queue::open(&memory, (0, 0)).is_err());
        Queue::create(&memory, (0, 0), 4, 8).expect("a queue");
    }
}

const SLOTS_AT: u64 = 8;
const SIZE_AT: u64 = 16;

/// S50h.
#[test]
fn messages_of_each_producer_arrive_once_and_in_order() {
    const PRODUCERS: u32 = 4;
    const MESSAGES: u32 = 10_000;
    for slots in [1, 3, 64] {
        let (agent, process, _) = both(2, BYTES);
        let queue = Queue::create(&process, (1, 0), slots, 12).expect("a small queue");
        std::thread::scope(|scope| {
            for producer in 0..PRODUCERS {
                // Two of them use another mapping.
                let memory = if producer % 2 == 0 { &agent } else { &process };
                scope.spawn(move || {
                    let queue = Queue::open(memory, (1, 0)).expect("the queue");
                    for number in 0..MESSAGES {
                        let message = [producer.to_ne_bytes(), number.to_ne_bytes()].concat();
                        let send = || Ok(queue.send(&message)?.then_some(()));
                        memory.wait(&waiter(1, 60_000), send).expect("a free slot");
                    }
                });
            }
            let mut next = [0; PRODUCERS as usize];
            for _ in 0..PRODUCERS * MESSAGES {
                let mut message = [0; 12];
                let size = process.wait(&waiter(1, 60_000), || queue.receive(&mut message));
                assert_eq!(size, Ok(8));
                let numbers = message.as_chunks::<4>().0;
                let [producer, number] = [numbers[0], numbers[1]].map(u32::from_ne_bytes);
                assert_eq!(number, next[producer as usize], "of producer {producer}");
                next[producer as usize] += 1;
            }
        });
        assert_eq!(queue.receive(&mut [0; 12]), Ok(None));
    }
}
