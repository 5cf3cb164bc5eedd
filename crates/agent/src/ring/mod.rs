//! The ring frontend: serves requests of programs through memory that they share with the agent.
//!
//! It does the part of a call that the kernel does before it calls the FUSE frontend: it walks paths, and checks permissions by the
//! owner's mode bits. It declines all other cases, and requests on a file that the kernel has open ([`crate::arbiter`]); the program
//! then uses the kernel.
//!
//! As in the FUSE frontend, the thread that finds a request polls its future first.

mod attach;
mod content;
mod convert;
mod directory_cache;
mod frame_grants;
mod listening;
mod names;
mod regions;
mod session;
mod shown;
mod view;
mod walk;
mod windows;

#[cfg(test)]
mod tests;

use crate::arbiter::Arbiter;
use crate::fuse::{Tasks, WriteBacklog};
use directory_cache::DirectoryCache;
use event_listener::{Event, listener};
use regions::RingRegions;
use session::{Left, Session};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tameike_client::region::{Attachment, Regions};
use tameike_client::vfs::Vfs;
use tameike_core::Errno;
use tameike_ring::message::{Reply, Request};
use tameike_ring::server::{Handler, NameTable, Peer, THREADS};
use view::{AnyView, RingView};

/// Serving threads that calls to the file system behind a view may block.
pub(crate) const THREADS_BLOCKED_MAX: usize = THREADS / 2;

pub(crate) use frame_grants::RingFrameGrants;
pub(crate) use listening::Ring;
pub(crate) use shown::ShownView;

type Call = tameike_ring::server::Call<RingFrontend>;

/// Programs that have ended and whose files are not closed yet.
#[derive(Default)]
struct Endings {
    count: AtomicUsize,
    over: Event,
}

/// Counts an ended program, until dropped.
struct Ending(Arc<Endings>);

impl Ending {
    fn begin(endings: &Arc<Endings>) -> Arc<Self> {
        endings.count.fetch_add(1, Ordering::AcqRel);
        Arc::new(Self(endings.clone()))
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.over.notify(usize::MAX);
        }
    }
}

/// The views behind the ring.
pub(crate) struct RingFrontend {
    views: Vec<Arc<dyn AnyView>>,
    names: Arc<NameTable>,
    /// `None` without the job-shared view.
    regions: Option<Arc<RingRegions>>,
    endings: Arc<Endings>,
}

impl RingFrontend {
    pub(crate) fn new(names: Arc<NameTable>) -> Self {
        Self { views: Vec::new(), names, regions: None, endings: Arc::default() }
    }

    /// Adds the shared memory regions, before the view with their files; `tasks` runs requests on them.
    pub(crate) fn set_regions(&mut self, regions: Arc<Regions>, tasks: Tasks) {
        self.regions = Some(Arc::new(RingRegions::new(regions, tasks)));
    }

    /// Adds a view; programs know views by their order.
    pub(crate) fn add<V: Vfs>(
        &mut self,
        vfs: Arc<V>,
        tasks: Tasks,
        backlog: WriteBacklog,
        arbiter: Arc<Arbiter>,
    ) {
        let index = self.views.len();
        let directory_cache = DirectoryCache::default();
        let shown = Arc::new(ShownView::new(self.names.clone(), index));
        let shown = vfs.set_shared_names(shown.clone()).then_some(shown);
        if let Some(shown) = &shown {
            arbiter.show_changes(shown.clone());
        }
        let regions = self.regions.clone();
        self.views.push(Arc::new(RingView {
            index,
            vfs,
            tasks,
            backlog,
            arbiter,
            directory_cache,
            shown,
            regions,
        }));
    }

    /// Waits until the files of all ended programs are closed.
    pub(crate) async fn settled(&self) {
        loop {
            listener!(self.endings.over => over);
            if self.endings.count.load(Ordering::Acquire) == 0 {
                return;
            }
            over.await;
        }
    }

    fn detach_abandoned(&self, abandoned: Vec<Arc<Attachment>>, ending: &Option<Arc<Ending>>) {
        let each = abandoned.into_iter().zip(self.regions.iter().cycle());
        each.for_each(|(region, regions)| regions.detach_abandoned(region, ending.clone()));
    }

