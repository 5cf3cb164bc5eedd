//! Tells the homes of closed files, in batches and after the fact: a program does not wait for it.
//!
//! A home counts who has its files open, and frees a removed file with the last close; so each close is told
//! until the home answers. An open of which no answer tells whether it was done is told in the same way: the home closes
//! it, or refuses it if it comes later.

use super::held::HeldNames;
use crate::data::{Access, HolderReports};
use event_listener::{Event, listener};
use futures_util::future::select;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tameike_core::wire::Request;
use tameike_core::wire::meta::{Closed, MetaRequest, OpenId, Opener};
use tameike_core::{Attr, Errno, Fault, FaultKind, InodeId, NodeId, Result, Timestamp};
use tameike_fabric::Rpc;
use tameike_io::Runtime;

/// Closes for which others are not waited any longer.
const COMPANY: usize = 64;
/// Longest wait of a close for company.
const COMPANY_WAIT: Duration = Duration::from_millis(20);
/// Most closes in one message.
const BATCH_MAX: usize = 1024;
/// Pauses between two attempts to tell a home that cannot be reached.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// What one home does not know of yet.
#[derive(Default)]
struct Untold {
    /// Opens that are over, and of which files.
    opens: Vec<(InodeId, Closed)>,
    /// Opens that were given up.
    undone: Vec<OpenId>,
    /// Whether a task tells them.
    telling: bool,
    /// Whether the home could not be told last.
    failed: bool,
    /// Notified when there is company, or the home was reached.
    hurry: Arc<Event>,
}

pub(super) struct Closer {
    runtime: Runtime,
    rpc: Arc<dyn Rpc>,
    /// Counts opens.
    last: AtomicU64,
    homes: Mutex<BTreeMap<NodeId, Untold>>,
    /// Whether there ever was a home that could not be told.
    has_failed: AtomicBool,
    /// Accesses that homes are told with closes, by file and time.
    accesses: Mutex<BTreeMap<(InodeId, Timestamp), Access>>,
    /// Attributes in it are older than accesses that no home was told of.
    held: Arc<HeldNames>,
    /// What became of requests to holders of files, told with closes.
    reports: Arc<HolderReports>,
}

impl Closer {
    pub(super) fn new(
        runtime: Runtime,
        rpc: Arc<dyn Rpc>,
        held: Arc<HeldNames>,
        reports: Arc<HolderReports>,
    ) -> Self {
        let last = AtomicU64::new(runtime.random_u64());
        let (homes, has_failed, accesses) = Default::default();
        Self { runtime, rpc, last, homes, has_failed, accesses, held, reports }
    }

    /// An open that is to be asked for.
    pub(super) fn opening(self: &Arc<Self>) -> Opening {
        let open = OpenId(self.last.fetch_add(1, Ordering::Relaxed));
        Opening { closer: self.clone(), open, home: None }
    }

    /// Has the home told of a close, and of the last access to the file.
    pub(super) fn close(
        self: &Arc<Self>,
        home: NodeId,
        inode: InodeId,
        open: OpenId,
        read: Option<Timestamp>,
    ) {
        let closed = Closed { open, read };
        self.add(home, |untold| untold.opens.push((inode, closed)));
    }

    /// Shows an access of which a close is about to tell.
    pub(super) fn keep_access(&self, inode: InodeId, access: Access) {
        self.accesses.lock().insert((inode, access.time), access);
    }

    /// Adds to attributes what the file's home may not have been told yet.
    pub(super) fn show_accesses(&self, attr: &mut Attr) {
        let accesses = self.accesses.lock();
        let from = (attr.inode, Timestamp { seconds: i64::MIN, nanoseconds: 0 });
        let of_file = accesses.range(from..).take_while(|((inode, _), _)| *inode == from.0);
        of_file.for_each(|(_, access)| access.show_in(attr));
    }

    /// A home has been told of these accesses, and shows by itself those that it has taken.
    fn accesses_told(&self, told: &[(InodeId, Timestamp)], taken: bool) {
        for told in told {
            // None where a program has set another time since.
            let kept = self.accesses.lock().get(told).copied();
            self.held.accessed(told.0, kept.filter(|_| taken));
            self.accesses.lock().remove(told);
        }
    }

    /// The access time of a file is set.
    pub(super) fn forget_accesses(&self, inode: InodeId) {
        self.accesses.lock().retain(|(file, _), _| *file != inode);
    }

