//! Random operations on a few files, with flushes, crashes and renames, against a model in memory.

use super::bed::{Bed, bytes, checksum};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::receipt::FileOutcome;

#[derive(Clone, Debug)]
enum Step {
    Write { node: u32, file: usize, offset: u64, length: usize },
    Truncate { node: u32, file: usize, size: u64 },
    Read { node: u32, file: usize },
    Flush { file: usize },
    Rename { from: usize, to: usize },
    Unlink { file: usize },
    Rest { milliseconds: u64 },
    Crash,
}

const NAMES: [&str; 3] = ["a", "dir/b", "c"];

/// Offsets near the edges of units.
fn offset() -> impl Strategy<Value = u64> {
    (0..3_u64, -40_i64..40).prop_map(|(unit, near)| (unit * UNIT_SIZE as u64).saturating_add_signed(near))
}

fn step() -> impl Strategy<Value = Step> {
    let (node, file) = (0..3_u32, 0..NAMES.len());
    prop_oneof![
        6 => (node.clone(), file.clone(), offset(), 1..100_usize)
            .prop_map(|(node, file, offset, length)| Step::Write { node, file, offset, length }),
        2 => (node.clone(), file.clone(), offset())
            .prop_map(|(node, file, size)| Step::Truncate { node, file, size }),
        4 => (node, file.clone()).prop_map(|(node, file)| Step::Read { node, file }),
        3 => file.clone().prop_map(|file| Step::Flush { file }),
        1 => (file.clone(), file.clone()).prop_map(|(from, to)| Step::Rename { from, to }),
        1 => file.prop_map(|file| Step::Unlink { file }),
        2 => (1..400_u64).prop_map(|milliseconds| Step::Rest { milliseconds }),
        1 => Just(Step::Crash),
    ]
}

struct World {
    bed: Bed,
    model: BTreeMap<&'static str, Vec<u8>>,
    count: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let bed = Bed::new(seed, 3);
        if seed.is_multiple_of(2) {
            bed.control.allow_writers_to_finish();
        }
        std::fs::create_dir(bed.root.join("dir")).expect("mkdir");
        bed.start_flushers();
        Self { bed, model: BTreeMap::new(), count: 0 }
    }

    fn ensure(&mut self, file: usize) -> &'static str {
        let name = NAMES[file];
        if !self.model.contains_key(name) {
            self.bed.create(name, b"");
            self.model.insert(name, Vec::new());
        }
        name
    }

    fn run(&mut self, step: Step) {
        self.count += 1;
        match step {
            Step::Write { node, file, offset, length } => {
                let (name, data) = (self.ensure(file), bytes(self.count, length));
                let (client, flusher) = (self.bed.client(node), self.bed.client(0));
                let write = client.write(name.as_bytes(), offset, &data);
                // Run a flush of the same file concurrently.
                let flush = flusher.write_back(name.as_bytes());
                let both = self.bed.run(futures_util::future::join(write, flush));
                assert_eq!(both, (Ok(()), Ok(())));
                let content = self.model.get_mut(name).expect("the file exists");
                let end = offset as usize + length;
                content.resize(content.len().max(end), 0);
                content[offset as usize..end].copy_from_slice(&data);
            }
            Step::Truncate { node, file, size } => {
                let (name, client) = (self.ensure(file), self.bed.client(node));
                self.bed.run(client.truncate(name.as_bytes(), size)).expect("truncate");
                self.model.get_mut(name).expect("the file exists").resize(size as usize, 0);
            }
            Step::Read { node, file } => self.compare(node, NAMES[file]),
            Step::Flush { file } => {
                let (name, client) = (self.ensure(file), self.bed.client(1));
                self.bed.run(client.write_back(name.as_bytes())).expect("flush");
            }
            Step::Rename { from, to } if from != to => {
                let (old, new, client) = (self.ensure(from), NAMES[to], self.bed.client(2));
                self.bed.run(client.rename(old.as_bytes(), new.as_bytes())).expect("rename");
                let content = self.model.remove(old).expect("the file exists");
                self.model.insert(new, content);
            }
            Step::Rename { .. } => {}
            Step::Unlink { file } => {
                let (name, client) = (self.ensure(file), self.bed.client(0));
                self.bed.run(client.unlink(name.as_bytes())).expect("unlink");
                self.model.remove(name);
            }
            Step::Rest { milliseconds } => self.bed.machine.rest(Duration::from_millis(milliseconds)),
            Step::Crash => {
                // Crash during background work.
                self.bed.machine.steps(self.bed.machine.draw(40));
                self.bed.crash();
                self.bed.start_flushers();
            }
        }
    }

    fn compare(&self, node: u32, name: &'static str) {
        let Some(expected) = self.model.get(name) else { return };
        assert!(self.bed.read(node, name) == *expected, "content of {name}");
        let size = self.bed.run(self.bed.client(node).size(name.as_bytes()));
        assert_eq!(size, Ok(expected.len() as u64), "size of {name}");
    }

    fn finish(self) {
        for (node, name) in NAMES.into_iter().enumerate() {
            self.compare(node as u32, name);
        }
        let receipt = self.bed.drain_completely(true);
        for (name, expected) in &self.model {
            assert!(self.bed.shared_content(name) == *expected, "{name} on the shared directory");
            let file = receipt.files.iter().find(|file| file.path == *name).expect("a receipt");
            assert_eq!(file.size, expected.len() as u64);
            if !file.checksum.starts_with("units:") {
                assert_eq!(file.checksum, checksum(expected), "{name}");
            }
            assert!(matches!(file.outcome, FileOutcome::Synced | FileOutcome::Verified));
        }
        assert_eq!(receipt.files.len(), self.model.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
    #[test]
    fn cached_files_behave_as_files(seed in any::<u64>(), steps in prop::collection::vec(step(), 1..40)) {
        let mut world = World::new(seed);
        for step in steps {
            world.run(step);
        }
        world.finish();
    }
}
