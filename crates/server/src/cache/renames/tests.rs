//! Paths of records after renames of directories.

use super::*;
use tameike_core::Generation;
use tameike_core::wire::cache::Stamp;

const NOW: Duration = Duration::from_secs(9);

fn texts(paths: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Vec<String> {
    paths.into_iter().map(|path| String::from_utf8_lossy(path.as_ref()).into_owned()).collect()
}

/// A file of a coordinator that is notified of renames.
struct Known {
    renames: Renames,
    record: Record,
}

impl Known {
    fn new(path: &str) -> Self {
        let record = Record::new(path.as_bytes(), Stamp::default(), Generation(1));
        Self { renames: Renames::default(), record }
    }

    fn note(&mut self, from: &str, to: &str) {
        let rename = self.renames.note(from.as_bytes(), to.as_bytes(), NOW);
        self.renames.add_moved(&mut self.record, rename);
    }

    fn end(&mut self, from: &str, to: &str, is_renamed: bool) {
        self.renames.end(from.as_bytes(), to.as_bytes(), is_renamed, NOW);
        end_rename(&mut self.record, from.as_bytes(), to.as_bytes(), is_renamed);
    }

    fn rename(&mut self, from: &str, to: &str) {
        self.note(from, to);
        self.end(from, to, true);
    }

    fn see(&mut self, path: &str) {
        self.renames.add_seen(&mut self.record, path.as_bytes(), NOW);
    }

    fn paths(&self) -> Vec<String> {
        texts(&self.record.paths)
    }
}

fn others(renames: &Renames, path: &str, now: Duration) -> Vec<String> {
    texts(renames.0.lock().others(path.as_bytes(), now))
}

#[test]
fn a_path_follows_unfinished_renames_above_it_in_any_order() {
    let renames = Renames::default();
    renames.note(b"p", b"q", NOW);
    renames.note(b"p/d", b"p/e", NOW);
    assert_eq!(others(&renames, "p/d/x", NOW), ["p/e/x", "q/d/x", "q/e/x"]);
    assert_eq!(others(&renames, "p/x", NOW), ["q/x"]);
    assert!(others(&renames, "px/d", NOW).is_empty());
    // There and back again.
    renames.note(b"q", b"p", NOW);
    assert_eq!(others(&renames, "q/x", NOW), ["p/x"]);
}

#[test]
fn a_path_follows_finished_renames_in_their_order() {
    let renames = Renames::default();
    for (from, to) in [("p", "q"), ("q/d", "q/e"), ("q", "r"), ("r", "p")] {
        renames.note(from.as_bytes(), to.as_bytes(), NOW);
        renames.end(from.as_bytes(), to.as_bytes(), true, NOW);
    }
    // From before the first one, or between the first two.
    assert_eq!(others(&renames, "p/d/x", NOW), ["p/e/x"]);
    assert_eq!(others(&renames, "q/d/x", NOW), ["p/d/x", "p/e/x"]);
    assert_eq!(others(&renames, "r/e/x", NOW), ["p/e/x"]);
    renames.note(b"p", b"s", NOW);
    assert_eq!(others(&renames, "r/e/x", NOW), ["p/e/x", "s/e/x"]);
    renames.end(b"p", b"s", false, NOW);
    assert_eq!(others(&renames, "r/e/x", NOW), ["p/e/x"], "it has failed");
}

#[test]
fn old_renames_are_forgotten() {
    let renames = Renames::default();
    renames.note(b"p", b"q", Duration::ZERO);
    assert!(others(&renames, "p/x", REPORTS_TIME).is_empty());
    for number in 0..2 * RENAMES_MAX {
        renames.note(b"p", format!("q{number}").as_bytes(), NOW);
    }
    assert_eq!(renames.0.lock().renames.len(), RENAMES_MAX);
    assert_eq!(others(&renames, "p/x", NOW).len(), OTHERS_MAX);
}

/// Regression: each old path of a file followed each rename, and these paths displaced the one at which the file was.
#[test]
fn a_file_has_one_path_when_all_renames_above_it_have_ended() {
    let mut known = Known::new("a/b/c/x");
    let mut path = ["a", "b", "c"].map(str::to_owned);
    for number in 0..60 {
        let at = number % 3;
        let from = path[..=at].join("/");
        path[at] = format!("m{number}");
        known.rename(&from, &path[..=at].join("/"));
        assert_eq!(known.paths(), [format!("{}/x", path.join("/"))]);
    }
}

/// Regression: a file in a new directory got the paths of files that directories of this name had before, and lost its own.
#[test]
fn directories_that_get_the_same_name_one_after_the_other_do_not_displace_paths() {
    for number in 0..100 {
        let mut known = Known::new("new/x");
        for earlier in 0..number {
            known.renames.note(b"new", format!("done-{earlier}").as_bytes(), NOW);
            known.renames.end(b"new", format!("done-{earlier}").as_bytes(), true, NOW);
        }
        known.see("new/x");
        let next = format!("done-{number}");
        known.note("new", &next);
        let moved = format!("{next}/x");
        assert_eq!(known.paths()[..2], [moved.clone(), "new/x".to_owned()]);
        known.end("new", &next, true);
        assert_eq!(known.paths()[0], moved);
        assert!(known.paths().len() <= 1 + ENDED_MAX);
    }
}

/// Regression: the targets of failed renames displaced the path of a file.
#[test]
fn failed_renames_do_not_displace_paths() {
    let mut known = Known::new("d/x");
    for number in 0..40 {
        let to = format!("full-{number}");
        known.note("d", &to);
        assert_eq!(known.paths()[..2], [format!("{to}/x"), "d/x".to_owned()]);
        known.end("d", &to, false);
        assert_eq!(known.paths()[0], "d/x");
    }
    known.rename("d", "e");
    assert_eq!(known.paths()[0], "e/x");
}

#[test]
fn renames_by_two_nodes_at_the_same_time_end_in_any_order() {
    let both = [("p", "q"), ("p/d", "p/e")];
    for (order, ends) in [([0, 1], [0, 1]), ([0, 1], [1, 0]), ([1, 0], [0, 1]), ([1, 0], [1, 0])] {
        let mut known = Known::new("p/d/x");
        order.into_iter().for_each(|rename| known.note(both[rename].0, both[rename].1));
        for path in ["p/d/x", "p/e/x", "q/d/x", "q/e/x"] {
            assert!(known.paths().contains(&path.to_owned()), "{:?}", known.paths());
        }
        ends.into_iter().for_each(|rename| known.end(both[rename].0, both[rename].1, true));
        assert!(known.paths().contains(&"q/e/x".to_owned()), "{:?}", known.paths());
        assert!(known.paths().len() <= 2, "{:?}", known.paths());
    }
}

#[test]
fn a_directory_that_was_renamed_back_keeps_its_path() {
    let mut known = Known::new("a/x");
    known.note("a", "b");
    // The next node reports before the end of the first one arrives.
    known.note("b", "a");
    known.end("a", "b", true);
    assert_eq!(known.paths(), ["a/x", "b/x"]);
    known.end("b", "a", true);
    assert_eq!(known.paths(), ["a/x"]);
}

#[test]
fn other_names_of_a_file_stay() {
    let mut known = Known::new("kept/y");
    known.see("a/x");
    for number in 0..40 {
        known.rename(if number % 2 == 0 { "a" } else { "b" }, if number % 2 == 0 { "b" } else { "a" });
    }
    assert_eq!(known.paths(), ["a/x", "kept/y"]);
    // Its own renames.
    end_rename(&mut known.record, b"a/x", b"a/z", true);
    assert_eq!(known.paths(), ["a/x", "kept/y"], "the new name is not known");
    known.see("a/z");
    end_rename(&mut known.record, b"a/x", b"a/z", true);
    assert_eq!(known.paths(), ["a/z", "kept/y"]);
}
