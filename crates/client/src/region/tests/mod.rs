//! Regions of several nodes over a test double of the homes and the coordinator, with random message delays.
//!
//! The processes are simulated: before each access they take the steps that a page fault takes. So a seed decides every event. Written pages
//! are recorded by the kernel, in a mapping of the test's process.

mod double;
mod failures;
mod random;
mod window;

use super::{Attachment, ProcessMapping, RegionFile, Regions};
use crate::data::DataEngine;
use crate::fixtures;
use crate::locks::FileLocks;
use double::{Double, DoubleRpc};
use futures_util::future::join;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;
use tameike_core::region::{Terms, Tracking};
use tameike_core::{Errno, InodeId, Layout};
use tameike_dsm::control::{Counter, PAGE_SIZE, PageState, UNIT_PAGES};
use tameike_dsm::fault::{self, MappedRegion, Mechanism, PageSource, Step};
use tameike_dsm::memory::RegionMemory;
use tameike_io::os::arena::Arena;
use tameike_io::os::mapping::Mapping;
use tameike_io::os::pagemap::Pagemap;
use tameike_io::os::simulated::Simulation;
use tameike_io::os::userfault::Userfault;
use tameike_io::{Runtime, Slab};

const INODE: InodeId = InodeId(7);

/// A simulated process.
struct Process {
    pub attachment: Arc<Attachment>,
    region: MappedRegion,
    data: Arena,
    runtime: Runtime,
}

struct NoSource;

impl PageSource for NoSource {
    fn fetch(&self, _: u32, _: bool) -> Result<u32, i32> {
        Err(Errno::EIO.0)
    }
}

/// Several nodes.
struct Bed {
    pub double: Arc<Double>,
    pub nodes: Vec<Arc<Regions>>,
    pub file: RegionFile,
    runtime: Runtime,
}

impl Bed {
    pub fn new(runtime: &Runtime, nodes: u32, pages: u32) -> Self {
        Self::with_memory(runtime, nodes, pages, u64::MAX)
    }

    /// The regions of a node evict pages beyond `memory` bytes.
    pub fn with_memory(runtime: &Runtime, nodes: u32, pages: u32, memory: u64) -> Self {
        let cluster = fixtures::cluster(nodes);
        let double = Double::new();
        let nodes = (0..nodes).map(|number| {
            let slab = Slab::new(16).expect("frames");
            let rpc = Arc::new(DoubleRpc::new(number, runtime.clone(), slab.pool(8), double.clone()));
            let (cluster, engine_cluster) = (cluster.clone(), cluster.clone());
            let engine = DataEngine::new(runtime.clone(), engine_cluster, rpc.clone(), slab.pool(8), None);
            let locks = FileLocks::new(runtime.clone(), cluster.clone(), rpc.clone());
            Regions::new(runtime.clone(), cluster, rpc, engine, locks, memory)
        });
        let nodes: Vec<_> = nodes.collect();
        double.set_nodes(&nodes);
        let file = RegionFile { inode: INODE, layout: Layout::Striped, pages };
        Self { double, nodes, file, runtime: runtime.clone() }
    }

    pub async fn attach(&self, node: usize, processes: u32, tracking: Tracking) -> Process {
        let terms = Terms { processes, one_writer: tracking == Tracking::WrittenPages, tracking };
        let attachment = self.nodes[node].attach(self.file, terms).await.expect("attached");
        Process::new(attachment, self.file.pages, self.runtime.clone())
    }
}

impl Process {
    fn new(attachment: Arc<Attachment>, pages: u32, runtime: Runtime) -> Self {
        let descriptors = attachment.memory().descriptors().expect("of the agent");
        let [data, ..] = descriptors;
        let data = Arena::map(data, pages as usize * PAGE_SIZE).expect("data");
        let copies = descriptors.map(|file| file.try_clone_to_owned().expect("a descriptor"));
        let memory = RegionMemory::map(copies, pages).expect("memory");
        let (mapping, mechanism) = match attachment.tracks_written_pages() {
            true => fault::map(&memory, Tracking::WrittenPages).expect("the kernel records written pages"),
            false => (Mapping::private(PAGE_SIZE).expect("an unused mapping"), Mechanism::None),
        };
        if let Mechanism::WrittenPages(userfault, pagemap) = &mechanism {
            let copy = |file: BorrowedFd<'_>| file.try_clone_to_owned().expect("a descriptor");
            let (userfault, start) = (copy(userfault.descriptor()), userfault.start());
            let userfault = Userfault::of_process(userfault, start, u64::from(pages) * PAGE_SIZE as u64);
            let pagemap = Some(Pagemap::of_process(copy(pagemap.descriptor())).expect("a page table"));
            attachment.mapped(ProcessMapping { userfault: userfault.expect("a userfaultfd"), pagemap });
        }
        let owner = attachment.owner();
        let region = MappedRegion::new(memory, (mapping, mechanism), Box::new(NoSource), owner);
        Self { attachment, region, data, runtime }
    }

