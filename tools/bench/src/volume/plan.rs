//! The workloads: steps of fio with the sizes of a run, and runs of IOR.

use super::fio::{self, JOBS};
use super::ior;
use super::tree::Tree;
use crate::options::{VolumeOptions, VolumeWorkload};
use crate::workload::Unit;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A set of files that one target writes and reads before the next target does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Files of several processes in blocks of 512 KiB, which `Small` uses, too.
    Large,
    /// The same files in blocks of 4 KiB.
    Small,
    /// One file of one process, in blocks of 1 MiB, through the page cache.
    File,
    /// MPI processes, with a file each or one for all.
    Ior { processes: u32, shared: bool },
    /// Many small files, whose copies on one host are lost.
    RepairSmall,
    /// Few large ones.
    RepairLarge,
}

/// What a target does in a workload.
#[derive(Clone, Debug)]
pub enum Step {
    /// Measured, with this title.
    Fio { title: &'static str, job: fio::Job },
    /// Not measured: writes the files of this job if they are missing or shorter.
    Fill(fio::Job),
    /// Not measured: reads and compares what this job wrote.
    Verify(fio::Job),
    /// Not measured: removes all files.
    Clear,
    /// Measured: unpacks small files from an archive.
    Unpack(Tree),
    /// Not measured: compares them with the archive.
    Compare(Tree),
    /// Measured: a host loses its store, and these bytes and this number of files get copies elsewhere.
    Repair { bytes: u64, files: u64 },
    /// A pass of IOR with this title; without one, it is not measured.
    Ior { title: Option<String>, job: ior::Job, pass: ior::Pass },
}

/// Sizes of a run, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Of each file that several processes have.
    file: u64,
    /// Blocks of 512 KiB at random places, of each process.
    large_random: u64,
    /// Blocks of 4 KiB in sequence.
    small_sequential: u64,
    /// Blocks of 4 KiB at random places.
    small_random: u64,
    /// Blocks of 4 KiB at random places, each durable before the next.
    small_durable: u64,
    /// All that the processes of IOR write.
    ior: u64,
    /// Number of small files.
    files: u32,
}

impl Sizes {
    /// As the options say.
    pub fn new(options: &VolumeOptions) -> Self {
        if options.tiny {
            let [file, large_random] = [4 * MIB, MIB];
            let [small_sequential, small_random, small_durable] = [MIB, 256 * KIB, 32 * KIB];
            let (ior, files) = (4 * MIB, 40);
            return Self { file, large_random, small_sequential, small_random, small_durable, ior, files };
        }
        let file = options.size_mib / 4 * 4 * MIB;
        Self {
            file,
            large_random: file / 4,
            small_sequential: file / 16,
            small_random: file / 16,
            small_durable: file / 256,
            ior: file * 2,
            files: options.files,
        }
    }
}

impl Step {
    /// Its title in reports; `None` if it is not measured.
    pub fn title(&self) -> Option<&str> {
        match self {
            Self::Fio { title, .. } => Some(title),
            Self::Fill(_) | Self::Verify(_) | Self::Clear | Self::Compare(_) => None,
            Self::Unpack(_) => Some("unpack with tar"),
            Self::Repair { .. } => Some("copies after the loss of a store"),
            Self::Ior { title, .. } => title.as_deref(),
        }
    }

    /// Returns true if it is measured and reads, so that caches matter.
    pub fn reads(&self) -> bool {
        match self {
            Self::Fio { job, .. } => !job.writes(),
            Self::Fill(_) | Self::Verify(_) | Self::Clear | Self::Unpack(_) | Self::Compare(_) => false,
            Self::Repair { .. } => false,
            Self::Ior { pass, .. } => *pass == ior::Pass::Read,
        }
    }
}

impl Sizes {
    /// Sizes of the files, for people.
    pub fn summary(&self) -> String {
        let [file, ior] = [self.file, self.ior].map(|bytes| bytes / MIB);
        format!(
            "fio has four files of {file} MiB, or one of {} MiB; IOR writes {ior} MiB in all; {} files have 4 KiB",
            file * u64::from(JOBS),
            self.files
        )
    }
}

impl Workload {
    /// All of a run: those named, with IOR for these numbers of processes.
    pub fn all(named: &[VolumeWorkload], processes: &[u32]) -> Vec<Self> {
        let ior = |shared| processes.iter().map(move |&processes| Self::Ior { processes, shared });
        let each = |workload: &VolumeWorkload| match workload {
            VolumeWorkload::LargeBlocks => vec![Self::Large],
            VolumeWorkload::SmallBlocks => vec![Self::Small],
            VolumeWorkload::File => vec![Self::File],
            VolumeWorkload::Ior => ior(false).chain(ior(true)).collect(),
            VolumeWorkload::Repair => vec![Self::RepairSmall, Self::RepairLarge],
        };
        named.iter().flat_map(each).collect()
    }

