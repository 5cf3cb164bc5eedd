//! The log records of homes on their way to the backups.
//!
//! Each home has a stream of numbered records. They stay in memory until all backups of the home have confirmed them. A message to a backup
//! has what it lacks, of all homes together, and one at a time goes to each: records that arrive meanwhile share the next message.
//!
//! A request that has to wait for its record sends it itself, on its own thread, unless a message is in flight. For records without such a
//! request, a task of each backup looks from time to time.

use super::{Replicas, may_be_repeated, moved};
use event_listener::Event;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, try_join_all};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tameike_core::wire::replica::{
    RECORD_BYTES_MAX, RECORD_PARTS_MAX, RecordPart, ReplicaReply, ReplicaRequest,
};
use tameike_core::{Errno, Fault, HomeId, HomeMap, NodeId, Result};
use tameike_store::Ledger;
use tameike_store::ledger::{HomeLog, LastRecord, last_record};
use tameike_store::table::ReadTable;

/// The streams of the homes that this node serves.
pub(super) struct Streams {
    homes: BTreeMap<HomeId, Stream>,
    /// The backups.
    senders: BTreeMap<NodeId, Arc<Sender>>,
}

/// What sends to one backup.
#[derive(Default)]
struct Sender {
    /// Notified when there is something to send. The task of the backup waits for it.
    appended: Event,
    /// Whether a message is in flight. Changes while the streams are locked.
    is_sending: AtomicBool,
}

/// Time for which a record waits for a request that sends it.
const GATHER_TIME: Duration = Duration::from_millis(5);

#[derive(Default)]
struct Stream {
    /// The last record.
    last: LastRecord,
    /// The records that a backup may lack, ascending up to the last one.
    records: VecDeque<Arc<[u8]>>,
    /// Numbers of the last records that backups have confirmed. A backup without a number has all that are not in `records`.
    confirmed: BTreeMap<NodeId, u64>,
    /// Backups whose copy is of no use: it has other records, or the backup cannot store changes. They get no more.
    failed: BTreeSet<NodeId>,
    /// The node to which the home is being copied, when the records of its copy are chosen: it gets those that follow.
    joining: Option<Joining>,
    /// No record after this number is sent, while copies of the home are compared.
    limit: Option<u64>,
}

/// A node to which a home is being copied.
#[derive(Clone, Copy)]
struct Joining {
    node: NodeId,
    /// It has the records up to some number, and gets the others.
    gets_records: bool,
    /// Nothing is acknowledged that it lacks.
    is_required: bool,
}

impl Stream {
    /// Number of the last record that is not in `records`.
    fn base(&self) -> u64 {
        self.last.number - self.records.len() as u64
    }

    fn confirmed(&self, backup: NodeId) -> u64 {
        self.confirmed.get(&backup).copied().unwrap_or_else(|| self.base())
    }

    /// The record with a number, if a backup may lack it and get it now.
    fn record(&self, number: u64) -> Option<&Arc<[u8]>> {
        if self.limit.is_some_and(|limit| number > limit) {
            return None;
        }
        let place = number.checked_sub(self.base() + 1)?;
        self.records.get(place as usize)
    }

    /// Whether a node is the one to which the home is being copied.
    fn is_joining(&self, node: NodeId, is: impl Fn(Joining) -> bool) -> bool {
        self.joining.is_some_and(|joining| joining.node == node && is(joining))
    }

    /// The backups, and the node to which the home was copied, as far as they lack the record with a number, or one before.
    fn lacking(&self, backups: &[NodeId], number: u64) -> impl Iterator<Item = NodeId> {
        let required = self.joining.filter(|joining| joining.is_required).map(|joining| joining.node);
        let all = backups.iter().copied().chain(required);
        all.filter(move |backup| self.confirmed(*backup) < number)
    }

    /// Drops the records that all backups have.
    fn trim(&mut self, backups: &[NodeId]) {
        let joining = self.joining.map(|joining| joining.node);
        let counts = |node: &NodeId| backups.contains(node) || joining == Some(*node);
        self.confirmed.retain(|node, _| counts(node));
        self.failed.retain(counts);
        let all = backups.iter().copied().chain(joining);
        let have = all.map(|node| self.confirmed(node)).min().unwrap_or(self.last.number);
        let drop = have.saturating_sub(self.base());
        self.records.drain(..drop as usize);
    }
}

