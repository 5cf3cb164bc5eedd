//! The bytes that a read of a file may return.
//!
//! Writes are intervals: they begin, are acknowledged, and are published by a close or fsync of their node. A reader must see what
//! was published before it opened the file, and what its own node had acknowledged. It may see any write that began since, and any
//! that is in doubt. That is close-to-open consistency, and nothing more.

use std::sync::Arc;

/// A logical time: counts the events of a run.
pub type Moment = u64;

/// The bytes of a write.
#[derive(Clone, Debug)]
pub enum Source {
    /// A truncation: zeros from its offset on.
    Truncation,
    /// Zeros of a punched or zeroed range; the size stays.
    Hole,
    /// The pattern of a tag.
    Pattern(u64),
    /// The content that all nodes read at a check.
    Agreed(Arc<Vec<u8>>),
}

/// A change of a file's bytes.
#[derive(Clone, Debug)]
pub struct Write {
    /// The writing node.
    pub node: usize,
    /// First byte.
    pub offset: u64,
    /// Bytes; unlimited for a truncation.
    pub length: u64,
    /// The bytes.
    pub source: Source,
    /// When the call began.
    pub begun: Moment,
    /// When the call returned.
    pub acknowledged: Moment,
    /// When a close or fsync that covers it returned.
    pub published: Option<Moment>,
    /// When an fsync that covers it returned.
    pub synced: Option<Moment>,
    /// No failure has put it in doubt.
    pub is_certain: bool,
    /// An append: its position was the end of the file, and all nodes see the new end at once.
    pub is_append: bool,
}

impl Write {
    fn is_truncation(&self) -> bool {
        matches!(self.source, Source::Truncation)
    }

    fn end(&self) -> u64 {
        match self.source {
            Source::Truncation => self.offset,
            Source::Hole => 0,
            Source::Pattern(_) | Source::Agreed(_) => self.offset + self.length,
        }
    }

    fn covers(&self, position: u64) -> bool {
        position >= self.offset && position - self.offset < self.length
    }

    fn byte(&self, position: u64) -> u8 {
        match &self.source {
            Source::Truncation | Source::Hole => 0,
            Source::Pattern(tag) => pattern_byte(*tag, position - self.offset),
            Source::Agreed(bytes) => bytes[(position - self.offset) as usize],
        }
    }

    /// Returns true if it wrote all of `bytes` at `position`; faster than byte by byte.
    fn gives(&self, position: u64, bytes: &[u8]) -> bool {
        match &self.source {
            Source::Truncation | Source::Hole => bytes.iter().all(|&byte| byte == 0),
            Source::Pattern(_) => (position..).zip(bytes).all(|(at, &found)| self.byte(at) == found),
            Source::Agreed(agreed) => agreed[(position - self.offset) as usize..][..bytes.len()] == *bytes,
        }
    }

    /// Returns true if it was published, or acknowledged on the same node, before `other` began.
    fn is_before(&self, other: &Self) -> bool {
        let mine = self.node == other.node && self.acknowledged < other.begun;
        self.is_certain && (mine || self.published.is_some_and(|published| published < other.begun))
    }
}

/// Returns byte `index` of the pattern of a tag.
pub fn pattern_byte(tag: u64, index: u64) -> u8 {
    let mixed = (tag.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (index >> 3)).wrapping_mul(0xC2B2_AE3D_27D4_EB4F);
    (mixed >> (8 * (index & 7))) as u8
}

/// Node and times of a read, which decide the writes that it must see.
#[derive(Clone, Copy, Debug)]
pub struct Reader {
    /// The reading node.
    pub node: usize,
    /// It must see what was published before this.
    pub opened: Moment,
    /// It must see what its node wrote before this.
    pub now: Moment,
}

impl Reader {
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
    is_unknown: bool,
}

impl FileData {
    /// Marks the content as unknown.
    pub fn forget(&mut self) {
        self.is_unknown = true;
    }

    /// Adds a write.
    pub fn push(&mut self, write: Write) {
        self.writes.push(write);
    }

    /// Publishes the writes of a node: every later open of the file sees them.
    pub fn publish(&mut self, node: usize, begun: Moment, now: Moment, is_synced: bool) {
        for write in self.writes.iter_mut().filter(|write| write.is_certain) {
            let is_own = write.node == node && write.acknowledged < begun;
            if is_own && write.published.is_none() {
                write.published = Some(now);
            }
            // An fsync covers the whole file, including what other nodes published.
            let is_there = is_own || write.published.is_some_and(|published| published < begun);
            if is_synced && is_there && write.synced.is_none() {
                write.synced = Some(now);
            }
        }
    }

    /// Returns the begin of a node's first write that is neither published nor in doubt.
    pub fn first_unpublished(&self, node: usize) -> Option<Moment> {
        let is_own = |write: &&Write| write.node == node && write.published.is_none() && write.is_certain;
        self.writes.iter().filter(is_own).map(|write| write.begun).min()
    }

    /// Puts the unpublished writes of a node in doubt.
    pub fn mark_uncertain(&mut self, node: usize) {
        let mine = |write: &&mut Write| write.node == node && write.published.is_none();
        self.writes.iter_mut().filter(mine).for_each(|write| write.is_certain = false);
    }

    /// Puts all writes in doubt that no fsync covers and, with `is_close_durable`, no close either.
    pub fn lose(&mut self, is_close_durable: bool) {
        let is_durable =
            |write: &Write| write.synced.is_some() || (is_close_durable && write.published.is_some());
        self.writes.iter_mut().filter(|write| !is_durable(write)).for_each(|write| write.is_certain = false);
    }