    async fn bring(&self, page: u32, write: bool) {
        loop {
            match self.region.advance(page, write).expect("no fault of the mechanism") {
                Step::Done => return,
                Step::Again => self.runtime.sleep(Duration::from_micros(20)).await,
                Step::Fetch => drop(self.attachment.fetch(page, write).await.expect("fetched")),
            }
        }
    }

    pub async fn store(&self, at: usize, byte: u8) {
        self.bring((at / PAGE_SIZE) as u32, true).await;
        if self.attachment.tracks_written_pages() {
            // The kernel records it like a store of the process.
            let memory = File::options().write(true).open("/proc/self/mem").expect("memory of this process");
            memory.write_all_at(&[byte], (self.region.addresses().start + at) as u64).expect("written");
        } else {
            self.data.copy_in(at, &[byte]);
        }
    }

    pub async fn load(&self, at: usize) -> u8 {
        self.bring((at / PAGE_SIZE) as u32, false).await;
        let mut byte = [0];
        self.data.copy_out(at, &mut byte);
        byte[0]
    }

    fn counted(&self, counter: Counter) -> u64 {
        self.region.memory().control.counted(counter)
    }
}

/// Runs a test in a simulation.
fn simulate<F: Future<Output = ()> + Send + 'static>(seed: u64, test: impl FnOnce(Runtime) -> F) {
    let simulation = Simulation::new(seed);
    let runtime = simulation.runtime().clone();
    simulation.run(test(runtime));
}

#[test]
fn two_nodes_may_write_alternate_bytes_of_a_page() {
    simulate(1, |runtime| async move {
        let bed = Bed::new(&runtime, 2, UNIT_PAGES + 2);
        let processes = [bed.attach(0, 2, Tracking::Twins).await, bed.attach(1, 2, Tracking::Twins).await];
        for round in 0..5_u8 {
            for (number, process) in processes.iter().enumerate() {
                for at in (number..3 * PAGE_SIZE).step_by(2) {
                    process.store(at, round * 3 + number as u8 + 1).await;
                }
            }
            let [one, two] = &processes;
            let both = join(one.attachment.barrier(), two.attachment.barrier()).await;
            assert_eq!(both, (Ok(()), Ok(())));
            for process in &processes {
                for at in 0..3 * PAGE_SIZE {
                    assert_eq!(
                        process.load(at).await,
                        round * 3 + (at % 2) as u8 + 1,
                        "byte {at} in {round}"
                    );
                }
            }
        }
        // Page 0, then readahead. Written pages are merged, not fetched again.
        assert_eq!(processes[0].counted(Counter::PagesFetched), 17);
        assert_eq!(processes[0].counted(Counter::PagesMerged), 15);
        assert_eq!(processes[0].counted(Counter::WriteFaults), 2, "the second fault opens two pages");
    });
}

#[test]
fn pages_that_others_have_changed_are_dropped_and_others_stay() {
    simulate(2, |runtime| async move {
        let bed = Bed::new(&runtime, 2, 10);
        let (writer, reader) =
            (bed.attach(0, 2, Tracking::Twins).await, bed.attach(1, 2, Tracking::Twins).await);
        for page in 0..10 {
            assert_eq!(reader.load(page * PAGE_SIZE).await, 0);
        }
        writer.store(3 * PAGE_SIZE + 7, 9).await;
        writer.attachment.flush().await.expect("flushed");
        assert_eq!(reader.load(3 * PAGE_SIZE + 7).await, 0, "not before an update");
        reader.attachment.update().await.expect("updated");
        assert_eq!(reader.counted(Counter::PagesDropped), 1);
        assert_eq!(reader.load(3 * PAGE_SIZE + 7).await, 9);
        reader.attachment.update().await.expect("updated");
        assert_eq!(reader.counted(Counter::PagesDropped), 1, "nothing has changed since");
    });
}

#[test]
fn a_failed_flush_keeps_the_changes() {
    simulate(3, |runtime| async move {
        let bed = Bed::new(&runtime, 1, 4);
        let process = bed.attach(0, 1, Tracking::Twins).await;
        process.store(5, 1).await;
        bed.double.fail_patches(true);
        assert_eq!(process.attachment.flush().await.map_err(|fault| fault.errno), Err(Errno::ENOSPC));
        bed.double.fail_patches(false);
        process.attachment.flush().await.expect("flushed");
        assert_eq!(bed.double.byte(5), 1);
        process.attachment.flush().await.expect("flushed");
        assert_eq!(process.counted(Counter::PagesFlushed), 1, "the second flush finds nothing");
    });
}

