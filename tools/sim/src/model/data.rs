//! What a read of a file may bring, byte by byte.
//!
//! Writes are intervals: they begin, are acknowledged, and are published by a close or fsync of their node. A reader
//! must see what was published before it opened the file, and what its own node has been told is written; it may see
//! anything that began since, and whatever was in doubt. That is close-to-open, and nothing more.

use std::sync::Arc;

/// Moments of a run, counted.
pub type Moment = u64;

/// Where the bytes of a write come from.
#[derive(Clone, Debug)]
pub enum Source {
    /// Zeros to the end of all things: the file was cut.
    Cut,
    /// Zeros where a hole was made; the size stays.
    Hole,
    /// A pattern by its number.
    Pattern(u64),
    /// What everybody agreed on at one moment.
    Agreed(Arc<Vec<u8>>),
}

/// A change of bytes.
#[derive(Clone, Debug)]
pub struct Write {
    /// Where it was made.
    pub node: usize,
    /// First byte.
    pub offset: u64,
    /// Bytes; everything behind for a cut.
    pub length: u64,
    /// Which bytes.
    pub source: Source,
    /// When it was asked for.
    pub begun: Moment,
    /// When it was acknowledged.
    pub acknowledged: Moment,
    /// When a close or fsync that covers it had returned.
    pub published: Option<Moment>,
    /// When an fsync that covers it had returned.
    pub synced: Option<Moment>,
    /// Nothing has failed that concerns it.
    pub is_certain: bool,
    /// Its place was the end of the file, of which all nodes know at once.
    pub is_append: bool,
}

impl Write {
    fn is_cut(&self) -> bool {
        matches!(self.source, Source::Cut)
    }

    fn end(&self) -> u64 {
        match self.source {
            Source::Cut => self.offset,
            Source::Hole => 0,
            Source::Pattern(_) | Source::Agreed(_) => self.offset + self.length,
        }
    }

    fn covers(&self, place: u64) -> bool {
        place >= self.offset && place - self.offset < self.length
    }

    fn byte(&self, place: u64) -> u8 {
        match &self.source {
            Source::Cut | Source::Hole => 0,
            Source::Pattern(tag) => byte(*tag, place - self.offset),
            Source::Agreed(bytes) => bytes[(place - self.offset) as usize],
        }
    }

    /// Whether all these bytes from `place` on may be of it; quicker than byte by byte.
    fn gives(&self, place: u64, bytes: &[u8]) -> bool {
        match &self.source {
            Source::Cut | Source::Hole => bytes.iter().all(|&byte| byte == 0),
            Source::Pattern(_) => (place..).zip(bytes).all(|(at, &found)| self.byte(at) == found),
            Source::Agreed(agreed) => agreed[(place - self.offset) as usize..][..bytes.len()] == *bytes,
        }
    }

    /// Whether it was over, for everybody or for its node, before `other` began.
    fn is_before(&self, other: &Self) -> bool {
        let mine = self.node == other.node && self.acknowledged < other.begun;
        self.is_certain && (mine || self.published.is_some_and(|published| published < other.begun))
    }
}

/// Byte `index` of what a write with a tag writes.
pub fn byte(tag: u64, index: u64) -> u8 {
    let mixed = (tag.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (index >> 3)).wrapping_mul(0xC2B2_AE3D_27D4_EB4F);
    (mixed >> (8 * (index & 7))) as u8
}

/// Who looks.
#[derive(Clone, Copy, Debug)]
pub struct Looker {
    /// From where.
    pub node: usize,
    /// What was published before this it must see.
    pub opened: Moment,
    /// What its node has written before this it must see.
    pub now: Moment,
}

impl Looker {
    fn must_see(&self, write: &Write) -> bool {
        write.is_certain
            && (write.published.is_some_and(|published| published < self.opened)
                || (write.node == self.node && write.acknowledged < self.now))
    }
}

/// The content of one file.
#[derive(Clone, Debug, Default)]
pub struct FileData {
    writes: Vec<Write>,
    /// Nobody knows what is in it.
    is_unknown: bool,
}