    fn add(self: &Arc<Self>, home: NodeId, add: impl FnOnce(&mut Untold)) {
        let start = {
            let mut homes = self.homes.lock();
            let untold = homes.entry(home).or_default();
            add(untold);
            if untold.opens.len() == COMPANY {
                untold.hurry.notify(usize::MAX);
            }
            !std::mem::replace(&mut untold.telling, true)
        };
        if start {
            self.runtime.spawn(self.clone().tell(home));
        }
    }

    /// The home has just answered something: if it could not be told before, it can be now. So what is not told
    /// never grows beyond what was open while the home could not be reached.
    pub(super) fn reached(&self, home: NodeId) {
        if !self.has_failed.load(Ordering::Acquire) {
            return;
        }
        if let Some(untold) = self.homes.lock().get(&home).filter(|untold| untold.failed) {
            untold.hurry.notify(usize::MAX);
        }
    }

    fn set_failed(&self, home: NodeId, failed: bool) {
        if failed {
            self.has_failed.store(true, Ordering::Release);
        }
        if let Some(untold) = self.homes.lock().get_mut(&home) {
            untold.failed = failed;
        }
    }

    /// Tells a home until nothing is left.
    async fn tell(self: Arc<Self>, home: NodeId) {
        let Some(hurry) = self.homes.lock().get(&home).map(|untold| untold.hurry.clone()) else { return };
        loop {
            listener!(hurry => company);
            let has_company =
                self.homes.lock().get(&home).is_some_and(|untold| untold.opens.len() >= COMPANY);
            if !has_company {
                select(company, self.runtime.sleep(COMPANY_WAIT)).await;
            }
            let Some((request, accesses)) = self.next_batch(home) else { return };
            let done = self.tell_batch(home, &hurry, request).await;
            self.accesses_told(&accesses, done);
            self.set_failed(home, false);
        }
    }

    /// What to tell a home next, and the accesses that it tells of.
    fn next_batch(&self, home: NodeId) -> Option<(MetaRequest, Vec<(InodeId, Timestamp)>)> {
        let (closed, undone) = {
            // Programs close files meanwhile: they need not wait for memory to be had.
            let room = Vec::with_capacity(2 * COMPANY);
            let mut homes = self.homes.lock();
            let untold = homes.get_mut(&home)?;
            if untold.opens.is_empty() && untold.undone.is_empty() {
                untold.telling = false;
                untold.opens = Vec::new();
                return None;
            }
            (first_of(&mut untold.opens, room), first_of(&mut untold.undone, Vec::new()))
        };
        let accesses = closed.iter().filter_map(|(inode, closed)| Some((*inode, closed.read?))).collect();
        let opens = closed.into_iter().map(|(_, closed)| closed).collect();
        let asked = self.reports.take(home);
        Some((MetaRequest::Close { node: self.rpc.local(), opens, undone, asked }, accesses))
    }