#[test]
fn processes_alone_see_each_other_after_barriers_only() {
    simulate(4, |runtime| async move {
        let bed = Bed::new(&runtime, 1, 4);
        let (one, two) =
            (bed.attach(0, 2, Tracking::OwnTwins).await, bed.attach(0, 2, Tracking::OwnTwins).await);
        one.store(5, 1).await;
        two.store(6, 2).await;
        assert_eq!((two.load(5).await, one.load(6).await), (0, 0));
        assert_eq!(join(one.attachment.barrier(), two.attachment.barrier()).await, (Ok(()), Ok(())));
        assert_eq!((two.load(5).await, one.load(6).await), (1, 2));
    });
}

#[test]
fn a_detached_process_ends_barriers_and_leaves_its_stores() {
    simulate(5, |runtime| async move {
        let bed = Bed::new(&runtime, 2, 4);
        let (one, two) = (bed.attach(0, 2, Tracking::Twins).await, bed.attach(1, 2, Tracking::Twins).await);
        two.store(6, 2).await;
        let waiting = one.attachment.barrier();
        let leaving = async {
            bed.runtime.sleep(std::time::Duration::from_secs(1)).await;
            two.attachment.detach(true).await
        };
        let (waited, left) = join(waiting, leaving).await;
        assert_eq!(left, Ok(()));
        let errno = waited.expect_err("the other process has ended").errno;
        assert!([Errno::EPIPE, Errno::EOWNERDEAD].contains(&errno), "{errno:?}");
        assert_eq!(bed.double.byte(6), 2);
        assert!(one.attachment.barrier().await.is_err(), "and so does the next one");
        one.attachment.detach(false).await.expect("detached");
        assert!(bed.nodes.iter().all(|node| node.barrier_of(INODE).is_none()), "nothing is left");
    });
}

#[test]
fn a_region_larger_than_its_memory_keeps_all_stores() {
    simulate(9, |runtime| async move {
        let pages = 4 * UNIT_PAGES;
        let limit = 100;
        let bed = Bed::with_memory(&runtime, 2, pages, limit * PAGE_SIZE as u64);
        let (one, two) = (bed.attach(0, 2, Tracking::Twins).await, bed.attach(1, 2, Tracking::Twins).await);
        for round in 1..3_u8 {
            for page in 0..pages as usize {
                one.store(page * PAGE_SIZE + page % 7, round).await;
                two.store(page * PAGE_SIZE + 100, round + 7).await;
                let used = one.attachment.memory().used_pages();
                assert!(used < limit + 70, "{used} pages of {limit}");
            }
            assert_eq!(join(one.attachment.barrier(), two.attachment.barrier()).await, (Ok(()), Ok(())));
            for page in 0..pages as usize {
                assert_eq!(one.load(page * PAGE_SIZE + 100).await, round + 7);
                assert_eq!(two.load(page * PAGE_SIZE + page % 7).await, round);
            }
        }
        assert!(one.counted(Counter::PagesEvicted) > u64::from(3 * pages));
    });
}

/// Each flush compared all pages that a process had ever stored to.
#[test]
fn pages_that_nobody_stores_to_are_not_compared_forever() {
    simulate(12, |runtime| async move {
        let bed = Bed::new(&runtime, 2, 300);
        let (one, two) = (bed.attach(0, 2, Tracking::Twins).await, bed.attach(1, 2, Tracking::Twins).await);
        for page in 0..300 {
            one.store(page * PAGE_SIZE, 1).await;
        }
        let states = || (0..300).map(|page| one.region.memory().control.load(page).state());
        for round in 0..10 {
            // The last one of its unit: a simulated store opens all written pages after it.
            one.store(255 * PAGE_SIZE, round).await;
            two.store(7 * PAGE_SIZE + 1, round).await;
            assert_eq!(join(one.attachment.barrier(), two.attachment.barrier()).await, (Ok(()), Ok(())));
        }
        let written: Vec<_> =
            (0..300).zip(states()).filter(|(_, state)| *state == PageState::Written).collect();
        assert_eq!(written, [(255, PageState::Written)]);
        // The page that the other has changed is absent, and one page has a twin.
        assert_eq!(one.attachment.memory().used_pages(), 299 + 1);
        for page in 0..300 {
            one.store(page * PAGE_SIZE, 2).await;
        }
        assert_eq!(join(one.attachment.barrier(), two.attachment.barrier()).await, (Ok(()), Ok(())));
        for page in 0..300 {
            assert_eq!(two.load(page * PAGE_SIZE).await, 2, "page {page}");
        }
        assert_eq!((one.load(7 * PAGE_SIZE + 1).await, two.load(7 * PAGE_SIZE + 1).await), (9, 9));
    });
}