    fn view(&self, index: usize) -> Option<Arc<dyn AnyView>> {
        self.views.get(index).cloned()
    }
}

fn handle_of(request: &Request) -> Option<u64> {
    match request {
        Request::Read { handle, .. }
        | Request::Write { handle, .. }
        | Request::Append { handle, .. }
        | Request::Status { handle }
        | Request::SetSize { handle, .. }
        | Request::Sync { handle }
        | Request::Close { handle }
        | Request::Seek { handle, .. }
        | Request::HandOver { handle }
        | Request::RegionOpen { handle, .. }
        | Request::WindowOpen { handle, .. } => Some(*handle),
        Request::Open { .. }
        | Request::StatusAt { .. }
        | Request::Unlink { .. }
        | Request::MakeDir { .. }
        | Request::Rename { .. }
        | Request::RegionMapped { .. }
        | Request::RegionFetch { .. }
        | Request::RegionFlush { .. }
        | Request::RegionUpdate { .. }
        | Request::RegionBarrier { .. }
        | Request::RegionLock { .. }
        | Request::RegionUnlock { .. }
        | Request::RegionFetchAdd { .. }
        | Request::RegionAllocate { .. }
        | Request::RegionFree { .. }
        | Request::RegionClose { .. }
        | Request::WindowRanks { .. }
        | Request::WindowAccess { .. } => None,
    }
}

/// Returns the region of a request on one that is open.
fn region_of(request: &Request) -> Option<u64> {
    match request {
        Request::RegionMapped { region, .. }
        | Request::RegionFetch { region, .. }
        | Request::RegionFlush { region }
        | Request::RegionUpdate { region }
        | Request::RegionBarrier { region }
        | Request::RegionLock { region, .. }
        | Request::RegionUnlock { region, .. }
        | Request::RegionFetchAdd { region, .. }
        | Request::RegionAllocate { region, .. }
        | Request::RegionFree { region, .. }
        | Request::RegionClose { region }
        | Request::WindowRanks { region }
        | Request::WindowAccess { region, .. } => Some(*region),
        _ => None,
    }
}

/// Returns the view of a request with paths; `None` if its paths are in two views.
fn view_of(request: &Request) -> Option<u8> {
    match request {
        Request::Open { path, .. }
        | Request::StatusAt { path, .. }
        | Request::Unlink { path }
        | Request::MakeDir { path, .. } => Some(path.at.view),
        Request::Rename { from, to, .. } => (from.at.view == to.at.view).then_some(from.at.view),
        _ => None,
    }
}

impl Handler for RingFrontend {
    type Session = Session;

    fn begin(&self, peer: &Peer) -> Session {
        Session::new(peer)
    }

    fn serve(&self, call: Call) {
        let Some(request) = call.request() else { return call.answer(&Reply::Declined) };
        if let Some(handle) = handle_of(&request) {
            let open = call.session().get(handle);
            let Some((view, open)) = open.and_then(|open| Some((self.view(open.view)?, open))) else {
                return call.answer(&Reply::Failed(Errno::EBADF.0));
            };
            return view.serve_open(call, request, open);
        }
        if let Some(number) = region_of(&request) {
            return match &self.regions {
                Some(regions) => regions.serve(call, request, number),
                None => call.answer(&Reply::Failed(Errno::EBADF.0)),
            };
        }
        match view_of(&request).and_then(|view| self.view(view.into())) {
            Some(view) => view.serve_path(call, request),
            None => call.answer(&Reply::Declined),
        }
    }

    fn left(&self, session: &Session, handle: u64) {
        let open = session.remove(handle);
        if let Some((view, open)) = open.and_then(|open| Some((self.view(open.view)?, open))) {
            view.close_unchanged(open);
        }
    }

    fn leaves(&self, session: &Session) {
        let ending = Ending::begin(&self.endings);
        session.leaves(ending.clone());
        // At once: a barrier of the program may be in flight, and ends only with other processes.
        self.detach_abandoned(session.take_regions(), &Some(ending));
    }

    fn ended(&self, session: &Session) {
        let Left { open, regions, ending } = session.take_all();
        self.detach_abandoned(regions, &ending);
        for open in open {
            if let Some(view) = self.view(open.view) {
                view.close_abandoned(open, ending.clone());
            }
        }
    }
}
