//! Device benchmark: writes units to a store on a disk and reads them back, without frontends and network.
//! Compare it with fio on the same device.
//!
//! `device DIRECTORY UNITS IN_FLIGHT` prints one line of JSON, and leaves the store in place.
#![forbid(unsafe_code)]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tameike_core::limits::{BLOCK_SIZE, UNIT_SIZE};
use tameike_core::{Fault, Generation, HomeId, InodeId, Result, UnitId};
use tameike_io::disk::uring::Direct;
use tameike_io::os::process::resident_bytes;
use tameike_io::os::runtime::promise;
use tameike_io::os::system::System;
use tameike_io::{Frame, Payload, Pool, Slab};
use tameike_store::extent::{ExtentStore, Pieces};
use tameike_store::{Options, Store};

/// A file of the job-shared view.
const FILE: InodeId = InodeId(0x0123_0000_0000_0001);
/// Frames of the slab: as many as an agent has with `--memory 256M`.
const FRAMES: u32 = 240;
/// Clock ticks a second of `/proc/PID/stat`.
const TICKS: f64 = 100.0;

fn unit(index: u64) -> UnitId {
    UnitId { inode: FILE, index }
}

/// Marks each block with its index.
fn stamp(frame: &mut Frame, index: u64) {
    for (block, bytes) in frame.chunks_exact_mut(BLOCK_SIZE).enumerate() {
        bytes[..8].copy_from_slice(&(index * 256 + block as u64).to_le_bytes());
    }
}

fn has_stamp(frame: &Frame, index: u64) -> bool {
    let mut blocks = frame.chunks_exact(BLOCK_SIZE).enumerate();
    blocks.all(|(block, bytes)| bytes[..8] == (index * 256 + block as u64).to_le_bytes())
}

async fn write(extents: &ExtentStore, pool: &Pool, index: u64) -> Result<()> {
    let mut frame = pool.take().await;
    stamp(&mut frame, index);
    let payload = Payload::new(Arc::new(frame), 0..UNIT_SIZE as u32);
    extents.write(HomeId(0), unit(index), Pieces::at(0, payload)?, false, Generation(0)).await
}

async fn read(extents: &ExtentStore, pool: &Pool, index: u64) -> Result<()> {
    let (frame, held) =
        extents.read(unit(index), 0..UNIT_SIZE as u32, pool.take().await, Generation(0)).await;
    if held?.ranges.len() as usize == UNIT_SIZE && has_stamp(&frame, index) {
        Ok(())
    } else {
        Err(Fault::io(format!("unit {index} is not as it was written")))
    }
}

/// Minimum and maximum of resident memory during a step.
struct Resident {
    least: AtomicU64,
    most: AtomicU64,
}

impl Resident {
    fn sample(&self) {
        let bytes = resident_bytes();
        self.least.fetch_min(bytes, Relaxed);
        self.most.fetch_max(bytes, Relaxed);
    }
}

struct Bench {
    system: System,
    store: Store,
    pool: Pool,
    units: u64,
    in_flight: u64,
}

impl Bench {
    /// Runs `work` on all units, then syncs. Returns wall-clock seconds, processor seconds, and resident bytes.
    fn run<F>(&self, name: &str, work: fn(Arc<ExtentStore>, Pool, u64) -> F) -> Result<String>
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let clock = &self.system.runtime().clock;
        let resident = Arc::new(Resident { least: AtomicU64::new(u64::MAX), most: AtomicU64::new(0) });
        let next = Arc::new(AtomicU64::new(0));
        let (began, processors) = (clock.monotonic(), processor_seconds());
        let workers: Vec<_> = (0..self.in_flight)
            .map(|_| {
                let (extents, pool, units) = (self.store.extents.clone(), self.pool.clone(), self.units);
                let (next, resident) = (next.clone(), resident.clone());
                let (resolver, done) = promise::<Result<()>>();
                self.system.runtime().spawn(async move {
                    let all = async {
                        loop {
                            let index = next.fetch_add(1, Relaxed);
                            if index >= units {
                                return Ok(());
                            }
                            if index % 64 == 32 {
                                resident.sample();
                            }
                            work(extents.clone(), pool.clone(), index).await?;
                        }
                    };
                    resolver.resolve(all.await);
                });
                done
            })
            .collect();
        workers.into_iter().try_for_each(pollster::block_on)?;
        pollster::block_on(self.store.extents.sync(true))?;
        let seconds = (clock.monotonic() - began).as_secs_f64();
        let processors = processor_seconds() - processors;
        let (least, most) = (resident.least.load(Relaxed), resident.most.load(Relaxed));
        Ok(format!(
            r#""{name}": {{"seconds": {seconds:.4}, "processor_seconds": {processors:.2}, "resident": [{least}, {most}]}}"#
        ))
    }
}

/// Processor time of all threads of this process.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_ascii_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / TICKS
}

fn bench(dir: &Path, units: u64, in_flight: u64) -> Result<String> {
    let system = System::start(8).map_err(|error| Fault::from_os("start threads", &error))?;
    let slab = Slab::new(FRAMES).map_err(|error| Fault::from_os("map the frames", &error))?;
    let options = Options {
        runtime: system.runtime().clone(),
        direct: Some(Direct { reactor: system.reactor().clone(), slab: slab.clone() }),
        scratch: slab.pool(FRAMES / 16),
        capacity: [0, units * UNIT_SIZE as u64, 0],
        checkpoint_bytes: 32 << 20,
        table_cache_bytes: 16 << 20,
    };
    let store = pollster::block_on(Store::open(dir, options, |_, _, _| Ok(())))?;
    let bench = Bench { pool: slab.pool(FRAMES / 2), system, store, units, in_flight };
    let write =
        bench.run("write", |extents, pool, index| async move { write(&extents, &pool, index).await })?;
    let read = bench.run("read", |extents, pool, index| async move { read(&extents, &pool, index).await })?;
    Ok(format!("{{{write}, {read}}}"))
}

fn main() -> std::process::ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [dir, units, in_flight] = arguments.as_slice() else {
        eprintln!("usage: device DIRECTORY UNITS IN_FLIGHT");
        return 2.into();
    };
    let (Ok(units), Ok(in_flight)) = (units.parse(), in_flight.parse()) else {
        eprintln!("{units} and {in_flight} must be numbers");
        return 2.into();
    };
    match bench(Path::new(dir), units, in_flight) {
        Ok(line) => {
            println!("{line}");
            0.into()
        }
        Err(fault) => {
            eprintln!("{fault}");
            1.into()
        }
    }
}