/// Records that one message carries to a backup.
#[derive(Default)]
struct Batch {
    parts: Vec<RecordPart>,
    /// The last whole record of each home.
    last: BTreeMap<HomeId, u64>,
    bytes: usize,
}

impl Batch {
    /// Adds the records of a home that follow `number`, as far as they fit. A record that is too large for a message fills some alone;
    /// `sent` is how much of it was sent before. Returns false if the message is full.
    fn add(&mut self, home: HomeId, stream: &Stream, mut number: u64, sent: usize) -> bool {
        while let Some(record) = stream.record(number + 1) {
            let left = &record[sent.min(record.len())..];
            let is_large = record.len() > RECORD_BYTES_MAX;
            let fits = self.bytes + left.len() <= RECORD_BYTES_MAX && self.parts.len() < RECORD_PARTS_MAX;
            if if is_large { !self.parts.is_empty() } else { !fits } {
                return false;
            }
            number += 1;
            let bytes = left[..left.len().min(RECORD_BYTES_MAX)].to_vec();
            let ends = bytes.len() == left.len();
            self.bytes += bytes.len();
            self.parts.push(RecordPart { home, number, offset: sent as u32, ends, bytes });
            if ends {
                self.last.insert(home, number);
            }
            if is_large {
                return false;
            }
        }
        true
    }
}

impl Streams {
    pub(super) fn new(homes: impl Iterator<Item = HomeId>, table: &dyn ReadTable) -> Result<Self> {
        let stream = |home| {
            let last = last_record(table, home)?;
            Ok((home, Stream { last, ..Stream::default() }))
        };
        Ok(Self { homes: homes.map(stream).collect::<Result<_>>()?, senders: BTreeMap::new() })
    }

    /// What a backup lacks. `sent` is how much of a large record it has got, with its home.
    fn batch(&self, map: &HomeMap, backup: NodeId, sent: Option<(HomeId, usize)>) -> Batch {
        let mut batch = Batch::default();
        let begun = sent.and_then(|(home, _)| self.homes.get_key_value(&home));
        for (&home, stream) in begun.into_iter().chain(&self.homes) {
            let sent =
                sent.filter(|(of, _)| *of == home && batch.parts.is_empty()).map_or(0, |(_, sent)| sent);
            let is_copied = !stream.records.is_empty()
                && (map.backups(home).contains(&backup)
                    || stream.is_joining(backup, |joining| joining.gets_records))
                && !stream.failed.contains(&backup);
            if is_copied && !batch.add(home, stream, stream.confirmed(backup), sent) {
                break;
            }
        }
        batch
    }

    fn confirm(&mut self, map: &HomeMap, backup: NodeId, last: &BTreeMap<HomeId, u64>) {
        for (home, &number) in last {
            if let Some(stream) = self.homes.get_mut(home) {
                let confirmed = stream.confirmed(backup).max(number);
                stream.confirmed.insert(backup, confirmed);
                stream.trim(map.backups(*home));
            }
        }
    }
}

impl HomeLog for Replicas {
    fn last(&self, home: HomeId) -> Result<LastRecord> {
        let map = self.parts.cluster.map();
        let streams = self.streams.lock();
        let stream = streams.homes.get(&home).filter(|_| map.primary(home) == self.parts.node);
        stream.map(|stream| stream.last).ok_or_else(|| moved(home))
    }

    fn append(&self, home: HomeId, last: LastRecord, record: &[u8]) {
        let map = self.parts.cluster.map();
        let mut streams = self.streams.lock();
        let Some(stream) = streams.homes.get_mut(&home) else { return };
        stream.last = last;
        stream.records.push_back(record.into());
        stream.trim(map.backups(home));
        let joining = stream.joining.map(|joining| joining.node);
        let targets = map.backups(home).iter().chain(&joining);
        let senders = targets.filter_map(|backup| streams.senders.get(backup));
        senders.for_each(|sender| _ = sender.appended.notify(usize::MAX));
    }

    fn on_backups(&self) -> BoxFuture<'static, Result<()>> {
        let replicas = self.strong();
        async move { replicas.wait_for_backups(None).await }.boxed()
    }

    fn sync(&self) -> BoxFuture<'static, Result<()>> {
        let replicas = self.strong();
        async move {
            replicas.wait_for_backups(None).await?;
            let (_, backups) = replicas.all_targets();
            try_join_all(backups.into_keys().map(|backup| replicas.sync_backup(backup))).await.map(drop)
        }
        .boxed()
    }
}

