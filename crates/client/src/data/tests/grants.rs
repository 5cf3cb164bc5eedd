//! Bytes granted to programs always equal the bytes that a read returns.

use super::*;
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use tameike_core::attr::Times;
use tameike_core::wire::unit::SpaceChange;

/// Records the granted frames, as programs see them.
pub struct RecordingTable {
    memory: File,
    state: Mutex<Grants>,
}

#[derive(Default)]
struct Grants {
    frames: BTreeMap<u32, (GrantKey, u64, Range<u32>)>,
    open: BTreeSet<GrantKey>,
    ends: BTreeMap<GrantKey, u64>,
    last: u64,
}

impl RecordingTable {
    pub fn new(slab: &Arc<Slab>) -> Arc<Self> {
        let memory = slab.memory().try_clone_to_owned().expect("a descriptor").into();
        Arc::new(Self { memory, state: Mutex::default() })
    }

    /// The granted bytes, with their offset in the file.
    fn granted(&self) -> Vec<(u64, Vec<u8>)> {
        let granted = self.state.lock().frames.clone();
        granted
            .into_iter()
            .map(|(frame, (_, unit, range))| {
                let mut bytes = vec![0; range.len()];
                let place = u64::from(frame) * UNIT_SIZE as u64 + u64::from(range.start);
                self.memory.read_exact_at(&mut bytes, place).expect("the frame is in the slab");
                (unit * UNIT_SIZE as u64 + u64::from(range.start), bytes)
            })
            .collect()
    }

    fn ends(&self) -> Vec<u64> {
        self.state.lock().ends.values().copied().collect()
    }

    fn is_empty(&self) -> bool {
        let state = self.state.lock();
        state.frames.is_empty() && state.ends.is_empty()
    }
}

impl FrameGranter for RecordingTable {
    fn open(&self) -> Option<GrantKey> {
        let mut state = self.state.lock();
        state.last += 1;
        let key = GrantKey::new(state.last)?;
        state.open.insert(key);
        Some(key)
    }

    fn close(&self, key: GrantKey) {
        assert!(self.state.lock().open.remove(&key), "each key is closed once");
        self.revoke_all(key);
    }

    fn grant(&self, frame: u32, key: GrantKey, unit: u64, bytes: &Range<u32>) {
        let mut state = self.state.lock();
        assert!(state.open.contains(&key) && !bytes.is_empty());
        state.frames.insert(frame, (key, unit, bytes.clone()));
    }

    fn renew(&self, frame: u32, key: GrantKey, unit: u64) {
        let state = self.state.lock();
        let granted = state.frames.get(&frame).map(|(key, unit, _)| (*key, *unit));
        assert_eq!(granted, Some((key, unit)), "only granted frames are renewed");
    }

    fn revoke(&self, frame: u32) {
        self.state.lock().frames.remove(&frame);
    }

    fn revoke_all(&self, key: GrantKey) {
        self.withdraw_end(key);
        self.state.lock().frames.retain(|_, (other, ..)| *other != key);
    }

    fn publish_end(&self, key: GrantKey, size: u64) {
        let published = self.state.lock().ends.insert(key, size);
        assert!(
            published.is_none_or(|published| published == size),
            "the old end was withdrawn before the size changed"
        );
    }

    fn withdraw_end(&self, key: GrantKey) {
        self.state.lock().ends.remove(&key);
    }
}

impl Bench {
    fn grantable(&self, node: usize, file: &Arc<FileData>) -> Grantable {
        self.engines[node].grantable(file)
    }

