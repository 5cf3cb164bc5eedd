//! Where units lie on devices of this host, for programs that read them there by themselves.
//!
//! A place is what a read would bring: it says where the unit's home has the bytes of a unit of which this node has none. As what is
//! cached of the file it is given up when somebody else may have changed that, and with each write of this node. Nothing keeps the
//! bytes there; who reads them sees by the device's clock ([`tameike_io::disk::FreeClock`]) and their checksums whether they were there
//! still, and asks for the bytes if not.

use super::file::FileState;
use super::{DataEngine, FileData, split};
use event_listener::listener;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use tameike_core::limits::UNIT_SIZE;
use tameike_core::wire::unit::{PLACES_MAX, UnitPlace, UnitReply, UnitRequest};
use tameike_core::wire::{Reply, Request};
use tameike_core::{Generation, NodeId, UnitId};
use tameike_io::disk::HostDevice;

/// Units behind the one that is read whose places a sequential reader is to know. New ones are asked for by the half of them, so
/// that a message tells of several.
const AHEAD: u64 = PLACES_MAX as u64;
/// Units of one file whose places are kept, those nearest to where it was read last.
const KEPT_MAX: usize = 4 * PLACES_MAX;

/// How often one read asks for a place: in a file that is being written, answers are out of date when they come.
const QUESTIONS_MAX: u32 = 2;

/// Bytes of a unit, and where a program of this host can read them.
#[derive(Clone, Debug)]
pub struct Placed {
    /// By which.
    pub device: Arc<HostDevice>,
    /// Where the unit lies.
    pub place: Arc<UnitPlace>,
    /// Which of its bytes are meant.
    pub range: Range<u32>,
}

/// What is known of the places of a file's units.
#[derive(Default)]
pub(super) struct Places {
    /// Under which state of the cache.
    mark: Mark,
    units: BTreeMap<u64, Known>,
}

/// A state of what is cached of a file. It changes when somebody else may have changed the file, and with each write of this node.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Mark {
    epoch: u64,
    writes: u64,
}

enum Known {
    /// Somebody asks.
    Asked,
    /// There.
    At(Arc<UnitPlace>),
    /// Nowhere, or where nobody can read it. Told once.
    Nowhere,
}

/// What who wants to read needs next.
enum Plan {
    /// The bytes are to be read as ever.
    Read,
    /// They lie there; places of other units are to be asked for.
    There(Arc<UnitPlace>, Question),
    /// Places are to be asked for.
    Ask(Question),
    /// Somebody asks already.
    Wait,
}

/// Units whose places are to be asked for.
struct Question {
    mark: Mark,
    generation: Generation,
    units: Vec<u64>,
}

impl DataEngine {
    /// Where a program of this host can read `length` bytes at `offset` by itself. None where they are not all of one unit that
    /// its home holds whole and this node not at all. `is_sequential` says whether they are read on from the last ones, where that was
    /// already looked at.
    pub async fn place(
        self: &Arc<Self>,
        file: &Arc<FileData>,
        offset: u64,
        length: u32,
        is_sequential: Option<bool>,
    ) -> Option<Placed> {
        let mut parts = split(offset, length.into());
        let (Some((index, start, count)), None) = (parts.next(), parts.next()) else { return None };
        let home = |index| self.cluster.unit_home(file.layout, UnitId { inode: file.inode, index });
        let device = self.rpc.device_of(home(index))?;
        let mut asked = 0;
        loop {
            listener!(file.changed => ended);
            let plan = file.state.lock().plan_place(index, (offset, length), is_sequential);
            let question = match plan {
                Plan::Read => return None,
                Plan::Wait => {
                    ended.await;
                    continue;
                }
                Plan::There(place, others) => {
                    self.ask_homes(file, others, None);
                    return Some(Placed { device, place, range: start..start + count });
                }
                Plan::Ask(_) if asked == QUESTIONS_MAX => return None,
                Plan::Ask(question) => question,
            };
            asked += 1;
            if let Some(asking) = self.ask_homes(file, question, Some(home(index))) {
                asking.await;
            }
        }
    }

    /// Asks the homes of the units, in the background but for one of them.
    fn ask_homes(
        self: &Arc<Self>,
        file: &Arc<FileData>,
        question: Question,
        first: Option<NodeId>,
    ) -> Option<impl Future<Output = ()> + Send + use<>> {
        let Question { mark, generation, units } = question;
        let mut by_home = BTreeMap::<NodeId, Vec<u64>>::new();
        for index in units {
            let home = self.cluster.unit_home(file.layout, UnitId { inode: file.inode, index });
            by_home.entry(home).or_default().push(index);
        }
        let mut awaited = None;
        for (home, units) in by_home {
            let asking = Asking { file: file.clone(), mark, units };
            let ask = self.clone().ask_home(home, asking, generation);
            if first == Some(home) {
                awaited = Some(ask);
            } else {
                self.runtime.spawn(ask);
            }
        }
        awaited
    }