impl Replicas {
    fn strong(&self) -> Arc<Self> {
        self.me.upgrade().expect("the caller borrows it in an Arc")
    }

    /// Starts the tasks that send to the backups of this node's homes, unless they run, and wakes the others.
    pub(super) fn start_senders(&self) {
        let (_, backups) = self.all_targets();
        let mut started = Vec::new();
        {
            let mut streams = self.streams.lock();
            streams.senders.retain(|backup, sender| {
                sender.appended.notify(usize::MAX);
                backups.contains_key(backup)
            });
            for backup in backups.into_keys() {
                if let Entry::Vacant(place) = streams.senders.entry(backup) {
                    started.push((backup, place.insert(Arc::default()).clone()));
                }
            }
        }
        // A task may begin to run at once, and takes the lock.
        for (backup, sender) in started {
            self.parts.runtime.spawn(send(self.me.clone(), backup, sender));
        }
    }

    /// Sends what a backup lacks, unless a message is in flight: then the rest follows. Runs on this thread up to the first wait.
    fn start_sending(&self, backup: NodeId) {
        let sender = {
            let streams = self.streams.lock();
            let idle = |sender: &&Arc<Sender>| !sender.is_sending.swap(true, Ordering::Relaxed);
            streams.senders.get(&backup).filter(idle).cloned()
        };
        if let Some(sender) = sender {
            self.parts.runtime.spawn(send_all(self.me.clone(), backup, sender));
        }
    }

    /// Notes homes of which a backup has other records than this node.
    pub(super) fn note_differing(&self, backup: NodeId, homes: &[HomeId]) {
        let mut streams = self.streams.lock();
        for home in homes {
            if let Some(stream) = streams.homes.get_mut(home)
                && stream.failed.insert(backup)
            {
                log::warn!("the copy of {home} on {backup} differs: changes wait for a home map without it");
            }
        }
        drop(streams);
        self.progress.notify(usize::MAX);
    }

    /// Notes that a backup of a home has a copy of no use.
    pub(super) fn note_useless(&self, home: HomeId, backup: NodeId) {
        if let Some(stream) = self.streams.lock().homes.get_mut(&home) {
            stream.failed.insert(backup);
        }
    }

    /// Notes that a backup cannot store changes, so that its copies of this node's homes are of no use.
    pub(super) fn note_failed(&self, backup: NodeId, fault: &Fault) {
        let (_, backups) = self.all_targets();
        let mut streams = self.streams.lock();
        let mut is_new = false;
        for home in backups.get(&backup).into_iter().flatten() {
            is_new |= streams.homes.get_mut(home).is_some_and(|stream| stream.failed.insert(backup));
        }
        if is_new {
            log::error!("{backup} cannot store changes, which wait for a home map without it: {fault}");
        }
    }

    /// Keeps the records of a home from now on for the node to which it is being copied.
    pub(super) fn keep_records(&self, home: HomeId, node: NodeId) {
        if let Some(stream) = self.streams.lock().homes.get_mut(&home) {
            stream.joining = Some(Joining { node, gets_records: false, is_required: false });
            stream.confirmed.insert(node, stream.last.number);
        }
    }

    /// Sends the records after number `last` to the node to which the home is being copied. Nothing is acknowledged that it lacks from now
    /// on.
    pub(super) fn send_records(&self, home: HomeId, node: NodeId, last: u64) {
        if let Some(stream) = self.streams.lock().homes.get_mut(&home)
            && stream.is_joining(node, |_| true)
        {
            stream.joining = Some(Joining { node, gets_records: true, is_required: true });
            stream.confirmed.insert(node, last);
        }
        self.start_senders();
    }