    /// Sends a batch until the home answers it; whether it has done it.
    async fn tell_batch(&self, home: NodeId, hurry: &Event, request: MetaRequest) -> bool {
        let mut pause = PAUSE_MIN;
        loop {
            listener!(hurry => reached);
            match self.rpc.call(home, Request::Meta(request.clone()), None, None).await {
                Ok(_) => return true,
                Err(fault) if is_answer(&fault) => {
                    log::warn!("{home} was told of closed files: {fault}");
                    return false;
                }
                Err(fault) if pause == PAUSE_MIN => {
                    log::warn!("{home} cannot be told of closed files yet: {fault}");
                }
                Err(_) => {}
            }
            self.set_failed(home, true);
            select(pin!(reached), self.runtime.sleep(pause)).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

/// Takes what one message may tell of from the start of a list, which goes on in `room`.
fn first_of<T>(untold: &mut Vec<T>, room: Vec<T>) -> Vec<T> {
    let mut first = std::mem::replace(untold, room);
    untold.extend(first.drain(first.len().min(BATCH_MAX)..));
    first
}

/// Whether the home itself has answered so: then telling it again changes nothing.
fn is_answer(fault: &Fault) -> bool {
    fault.kind() != FaultKind::Unreachable && fault.errno != Errno::EAGAIN
}

/// An open that is asked for. Dropped before an answer says what became of it, it is given up.
pub(super) struct Opening {
    closer: Arc<Closer>,
    open: OpenId,
    /// Who was asked last, and may have opened it.
    home: Option<NodeId>,
}

impl Opening {
    /// How to ask a home for it; who was asked before has not opened it.
    pub(super) fn ask(&mut self, home: NodeId) -> Opener {
        self.home = Some(home);
        Opener { node: self.closer.rpc.local(), open: self.open }
    }

    /// The home has answered: with a fault, if it has not opened it.
    pub(super) fn heard<T>(&mut self, answer: &Result<T>) {
        if answer.as_ref().is_err_and(is_answer) {
            self.home = None;
        }
    }

    /// The home has not opened it.
    pub(super) fn refused(mut self) {
        self.home = None;
    }

    /// It is open until [`Closer::close`].
    pub(super) fn done(mut self) -> OpenId {
        self.home = None;
        self.open
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        if let Some(home) = self.home {
            self.closer.add(home, |untold| untold.undone.push(self.open));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::held;
    use futures_util::FutureExt;
    use futures_util::future::BoxFuture;
    use std::collections::BTreeSet;
    use tameike_core::wire::Reply;
    use tameike_core::wire::meta::MetaReply;
    use tameike_fabric::Answer;
    use tameike_io::os::simulated::Simulation;
    use tameike_io::{Frame, Payload};

    const HOME: NodeId = NodeId(3);
    const INODE: InodeId = InodeId(7);

    /// A home that counts closes, over a network that fails.
    #[derive(Default)]
    struct Home {
        closed: BTreeSet<OpenId>,
        undone: BTreeSet<OpenId>,
        /// Calls that fail yet, and whether they are executed all the same.
        failing: (u32, bool),
        calls: u32,
    }

    struct HomeRpc(Mutex<Home>);

    impl Rpc for HomeRpc {
        fn local(&self) -> NodeId {
            NodeId(1)
        }

        fn call(
            &self,
            to: NodeId,
            request: Request,
            _: Option<Payload>,
            _: Option<Frame>,
        ) -> BoxFuture<'static, Result<Answer>> {
            assert_eq!(to, HOME);
            let Request::Meta(MetaRequest::Close { opens, undone, .. }) = request else {
                panic!("{request:?}")
            };
            let opens = opens.iter().map(|closed| closed.open);
            let mut home = self.0.lock();
            home.calls += 1;
            let (failing, executed) = home.failing;
            if failing == 0 || executed {
                home.closed.extend(opens);
                home.undone.extend(undone);
            }
            home.failing.0 = failing.saturating_sub(1);
            let answer = if failing > 0 {
                Err(Errno::EHOSTDOWN.into())
            } else {
                Ok(Answer { reply: Reply::Meta(MetaReply::Done), payload: None })
            };
            async move { answer }.boxed()
        }
    }

    fn bed() -> (Simulation, Arc<HomeRpc>, Arc<Closer>) {
        let simulation = Simulation::new(5);
        let rpc = Arc::new(HomeRpc(Mutex::default()));
        let closer = Arc::new(Closer::new(simulation.runtime(), rpc.clone(), Arc::default(), Arc::default()));
        (simulation, rpc, closer)
    }

    fn run_out(simulation: &Simulation) {
        while simulation.step() {}
    }

    /// A close that could not be told was logged and forgotten: its home counted the file as open for ever.
    #[test]
    fn closes_are_told_until_the_home_answers() {
        for executed in [false, true] {
            let (simulation, rpc, closer) = bed();
            rpc.0.lock().failing = (7, executed);
            for number in 0..3000 {
                closer.close(HOME, INODE, OpenId(number), None);
            }
            run_out(&simulation);
            let home = rpc.0.lock();
            assert!(home.closed.iter().map(|open| open.0).eq(0..3000), "{executed}");
            assert!(closer.homes.lock().values().all(|untold| untold.opens.is_empty() && !untold.telling));
        }
    }

    /// A home that had counted an open, and could not say so any more, counted it for ever: the space of a file removed
    /// after was never given back.
    #[test]
    fn an_open_without_an_answer_is_given_up() {
        let (simulation, rpc, closer) = bed();
        let ask = |answer: Option<Result<()>>| {
            let mut opening = closer.opening();
            let opener = opening.ask(HOME);
            answer.iter().for_each(|answer| opening.heard(answer));
            (opening, opener.open)
        };
        let (unknown, first) = ask(Some(Err(Errno::EHOSTDOWN.into())));
        let (dropped, second) = ask(None);
        let (_, _) = ask(Some(Err(Errno::ENOENT.into())));
        ask(Some(Ok(()))).0.refused();
        let (opened, third) = ask(Some(Ok(())));
        drop((unknown, dropped));
        assert_eq!(opened.done(), third);
        run_out(&simulation);
        let home = rpc.0.lock();
        assert_eq!((&home.undone, home.closed.len()), (&BTreeSet::from([first, second]), 0));
    }

    #[test]
    fn closes_go_in_company_and_one_alone_does_not_wait_long() {
        let (simulation, rpc, closer) = bed();
        closer.close(HOME, INODE, OpenId(1), None);
        run_out(&simulation);
        assert_eq!((rpc.0.lock().calls, simulation.runtime().clock.monotonic()), (1, 2 * COMPANY_WAIT));
        for number in 0..COMPANY as u64 {
            closer.close(HOME, INODE, OpenId(number), None);
        }
        simulation.settle();
        assert_eq!(rpc.0.lock().calls, 2, "all at once, without waiting");
        run_out(&simulation);
        closer.close(HOME, INODE, OpenId(2), None);
        closer.reached(HOME);
        simulation.settle();
        assert_eq!(rpc.0.lock().calls, 2, "a home that answers as ever is no reason to hurry");
    }

    #[test]
    fn a_home_that_is_reached_again_is_told_at_once() {
        let (simulation, rpc, closer) = bed();
        rpc.0.lock().failing = (5, false);
        closer.close(HOME, INODE, OpenId(1), None);
        while rpc.0.lock().failing.0 > 0 {
            assert!(simulation.step());
        }
        let before = simulation.runtime().clock.monotonic();
        closer.reached(HOME);
        simulation.settle();
        assert_eq!(rpc.0.lock().closed.len(), 1);
        assert_eq!(simulation.runtime().clock.monotonic(), before);
    }

    #[test]
    fn an_access_is_shown_until_the_home_knows_of_it() {
        let (simulation, rpc, closer) = bed();
        rpc.0.lock().failing = (3, false);
        let at = |seconds| Timestamp { seconds, nanoseconds: 0 };
        let shown = || {
            let mut attr = Attr { atime: at(5), ..held::tests::attr(INODE.0) };
            closer.show_accesses(&mut attr);
            attr.atime
        };
        // The second one comes before the home is told of the first.
        let accesses =
            [Access { time: at(200_000), before: at(5) }, Access { time: at(400_000), before: at(200_000) }];
        for (number, access) in accesses.into_iter().enumerate() {
            closer.keep_access(INODE, access);
            closer.close(HOME, INODE, OpenId(number as u64), Some(access.time));
            assert_eq!(shown(), access.time);
        }
        run_out(&simulation);
        assert_eq!(rpc.0.lock().closed.len(), 2);
        assert_eq!(shown(), at(5), "the home says it");
        closer.keep_access(INODE, accesses[0]);
        closer.close(HOME, INODE, OpenId(9), Some(accesses[0].time));
        closer.forget_accesses(INODE);
        assert_eq!(shown(), at(5), "a program has set it");
        run_out(&simulation);
    }

    #[test]
    fn who_looked_before_the_home_was_told_of_an_access_knows() {
        let (simulation, _, closer) = bed();
        let look = || closer.held.asking(Duration::ZERO);
        let at = |seconds| Timestamp { seconds, nanoseconds: 0 };
        let before = look();
        closer.keep_access(INODE, Access { time: at(9), before: at(5) });
        closer.close(HOME, INODE, OpenId(1), Some(at(9)));
        assert!(!closer.held.is_overtaken(INODE, &before), "the access is added to what was told");
        run_out(&simulation);
        assert!(
            closer.held.is_overtaken(INODE, &before),
            "what was told lacks it, and nobody adds it any more"
        );
        assert!(!closer.held.is_overtaken(INODE, &look()));
        closer.keep_access(INODE, Access { time: at(12), before: at(9) });
        closer.forget_accesses(INODE);
        let before = look();
        closer.close(HOME, INODE, OpenId(2), Some(at(12)));
        run_out(&simulation);
        assert!(closer.held.is_overtaken(INODE, &before), "whether it counts the home alone knows");
    }
}
