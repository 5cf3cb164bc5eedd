//! The ring door: requests of programs that reach the agent through memory which they share with it.
//!
//! What it does is what the kernel would do before it asks the FUSE door, and no more than that: paths are walked,
//! permissions checked by the owner's bits. Whatever is not plain is declined; the program then asks the kernel. So is
//! what concerns a file that the kernel has open ([`crate::custody`]).
//!
//! As at the other door, a request is polled for the first time on the thread that has found it.

mod content;
mod convert;
mod lending;
mod listening;
mod names;
mod session;
mod shown;
mod view;
mod walk;
mod walked;

#[cfg(test)]
mod tests;

use crate::custody::Custody;
use crate::fuse::{Tasks, WaitingRoom};
use event_listener::{Event, listener};
use session::Session;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tameike_client::vfs::Vfs;
use tameike_core::Errno;
use tameike_ring::message::{Reply, Request};
use tameike_ring::server::{Handler, NameTable, Peer, THREADS};
use view::{AnyView, RingView};
use walked::Walked;

/// Of the serving threads, how many may be held up by calls to the file system behind a view.
pub(crate) const THREADS_LENT_MAX: usize = THREADS / 2;

pub(crate) use lending::RingLender;
pub(crate) use listening::Ring;
pub(crate) use shown::ShownView;

type Asked = tameike_ring::server::Asked<RingDoor>;

/// Programs that are gone, until their files are closed.
#[derive(Default)]
struct Endings {
    count: AtomicUsize,
    over: Event,
}

/// One of them.
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
pub(crate) struct RingDoor {
    views: Vec<Arc<dyn AnyView>>,
    /// Where their names are shown.
    names: Arc<NameTable>,
    endings: Arc<Endings>,
}

impl RingDoor {
    /// A door without views, which are to show their names in this table.
    pub(crate) fn new(names: Arc<NameTable>) -> Self {
        Self { views: Vec::new(), names, endings: Arc::default() }
    }

    /// Adds a view: the next that programs are told of.
    pub(crate) fn add<V: Vfs>(
        &mut self,
        vfs: Arc<V>,
        tasks: Tasks,
        waiting: WaitingRoom,
        custody: Arc<Custody>,
    ) {
        let index = self.views.len();
        let walked = Walked::default();
        let shown = Arc::new(ShownView::new(self.names.clone(), index));
        let shown = vfs.show_names(shown.clone()).then_some(shown);
        if let Some(shown) = &shown {
            custody.show_changes(shown.clone());
        }
        self.views.push(Arc::new(RingView { index, vfs, tasks, waiting, custody, walked, shown }));
    }

    /// Waits until the files of all programs that have left are closed.
    pub(crate) async fn settled(&self) {
        loop {
            listener!(self.endings.over => over);
            if self.endings.count.load(Ordering::Acquire) == 0 {
                return;
            }
            over.await;
        }
    }

    fn view(&self, index: usize) -> Option<Arc<dyn AnyView>> {
        self.views.get(index).cloned()
    }
}

/// The handle that a request is about.
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
        | Request::HandOver { handle } => Some(*handle),
        Request::Open { .. }
        | Request::StatusAt { .. }
        | Request::Unlink { .. }
        | Request::MakeDir { .. }
        | Request::Rename { .. } => None,
    }
}

/// The view that a request with paths is about; none when it is about two.
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

impl Handler for RingDoor {
    type Session = Session;

    fn begin(&self, peer: &Peer) -> Session {
        Session::new(peer)
    }

    fn serve(&self, asked: Asked) {
        let Some(request) = asked.request() else { return asked.answer(&Reply::Declined) };
        if let Some(handle) = handle_of(&request) {
            let open = asked.session().get(handle);
            let Some((view, open)) = open.and_then(|open| Some((self.view(open.view)?, open))) else {
                return asked.answer(&Reply::Failed(Errno::EBADF.0));
            };
            return view.serve_open(asked, request, open);
        }
        match view_of(&request).and_then(|view| self.view(view.into())) {
            Some(view) => view.serve_path(asked, request),
            None => asked.answer(&Reply::Declined),
        }
    }

    fn left(&self, session: &Session, handle: u64) {
        let open = session.remove(handle);
        if let Some((view, open)) = open.and_then(|open| Some((self.view(open.view)?, open))) {
            view.leave(open);
        }
    }

    fn leaves(&self, session: &Session) {
        session.leaves(Ending::begin(&self.endings));
    }

    fn ended(&self, session: &Session) {
        let (open, ending) = session.take_all();
        for open in open {
            if let Some(view) = self.view(open.view) {
                view.let_go(open, ending.clone());
            }
        }
    }
}
