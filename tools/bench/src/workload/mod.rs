//! Workloads: sequences of steps, which all ranks take at the same time between two barriers.
//!
//! A step times only its calls to the file system. It generates content before and checks content after that, and fails if one byte is
//! wrong.

mod container;
mod files;
mod measured;
mod plan;
mod random;
mod step;
mod stream;

#[cfg(test)]
mod tests;

pub use measured::{Measured, Work};
pub use plan::{Plan, Sizes};
pub use step::{Group, Step, Unit, Workload};

use crate::outcome::{Context, Outcome};
use crate::pattern::{Content, Pattern, shuffled};
use rustix::io::Errno;
use std::fs::File;
use std::path::{Path, PathBuf};

/// One rank's place in a run.
#[derive(Debug)]
pub struct Site {
    plan: Plan,
    rank: u32,
    root: PathBuf,
    pattern: Pattern,
}

impl Site {
    /// Rank `rank` of `plan`, in `directory` of the target.
    pub fn new(plan: Plan, rank: u32, directory: &Path) -> Self {
        let root = directory.join(&plan.run);
        let pattern = Pattern::new(plan.seed);
        Self { plan, rank, root, pattern }
    }

    /// The steps that this rank takes.
    pub fn steps(&self) -> impl Iterator<Item = Step> {
        self.plan.steps.iter().copied().filter(|step| !step.ends_ranks())
    }

    /// Does one step.
    pub fn take(&self, step: Step) -> Outcome<Measured> {
        match step {
            Step::MakeDirectories => self.make_directories(),
            // One rank makes the file that all of them read.
            Step::Fill if self.plan.workload == Workload::HotFile && self.rank > 0 => Ok(Measured::default()),
            Step::Fill | Step::Write => stream::write(self),
            Step::ReadOwn | Step::Warm => stream::read(self, self.rank),
            Step::ReadOther => self.cold(stream::read),
            Step::RandomWrite => random::write(self),
            Step::RandomRead => self.cold(random::read),
            Step::CachedRead => random::read(self, self.next()),
            Step::Create => files::create(self),
            Step::StatOwn => files::stat(self, self.rank),
            Step::StatOther => files::stat(self, self.next()),
            Step::OpenOwn => files::read(self, &self.files_of(self.rank)),
            Step::OpenOther => files::read(self, &self.files_of(self.next())),
            Step::OpenRandom => files::read(self, &self.random_files()),
            // The coordinator takes them.
            Step::Persist | Step::Restart => Ok(Measured::default()),
            Step::Unlink => files::unlink(self),
            Step::RemoveAll => self.remove_all(),
        }
    }

    /// The rank whose files this one reads.
    fn next(&self) -> u32 {
        (self.rank + 1) % self.plan.ranks
    }

    /// Reads the large file of the next rank, with no pages of it in this node's page cache.
    fn cold(&self, read: impl Fn(&Self, u32) -> Outcome<Measured>) -> Outcome<Measured> {
        let path = self.large_file(self.next());
        match rustix::fs::fadvise(open(&path)?, 0, None, rustix::fs::Advice::DontNeed) {
            // A preloaded rank opens files without the kernel, which has no pages of them.
            Ok(()) | Err(Errno::BADF) => read(self, self.next()),
            Err(error) => Err(format!("cannot drop the pages of {}: {error}", path.display())),
        }
    }

    /// The many files of `rank`: their rank and index.
    fn files_of(&self, rank: u32) -> Vec<(u32, u32)> {
        (0..self.plan.files).map(|index| (rank, index)).collect()
    }

    /// The part of this rank of all ranks' files in random order, as many as there are random reads.
    fn random_files(&self) -> Vec<(u32, u32)> {
        let Plan { ranks, files, seed, .. } = self.plan;
        let own = shuffled(seed, u64::from(ranks) * u64::from(files)).into_iter();
        let own = own.skip(self.rank as usize).step_by(ranks as usize).take(self.plan.operations as usize);
        own.map(|file| ((file / u64::from(files)) as u32, (file % u64::from(files)) as u32)).collect()
    }

    /// Where `rank` has its files.
    fn directory(&self, rank: u32) -> PathBuf {
        match self.plan.workload.has_one_directory() {
            true => self.root.join("all"),
            false => self.root.join(format!("rank-{rank}")),
        }
    }

    fn large_file(&self, rank: u32) -> PathBuf {
        self.directory(rank).join("large")
    }

    fn file(&self, rank: u32, index: u32) -> PathBuf {
        self.directory(rank).join(format!("file-{rank}-{index}"))
    }

    /// The bytes of one of a rank's many files, or of its large one for `None`.
    fn content(&self, rank: u32, index: Option<u32>) -> Content {
        Content { file: (u64::from(rank) << 32) + index.map_or(0, |index| u64::from(index) + 1), version: 0 }
    }

    fn make_directories(&self) -> Outcome<Measured> {
        let directory = if self.plan.in_container { self.root.clone() } else { self.directory(self.rank) };
        std::fs::create_dir_all(&directory).context(|| format!("make {}", directory.display()))?;
        Ok(Measured::default())
    }

    fn remove_all(&self) -> Outcome<Measured> {
        if self.rank == 0 {
            std::fs::remove_dir_all(&self.root).context(|| format!("remove {}", self.root.display()))?;
        }
        Ok(Measured::default())
    }

    /// Checks that `bytes`, read from `path`, are `content` from `offset`.
    fn check(&self, path: &Path, content: Content, offset: u64, bytes: &[u8]) -> Outcome<()> {
        match self.pattern.first_wrong(content, offset, bytes) {
            Some(at) => {
                Err(format!("WRONG DATA in {} at byte {at}: the read gave other bytes", path.display()))
            }
            None => Ok(()),
        }
    }
}

fn open(path: &Path) -> Outcome<File> {
    File::open(path).context(|| format!("open {}", path.display()))
}
