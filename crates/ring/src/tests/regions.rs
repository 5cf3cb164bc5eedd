//! Shared memory regions: passing of their descriptors, and slots for page faults.

use super::bed::{Bed, Files, PATIENCE, open, socket, start};
use crate::client::region::LEFT_BY_BARRIERS;
use crate::client::{Answer, Client, Region};
use crate::layout::SLOTS;
use crate::message::{Reply, Request};
use crate::server::Call;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{read, write};
use rustix::pipe::pipe;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::channel;
use tameike_core::region::{Terms, Tracking};
use tameike_io::os::socket::send_files;

const EMFILE: i32 = 24;

/// Serves requests on regions: the memory of one has its handle in each file, and a passed descriptor gets the region's number.
pub fn serve(call: Call<Files>) {
    match call.request() {
        Some(Request::RegionOpen { handle, terms, .. }) => {
            let memory = [(); 3].map(|()| memfd_create("test", MemfdFlags::CLOEXEC).expect("memory"));
            for (file, number) in memory.iter().zip(0..) {
                write(file, &[handle as u8, number]).expect("written");
            }
            call.send_region(&memory.each_ref().map(|file| file.as_fd())).expect("it reads");
            call.answer(&Reply::Region { number: handle + 100, owner: terms.processes as u16, pages: 7 });
        }
        Some(Request::RegionMapped { region, .. }) => {
            let passed = call.take_descriptors();
            let reply = passed.front().map_or(Reply::Failed(9), |passed| {
                write(passed, &region.to_ne_bytes()).expect("the program reads");
                Reply::Done
            });
            call.answer(&reply);
        }
        Some(Request::RegionFetch { page, .. }) => call.answer(&Reply::Count(page % 7 + 1)),
        Some(Request::RegionFlush { .. }) => call.answer(&Reply::Done),
        other => panic!("{other:?}"),
    }
}

fn terms(processes: u32) -> Terms {
    Terms { processes, one_writer: false, tracking: Tracking::Twins }
}

fn opened(answer: Answer<Region>) -> Region {
    match answer {
        Answer::Done(region) => region,
        other => panic!("{other:?}"),
    }
}

fn bytes_of(file: &OwnedFd) -> [u8; 2] {
    let mut bytes = [0; 2];
    assert_eq!(rustix::io::pread(file, &mut bytes, 0), Ok(2));
    bytes
}

/// Other threads receive devices, and may receive the memory of a region with them.
#[test]
fn a_region_comes_with_its_memory_while_other_threads_receive_devices() {
    for _ in 0..50 {
        let bed = Bed::new();
        let client = bed.client();
        let located = open(&client, b"located");
        let begun = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    begun.wait();
                    let read = client.read(located.handle, None, 0, &mut [&mut vec![0; 40_000]]);
                    assert!(matches!(read, Answer::Done(0 | 40_000)), "{read:?}");
                });
            }
            begun.wait();
            for handle in 1..20 {
                let region = opened(client.open_region(handle, terms(5), true));
                assert_eq!((region.number, region.owner, region.pages), (handle + 100, 5, 7));
                for (file, number) in region.memory.iter().zip(0..) {
                    assert_eq!(bytes_of(file), [handle as u8, number]);
                }
            }
        });
    }
}

#[test]
fn passed_descriptors_reach_their_requests_and_few_are_kept() {
    let bed = Bed::new();
    let client = bed.client();
    for region in 1..10_u64 {
        let (reader, writer) = pipe().expect("a pipe");
        assert_eq!(client.map_region(region, &[writer.as_fd(), writer.as_fd()], 4096), Answer::Done(()));
        drop(writer);
        let mut bytes = [0; 9];
        assert_eq!((read(&reader, &mut bytes), &bytes[..8]), (Ok(8), &region.to_ne_bytes()[..]));
        assert_eq!(read(&reader, &mut bytes), Ok(0), "the agent has closed it");
    }
    let (reader, writer) = pipe().expect("a pipe");
    for _ in 0..20 {
        send_files(&client.socket, &[writer.as_fd()]).expect("the agent reads");
    }
    let (other, last) = pipe().expect("a pipe");
    assert_eq!(client.map_region(1, &[last.as_fd()], 4096), Answer::Done(()), "the first one is used");
    let mut bytes = [0; 100];
    assert_eq!(read(&reader, &mut bytes), Ok(8));
    drop((last, writer));
    assert_eq!(read(&other, &mut bytes), Ok(0), "the agent has closed the last one");
    assert_eq!(client.close(1), Answer::Failed(9), "the program is served");
    drop(client);
    bed.files.wait_for_state(|state| state.ended == 1);
    assert_eq!(read(&reader, &mut bytes), Ok(0), "all are closed");
}

