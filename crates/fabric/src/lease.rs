//! The lease that the authority of the home map grants to a node of a job with replicas.
//!
//! Only with a lease does a node serve homes, and use what homes have leased to its programs. The authority changes the map only after the
//! lease of the node that loses a home has ended. So two nodes never serve a home at the same time.
//!
//! The authority numbers its messages to a node, and the node answers each. A message acknowledges an earlier answer, and so grants a lease:
//! the node counts it from when it sent that answer, and the authority from when it received it. A message that a stopped node reads late
//! therefore grants nothing, and the clocks need only run at the same rate.
//!
//! A message can also revoke the lease. The node ends it before it answers, and the answer says whether a change of the shared file system that
//! began under the lease still runs: then the authority does not count the lease as given up.

use event_listener::Event;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::time::Duration;
use tameike_core::limits::{FAILOVER_TIME_MAX, MAP_LEASE};
use tameike_core::{Errno, Fault, Result};
use tameike_io::Runtime;
use tameike_io::os::runtime::Clock;

/// Answers whose time is kept until they are acknowledged.
const ANSWERS_MAX: usize = 64;

/// The lease of this node.
pub struct MapLease {
    clock: Arc<dyn Clock>,
    /// Its end in nanoseconds of the monotonic clock; the largest number if it never ends.
    until: AtomicU64,
    /// When the node got it after a time without.
    since: AtomicU64,
    /// When the latest answers were sent, by number.
    answers: Mutex<BTreeMap<u64, Duration>>,
    renewed: Event,
    /// Changes of the shared file system that run.
    changing: AtomicUsize,
}

/// A change of the shared file system, until dropped.
pub struct Changing(Arc<MapLease>);

impl Drop for Changing {
    fn drop(&mut self) {
        self.0.changing.fetch_sub(1, Ordering::SeqCst);
    }
}