    /// Returns the position of an append of this node, if only other appends can move the end now. `None` also if another node may have
    /// truncated the file before or after an unpublished write of this one.
    pub fn end(&self, node: usize, now: Moment) -> Option<u64> {
        let reader = Reader { node, opened: now, now };
        let counts = |write: &Write| reader.must_see(write) || (write.is_append && write.acknowledged < now);
        let is_known = !self.is_unknown && self.writes.iter().all(|write| write.is_certain && counts(write));
        let (least, largest) = self.size_with(counts);
        (is_known && least == largest).then_some(least)
    }

    /// Returns true if an unpublished write of a node, other than an append, makes the file end at `end`.
    pub fn ends_with_unpublished(&self, node: usize, end: u64) -> bool {
        let is_own = |write: &Write| write.node == node && write.published.is_none() && !write.is_append;
        self.writes.iter().any(|write| is_own(write) && write.end() == end)
    }

    /// Returns an upper bound of the space of unpublished writes, in whole blocks.
    pub fn unpublished(&self, block: u64) -> u64 {
        let waits = |write: &&Write| write.published.is_none() && !write.is_truncation();
        self.writes.iter().filter(waits).map(|write| write.length.next_multiple_of(block) + 2 * block).sum()
    }

    /// Returns true if every write is certain and published.
    pub fn is_settled(&self) -> bool {
        !self.is_unknown && self.writes.iter().all(|write| write.is_certain && write.published.is_some())
    }

    /// Returns the smallest and the largest size that a stat may return.
    pub fn size(&self, reader: Reader) -> (u64, u64) {
        self.size_with(|write| reader.must_see(write))
    }

    /// As [`Self::size`], for a reader that must see the writes that `must_see` selects.
    fn size_with(&self, must_see: impl Fn(&Write) -> bool) -> (u64, u64) {
        if self.is_unknown {
            return (0, u64::MAX);
        }
        let seen: Vec<_> = self.writes.iter().filter(|write| must_see(write)).collect();
        let last_truncation =
            seen.iter().filter(|write| write.is_truncation()).max_by_key(|write| write.begun);
        let after = |write: &Write| last_truncation.is_none_or(|truncation| truncation.is_before(write));
        let floor = last_truncation.map_or(0, |truncation| truncation.offset);
        let grown =
            seen.iter().filter(|write| !write.is_truncation() && after(write)).map(|write| write.end());
        let mut least = grown.max().unwrap_or(0).max(floor);
        let mut largest = least;
        for write in &self.writes {
            let is_over =
                |truncation: &&Write| write.is_before(truncation) || std::ptr::eq(*truncation, write);
            if last_truncation.is_some_and(is_over) || (must_see(write) && after(write)) {
                continue;
            }
            largest = largest.max(write.end());
            if write.is_truncation() {
                least = least.min(write.offset);
            }
        }
        (least, largest)
    }

    /// Checks that a read of `wanted` bytes at `offset` may return `bytes`. The error names the first wrong byte or the wrong size.
    pub fn check(&self, reader: Reader, offset: u64, wanted: u64, bytes: &[u8]) -> Result<(), String> {
        if self.is_unknown {
            return Ok(());
        }
        let (least, largest) = self.size(reader);
        let end = offset + bytes.len() as u64;
        let is_short = (bytes.len() as u64) < wanted;
        if end > largest.max(offset) || (is_short && end < least) {
            return Err(format!(
                "the read returned {} of {wanted} bytes at {offset}, the size is {least} to {largest}",
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
            let bytes = &bytes[(piece[0] - offset) as usize..(piece[1] - offset) as usize];
            self.check_piece(reader, piece[0], bytes)?;
        }
        Ok(())
    }

    /// Checks bytes that are all covered by the same writes.
    fn check_piece(&self, reader: Reader, position: u64, bytes: &[u8]) -> Result<(), String> {
        let covering: Vec<_> = self.writes.iter().filter(|write| write.covers(position)).collect();
        let must: Vec<_> = covering.iter().filter(|write| reader.must_see(write)).collect();
        let mut may: Vec<_> =
            covering.iter().filter(|write| !must.iter().any(|other| write.is_before(other))).collect();
        may.reverse();
        let blank = must.is_empty();
        let is_zero = || bytes.iter().all(|&byte| byte == 0);
        if (blank && is_zero()) || may.iter().any(|write| write.gives(position, bytes)) {
            return Ok(());
        }
        for (index, &found) in bytes.iter().enumerate() {
            let at = position + index as u64;
            let may_be = (blank && found == 0) || may.iter().any(|write| write.byte(at) == found);
            if !may_be {
                let known = covering.iter().find(|write| write.byte(at) == found && !write.is_truncation());
                let what = match known {
                    Some(write) => format!("is from an older write, {}", write.source),
                    None if found == 0 => "is zero".to_owned(),
                    None => format!("is {found}, which no process wrote"),
                };
                let allowed: Vec<_> = may.iter().map(|write| write.source.to_string()).collect();
                let zero = if blank { " or zero" } else { "" };
                return Err(format!("byte {at} {what}; it may be from [{}]{zero}", allowed.join(", ")));
            }
        }
        Ok(())
    }

    /// Replaces all writes by one that is published and synced, with the bytes that all nodes read.
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
            Self::Truncation => write!(f, "a truncation"),
            Self::Hole => write!(f, "a hole"),
            Self::Pattern(tag) => write!(f, "pattern {tag}"),
            Self::Agreed(_) => write!(f, "the content at the last check"),
        }
    }
}