#[test]
fn a_page_is_fetched_while_all_other_slots_are_in_use() {
    let bed = Bed::new();
    let client = bed.client();
    opened(client.open_region(1, terms(1), false));
    let (sender, ends) = channel();
    std::thread::scope(|scope| {
        for _ in 0..2 * SLOTS {
            let (client, sender) = (&client, sender.clone());
            scope.spawn(move || sender.send(client.sync(1)).expect("the test waits"));
        }
        bed.files.wait_for_held(SLOTS - 1);
        for page in 0..100 {
            assert_eq!(client.fetch_page(1, page, true), Answer::Done(page % 7 + 1));
        }
        let mut ended = 0;
        while ended < 2 * SLOTS {
            bed.files.answer_held();
            ended += ends.try_iter().inspect(|answer| assert_eq!(*answer, Answer::Done(()))).count();
        }
    });
}

#[test]
fn barriers_leave_slots_for_other_calls_on_regions() {
    const AT_ONCE: usize = SLOTS - LEFT_BY_BARRIERS;
    let bed = Bed::new();
    let client = bed.client();
    let (sender, ends) = channel();
    std::thread::scope(|scope| {
        for _ in 0..4 * AT_ONCE {
            let (client, sender) = (&client, sender.clone());
            scope.spawn(move || sender.send(client.wait_for_region(1)).expect("the test waits"));
        }
        bed.files.wait_for_held(AT_ONCE);
        for page in 0..1000 {
            assert_eq!(client.fetch_page(1, page, false), Answer::Done(page % 7 + 1));
            assert_eq!(client.flush_region(1), Answer::Done(()));
            assert_eq!(client.close(77), Answer::Failed(9));
        }
        for _ in 0..4 {
            bed.files.wait_for_held(AT_ONCE);
            bed.files.answer_held();
            for _ in 0..AT_ONCE {
                assert_eq!(ends.recv_timeout(PATIENCE), Ok(Answer::Done(())));
            }
        }
    });
}

#[test]
#[ignore = "started by a_region_needs_free_descriptors"]
fn program_without_free_descriptors() {
    let client = Client::connect(&socket(), |_| {}).expect("the agent listens");
    let highest = memfd_create("test", MemfdFlags::CLOEXEC).expect("memory");
    let before = getrlimit(Resource::Nofile);
    // One more, where three arrive.
    let current = Some(std::os::fd::AsRawFd::as_raw_fd(&highest) as u64 + 2);
    setrlimit(Resource::Nofile, Rlimit { current, ..before }).expect("a lower limit");
    let failed = client.open_region(1, terms(1), false);
    assert!(matches!(failed, Answer::Failed(EMFILE)), "{failed:?}");
    setrlimit(Resource::Nofile, before).expect("as before");
    let region = opened(client.open_region(2, terms(1), false));
    assert_eq!(bytes_of(&region.memory[2]), [2, 2]);
}

#[test]
fn a_region_needs_free_descriptors() {
    let bed = Bed::new();
    let mut program = start("tests::regions::program_without_free_descriptors", &bed.socket);
    assert!(program.wait().expect("it is our child").success());
}

#[test]
fn regions_fail_after_the_agent_has_stopped() {
    let bed = Bed::new();
    let client = bed.client();
    bed.server.stop();
    assert!(matches!(client.open_region(1, terms(1), false), Answer::Broken));
    let (_reader, writer) = pipe().expect("a pipe");
    assert_eq!(client.map_region(1, &[writer.as_fd()], 4096), Answer::Broken);
    assert_eq!(client.fetch_page(1, 1, true), Answer::Broken);
    assert_eq!(client.wait_for_region(1), Answer::Broken);
}
