//! Timestamps of shared files: change detection, and timestamps that programs set during a flush.

use super::bed::{Bed, bytes};
use super::client::{Client, open_request};
use super::faulty::Plan;
use tameike_core::attr::{AttrChange, SetTime};
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::cache::{CacheRequest, Stamp};
use tameike_core::{Errno, Generation, Result, Timestamp};
use tameike_io::shared::Access;

const FILE: &[u8] = b"file";
const CHANGED: &str = "another program changed the file while the job wrote it";

fn at(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanoseconds: 7 }
}

/// Sets the mtime as the cache view does: on the shared file, then with the coordinator. `pauses` are scheduler steps before and between
/// these.
async fn set_mtime(client: &Client, mtime: Timestamp, pauses: [u64; 2]) -> Result<()> {
    pause(client, pauses[0]).await;
    let inode = client.shared.stat(FILE)?.inode_id();
    let change = AttrChange { mtime: Some(SetTime::To(mtime)), ..AttrChange::default() };
    client.shared.change(FILE, &change)?;
    pause(client, pauses[1]).await;
    client.request(inode, CacheRequest::SetMtime { inode, mtime }).await.map(drop)
}

async fn pause(client: &Client, steps: u64) {
    for _ in 0..steps {
        client.runtime.block(|| ()).await;
    }
}

/// The mtime that `stat` returns.
async fn shown_mtime(client: &Client) -> Timestamp {
    let (inode, Stamp { size, mtime, .. }) = client.identity(FILE);
    pause(client, 1).await;
    let state = client.state(inode, CacheRequest::State { inode, size, mtime }).await.expect("stat");
    state.newer.map_or(mtime, |(_, mtime)| mtime)
}

/// Opens the file with the attributes of the shared file; if `joined`, with the mtime as ctime.
async fn generation(client: &Client, joined: bool) -> Generation {
    let (inode, stamp) = client.identity(FILE);
    let stamp = if joined { Stamp { ctime: stamp.mtime, ..stamp } } else { stamp };
    client.state(inode, open_request(inode, FILE, stamp)).await.expect("open").generation
}

/// Regression: some time after the last close of a file with several writers, Gfarm shows the mtime as ctime. The coordinator took the
/// job's own writes for changes by another program, and the homes fetched them again.
#[test]
fn a_ctime_that_becomes_the_mtime_is_not_a_change() {
    let bed = Bed::new(41, 2);
    let client = bed.client(0);
    bed.run(async {
        client.create(FILE, b"content").await.expect("write");
        client.write_back(FILE).await.expect("flush");
        let before = generation(&client, false).await;
        bed.control.show_ctime_as_mtime();
        assert_eq!(generation(&client, true).await, before, "the generation stays");
        assert_eq!(generation(&client, true).await, before, "the generation stays at the next open");
    });
}

/// S15d. Gfarm shows a new file with another mtime than later, when the file is on its servers. The coordinator took that for a change by
/// another program.
#[test]
fn a_late_mtime_of_a_new_file_is_not_a_change() {
    let bed = Bed::new(43, 2);
    let client = bed.client(0);
    bed.run(async move {
        client.shared.create(FILE, 0o644).expect("create");
        let (inode, stamp) = client.identity(FILE);
        let earlier = Timestamp { seconds: stamp.mtime.seconds - 1, ..stamp.mtime };
        let open = async |mtime: Timestamp, made: bool| {
            let (path, stamp) = (FILE.to_vec(), Stamp { mtime, ..stamp });
            let open =
                CacheRequest::Open { inode, path, stamp, holder_outcomes: Vec::new(), holds: true, made };
            client.state(inode, open).await.expect("open").generation
        };
        let made = open(earlier, true).await;
        assert_eq!(open(stamp.mtime, false).await, made, "the generation stays");
        let file = client.shared.open(FILE, Access::Write).expect("open");
        file.write_at(b"by others", 0).expect("write");
        assert_ne!(generation(&client, false).await, made, "the size has changed");
    });
}

/// A change whose mtime was set back has a later ctime.
#[test]
fn an_mtime_that_was_set_back_hides_no_change() {
    let bed = Bed::new(42, 2);
    let client = bed.client(0);
    bed.run(async move {
        client.create(FILE, b"content").await.expect("write");
        client.write_back(FILE).await.expect("flush");
        let before = generation(&client, false).await;
        let mtime = client.shared.stat(FILE).expect("stat").mtime;
        client.shared.open(FILE, Access::Write).expect("open").write_at(b"CONTENT", 0).expect("write");
        let back = AttrChange { mtime: Some(SetTime::To(mtime)), ..AttrChange::default() };
        client.shared.change(FILE, &back).expect("set back");
        assert_ne!(generation(&client, false).await, before);
        assert_eq!(client.read(FILE).await.expect("read"), b"CONTENT");
    });
}