    /// The title of its table.
    pub fn group(self) -> &'static str {
        match self {
            Self::Large => "fio, four processes, blocks of 512 KiB",
            Self::Small => "fio, four processes, blocks of 4 KiB",
            Self::File => "fio, one process, blocks of 1 MiB",
            Self::Ior { shared: false, .. } => "IOR, a file per process",
            Self::Ior { shared: true, .. } => "IOR, one file",
            Self::RepairSmall => "files of 4 KiB",
            Self::RepairLarge => "large files",
        }
    }

    /// What its rates count.
    pub fn unit(self) -> Unit {
        match self {
            Self::Small | Self::RepairSmall => Unit::OperationsPerSecond,
            Self::Large | Self::File | Self::Ior { .. } | Self::RepairLarge => Unit::MebibytesPerSecond,
        }
    }

    /// Its steps. `turn` makes its content differ from all before.
    pub fn steps(self, sizes: &Sizes, turn: u32) -> Vec<Step> {
        // Three passes write at most.
        let pass = turn * 4;
        match self {
            Self::Large => blocks(512 * KIB, [sizes.file, sizes.large_random], sizes, pass),
            Self::Small => {
                let mut steps =
                    vec![Step::Fill(fio::Job { pass: pass + 3, ..job("write", 512 * KIB, sizes) })];
                steps.extend(blocks(4 * KIB, [sizes.small_sequential, sizes.small_random], sizes, pass));
                let (amount, sync) = (sizes.small_durable, true);
                let job = fio::Job { amount, sync, pass: pass + 2, ..job("randwrite", 4 * KIB, sizes) };
                steps.extend([Step::Fio { title: "random writes, fdatasync after each", job }]);
                steps.extend([Step::Verify(job)]);
                steps
            }
            Self::File => {
                let size = sizes.file * u64::from(JOBS);
                let whole = |pattern| fio::Job {
                    files: "file",
                    jobs: 1,
                    size,
                    amount: size,
                    direct: false,
                    pass,
                    ..job(pattern, MIB, sizes)
                };
                let [write, read] = ["write", "read"].map(whole);
                vec![
                    Step::Fio { title: "write, fsync", job: write },
                    Step::Fio { title: "read", job: read },
                    Step::Verify(write),
                ]
            }
            Self::RepairSmall => {
                let tree = Tree { files: sizes.files, pass };
                let repair = Step::Repair { bytes: tree.bytes(), files: tree.files.into() };
                vec![Step::Clear, Step::Unpack(tree), repair, Step::Compare(tree)]
            }
            Self::RepairLarge => {
                let job = fio::Job { pass, ..job("write", 512 * KIB, sizes) };
                let bytes = sizes.file * u64::from(JOBS);
                vec![
                    Step::Clear,
                    Step::Fill(job),
                    Step::Repair { bytes, files: JOBS.into() },
                    Step::Verify(job),
                ]
            }
            Self::Ior { processes, shared } => {
                let job = ior::Job { processes, shared, amount: sizes.ior, pass };
                let plural = if processes == 1 { "" } else { "es" };
                let title = |what: &str| Some(format!("{processes} process{plural}: {what}"));
                vec![
                    Step::Ior { title: title("write, fsync"), job, pass: ior::Pass::Write },
                    Step::Ior {
                        title: title("each reads what the next one wrote"),
                        job,
                        pass: ior::Pass::Read,
                    },
                    Step::Ior { title: None, job, pass: ior::Pass::Check },
                ]
            }
        }
    }
}

/// Sequential and then random writes and reads, with these amounts.
fn blocks(block: u64, [sequential, random]: [u64; 2], sizes: &Sizes, pass: u32) -> Vec<Step> {
    let of = |pattern, amount, pass| fio::Job { amount, pass, ..job(pattern, block, sizes) };
    let [write, random_write] = [of("write", sequential, pass), of("randwrite", random, pass + 1)];
    vec![
        Step::Fio { title: "sequential writes, fsync", job: write },
        Step::Fio { title: "sequential reads", job: of("read", sequential, pass) },
        Step::Verify(write),
        Step::Fio { title: "random writes, fsync", job: random_write },
        // Other places than those that were written.
        Step::Fio { title: "random reads", job: of("randread", random, pass + 3) },
        Step::Verify(random_write),
    ]
}

/// A job of several processes with a file each.
fn job(pattern: &'static str, block: u64, sizes: &Sizes) -> fio::Job {
    fio::Job {
        files: "blocks",
        jobs: JOBS,
        pattern,
        block,
        size: sizes.file,
        amount: sizes.file,
        direct: true,
        sync: false,
        pass: 0,
    }
}