#[test]
fn an_eviction_that_cannot_send_changes_keeps_them() {
    simulate(10, |runtime| async move {
        let bed = Bed::with_memory(&runtime, 1, 100, 16 * PAGE_SIZE as u64);
        let process = bed.attach(0, 1, Tracking::Twins).await;
        for page in 0..7 {
            process.store(page * PAGE_SIZE, 3).await;
        }
        bed.double.fail_patches(true);
        for page in 7..20 {
            process.store(page * PAGE_SIZE, 3).await;
        }
        assert_eq!(process.counted(Counter::PagesEvicted), 0);
        bed.double.fail_patches(false);
        for page in 20..100 {
            process.store(page * PAGE_SIZE, 3).await;
        }
        assert!(process.counted(Counter::PagesEvicted) > 0);
        for page in 0..100 {
            assert_eq!(process.load(page * PAGE_SIZE).await, 3, "page {page}");
        }
    });
}

/// The first process waited alone, and the second one forever.
#[test]
fn a_process_takes_part_that_attaches_while_another_one_of_its_node_waits() {
    simulate(7, |runtime| async move {
        let bed = Bed::new(&runtime, 2, 4);
        let one = bed.attach(0, 3, Tracking::Twins).await;
        one.store(5, 1).await;
        let others = async {
            bed.runtime.sleep(std::time::Duration::from_secs(1)).await;
            let (two, three) =
                (bed.attach(0, 3, Tracking::Twins).await, bed.attach(1, 3, Tracking::Twins).await);
            two.store(6, 2).await;
            let both = join(two.attachment.barrier(), three.attachment.barrier()).await;
            assert_eq!(both, (Ok(()), Ok(())));
            assert_eq!((three.load(5).await, three.load(6).await), (1, 2));
            (two, three)
        };
        let (waited, (two, three)) = join(one.attachment.barrier(), others).await;
        assert_eq!(waited, Ok(()));
        for round in 0..3 {
            three.store(7, round).await;
            let both = join(one.attachment.barrier(), two.attachment.barrier());
            assert_eq!(join(both, three.attachment.barrier()).await, ((Ok(()), Ok(())), Ok(())));
            assert_eq!((one.load(7).await, two.load(7).await), (round, round));
        }
    });
}

/// Once, the others waited forever.
#[test]
fn a_process_that_ends_makes_barriers_of_its_node_fail() {
    for failed in [false, true] {
        simulate(8, move |runtime| async move {
            let bed = Bed::new(&runtime, 1, 4);
            let (one, two) =
                (bed.attach(0, 2, Tracking::Twins).await, bed.attach(0, 2, Tracking::Twins).await);
            let leaving = async {
                bed.runtime.sleep(std::time::Duration::from_secs(1)).await;
                two.attachment.detach(failed).await
            };
            let (waited, left) = join(one.attachment.barrier(), leaving).await;
            assert_eq!(left, Ok(()));
            let errno = waited.expect_err("the other process has ended").errno;
            assert_eq!(errno, if failed { Errno::EOWNERDEAD } else { Errno::EPIPE });
            assert!(one.attachment.barrier().await.is_err());
        });
    }
}

#[test]
fn sums_at_the_home_are_visible_after_a_barrier_here_too() {
    simulate(6, |runtime| async move {
        let bed = Bed::new(&runtime, 2, UNIT_PAGES + 1);
        let at = UNIT_PAGES as usize * PAGE_SIZE + 8;
        let processes = [bed.attach(0, 2, Tracking::Twins).await, bed.attach(1, 2, Tracking::Twins).await];
        for (number, process) in processes.iter().enumerate() {
            // A store of this node to another byte of the page, which the update must keep.
            process.store(at + 100 + number, 9).await;
            assert_eq!(process.attachment.fetch_add(at as u64, 3).await, Ok(3 * number as u64));
        }
        let [one, two] = &processes;
        let both = join(one.attachment.barrier(), two.attachment.barrier()).await;
        assert_eq!(both, (Ok(()), Ok(())));
        for process in &processes {
            assert_eq!(
                (process.load(at).await, process.load(at + 100).await, process.load(at + 101).await),
                (6, 9, 9)
            );
        }
        for wrong in [4, bed.file.pages as u64 * PAGE_SIZE as u64] {
            let refused = one.attachment.fetch_add(wrong, 1).await;
            assert_eq!(refused.map_err(|fault| fault.errno), Err(Errno::EINVAL));
        }
    });
}