    /// Sends no records of a home after the last one, until the result is dropped.
    pub(super) fn hold_records(&self, home: HomeId) -> HeldRecords<'_> {
        if let Some(stream) = self.streams.lock().homes.get_mut(&home) {
            stream.limit = Some(stream.last.number);
        }
        HeldRecords { replicas: self, home }
    }

    /// Waits until a backup has the records of a home up to a number.
    ///
    /// # Errors
    /// `EREMCHG` if this node does not serve the home any more, or the backup has no useful copy of it.
    pub(super) async fn wait_for_record(&self, home: HomeId, backup: NodeId, number: u64) -> Result<()> {
        loop {
            let changed = self.progress.listen();
            let is_backup = self.parts.cluster.map().backups(home).contains(&backup);
            let confirmed = {
                let streams = self.streams.lock();
                let stream = streams.homes.get(&home).ok_or_else(|| moved(home))?;
                if !is_backup || stream.failed.contains(&backup) {
                    let problem = format!("{backup} has no useful copy of {home} any more");
                    return Err(Fault::new(Errno::EREMCHG, problem));
                }
                stream.confirmed(backup)
            };
            if confirmed >= number {
                return Ok(());
            }
            changed.await;
        }
    }

    /// The homes that this node serves, each with a backup whose copy is of no use.
    pub fn failed_copies(&self) -> Vec<(HomeId, NodeId)> {
        let streams = self.streams.lock();
        let of_home = |(&home, stream): (&HomeId, &Stream)| {
            stream.failed.iter().map(|&backup| (home, backup)).collect::<Vec<_>>()
        };
        streams.homes.iter().flat_map(of_home).collect()
    }

    /// Sends what a backup lacks in one message. `sent` is how much of a large record it has got before; returns how much it has then.
    async fn send_batch(&self, backup: NodeId, sender: &Arc<Sender>, sent: Option<(HomeId, usize)>) -> Sent {
        let map = self.parts.cluster.map();
        let Batch { parts, last, .. } = {
            let streams = self.streams.lock();
            let batch = match streams.senders.get(&backup).is_some_and(|own| Arc::ptr_eq(own, sender)) {
                true => streams.batch(&map, backup, sent),
                false => Batch::default(),
            };
            // From now on, others may begin.
            sender.is_sending.store(!batch.parts.is_empty(), Ordering::Relaxed);
            batch
        };
        let Some(end) = parts.last() else { return Sent::Everything };
        let begun = (!end.ends).then(|| (end.home, end.offset as usize + end.bytes.len()));
        let fault = match self.ask(&map, backup, ReplicaRequest::Records(parts), None).await {
            Ok(ReplicaReply::Appended { differing }) => {
                let last = last.into_iter().filter(|(home, _)| !differing.contains(home)).collect();
                self.note_differing(backup, &differing);
                self.streams.lock().confirm(&self.parts.cluster.map(), backup, &last);
                self.progress.notify(usize::MAX);
                return Sent::Up(begun.filter(|(home, _)| !differing.contains(home)));
            }
            Ok(other) => Fault::new(Errno::EPROTO, format!("it answered records with {other:?}")),
            Err(fault) => fault,
        };
        if !may_be_repeated(&fault) {
            self.note_failed(backup, &fault);
        }
        self.wait_for_backup(&map, backup, &fault).await;
        Sent::Up(None)
    }

    /// Waits until the backups have the records of a home, or of all homes that this node serves, up to now.
    ///
    /// # Errors
    /// `EREMCHG` if another node serves a home that has such records.
    pub async fn wait_for_backups(&self, home: Option<HomeId>) -> Result<()> {
        let mut wanted: Vec<_> = {
            let (map, streams) = (self.parts.cluster.map(), self.streams.lock());
            let one = home.and_then(|home| streams.homes.get_key_value(&home));
            let all = streams.homes.iter().filter(|_| home.is_none());
            let is_lacking = |(home, stream): &(&HomeId, &Stream)| {
                let number = stream.last.number;
                !stream.records.is_empty() && stream.lacking(map.backups(**home), number).next().is_some()
            };
            let lacking = one.into_iter().chain(all).filter(is_lacking);
            lacking.map(|(&of, stream)| (of, stream.last.number)).collect()
        };
        if wanted.is_empty() {
            return Ok(());
        }
        loop {
            let changed = self.progress.listen();
            let map = self.parts.cluster.map();
            if let Some((home, _)) = wanted.iter().find(|(home, _)| map.primary(*home) != self.parts.node) {
                return Err(moved(*home));
            }
            let mut backups = BTreeSet::new();
            {
                let streams = self.streams.lock();
                wanted.retain(|(home, number)| {
                    let stream = streams.homes.get(home).into_iter();
                    let lacking = stream.flat_map(|stream| stream.lacking(map.backups(*home), *number));
                    lacking.map(|backup| backups.insert(backup)).count() > 0
                });
            }
            if wanted.is_empty() {
                return Ok(());
            }
            backups.into_iter().for_each(|backup| self.start_sending(backup));
            changed.await;
        }
    }

    /// Makes durable what a backup has got from this node.
    async fn sync_backup(&self, backup: NodeId) -> Result<()> {
        loop {
            let map = self.parts.cluster.map();
            if !map.served_by(self.parts.node).any(|home| map.is_on(home, backup)) {
                return Ok(());
            }
            match self.ask(&map, backup, ReplicaRequest::Sync, None).await {
                Ok(_) => return Ok(()),
                Err(fault) if may_be_repeated(&fault) => self.wait_for_backup(&map, backup, &fault).await,
                Err(fault) if fault.errno == Errno::EIO => {
                    self.note_failed(backup, &fault);
                    self.wait_for_backup(&map, backup, &fault).await;
                }
                Err(fault) => return Err(fault.context(format_args!("sync of the replicas on {backup}"))),
            }
        }
    }

    /// Begins the stream of a home that this node serves from now on. Its backups have all records that were acknowledged.
    ///
    /// # Errors
    /// Those of the ledger.
    pub(super) fn begin_stream(&self, home: HomeId, ledger: &Ledger) -> Result<()> {
        let last = ledger.read(|table| last_record(table, home))?;
        self.streams.lock().homes.entry(home).or_insert_with(|| Stream { last, ..Stream::default() });
        self.start_senders();
        self.progress.notify(usize::MAX);
        Ok(())
    }

    /// Waits until this node numbers the records of a home that it may still be taking over.
    ///
    /// # Errors
    /// `EREMCHG` if another node serves the home.
    pub(super) async fn wait_for_stream(&self, home: HomeId) -> Result<()> {
        loop {
            let changed = self.progress.listen();
            if self.parts.cluster.primary(home) != self.parts.node {
                return Err(moved(home));
            }
            if self.streams.lock().homes.contains_key(&home) {
                return Ok(());
            }
            changed.await;
        }
    }

    /// Adapts the streams to a new map: backups that are gone need no records, and new ones get those that are left.
    pub(super) fn map_changed(&self) {
        let map = self.parts.cluster.map();
        self.joins.lock().retain(|&home, join| map.joining(home) == Some(join.node));
        self.streams.lock().homes.retain(|&home, stream| {
            // It is a backup now, or the copy is given up.
            stream.joining = stream.joining.filter(|joining| map.joining(home) == Some(joining.node));
            stream.trim(map.backups(home));
            map.primary(home) == self.parts.node
        });
        self.start_senders();
        self.progress.notify(usize::MAX);
        self.new_map.notify(usize::MAX);
    }
}

