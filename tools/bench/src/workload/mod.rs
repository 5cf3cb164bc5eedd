//! Workloads: sequences of steps, each executed by all ranks between two barriers.
//!
//! A step measures only its calls to the file system. Data is generated before the clock starts, and checked after it has
//! stopped; a single wrong byte fails the step.

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
use crate::pattern::{Content, Pattern};
use rustix::io::Errno;
use std::fs::File;
use std::path::{Path, PathBuf};

/// A rank's view of a run.
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

    pub fn take(&self, step: Step) -> Outcome<Measured> {
        match step {
            Step::MakeDirectories => self.make_directories(),
            Step::Fill | Step::Write => stream::write(self),
            Step::ReadOwn | Step::Warm => stream::read(self, self.rank),
            Step::ReadOther => stream::read_cold(self, self.next()),
            Step::RandomWrite => random::write(self),
            Step::RandomRead => random::read_cold(self, self.next()),
            Step::CachedRead => random::read(self, self.next()),
            Step::Create => files::create(self),
            Step::StatOwn => files::stat(self, self.rank),
            Step::StatOther => files::stat(self, self.next()),
            Step::OpenOwn => files::read(self, self.rank),
            Step::OpenOther => files::read(self, self.next()),
            Step::Unlink => files::unlink(self),
            Step::RemoveAll => self.remove_all(),
        }
    }

    /// The rank whose files this one reads.
    fn next(&self) -> u32 {
        (self.rank + 1) % self.plan.ranks
    }

    /// The directory of the files of `rank`.
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

    /// The content of one of a rank's many files, or of its large file for `None`.
    fn content(&self, rank: u32, index: Option<u32>) -> Content {
        Content { file: (u64::from(rank) << 32) + index.map_or(0, |index| u64::from(index) + 1), version: 0 }
    }

    fn make_directories(&self) -> Outcome<Measured> {
        let directory = self.directory(self.rank);
        std::fs::create_dir_all(&directory).context(|| format!("make {}", directory.display()))?;
        Ok(Measured::default())
    }

    fn remove_all(&self) -> Outcome<Measured> {
        if self.rank == 0 {
            std::fs::remove_dir_all(&self.root).context(|| format!("remove {}", self.root.display()))?;
        }
        Ok(Measured::default())
    }

    /// Checks that `bytes` are the data at `offset` of `content`, in the file `path`.
    fn check(&self, path: &Path, content: Content, offset: u64, bytes: &[u8]) -> Outcome<()> {
        match self.pattern.first_wrong(content, offset, bytes) {
            Some(at) => {
                Err(format!("WRONG DATA in {} at byte {at}: the read returned wrong bytes", path.display()))
            }
            None => Ok(()),
        }
    }
}

fn open(path: &Path) -> Outcome<File> {
    File::open(path).context(|| format!("open {}", path.display()))
}

/// Asks this node's kernel to drop the cached pages of `file`.
fn drop_pages(file: &File, path: &Path) -> Outcome<()> {
    match rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed) {
        // A preloaded rank bypasses the kernel, which caches no pages for it.
        Err(Errno::BADF) => Ok(()),
        dropped => dropped.context(|| format!("drop the pages of {}", path.display())),
    }
}