/// Flushes the first of two units, as the second gets ENOSPC. Then sets the shared file's size and mtime.
/// Returns the note in the receipt of the next drain.
fn note_after(size: Option<u64>, shown_mtime: impl FnOnce(Timestamp) -> Timestamp) -> String {
    let bed = Bed::new(43, 2);
    let began = bed.machine.runtime().now();
    bed.create("file", &bytes(1, 2 * UNIT_SIZE));
    bed.control.set(Plan::Write(UNIT_SIZE as u64, Errno::ENOSPC));
    assert!(!bed.drain(false).is_complete());
    if let Some(size) = size {
        bed.shared.open(FILE, Access::Write).expect("open").truncate(size).expect("grow");
    }
    let time = AttrChange { mtime: Some(SetTime::To(shown_mtime(began))), ..AttrChange::default() };
    bed.shared.change(FILE, &time).expect("set");
    bed.drain_completely(false).files[0].note.clone()
}

/// Regression: Gfarm shows the mtime of a write after all writers have closed the file. The coordinator took the flush's own writes for
/// those of another program.
#[test]
fn an_mtime_of_a_flush_that_is_visible_late_is_not_a_change_by_another_program() {
    assert_eq!(note_after(None, |began| began), "");
    let later = |began: Timestamp| Timestamp { seconds: began.seconds + 3600, ..began };
    assert_eq!(note_after(None, later), CHANGED);
}

/// Regression: the same with the size. The coordinator took a size from another node's flush for a change, and the homes fetched their
/// units again.
#[test]
fn a_size_of_a_flush_that_is_visible_late_is_not_a_change_by_another_program() {
    assert_eq!(note_after(Some(2 * UNIT_SIZE as u64), |began| began), "");
    assert_eq!(note_after(Some(3 * UNIT_SIZE as u64), |began| began), CHANGED, "the job wrote less");
}

/// Regression: a program set the mtime of a copied file during its flush, and the file kept the mtime of its last write.
#[test]
fn an_mtime_that_a_program_sets_during_a_flush_is_kept() {
    for seed in 0..400 {
        let bed = Bed::new(seed, 2);
        if seed % 2 == 1 {
            bed.control.allow_writers_to_finish();
        }
        let (one, two) = (bed.client(0), bed.client(1));
        let pauses = [bed.machine.draw(40), bed.machine.draw(12)];
        bed.run(async {
            one.create(FILE, b"content").await.expect("write");
            let set = async {
                set_mtime(&one, at(1_000_000), pauses).await.expect("set");
                assert_eq!(shown_mtime(&one).await, at(1_000_000), "seed {seed}: at once");
            };
            futures_util::future::join(two.write_back(FILE), set).await.0.expect("flush");
            assert_eq!(shown_mtime(&two).await, at(1_000_000), "seed {seed}: later");
        });
        let receipt = bed.drain(true);
        assert!(receipt.is_complete(), "seed {seed}: {receipt:?}");
        assert_eq!(
            receipt.files[0].note, "",
            "seed {seed}: the job's own utimens is not a change by another program"
        );
        let mtime = bed.shared.stat(FILE).expect("stat").mtime;
        assert_eq!(mtime, at(1_000_000), "seed {seed}: on the shared file system");
        bed.run(one.open(FILE, false)).expect("open");
        assert_eq!(bed.run(shown_mtime(&one)), at(1_000_000), "seed {seed}: after");
    }
}

/// If the writer may finish a file, one fsync persists its bytes, size and mtime.
#[test]
fn a_file_of_one_node_is_finished_by_the_descriptor_that_wrote_it() {
    for (writers_end, syncs) in [(false, 2), (true, 1)] {
        let bed = Bed::new(44, 2);
        if writers_end {
            bed.control.allow_writers_to_finish();
        }
        bed.create("file", &bytes(1, 70_000));
        bed.run(set_mtime(&bed.client(0), at(1_000_000), [0, 0])).expect("a time");
        bed.drain_completely(true);
        assert_eq!(bed.control.syncs(), syncs);
        let stat = bed.shared.stat(FILE).expect("a file");
        assert_eq!((stat.size, stat.mtime), (70_000, at(1_000_000)));
        assert!(bed.shared_content("file") == bytes(1, 70_000));
        // The coordinator has the final size and mtime of the file.
        bed.run(bed.client(1).write(FILE, 70_000, b"more")).expect("write");
        assert_eq!(bed.drain_completely(true).files[0].note, "");
    }
}