/// The records of a home after some number stay on their primary while this exists.
pub(super) struct HeldRecords<'a> {
    replicas: &'a Replicas,
    home: HomeId,
}

impl HeldRecords<'_> {
    fn set_limit(&self, limit: Option<u64>) {
        if let Some(stream) = self.replicas.streams.lock().homes.get_mut(&self.home) {
            stream.limit = limit;
        }
        self.replicas.start_senders();
    }

    /// Lets the records up to a number be sent.
    pub(super) fn send_up_to(&self, number: u64) {
        self.set_limit(Some(number));
    }
}

impl Drop for HeldRecords<'_> {
    fn drop(&mut self) {
        self.set_limit(None);
    }
}

/// Result of an attempt to send.
enum Sent {
    /// A part of what the backup lacks, up to so much of a large record of a home.
    Up(Option<(HomeId, usize)>),
    /// The backup has everything, or is no backup any more.
    Everything,
}

/// Sends to a backup what it lacks now. The caller has set `is_sending` of the backup's `sender`.
async fn send_all(replicas: Weak<Replicas>, backup: NodeId, sender: Arc<Sender>) {
    let mut sent = None;
    // The agent may end meanwhile.
    while let Some(own) = replicas.upgrade() {
        match own.send_batch(backup, &sender, sent).await {
            Sent::Up(begun) => sent = begun,
            Sent::Everything => return,
        }
    }
}

/// Sends to a backup the records for which no request waits, as long as `sender` is that of the backup.
async fn send(replicas: Weak<Replicas>, backup: NodeId, sender: Arc<Sender>) {
    loop {
        let appended = sender.appended.listen();
        let Some(own) = replicas.upgrade() else { return };
        if !own.streams.lock().senders.get(&backup).is_some_and(|one| Arc::ptr_eq(one, &sender)) {
            return;
        }
        own.start_sending(backup);
        let runtime = own.parts.runtime.clone();
        drop(own);
        appended.await;
        runtime.sleep(GATHER_TIME).await;
    }
}

#[cfg(test)]
mod tests {
    use super::super::backup::{Arrived, PartialRecords};
    use super::*;
    use tameike_core::NodeInfo;
    use tameike_core::wire::codec::encode;