impl MapLease {
    /// No lease yet.
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Self::until(clock, 0)
    }

    /// A lease that never ends, for a job without replicas, whose map never changes.
    pub fn unlimited(clock: Arc<dyn Clock>) -> Arc<Self> {
        Self::until(clock, u64::MAX)
    }

    fn until(clock: Arc<dyn Clock>, until: u64) -> Arc<Self> {
        let (since, answers, renewed, changing) = Default::default();
        Arc::new(Self { clock, until: AtomicU64::new(until), since, answers, renewed, changing })
    }

    /// Takes a message of the authority, which acknowledges an answer, and notes that the answer with this number is sent now. Returns whether
    /// the node had the lease until now.
    pub fn renew(&self, number: u64, acknowledged: Option<u64>) -> bool {
        let now = self.clock.monotonic();
        let mut answers = self.answers.lock();
        let mut continues = true;
        if let Some(sent) = acknowledged.and_then(|number| answers.get(&number).copied()) {
            continues = self.is_valid();
            if !continues {
                self.since.store(nanoseconds(now), Ordering::Relaxed);
            }
            // Before the end: a reader of the new end reads the new start too.
            self.until.fetch_max(nanoseconds(sent + MAP_LEASE), Ordering::AcqRel);
        }
        let kept = acknowledged.map_or_else(BTreeMap::new, |number| answers.split_off(&number));
        *answers = kept;
        answers.insert(number, now);
        while answers.len() > ANSWERS_MAX {
            answers.pop_first();
        }
        drop(answers);
        self.renewed.notify(usize::MAX);
        continues
    }

    /// Takes a message of the authority that ends the lease, and notes that the answer with this number is sent now. No earlier answer grants
    /// a lease after that.
    pub fn revoke(&self, number: u64) {
        let mut answers = self.answers.lock();
        *answers = [(number, self.clock.monotonic())].into();
        if self.until.load(Ordering::Acquire) != u64::MAX {
            self.until.store(0, Ordering::Release);
        }
    }

    /// Whether the node has the lease now.
    pub fn is_valid(&self) -> bool {
        let until = self.until.load(Ordering::Acquire);
        until == u64::MAX || self.clock.monotonic().as_nanos() < u128::from(until)
    }

    /// Runs a job that changes the shared file system for homes, where it delays nothing else. Waits for the lease before, if it must: it may be
    /// revoked for a moment, or the authority may have failed. While the job runs, [`Self::is_changing`] is true.
    ///
    /// # Errors
    /// - `EHOSTDOWN` if the node does not get the lease within [`FAILOVER_TIME_MAX`].
    /// - `EREMCHG` if another node serves the homes by then, of which `serves` decides.
    /// - Those of the job.
    pub async fn block<T: Send + 'static, J: FnOnce() -> Result<T> + Send + 'static>(
        self: &Arc<Self>,
        runtime: &Runtime,
        serves: impl Fn() -> bool + Clone + Send + 'static,
        job: J,
    ) -> Result<T> {
        let (mut job, begun) = (job, self.clock.monotonic());
        loop {
            self.wait_to_change(runtime, &serves, begun).await?;
            let (own, serves) = (self.clone(), serves.clone());
            let attempt = move || {
                // It may have been revoked since.
                match own.try_begin(serves) {
                    Ok(Some(_changing)) => Ok(job()),
                    Ok(None) => Err(job),
                    Err(fault) => Ok(Err(fault)),
                }
            };
            match runtime.block(attempt).await {
                Ok(result) => return result,
                Err(again) => job = again,
            }
        }
    }

    /// Begins a change of the shared file system for homes on a thread that may block; as [`Self::block`].
    ///
    /// # Errors
    /// Those of [`Self::block`].
    pub async fn begin(self: &Arc<Self>, runtime: &Runtime, serves: impl Fn() -> bool) -> Result<Changing> {
        let begun = self.clock.monotonic();
        loop {
            if let Some(changing) = self.try_begin(&serves)? {
                return Ok(changing);
            }
            self.wait_to_change(runtime, &serves, begun).await?;
        }
    }

    /// Waits for the lease, in a wait that has begun at a time.
    async fn wait_to_change(
        &self,
        runtime: &Runtime,
        serves: &impl Fn() -> bool,
        begun: Duration,
    ) -> Result<()> {
        while !self.is_valid() {
            // An excluded node may have the next map, and no lease.
            if !serves() {
                return Err(Errno::EREMCHG.into());
            }
            self.check_wait(begun)?;
            self.wait_valid(runtime.sleep(MAP_LEASE)).await;
        }
        Ok(())
    }

    /// Ends a wait for the lease that has begun at this time, if it is too long.
    ///
    /// # Errors
    /// `EHOSTDOWN` after [`FAILOVER_TIME_MAX`].
    pub fn check_wait(&self, begun: Duration) -> Result<()> {
        if self.clock.monotonic() < begun + FAILOVER_TIME_MAX {
            return Ok(());
        }
        let problem = format!(
            "this node has had no lease of the home map for {} s, so another one may serve the file",
            FAILOVER_TIME_MAX.as_secs()
        );
        Err(Fault::new(Errno::EHOSTDOWN, problem))
    }

    /// Begins a change; `None` without the lease.
    fn try_begin(self: &Arc<Self>, serves: impl Fn() -> bool) -> Result<Option<Changing>> {
        self.changing.fetch_add(1, Ordering::SeqCst);
        let changing = Changing(self.clone());
        // The lease is read after that, and `revoke` ends it before the number is read.
        fence(Ordering::SeqCst);
        match self.is_valid() {
            true if serves() => Ok(Some(changing)),
            true => Err(Errno::EREMCHG.into()),
            false => Ok(None),
        }
    }

    /// Whether a change of the shared file system runs that began under the lease.
    pub fn is_changing(&self) -> bool {
        fence(Ordering::SeqCst);
        self.changing.load(Ordering::SeqCst) > 0
    }

    /// Whether the node has the lease now and has had it all the time since `start`. Otherwise it may have been excluded meanwhile: homes have
    /// then dropped what they granted it before.
    pub fn covers(&self, start: Duration) -> bool {
        self.is_valid() && nanoseconds(start) >= self.since.load(Ordering::Relaxed)
    }

    /// When it ends, by the monotonic clock, unless it is renewed.
    pub fn end(&self) -> Duration {
        Duration::from_nanos(self.until.load(Ordering::Acquire))
    }

    /// Waits until the node has the lease, or `changed` completes.
    pub async fn wait_valid(&self, changed: impl Future<Output = ()> + Unpin) {
        let mut changed = changed;
        loop {
            let renewed = self.renewed.listen();
            if self.is_valid() {
                return;
            }
            match futures_util::future::select(renewed, changed).await {
                futures_util::future::Either::Left(((), rest)) => changed = rest,
                futures_util::future::Either::Right(_) => return,
            }
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::future::join;
    use std::sync::atomic::AtomicBool;
    use tameike_io::os::simulated::Simulation;

    #[test]
    fn a_lease_counts_from_the_answer_that_is_acknowledged() {
        let simulation = Simulation::new(1);
        let runtime = simulation.runtime();
        let lease = MapLease::new(runtime.clock.clone());
        let rest = |time| simulation.run(runtime.sleep(time));
        lease.renew(1, None);
        assert!(!lease.is_valid(), "nothing is acknowledged");
        rest(MAP_LEASE / 2);
        lease.renew(2, Some(1));
        assert!(lease.is_valid());
        rest(MAP_LEASE / 2);
        assert!(!lease.is_valid(), "it counts from the first answer");
        // A stopped node reads messages late: they acknowledge old answers.
        rest(10 * MAP_LEASE);
        lease.renew(3, Some(2));
        assert!(!lease.is_valid());
        lease.renew(4, Some(3));
        assert!(lease.is_valid());
        lease.renew(5, Some(2));
        assert!(lease.is_valid(), "an old message does not end the lease");
        lease.renew(6, Some(99));
        rest(MAP_LEASE);
        assert!(!lease.is_valid(), "an answer that was never sent grants nothing");
        assert!(MapLease::unlimited(runtime.clock).is_valid());
    }

    #[test]
    fn a_revoked_lease_is_over_until_a_later_answer_is_acknowledged() {
        let simulation = Simulation::new(1);
        let runtime = simulation.runtime();
        let lease = MapLease::new(runtime.clock.clone());
        lease.renew(1, None);
        lease.renew(2, Some(1));
        let start = runtime.clock.monotonic();
        assert!(lease.covers(start));
        simulation.run(runtime.sleep(MAP_LEASE / 4));
        lease.revoke(3);
        assert!(!lease.is_valid());
        assert_eq!(lease.end(), Duration::ZERO);
        lease.renew(4, Some(2));
        assert!(!lease.is_valid(), "that answer is older");
        lease.renew(5, Some(4));
        assert!(lease.is_valid() && !lease.covers(start));
        let unlimited = MapLease::unlimited(runtime.clock);
        unlimited.revoke(1);
        assert!(unlimited.is_valid());
    }

    /// Regression: changes failed with EHOSTDOWN when the authority was silent for longer than a lease.
    ///
    /// S52e.
    #[test]
    fn a_change_of_the_shared_file_system_waits_for_the_lease() {
        const OUTAGE: Duration = Duration::from_secs(50);
        let simulation = Simulation::new(1);
        let runtime = simulation.runtime();
        // The outage ends with a lease, with a map that has another primary, or not at all.
        let ended = |has_lease: bool, serves: bool| {
            let lease = MapLease::new(runtime.clock.clone());
            let is_primary = Arc::new(AtomicBool::new(true));
            let known = is_primary.clone();
            let begun = runtime.clock.monotonic();
            let changed = lease.block(&runtime, move || known.load(Ordering::SeqCst), || Ok(7));
            let outage = async {
                runtime.sleep(OUTAGE).await;
                is_primary.store(serves, Ordering::SeqCst);
                lease.renew(1, None);
                lease.renew(2, has_lease.then_some(1));
            };
            let (changed, ()) = simulation.run(join(changed, outage));
            (changed.map_err(|fault| fault.errno), runtime.clock.monotonic() - begun)
        };
        assert_eq!(ended(true, true), (Ok(7), OUTAGE));
        let (moved, time) = ended(false, false);
        assert_eq!(moved, Err(Errno::EREMCHG));
        assert!(time <= OUTAGE + MAP_LEASE, "{time:?}");
        let (failed, time) = ended(false, true);
        assert_eq!(failed, Err(Errno::EHOSTDOWN));
        assert!((FAILOVER_TIME_MAX..=FAILOVER_TIME_MAX + MAP_LEASE).contains(&time), "{time:?}");
    }

    #[test]
    fn a_lease_covers_the_time_since_its_last_gap() {
        let simulation = Simulation::new(1);
        let runtime = simulation.runtime();
        let lease = MapLease::new(runtime.clock.clone());
        let rest = |time| simulation.run(runtime.sleep(time));
        rest(MAP_LEASE);
        let before = runtime.clock.monotonic();
        lease.renew(1, None);
        rest(MAP_LEASE / 2);
        assert_eq!(lease.end(), Duration::ZERO);
        let start = runtime.clock.monotonic();
        lease.renew(2, Some(1));
        assert!(lease.covers(start) && !lease.covers(before));
        assert_eq!(lease.end(), before + MAP_LEASE);
        rest(MAP_LEASE / 4);
        lease.renew(3, Some(2));
        assert!(lease.covers(start), "it is renewed in time");
        rest(2 * MAP_LEASE);
        assert!(!lease.covers(runtime.clock.monotonic()));
        lease.renew(4, Some(3));
        lease.renew(5, Some(4));
        assert!(lease.covers(runtime.clock.monotonic()) && !lease.covers(start), "it ended in between");
        let unlimited = MapLease::unlimited(runtime.clock);
        assert!(unlimited.covers(Duration::ZERO) && unlimited.end() > 1000 * MAP_LEASE);
    }
}
