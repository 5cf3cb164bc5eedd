//! Marks of directories: whether new files in them, and below, are packed.

use std::collections::BTreeMap;
use tameike_core::wire::meta::RenameMode;
use tameike_io::shared::self_and_ancestors;

/// The marks, by directory.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Marks(BTreeMap<Vec<u8>, bool>);

impl Marks {
    /// Sets or removes the mark of a directory.
    pub fn set(&mut self, dir: Vec<u8>, packs: Option<bool>) {
        match packs {
            Some(packs) => self.0.insert(dir, packs),
            None => self.0.remove(&dir),
        };
    }

    /// Those in a note: each is `+` or `-`, the directory, and a zero.
    pub fn of_note(note: &[u8]) -> Self {
        let mark = |mark: &[u8]| mark.split_first().map(|(sign, dir)| (dir.to_vec(), *sign == b'+'));
        Self(note.split(|&byte| byte == 0).filter_map(mark).collect())
    }

    /// The note.
    pub fn note(&self) -> Vec<u8> {
        let mark =
            |(dir, packs): (&Vec<u8>, &bool)| [if *packs { b"+" } else { b"-" }, &dir[..], b"\0"].concat();
        self.0.iter().flat_map(mark).collect()
    }

    /// The mark of a directory, or of the nearest one above with a mark.
    pub fn of(&self, dir: &[u8]) -> Option<bool> {
        self_and_ancestors(dir).find_map(|dir| self.0.get(dir)).copied()
    }

    /// Moves the marks of a renamed directory and those below it. Marks at the new path stay unless others replace them.
    pub fn moved(&mut self, from: &[u8], to: &[u8], mode: RenameMode) {
        let exchanges = mode == RenameMode::Exchange;
        let (mut stay, mut come) = (BTreeMap::new(), Vec::new());
        for (dir, packs) in std::mem::take(&mut self.0) {
            let back = || rebased(&dir, to, from).filter(|_| exchanges);
            match rebased(&dir, from, to).or_else(back) {
                Some(dir_now) => come.push((dir_now, packs)),
                None => drop(stay.insert(dir, packs)),
            }
        }
        stay.extend(come);
        self.0 = stay;
    }
}

/// The path after a rename of a directory.
pub fn rebased(path: &[u8], from: &[u8], to: &[u8]) -> Option<Vec<u8>> {
    let rest = path.strip_prefix(from)?;
    (rest.is_empty() || rest.starts_with(b"/")).then(|| [to, rest].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks() -> Marks {
        let mut marks = Marks::default();
        for (dir, packs) in [("a", true), ("a/not", false), ("b", false), ("b/yes", true), ("ab", true)] {
            marks.set(dir.into(), Some(packs));
        }
        marks
    }

    #[test]
    fn the_nearest_mark_above_applies() {
        let mut marks = marks();
        assert_eq!(marks.of(b""), None);
        assert_eq!(
            [&b"a/x/y"[..], b"a/not/x", b"b", b"abc"].map(|dir| marks.of(dir)),
            [Some(true), Some(false), Some(false), None]
        );
        marks.set(b"a/not".to_vec(), None);
        assert_eq!(marks.of(b"a/not/x"), Some(true));
        marks.set(Vec::new(), Some(false));
        assert_eq!(marks.of(b"abc"), Some(false));
    }

    #[test]
    fn marks_are_found_in_their_note() {
        let mut marks = marks();
        marks.set(Vec::new(), Some(false));
        assert!(Marks::of_note(&marks.note()) == marks && Marks::of_note(b"") == Marks::default());
    }

    #[test]
    fn marks_follow_renamed_directories() {
        let mut moved = marks();
        moved.moved(b"a", b"b", RenameMode::Replace);
        assert_eq!(
            [&b"a"[..], b"b", b"b/not", b"b/yes", b"ab"].map(|dir| moved.of(dir)),
            [None, Some(true), Some(false), Some(true), Some(true)]
        );
        let mut exchanged = marks();
        exchanged.moved(b"a", b"b", RenameMode::Exchange);
        assert_eq!(
            [&b"a"[..], b"a/yes", b"b", b"b/not"].map(|dir| exchanged.of(dir)),
            [Some(false), Some(true), Some(true), Some(false)]
        );
    }
}
