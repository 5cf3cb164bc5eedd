//! Times that programs set while the file is being flushed: a copy that had its time set just as the flusher
//! came by once showed the time of its last write ever after.

use super::bed::{Bed, Client};
use tameike_core::attr::{AttrChange, SetTime};
use tameike_core::wire::cache::{CacheRequest, Stamp};
use tameike_core::{Result, Timestamp};
use tameike_io::Runtime;

const FILE: &[u8] = b"file";

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

#[test]
fn a_time_that_a_program_sets_during_a_flush_stays() {
    for seed in 0..400 {
        let bed = Bed::new(seed, 2);
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
