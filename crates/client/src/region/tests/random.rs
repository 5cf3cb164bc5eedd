//! Random programs against a model of what SEMANTICS.md allows.
//!
//! Between two barriers one node at most stores to each byte (the program has no data races). So the values of a byte have an order, and
//! a node may see any value from the last one that it must see up to the last one stored. With one writer per page, one node at most stores
//! to each page.

use super::{Bed, Process, simulate};
use futures_util::future::join_all;
use parking_lot::Mutex;
use std::sync::Arc;
use tameike_core::region::Tracking;
use tameike_dsm::control::PAGE_SIZE;
use tameike_io::Runtime;

/// Stored bytes; few, in few places of each page, so that they meet often.
const PLACES: usize = 48;
const PAGES: u32 = 5;

/// What the nodes may see of a byte.
#[derive(Clone, Debug)]
struct Byte {
    values: Vec<u8>,
    /// Index of the last flushed value.
    flushed: usize,
    /// By memory: index of the oldest value that it may see.
    oldest: Vec<usize>,
    /// The memory that may store to it until the next barrier.
    writer: usize,
}

struct Model {
    bytes: Vec<Byte>,
}

impl Model {
    fn new(memories: usize) -> Self {
        let byte = Byte { values: vec![0], flushed: 0, oldest: vec![0; memories], writer: 0 };
        Self { bytes: vec![byte; PLACES] }
    }

    fn store(&mut self, place: usize, value: u8) {
        let byte = &mut self.bytes[place];
        byte.values.push(value);
        byte.oldest[byte.writer] = byte.values.len() - 1;
    }

    /// Checks a load: the memory never sees an older value afterwards.
    fn load(&mut self, memory: usize, place: usize, value: u8) {
        let byte = &mut self.bytes[place];
        let oldest = byte.oldest[memory];
        let seen = byte.values[oldest..].iter().position(|&known| known == value);
        let seen = seen.unwrap_or_else(|| panic!("memory {memory} sees {value} in {place}: {byte:?}"));
        byte.oldest[memory] = oldest + seen;
    }

    fn latest(&self) -> Vec<usize> {
        self.bytes.iter().map(|byte| byte.values.len() - 1).collect()
    }

    fn flushed(&mut self, memory: usize, latest: &[usize]) {
        for (byte, &latest) in self.bytes.iter_mut().zip(latest) {
            if byte.writer == memory {
                byte.flushed = byte.flushed.max(latest);
            }
        }
    }

    fn updated(&mut self, memory: usize, flushed: &[usize]) {
        for (byte, &flushed) in self.bytes.iter_mut().zip(flushed) {
            byte.oldest[memory] = byte.oldest[memory].max(flushed);
        }
    }

    fn all_flushed(&self) -> Vec<usize> {
        self.bytes.iter().map(|byte| byte.flushed).collect()
    }

    fn barrier(&mut self, one_writer: bool, draw: impl Fn(usize) -> usize) {
        for place in 0..PLACES {
            let first = place % PAGES as usize;
            let writer = if one_writer && place > first { Some(self.bytes[first].writer) } else { None };
            let byte = &mut self.bytes[place];
            let latest = byte.values.len() - 1;
            byte.flushed = latest;
            byte.oldest.fill(latest);
            byte.writer = writer.unwrap_or_else(|| draw(byte.oldest.len()));
        }
    }
}

/// Places lie beside each other, at the ends of pages too.
fn address(place: usize) -> usize {
    let page = place % PAGES as usize;
    page * PAGE_SIZE + [0, 1, 2, 7, 8, 4094, 4095, 100, 101, 300][place / PAGES as usize]
}

async fn run_program(runtime: Runtime, nodes: usize, tracking: Tracking) {
    let draw = |bound: usize| (runtime.random_u64() % bound as u64) as usize;
    let memory = [u64::MAX, PAGE_SIZE as u64, 4 * PAGE_SIZE as u64][draw(3)];
    let bed = Bed::with_memory(&runtime, nodes as u32, PAGES, memory);
    if draw(2) == 0 {
        bed.double.make_coarse();
    }
    let count = nodes * 2;
    let mut processes = Vec::new();
    for number in 0..count {
        processes.push(Arc::new(bed.attach(number / 2, count as u32, tracking).await));
    }
    // Processes of a node share a memory, unless each has its own.
    let (alone, one_writer) = (tracking == Tracking::OwnTwins, tracking == Tracking::WrittenPages);
    let memory_of = |process: usize| if alone { process } else { process / 2 };
    let model = Mutex::new(Model::new(if alone { count } else { nodes }));
    model.lock().barrier(one_writer, draw);
    for _ in 0..3 + draw(6) {
        let steps = processes.iter().enumerate().map(|(number, process)| {
            let (model, memory) = (&model, memory_of(number));
            async move {
                for _ in 0..draw(60) {
                    step(process, memory, model, draw).await;
                }
            }
        });
        join_all(steps).await;
        let arrivals = processes.iter().map(|process| process.attachment.barrier());
        for result in join_all(arrivals).await {
            result.expect("a barrier");
        }
        model.lock().barrier(one_writer, draw);
        for (number, process) in processes.iter().enumerate() {
            for _ in 0..draw(20) {
                let place = draw(PLACES);
                let value = process.load(address(place)).await;
                model.lock().load(memory_of(number), place, value);
            }
        }
    }
    for process in &processes {
        process.attachment.detach(false).await.expect("detached");
    }
    for (place, byte) in model.lock().bytes.iter().enumerate() {
        assert_eq!(Some(&bed.double.byte(address(place))), byte.values.last(), "place {place} of the file");
    }
}

async fn step(process: &Process, memory: usize, model: &Mutex<Model>, draw: impl Fn(usize) -> usize) {
    let place = draw(PLACES);
    match draw(12) {
        0 => {
            let latest = model.lock().latest();
            process.attachment.flush().await.expect("flushed");
            model.lock().flushed(memory, &latest);
        }
        1 => {
            let flushed = model.lock().all_flushed();
            process.attachment.update().await.expect("updated");
            model.lock().updated(memory, &flushed);
        }
        2..=5 => {
            let value = process.load(address(place)).await;
            // At once after the load: nothing else happens in between.
            model.lock().load(memory, place, value);
        }
        _ if model.lock().bytes[place].writer == memory => {
            let value = draw(256) as u8;
            process.store(address(place), value).await;
            model.lock().store(place, value);
        }
        _ => {}
    }
}

#[test]
fn random_programs_see_what_the_model_allows() {
    for seed in 0..400 {
        let tracking = match seed % 5 {
            3 => Tracking::WrittenPages,
            4 => Tracking::OwnTwins,
            _ => Tracking::Twins,
        };
        simulate(seed, move |runtime| run_program(runtime, 1 + seed as usize % 12, tracking));
    }
}
