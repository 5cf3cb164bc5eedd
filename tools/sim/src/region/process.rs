//! A simulated process that has attached to a region: before each access it takes the steps that a page fault takes.

use super::cells::Cell;
use super::stage::{Stage, Stop};
use crate::world::Canary;
use std::sync::Arc;
use std::time::Duration;
use tameike_client::region::Attachment;
use tameike_core::Errno;
use tameike_core::patch::{PAGE_SIZE, Page};
use tameike_dsm::control::PageState;
use tameike_dsm::fault::{MappedRegion, Mechanism, PageSource, Step};
use tameike_dsm::memory::RegionMemory;
use tameike_io::os::arena::Arena;
use tameike_io::os::mapping::Mapping;

/// Pause while another process has claimed a page.
const CLAIM_PAUSE: Duration = Duration::from_micros(10);

pub(crate) struct Process {
    pub number: usize,
    pub node: usize,
    /// Number of its memory in the model.
    pub memory: usize,
    pub attachment: Arc<Attachment>,
    region: MappedRegion,
    data: Arena,
}

/// Simulated processes fetch pages themselves.
struct NoSource;

impl PageSource for NoSource {
    fn fetch(&self, _: u32, _: bool) -> Result<u32, i32> {
        Err(Errno::EIO.0)
    }
}

fn broken(error: &std::io::Error) -> Stop {
    Stop::Violation(format!("the memory of a region cannot be mapped: {error}"))
}

impl Process {
    /// Maps the memory of a process as programs do.
    pub fn map(
        (number, node, memory): (usize, usize, usize),
        attachment: Arc<Attachment>,
    ) -> Result<Self, Stop> {
        let pages = attachment.memory().pages();
        let no_files = || Stop::Violation("the agent's memory has no descriptors".to_owned());
        let files = attachment.memory().descriptors().ok_or_else(no_files)?;
        let [data, twins, control] = files.map(|file| file.try_clone_to_owned());
        let mapped = || -> std::io::Result<_> {
            let files = [data?, twins?, control?];
            let data = Arena::map(&files[0], pages as usize * PAGE_SIZE)?;
            Ok((data, RegionMemory::map(files, pages)?, Mapping::private(PAGE_SIZE)?))
        };
        let (data, mapped, unused) = mapped().map_err(|error| broken(&error))?;
        let owner = attachment.owner();
        let region = MappedRegion::new(mapped, (unused, Mechanism::None), Box::new(NoSource), owner);
        Ok(Self { number, node, memory, attachment, region, data })
    }

    /// Takes steps until an access is allowed. The access must follow at once.
    async fn bring(&self, stage: &Arc<Stage>, page: u32, write: bool) -> Result<(), Stop> {
        loop {
            let step = self.region.advance(page, write);
            let refused =
                |errno| Stop::Violation(format!("an access to page {page} fails with errno {errno}"));
            match step.map_err(refused)? {
                Step::Done => return Ok(()),
                Step::Again => stage.runtime().sleep(CLAIM_PAUSE).await,
                Step::Fetch => {
                    let attachment = self.attachment.clone();
                    let fetch = async move { attachment.fetch(page, write).await };
                    stage.call(self.node, "fetch", fetch).await.map(drop)?;
                }
            }
        }
    }

    /// Loads the bytes of a cell.
    pub async fn load(&self, stage: &Arc<Stage>, cell: &Cell) -> Result<Vec<u8>, Stop> {
        self.bring(stage, cell.page, false).await?;
        let mut page: Page = [0; PAGE_SIZE];
        self.data.copy_out(cell.page as usize * PAGE_SIZE, &mut page);
        Ok(cell.of_page(&page))
    }

    /// Stores to a cell the bytes that `value` returns at the moment of the store.
    pub async fn store(
        &self,
        stage: &Arc<Stage>,
        cell: &Cell,
        value: impl FnOnce() -> u64,
    ) -> Result<(), Stop> {
        self.bring(stage, cell.page, true).await?;
        let bytes = cell.bytes(value());
        match cell.stride {
            1 => self.data.copy_in(cell.page as usize * PAGE_SIZE + cell.start, &bytes),
            _ => cell.places().zip(&bytes).for_each(|(at, byte)| self.data.copy_in(at, &[*byte])),
        }
        Ok(())
    }

    pub async fn flush(&self, stage: &Arc<Stage>) -> Result<(), Stop> {
        let attachment = self.attachment.clone();
        stage.call(self.node, "flush", async move { attachment.flush().await }).await
    }

    pub async fn update(&self, stage: &Arc<Stage>) -> Result<(), Stop> {
        let attachment = self.attachment.clone();
        let kept = self.written_twins(stage);
        stage.call(self.node, "update", async move { attachment.update().await }).await?;
        kept.into_iter().for_each(|(at, twin)| self.region.memory().write_twins(at, &twin));
        Ok(())
    }

    /// The twins of written pages, for the injected bug [`Canary::UnmergedTwin`].
    fn written_twins(&self, stage: &Stage) -> Vec<(u64, Page)> {
        if stage.program.world.canary != Some(Canary::UnmergedTwin) {
            return Vec::new();
        }
        let memory = self.region.memory();
        let is_written = |page: &u32| memory.control.load(*page).state() == PageState::Written;
        let twin = |page: u32| {
            let mut twin = [0; PAGE_SIZE];
            memory.read_twins(page..page + 1, &mut twin);
            (u64::from(page) * PAGE_SIZE as u64, twin)
        };
        (0..memory.pages()).filter(is_written).map(twin).collect()
    }

    pub async fn barrier(&self, stage: &Arc<Stage>) -> Result<(), Stop> {
        let attachment = self.attachment.clone();
        stage.call(self.node, "barrier", async move { attachment.barrier().await }).await
    }

    /// Takes a lock; returns whether a process has ended without detaching.
    pub async fn lock(&self, stage: &Arc<Stage>, lock: u32) -> Result<bool, Stop> {
        let attachment = self.attachment.clone();
        stage.call(self.node, "lock", async move { attachment.lock(lock).await }).await
    }

    pub async fn unlock(&self, stage: &Arc<Stage>, lock: u32) -> Result<(), Stop> {
        let attachment = self.attachment.clone();
        stage.call(self.node, "unlock", async move { attachment.unlock(lock).await }).await
    }

    pub async fn fetch_add(&self, stage: &Arc<Stage>, cell: &Cell, addend: u64) -> Result<u64, Stop> {
        let attachment = self.attachment.clone();
        let offset = cell.page as u64 * PAGE_SIZE as u64 + cell.start as u64;
        let add = async move { attachment.fetch_add(offset, addend).await };
        stage.call(self.node, "fetch_add", add).await
    }

    pub async fn detach(&self, stage: &Arc<Stage>, failed: bool) -> Result<(), Stop> {
        let attachment = self.attachment.clone();
        stage.call(self.node, "detach", async move { attachment.detach(failed).await }).await
    }

    /// Claims a valid page, as a process does before it makes the twin.
    pub fn claim(&self) {
        let control = &self.region.memory().control;
        let is_valid = |page: &u32| control.load(*page).state() == PageState::Valid;
        let Some(page) = (0..control.pages()).find(is_valid) else { return };
        control.note_written(page / tameike_dsm::control::UNIT_PAGES);
        let word = control.load(page);
        control.replace(page, word, word.with(PageState::Claimed, self.attachment.owner()));
    }
}