    /// A program reads and is granted the frame. Returns true if the grant covers the read.
    fn grant(&self, node: usize, file: &Arc<FileData>, offset: u64, length: u32) -> bool {
        let grantable = self.grantable(node, file);
        assert!(grantable.key().is_some());
        let bytes = self.read(node, file, offset, length);
        grantable.grant(offset, bytes.len(), length)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Operation(Operation),
    Truncate {
        node: usize,
        size: usize,
    },
    Punch {
        start: usize,
        length: usize,
    },
    /// Another program of the node opens the file, and closes it at once.
    OpenAndClose {
        node: usize,
    },
    /// Another program of the node flushes the file.
    FlushInBackground {
        node: usize,
    },
    Wait {
        steps: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => operation().prop_map(Step::Operation),
        1 => (0..2usize, place()).prop_map(|(node, size)| Step::Truncate { node, size }),
        1 => (place(), 1..100_000usize).prop_map(|(start, length)| Step::Punch { start, length }),
        2 => (0..2usize).prop_map(|node| Step::OpenAndClose { node }),
        2 => (0..2usize).prop_map(|node| Step::FlushInBackground { node }),
        2 => (1..20usize).prop_map(|steps| Step::Wait { steps }),
    ]
}

/// Executes a step. A node sees the other node's truncations when it opens the file again.
fn run(bench: &Bench, files: &mut [Arc<FileData>; 2], version: u8, step: Step) {
    match step {
        Step::Operation(Operation::Write { node, start, length }) => {
            bench.write(node, &files[node], start as u64, vec![version; length]);
        }
        Step::Operation(Operation::Read { node, start, length }) => {
            bench.grant(node, &files[node], start as u64, length as u32);
        }
        Step::Operation(Operation::Flush { node }) => bench.flush(node, &files[node]).expect("the flush"),
        Step::Operation(Operation::Reopen { node }) => {
            bench.flush(node, &files[node]).expect("the flush");
            bench.engines[node].close(&files[node]);
            assert!(bench.tables[node].is_empty(), "the file is closed");
            files[node] = bench.open(node);
        }
        Step::Truncate { node, size } => bench.truncate(node, &files[node], size as u64),
        Step::Punch { start, length } => {
            let bytes = start as u64..(start + length) as u64;
            bench.change_space(&files[0], SpaceChange::Punch, bytes, false);
        }
        Step::OpenAndClose { node } => bench.engines[node].close(&bench.open(node)),
        Step::FlushInBackground { node } => {
            let (engine, file) = (bench.engines[node].clone(), files[node].clone());
            let flush = async move { engine.flush(&file, false).await.expect("the flush") };
            bench.simulation.runtime().spawn(flush);
        }
        Step::Wait { steps } => drop((0..steps).all(|_| bench.simulation.step())),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// With few frames, so that grants are revoked often.
    #[test]
    fn granted_bytes_equal_reads(seed: u64, steps in prop::collection::vec(step(), 1..60)) {
        let bench = Bench::new(seed, 4);
        let mut files = [bench.open(0), bench.open(1)];
        // The test double keeps inline content longer than a real home.
        bench.write(0, &files[0], 0, vec![1; 2 * INLINE_SIZE_MAX]);
        bench.flush(0, &files[0]).expect("the flush");
        for (number, step) in steps.into_iter().enumerate() {
            run(&bench, &mut files, number as u8 + 1, step);
            for (node, table) in bench.tables.iter().enumerate() {
                prop_assert!(table.ends().into_iter().all(|end| end == files[node].size()));
                for (offset, bytes) in table.granted() {
                    prop_assert!(offset + bytes.len() as u64 <= files[node].size(), "past the end");
                    let read = bench.read(node, &files[node], offset, bytes.len() as u32);
                    prop_assert!(read == bytes, "{} bytes at {offset} of node {node}", bytes.len());
                }
            }
        }
    }
}

#[test]
fn the_cached_part_of_a_unit_is_granted() {
    let bench = Bench::new(1, 4);
    let file = bench.open(0);
    bench.write(0, &file, 0, vec![1; UNIT_SIZE + 5000]);
    assert!(bench.grant(0, &file, 300, 10));
    assert_eq!(bench.tables[0].granted(), [(0, vec![1; UNIT_SIZE])]);
    assert!(!bench.grant(0, &file, UNIT_SIZE as u64 - 5, 10), "the range spans two frames");
    assert!(bench.grant(0, &file, UNIT_SIZE as u64 + 1, 10_000));
    assert_eq!(bench.tables[0].granted().len(), 2);
    assert!(!bench.grant(0, &file, 2 * UNIT_SIZE as u64, 10), "past the end");
    // No byte is in flight any more: a write changes the frame in place.
    bench.flush(0, &file).expect("the flush");
    assert_eq!(bench.tables[0].granted().len(), 2);
    bench.write(0, &file, 17, vec![2]);
    assert_eq!(bench.tables[0].granted(), [(UNIT_SIZE as u64, vec![1; 5000])]);
    bench.grantable(0, &file).revoke();
    assert!(bench.tables[0].is_empty());
    assert!(bench.grant(0, &file, 300, 10), "after the kernel's close");
    bench.engines[0].close(&file);
    assert!(bench.tables[0].is_empty());
    assert_eq!(bench.grantable(0, &file).key(), None);
}

#[test]
fn the_end_is_published_after_a_read_reaches_it_until_it_moves() {
    let bench = Bench::new(1, 4);
    let file = bench.open(0);
    bench.write(0, &file, 0, vec![1; 5000]);
    let ends = || bench.tables[0].ends();
    bench.grant(0, &file, 0, 5000);
    assert_eq!(ends(), [], "no read has reached the end");
    bench.grant(0, &file, 4000, 1001);
    assert_eq!(ends(), [5000]);
    bench.write(0, &file, 4999, vec![2]);
    assert_eq!(ends(), [5000], "the end has not moved");
    let grows: [&dyn Fn(); 2] =
        [&|| bench.write(0, &file, 5000, vec![2]), &|| bench.write(0, &file, UNIT_SIZE as u64, vec![2])];
    for grow in grows {
        bench.grant(0, &file, 0, 10);
        let frames = bench.tables[0].granted().len();
        grow();
        assert_eq!(ends(), []);
        assert!(bench.tables[0].granted().len() + 1 >= frames, "other frames stay granted");
        bench.grant(0, &file, file.size(), 1);
        assert_eq!(ends(), [file.size()]);
    }
    bench.truncate(0, &file, 77);
    assert_eq!(ends(), []);
    bench.grant(0, &file, 77, 1);
    bench.grantable(0, &file).revoke();
    assert_eq!(ends(), [], "after the kernel's open");
    bench.grant(0, &file, 1000, 1);
    assert_eq!(ends(), [77]);
    bench.engines[0].close(&file);
    assert_eq!(ends(), []);
}

/// Inline content is granted at the open, before the first read, unless a read would update the access time.
#[test]
fn inline_content_is_granted_at_open_unless_a_read_updates_atime() {
    let bench = Bench::new(1, 4);
    let at = |seconds| Timestamp { seconds, nanoseconds: 0 };
    let file = bench.open(0);
    bench.write(0, &file, 0, vec![3; 500]);
    bench.flush(0, &file).expect("the flush");
    bench.engines[0].close(&file);
    let now = bench.simulation.runtime().now().seconds;
    for (access, is_granted) in [(now, false), (now + 1, true)] {
        let file = bench.open(0);
        // Like the home's reply to an open.
        file.set_inline(vec![3; 500]);
        file.learn_times(Times { access: at(access), change: at(now) });
        let grantable = bench.grantable(0, &file);
        assert!(grantable.key().is_some());
        grantable.grant_inline();
        let granted: &[_] = if is_granted { &[(0, vec![3; 500])] } else { &[] };
        assert_eq!(bench.tables[0].granted(), granted);
        assert_eq!(bench.tables[0].ends().len(), usize::from(is_granted));
        bench.engines[0].close(&file);
    }
}

/// The first read after each change of a file updates its access time. A program that read bytes granted before the change would not have
/// updated it.
#[test]
fn a_read_that_updates_the_access_time_is_not_granted() {
    let bench = Bench::new(1, 4);
    let file = bench.open(0);
    let at = |seconds| Timestamp { seconds, nanoseconds: 0 };
    bench.write(0, &file, 0, vec![1; 2 * UNIT_SIZE]);
    bench.flush(0, &file).expect("the flush");
    let now = bench.simulation.runtime().now().seconds;
    file.learn_times(Times { access: at(now), change: at(now) });
    assert!(!bench.grant(0, &file, 0, 10), "this read updates the access time");
    file.learn_times(Times { access: at(now + 1), change: at(now) });
    assert!(bench.grant(0, &file, 0, 10), "later reads do not");
    bench.simulation.rest(std::time::Duration::from_secs(5));
    bench.write(0, &file, UNIT_SIZE as u64, vec![1]);
    assert!(bench.tables[0].is_empty(), "the next read does, at any offset");
    assert!(!bench.grant(0, &file, 0, 10));
    bench.simulation.rest(std::time::Duration::from_secs(5));
    file.accessed(bench.simulation.runtime().now());
    assert!(bench.grant(0, &file, 0, 10));
    file.learn_times(Times { access: at(0), change: at(now) });
    assert!(bench.tables[0].is_empty(), "a program has set the times");
}
