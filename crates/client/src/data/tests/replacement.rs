//! Eviction: which units stay in memory when it is full.

use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};

const UNIT: u64 = UNIT_SIZE as u64;
const FRAMES: u32 = 40;
const STEP: u32 = 128 << 10;

/// Two nodes with slow homes, and a file of zeros that only node 1 has open. Returns the file and the units whose home is the other node.
fn bench_of_zeros() -> (Bench, Arc<FileData>, Vec<u64>) {
    let bench = Bench::new(3, FRAMES);
    let units = 6 * u64::from(FRAMES);
    {
        let mut homes = bench.homes.lock();
        homes.peers.are_far = true;
        let inode = homes.inode.as_mut().expect("the inode exists");
        (inode.content, inode.attr.inline, inode.attr.size) = (None, false, units * UNIT);
    }
    let file = bench.open(1);
    let home = |index: &u64| {
        let cluster = bench.engines[1].homes.cluster();
        cluster.primary(cluster.unit_home(Layout::Striped, UnitId { inode: INODE, index: *index }))
    };
    let far = (0..units).filter(|index| home(index) == NodeId(0)).collect();
    (bench, file, far)
}

fn is_held(file: &FileData, unit: u64) -> bool {
    file.has_unit(unit)
}

/// Reads a unit from start to end.
fn read_whole(bench: &Bench, file: &Arc<FileData>, unit: u64) {
    for step in 0..UNIT_SIZE as u32 / STEP {
        assert_eq!(bench.read(1, file, unit * UNIT + u64::from(step * STEP), STEP).len(), STEP as usize);
    }
}

/// With LRU eviction, a scan of more than the memory evicted everything else.
#[test]
fn reused_units_survive_a_scan_of_a_larger_file() {
    let (bench, file, far) = bench_of_zeros();
    let (hot, scanned) = far.split_at(4);
    for _ in 0..2 {
        // In descending order, so that readahead does not start.
        hot.iter().rev().for_each(|&unit| read_whole(&bench, &file, unit));
    }
    assert!(scanned.len() > 2 * FRAMES as usize);
    for &unit in scanned.iter().rev() {
        read_whole(&bench, &file, unit);
        assert!(hot.iter().all(|&unit| is_held(&file, unit)), "while unit {unit} was read");
    }
    let kept = scanned.iter().filter(|&&unit| is_held(&file, unit)).count();
    assert!(kept > FRAMES as usize / 2, "the scan uses the remaining frames: {kept}");
}

/// Units that were reused once leave as soon as other units are reused.
#[test]
fn units_no_longer_read_are_evicted_for_units_in_use() {
    let (bench, file, far) = bench_of_zeros();
    let sets: Vec<&[u64]> = far.chunks(FRAMES as usize / 2).take(3).collect();
    for set in &sets {
        for _ in 0..4 {
            set.iter().rev().for_each(|&unit| read_whole(&bench, &file, unit));
        }
    }
    let held = |set: &[u64]| set.iter().filter(|&&unit| is_held(&file, unit)).count();
    let (first, last) = (held(sets[0]), held(sets[2]));
    assert!(last > sets[2].len() / 2 && last > first, "{last} of the last set, {first} of the first set");
}

/// Node 0 has written units, and node 1 has some of them in its memory: node 0 evicts these first.
#[test]
fn units_cached_on_another_node_are_evicted_before_last_copies() {
    let bench = Bench::new(9, FRAMES);
    bench.homes.lock().peers.are_far = true;
    let file = bench.open(0);
    let units = u64::from(FRAMES);
    for unit in 0..units {
        bench.write(0, &file, unit * UNIT, vec![unit as u8; UNIT_SIZE]);
    }
    bench.flush(0, &file).expect("the flush");
    let reader = bench.open(1);
    for unit in (0..units).rev() {
        bench.read(1, &reader, unit * UNIT, UNIT_SIZE as u32 / 2);
    }
    let delivered: Vec<u64> = bench.homes.lock().peers.delivered();
    assert!((4..units as usize).contains(&delivered.len()), "{delivered:?}");
    for more in 0..4 {
        bench.write(0, &file, (units + more) * UNIT, vec![9; UNIT_SIZE]);
        bench.flush(0, &file).expect("the flush");
    }
    let gone: Vec<u64> = (0..units).filter(|&unit| !is_held(&file, unit)).collect();
    assert!(gone.len() >= 4 && gone.iter().all(|unit| delivered.contains(unit)), "{gone:?} of {delivered:?}");
}

/// With full memory, readahead stopped.
#[test]
fn readahead_continues_in_full_memory_and_keeps_prefetched_units() {
    let (bench, file, far) = bench_of_zeros();
    far.iter().take(FRAMES as usize + 10).rev().for_each(|&unit| read_whole(&bench, &file, unit));
    assert!(file.unit_count() >= FRAMES as usize - 3, "memory is full");
    let start = far[FRAMES as usize + 14];
    let mut ahead = 0;
    for unit in start..start + 3 * u64::from(FRAMES) {
        for step in 0..UNIT_SIZE as u32 / STEP {
            bench.read(1, &file, unit * UNIT + u64::from(step * STEP), STEP);
        }
        let next = far.iter().copied().find(|&far| far > unit).expect("the file has more units");
        let is_coming = is_held(&file, next) || file.is_fetching(next);
        ahead += u64::from(is_coming);
    }
    assert!(ahead >= 3 * u64::from(FRAMES) - 3, "{ahead}");
}

/// Threads take frames concurrently from units in use: each frame is taken once, none is lost.
#[test]
fn concurrent_threads_take_each_frame_once() {
    let (bench, file, far) = bench_of_zeros();
    far.iter().take(FRAMES as usize).rev().for_each(|&unit| read_whole(&bench, &file, unit));
    let (engine, taken) = (&bench.engines[1], AtomicUsize::new(0));
    let frames: Vec<Frame> = std::thread::scope(|threads| {
        let (file, taken) = (&file, &taken);
        let takers: Vec<_> = (0..4)
            .map(|_| {
                threads.spawn(move || {
                    let frames: Vec<Frame> = std::iter::from_fn(|| engine.frame_now()).collect();
                    taken.fetch_add(frames.len(), Ordering::SeqCst);
                    frames
                })
            })
            .collect();
        threads.spawn(move || {
            while taken.load(Ordering::SeqCst) < FRAMES as usize {
                file.use_units(&(0..5));
                std::thread::yield_now();
            }
        });
        takers.into_iter().flat_map(|taker| taker.join().expect("a taker")).collect()
    });
    assert_eq!(frames.len(), FRAMES as usize);
    assert_eq!(file.unit_count(), 0);
}