    const BACKUP: NodeId = NodeId(1);

    fn map() -> HomeMap {
        let node = |id| NodeInfo {
            id: NodeId(id),
            host: format!("host{id}"),
            address: String::new(),
            group: 0,
            device: true,
        };
        HomeMap::initial(&[node(0), node(1)], 2).expect("two nodes")
    }

    /// Streams of homes 0 and 2, which node 0 serves, with records of these sizes from number 6 on.
    fn streams(sizes: [&[usize]; 2]) -> Streams {
        let stream = |(place, sizes): (usize, &[usize])| {
            let record = |(number, &size): (usize, &usize)| vec![(number + place) as u8; size].into();
            let records: VecDeque<_> = sizes.iter().enumerate().map(record).collect();
            let last = LastRecord { number: 5 + records.len() as u64, chain: 0 };
            (HomeId(2 * place as u16), Stream { last, records, ..Stream::default() })
        };
        Streams { homes: sizes.into_iter().enumerate().map(stream).collect(), senders: BTreeMap::new() }
    }

    /// Sends everything to a backup. Returns the records that it gets, and the number of messages.
    fn send_all(streams: &mut Streams) -> (Vec<(HomeId, u64, Vec<u8>)>, usize) {
        let (map, mut partial, mut got, mut messages, mut sent) =
            (map(), PartialRecords::default(), Vec::new(), 0, None);
        loop {
            let Batch { parts, last, .. } = streams.batch(&map, BACKUP, sent);
            let Some(end) = parts.last() else { return (got, messages) };
            sent = (!end.ends).then(|| (end.home, end.offset as usize + end.bytes.len()));
            encode(&ReplicaRequest::Records(parts.clone())).expect("it fits a message");
            for part in parts {
                let (home, number) = (part.home, part.number);
                match partial.add(part) {
                    Arrived::Whole(record) => got.push((home, number, record)),
                    Arrived::Part => {}
                    Arrived::Gap => panic!("{home}, {number}: a part is missing"),
                }
            }
            streams.confirm(&map, BACKUP, &last);
            messages += 1;
        }
    }

    #[test]
    fn records_of_all_sizes_arrive_once_and_in_order() {
        const MAX: usize = RECORD_BYTES_MAX;
        for sizes in [
            [&[10, 3 * MAX + 7, 10][..], &[5][..]],
            [&[2 * MAX, MAX + 1], &[MAX, MAX, 1]],
            [&[], &[MAX + 1]],
            [&[0, 1, MAX / 2, MAX / 2, MAX / 2], &[3, 3]],
            [&[1; 3 * RECORD_PARTS_MAX], &[]],
        ] {
            let mut streams = streams(sizes);
            let sent: Vec<Vec<_>> =
                streams.homes.values().map(|one| one.records.iter().cloned().collect()).collect();
            let (got, messages) = send_all(&mut streams);
            assert!(messages <= 9, "{messages} messages");
            for (home, records) in [HomeId(0), HomeId(2)].into_iter().zip(sent) {
                let of_home = got.iter().filter(|(of, ..)| *of == home);
                let expected =
                    records.iter().zip(6..).map(|(record, number)| (home, number, record.to_vec()));
                assert!(of_home.cloned().eq(expected), "{sizes:?}");
            }
            assert!(streams.homes.values().all(|stream| stream.records.is_empty()));
        }
    }

    #[test]
    fn parts_that_do_not_follow_each_other_are_refused() {
        let part =
            |number, offset, ends| RecordPart { home: HomeId(3), number, offset, ends, bytes: vec![1; 10] };
        let mut partial = PartialRecords::default();
        assert_eq!(partial.add(part(1, 10, true)), Arrived::Gap);
        assert_eq!(partial.add(part(1, 0, false)), Arrived::Part);
        assert_eq!(partial.add(part(2, 10, true)), Arrived::Gap, "another record");
        assert_eq!(partial.add(part(1, 0, false)), Arrived::Part);
        assert_eq!(partial.add(part(1, 20, true)), Arrived::Gap, "a part is missing");
        // The sender begins again.
        assert_eq!(partial.add(part(1, 0, false)), Arrived::Part);
        assert_eq!(partial.add(part(1, 0, false)), Arrived::Part);
        assert_eq!(partial.add(part(1, 10, true)), Arrived::Whole(vec![1; 20]));
    }
}