    async fn ask_home(self: Arc<Self>, home: NodeId, asking: Asking, generation: Generation) {
        if self.rpc.device_of(home).is_none() {
            return asking.learn(Vec::new());
        }
        let (inode, units) = (asking.file.inode, asking.units.clone());
        let answer = self.ask(home, Request::Unit(UnitRequest::Places { inode, units, generation })).await;
        match answer.map(|answer| answer.reply) {
            Ok(Reply::Unit(UnitReply::Places(places))) => asking.learn(places),
            // What is wrong is found by who reads.
            Ok(_) | Err(_) => asking.learn(Vec::new()),
        }
    }
}

impl FileState {
    pub(super) fn mark(&self) -> Mark {
        Mark { epoch: self.epoch, writes: self.writes }
    }

    fn plan_place(&mut self, index: u64, (offset, length): (u64, u32), is_sequential: Option<bool>) -> Plan {
        let is_elsewhere = self.inline || !self.could_be_placed(index);
        if is_elsewhere || offset + u64::from(length) > self.size {
            return Plan::Read;
        }
        let mark = self.mark();
        if self.places.mark != mark {
            self.places = Places { mark, units: BTreeMap::new() };
        }
        let place = match self.places.units.get(&index) {
            Some(Known::Asked) => return Plan::Wait,
            Some(Known::Nowhere) => {
                self.places.units.remove(&index);
                return Plan::Read;
            }
            Some(Known::At(place)) => Some(place.clone()),
            None => None,
        };
        let is_sequential = match (is_sequential, &place) {
            (Some(is_sequential), _) => is_sequential,
            (None, Some(_)) => self.streams.read(offset, length.into()),
            // It comes round again.
            (None, None) => self.streams.goes_on(offset, length.into()),
        };
        let mut units = Vec::new();
        if place.is_none() {
            units.push(index);
        }
        if is_sequential && (index + 1..=index + AHEAD / 2).any(|index| self.is_to_be_asked(index)) {
            units.extend((index + 1..=index + AHEAD).filter(|index| self.is_to_be_asked(*index)));
        }
        self.places.ask(&units, index);
        let question = Question { mark, generation: self.generation, units };
        match place {
            Some(place) => Plan::There(place, question),
            None => Plan::Ask(question),
        }
    }

    fn is_to_be_asked(&self, index: u64) -> bool {
        !self.places.units.contains_key(&index) && self.could_be_placed(index)
    }

    /// Whether all of the unit may be at its home, and none of it is here.
    fn could_be_placed(&self, index: u64) -> bool {
        let end = (index + 1).checked_mul(UNIT_SIZE as u64);
        let is_whole = end.is_some_and(|end| end <= self.size);
        is_whole && !self.units.contains_key(&index) && !self.fetching.contains(&index)
    }
}

impl FileData {
    /// What lies at `offset` was not where its place is known to be.
    pub fn misplaced(&self, offset: u64) {
        let index = offset / UNIT_SIZE as u64;
        let units = &mut self.state.lock().places.units;
        if matches!(units.get(&index), Some(Known::At(_))) {
            units.remove(&index);
        }
    }
}

impl Places {
    /// Takes note of what is being asked for, by who reads in the unit `near`.
    fn ask(&mut self, units: &[u64], near: u64) {
        while self.units.len() + units.len() > KEPT_MAX {
            let known = self.units.iter().filter(|(_, known)| !matches!(known, Known::Asked));
            let Some(farthest) = known.map(|(index, _)| *index).max_by_key(|index| index.abs_diff(near))
            else {
                break;
            };
            self.units.remove(&farthest);
        }
        self.units.extend(units.iter().map(|index| (*index, Known::Asked)));
    }
}

/// Units of which one home is asked. Those that it has not answered for are asked for again.
struct Asking {
    file: Arc<FileData>,
    mark: Mark,
    units: Vec<u64>,
}

impl Asking {
    /// Takes note of the answer, which has all units or none.
    fn learn(self, answer: Vec<Option<UnitPlace>>) {
        let mut state = self.file.state.lock();
        if state.places.mark != self.mark {
            return;
        }
        let mut answer = if answer.len() == self.units.len() { answer } else { Vec::new() }.into_iter();
        for index in &self.units {
            let place = answer.next().flatten().filter(UnitPlace::is_whole);
            let known = place.map_or(Known::Nowhere, |place| Known::At(Arc::new(place)));
            state.places.units.insert(*index, known);
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        {
            let places = &mut self.file.state.lock().places;
            if places.mark == self.mark {
                places
                    .units
                    .retain(|index, known| !(matches!(known, Known::Asked) && self.units.contains(index)));
            }
        }
        self.file.changed.notify(usize::MAX);
    }
}