impl FileData {
    /// Nobody knows what is in it.
    pub fn forget(&mut self) {
        self.is_unknown = true;
    }

    /// One more write.
    pub fn push(&mut self, write: Write) {
        self.writes.push(write);
    }

    /// What a node has written is seen by all who open the file from now on.
    pub fn publish(&mut self, node: usize, begun: Moment, now: Moment, is_synced: bool) {
        for write in self.writes.iter_mut().filter(|write| write.is_certain) {
            let is_own = write.node == node && write.acknowledged < begun;
            if is_own && write.published.is_none() {
                write.published = Some(now);
            }
            // An fsync is one of the whole file: what others have published is in it.
            let is_there = is_own || write.published.is_some_and(|published| published < begun);
            if is_synced && is_there && write.synced.is_none() {
                write.synced = Some(now);
            }
        }
    }

    /// When a node began the first write that it has not published, and that nobody doubts.
    pub fn first_unpublished(&self, node: usize) -> Option<Moment> {
        let is_own = |write: &&Write| write.node == node && write.published.is_none() && write.is_certain;
        self.writes.iter().filter(is_own).map(|write| write.begun).min()
    }

    /// What a node has written and not published is in doubt.
    pub fn doubt(&mut self, node: usize) {
        let mine = |write: &&mut Write| write.node == node && write.published.is_none();
        self.writes.iter_mut().filter(mine).for_each(|write| write.is_certain = false);
    }

    /// Everything that no fsync has covered is in doubt, and with `is_closed_safe` only what no close has.
    pub fn lose(&mut self, is_closed_safe: bool) {
        let is_safe = |write: &Write| write.synced.is_some() || (is_closed_safe && write.published.is_some());
        self.writes.iter_mut().filter(|write| !is_safe(write)).for_each(|write| write.is_certain = false);
    }

    /// Where an append of this node lands, if nothing that is under way can move the end but other appends. What it has
    /// not published when another node cuts the file comes before the cut or after it.
    pub fn end(&self, node: usize, now: Moment) -> Option<u64> {
        let looker = Looker { node, opened: now, now };
        let counts = |write: &Write| looker.must_see(write) || (write.is_append && write.acknowledged < now);
        let is_known = !self.is_unknown && self.writes.iter().all(|write| write.is_certain && counts(write));
        let (least, largest) = self.size_with(counts);
        (is_known && least == largest).then_some(least)
    }

    /// Whether the file ends there for the sake of what a node has written and not published. Appends have their place at once.
    pub fn ends_with_unpublished(&self, node: usize, end: u64) -> bool {
        let is_own = |write: &Write| write.node == node && write.published.is_none() && !write.is_append;
        self.writes.iter().any(|write| is_own(write) && write.end() == end)
    }

    /// Space that what is not published may take, in whole blocks.
    pub fn unpublished(&self, block: u64) -> u64 {
        let waits = |write: &&Write| write.published.is_none() && !write.is_cut();
        self.writes.iter().filter(waits).map(|write| write.length.next_multiple_of(block) + 2 * block).sum()
    }

    /// Whether nothing is in doubt or unpublished.
    pub fn is_settled(&self) -> bool {
        !self.is_unknown && self.writes.iter().all(|write| write.is_certain && write.published.is_some())
    }

    /// The least and the largest size that may be told.
    pub fn size(&self, looker: Looker) -> (u64, u64) {
        self.size_with(|write| looker.must_see(write))
    }

