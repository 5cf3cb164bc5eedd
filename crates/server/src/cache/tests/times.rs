//! Times of shared files: what they say of changes by others, and those that programs set during a flush.

use super::bed::{Bed, Client, bytes};
use super::faulty::Plan;
use tameike_core::attr::{AttrChange, SetTime};
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::cache::{CacheRequest, Stamp};
use tameike_core::{Errno, Generation, Result, Timestamp};
use tameike_io::Runtime;
use tameike_io::shared::Access;

const FILE: &[u8] = b"file";
const CHANGED: &str = "another program changed the file while the job wrote it";

fn at(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanoseconds: 7 }
}

/// Sets the time as the cache view does: on the shared file, then with the coordinator.
/// Before and between these go that many others' steps.
async fn set_mtime(client: &Client, runtime: &Runtime, mtime: Timestamp, pauses: [u64; 2]) -> Result<()> {
    pause(runtime, pauses[0]).await;
    let inode = client.shared.stat(FILE)?.inode_id();
    let change = AttrChange { mtime: Some(SetTime::To(mtime)), ..AttrChange::default() };
    client.shared.change(FILE, &change)?;
    pause(runtime, pauses[1]).await;
    client.ask(inode, CacheRequest::SetMtime { inode, mtime }).await.map(drop)
}

async fn pause(runtime: &Runtime, steps: u64) {
    for _ in 0..steps {
        runtime.block(|| ()).await;
    }
}

/// The time as `stat` shows it.
async fn shown(client: &Client, runtime: &Runtime) -> Result<Timestamp> {
    let Stamp { size, mtime, .. } = client.shared.stat(FILE)?.stamp();
    let inode = client.shared.stat(FILE)?.inode_id();
    runtime.block(|| ()).await;
    let state = client.state(inode, CacheRequest::State { inode, size, mtime }).await?;
    Ok(state.newer.map_or(mtime, |(_, mtime)| mtime))
}

/// Opens the file with the attributes that it shows, both times of last change being `joined` or not.
async fn generation(client: &Client, joined: bool) -> Result<Generation> {
    let stat = client.shared.stat(FILE)?;
    let (inode, path, stamp) = (stat.inode_id(), FILE.to_vec(), stat.stamp());
    let stamp = if joined { Stamp { ctime: stamp.mtime, ..stamp } } else { stamp };
    let open = CacheRequest::Open { inode, path, stamp, asked: Vec::new(), holds: true, made: false };
    client.state(inode, open).await.map(|state| state.generation)
}

/// Gfarm shows the time of the last change of content as that of attributes, too, from some time after the last close of a
/// file that several nodes have written: what the job itself had written was taken for changed by others, and read again.
#[test]
fn a_file_system_that_joins_both_times_has_not_changed_the_content() {
    let bed = Bed::new(41, 2);
    let client = bed.client(0);
    let control = bed.control.clone();
    bed.run(async move {
        client.create(FILE, b"content").await.expect("write");
        client.write_back(FILE).await.expect("flush");
        let before = generation(&client, false).await.expect("open");
        control.join_times();
        assert_eq!(generation(&client, true).await.expect("open"), before, "it is as it was");
        assert_eq!(generation(&client, true).await.expect("open"), before, "and it stays so");
    });
}

/// S15d. Gfarm shows a file that was just made with another time than once it is on its servers: that was taken for a change by
/// others.
#[test]
fn a_file_system_that_shows_another_time_once_a_file_is_made_has_not_changed_it() {
    let bed = Bed::new(43, 2);
    let client = bed.client(0);
    bed.run(async move {
        client.shared.create(FILE, 0o644).expect("create");
        let stat = client.shared.stat(FILE).expect("stat");
        let (inode, stamp) = (stat.inode_id(), stat.stamp());
        let earlier = Timestamp { seconds: stamp.mtime.seconds - 1, ..stamp.mtime };
        let open = async |mtime: Timestamp, made: bool| {
            let (path, stamp) = (FILE.to_vec(), Stamp { mtime, ..stamp });
            let open = CacheRequest::Open { inode, path, stamp, asked: Vec::new(), holds: true, made };
            client.state(inode, open).await.expect("open").generation
        };
        let made = open(earlier, true).await;
        assert_eq!(open(stamp.mtime, false).await, made, "it is as it was made");
        let file = client.shared.open(FILE, Access::Write).expect("open");
        file.write_at(b"by others", 0).expect("write");
        let changed = client.shared.stat(FILE).expect("stat").stamp();
        let (path, asked) = (FILE.to_vec(), Vec::new());
        let open = CacheRequest::Open { inode, path, stamp: changed, asked, holds: true, made: false };
        assert_ne!(client.state(inode, open).await.expect("open").generation, made, "it has a size now");
    });
}

/// What was changed and had its time set back has a later time of last change of attributes.
#[test]
fn a_time_that_was_set_back_hides_no_change() {
    let bed = Bed::new(42, 2);
    let client = bed.client(0);
    bed.run(async move {
        client.create(FILE, b"content").await.expect("write");
        client.write_back(FILE).await.expect("flush");
        let before = generation(&client, false).await.expect("open");
        let mtime = client.shared.stat(FILE).expect("stat").mtime;
        client.shared.open(FILE, Access::Write).expect("open").write_at(b"CONTENT", 0).expect("write");
        let back = AttrChange { mtime: Some(SetTime::To(mtime)), ..AttrChange::default() };
        client.shared.change(FILE, &back).expect("set back");
        assert_ne!(generation(&client, false).await.expect("open"), before);
        assert_eq!(client.read(FILE).await.expect("read"), b"CONTENT");
    });
}