    /// As [`Self::size`], for one who must see what `must_see` says.
    fn size_with(&self, must_see: impl Fn(&Write) -> bool) -> (u64, u64) {
        if self.is_unknown {
            return (0, u64::MAX);
        }
        let seen: Vec<_> = self.writes.iter().filter(|write| must_see(write)).collect();
        let last_cut = seen.iter().filter(|write| write.is_cut()).max_by_key(|write| write.begun);
        let after = |write: &Write| last_cut.is_none_or(|cut| cut.is_before(write));
        let floor = last_cut.map_or(0, |cut| cut.offset);
        let grown = seen.iter().filter(|write| !write.is_cut() && after(write)).map(|write| write.end());
        let mut least = grown.max().unwrap_or(0).max(floor);
        let mut largest = least;
        for write in &self.writes {
            if last_cut.is_some_and(|cut| write.is_before(cut)) || (must_see(write) && after(write)) {
                continue;
            }
            if last_cut.is_some_and(|cut| std::ptr::eq(*cut, write)) {
                continue;
            }
            largest = largest.max(write.end());
            if write.is_cut() {
                least = least.min(write.offset);
            }
        }
        (least, largest)
    }

    /// Whether a read may have brought `bytes`.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn check(&self, looker: Looker, offset: u64, wanted: u64, bytes: &[u8]) -> Result<(), String> {
        if self.is_unknown {
            return Ok(());
        }
        let (least, largest) = self.size(looker);
        let end = offset + bytes.len() as u64;
        let is_short = (bytes.len() as u64) < wanted;
        if end > largest.max(offset) || (is_short && end < least) {
            return Err(format!(
                "{} bytes came of {wanted} at {offset}, the size is {least} to {largest}",
                bytes.len()
            ));
        }
        let mut edges: Vec<u64> = vec![offset, end];
        for write in &self.writes {
            edges.extend([write.offset, write.offset.saturating_add(write.length)]);
        }
        edges.retain(|&edge| edge >= offset && edge <= end);
        edges.sort_unstable();
        edges.dedup();
        for piece in edges.windows(2) {
            self.check_piece(
                looker,
                piece[0],
                &bytes[(piece[0] - offset) as usize..(piece[1] - offset) as usize],
            )?;
        }
        Ok(())
    }

    /// All these bytes are covered by the same writes.
    fn check_piece(&self, looker: Looker, place: u64, bytes: &[u8]) -> Result<(), String> {
        let covering: Vec<_> = self.writes.iter().filter(|write| write.covers(place)).collect();
        let must: Vec<_> = covering.iter().filter(|write| looker.must_see(write)).collect();
        let mut may: Vec<_> =
            covering.iter().filter(|write| !must.iter().any(|other| write.is_before(other))).collect();
        may.reverse();
        let blank = must.is_empty();
        let is_zero = || bytes.iter().all(|&byte| byte == 0);
        if (blank && is_zero()) || may.iter().any(|write| write.gives(place, bytes)) {
            return Ok(());
        }
        for (index, &found) in bytes.iter().enumerate() {
            let at = place + index as u64;
            let may_be = (blank && found == 0) || may.iter().any(|write| write.byte(at) == found);
            if !may_be {
                let known = covering.iter().find(|write| write.byte(at) == found && !write.is_cut());
                let what = match known {
                    Some(write) => format!("is of an older write, {}", write.source),
                    None if found == 0 => "is zero".to_owned(),
                    None => format!("is {found}, which nobody wrote"),
                };
                let allowed: Vec<_> = may.iter().map(|write| write.source.to_string()).collect();
                let zero = if blank { " or zero" } else { "" };
                return Err(format!("byte {at} {what}; it may be of [{}]{zero}", allowed.join(", ")));
            }
        }
        Ok(())
    }

    /// Everybody agrees on these bytes, and they are safe.
    pub fn agree(&mut self, bytes: Vec<u8>, moment: Moment) {
        let length = bytes.len() as u64;
        self.writes.clear();
        self.is_unknown = false;
        if length > 0 {
            self.writes.push(Write {
                node: usize::MAX,
                offset: 0,
                length,
                source: Source::Agreed(Arc::new(bytes)),
                begun: moment,
                acknowledged: moment,
                published: Some(moment),
                synced: Some(moment),
                is_certain: true,
                is_append: false,
            });
        }
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Cut => write!(f, "a cut"),
            Self::Hole => write!(f, "a hole"),
            Self::Pattern(tag) => write!(f, "pattern {tag}"),
            Self::Agreed(_) => write!(f, "what was there at the last check"),
        }
    }
}