/// A file of two units of which the second finds no room, so that a flush writes the first, and a time and a size that the shared
/// file shows after that: what the receipt then says of it.
fn note_after(size: Option<u64>, shown: impl FnOnce(Timestamp) -> Timestamp) -> String {
    let bed = Bed::new(43, 2);
    let (client, began) = (bed.client(0), bed.machine.runtime().now());
    bed.run(async move { client.create(FILE, &bytes(1, 2 * UNIT_SIZE)).await.expect("write") });
    bed.control.set(Plan::Write(UNIT_SIZE as u64, Errno::ENOSPC));
    assert!(!bed.drain(false).is_complete());
    if let Some(size) = size {
        bed.shared.open(FILE, Access::Write).expect("open").truncate(size).expect("grow");
    }
    let time = AttrChange { mtime: Some(SetTime::To(shown(began))), ..AttrChange::default() };
    bed.shared.change(FILE, &time).expect("set");
    let receipt = bed.drain(false);
    assert!(receipt.is_complete(), "{receipt:?}");
    receipt.files[0].note.clone()
}

/// Gfarm shows the time of a write only when all nodes that wrote have closed the file: the flush's own writes were taken for
/// those of another program.
#[test]
fn the_time_of_a_flush_that_is_shown_late_is_not_a_change_by_others() {
    assert_eq!(note_after(None, |began| began), "");
    let later = |began: Timestamp| Timestamp { seconds: began.seconds + 3600, ..began };
    assert_eq!(note_after(None, later), CHANGED);
}

/// So it does with the size: a file whose end another node had flushed was taken for changed, and what the job had was read again.
#[test]
fn an_end_of_a_flush_that_is_shown_late_is_not_a_change_by_others() {
    assert_eq!(note_after(Some(2 * UNIT_SIZE as u64), |began| began), "");
    assert_eq!(note_after(Some(3 * UNIT_SIZE as u64), |began| began), CHANGED, "the job wrote less");
}

/// A copy that had its time set just as the flusher came by once showed the time of its last write ever after.
#[test]
fn a_time_that_a_program_sets_during_a_flush_stays() {
    for seed in 0..400 {
        let bed = Bed::new(seed, 2);
        if seed % 2 == 1 {
            bed.control.let_writers_end();
        }
        let (one, two, runtime) = (bed.client(0), bed.client(1), bed.machine.runtime());
        let pauses = [bed.machine.draw(40), bed.machine.draw(12)];
        bed.run(async move {
            one.create(FILE, b"content").await.expect("write");
            let other = two.clone();
            let flush = async move { other.write_back(FILE).await };
            let set = async {
                set_mtime(&one, &runtime, at(1_000_000), pauses).await.expect("set");
                assert_eq!(shown(&one, &runtime).await.expect("look"), at(1_000_000), "seed {seed}: at once");
            };
            futures_util::future::join(flush, set).await.0.expect("flush");
            assert_eq!(shown(&two, &runtime).await.expect("look"), at(1_000_000), "seed {seed}: later");
        });
        let receipt = bed.drain(true);
        assert!(receipt.is_complete(), "seed {seed}: {receipt:?}");
        assert_eq!(receipt.files[0].note, "", "seed {seed}: our own change of time is not one by others");
        let mtime = bed.shared.stat(FILE).expect("stat").mtime;
        assert_eq!(mtime, at(1_000_000), "seed {seed}: on the shared file system");
        let (client, runtime) = (bed.client(0), bed.machine.runtime());
        bed.run(async move {
            client.open(FILE, false).await.expect("open");
            assert_eq!(shown(&client, &runtime).await.expect("look"), at(1_000_000), "seed {seed}: after");
        });
    }
}

/// Where who writes ends a file, one fsync makes its bytes, its size and its time safe.
#[test]
fn a_file_of_one_node_is_ended_by_the_open_that_has_written_it() {
    for (writers_end, syncs) in [(false, 2), (true, 1)] {
        let bed = Bed::new(44, 2);
        if writers_end {
            bed.control.let_writers_end();
        }
        let (client, runtime) = (bed.client(0), bed.machine.runtime());
        bed.run(async move {
            client.create(FILE, &bytes(1, 70_000)).await.expect("write");
            set_mtime(&client, &runtime, at(1_000_000), [0, 0]).await.expect("a time");
        });
        let receipt = bed.drain(true);
        assert!(receipt.is_complete(), "{receipt:?}");
        assert_eq!(bed.control.syncs(), syncs);
        let stat = bed.shared.stat(FILE).expect("a file");
        assert_eq!((stat.size, stat.mtime), (70_000, at(1_000_000)));
        assert!(bed.real("file") == bytes(1, 70_000));
        // The job knows it as it was left.
        let client = bed.client(1);
        bed.run(async move {
            client.write(FILE, 70_000, b"more").await.expect("write");
        });
        let receipt = bed.drain(true);
        assert!(receipt.is_complete() && receipt.files[0].note.is_empty(), "{receipt:?}");
    }
}
