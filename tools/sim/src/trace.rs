//! The log of a run: what product and simulator log on the thread of the run, line by line.

use log::{Level, LevelFilter, Log, Metadata, Record};
use std::cell::RefCell;

thread_local! {
    static LINES: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

struct ByThread;

impl Log for ByThread {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= Level::Trace && LINES.with_borrow(Option::is_some)
    }

    fn log(&self, record: &Record<'_>) {
        LINES.with_borrow_mut(|lines| {
            if let Some(lines) = lines {
                lines.push(record.args().to_string());
            }
        });
    }

    fn flush(&self) {}
}

/// Runs `work` on this thread and gives its log along.
pub fn traced<T>(work: impl FnOnce() -> T) -> (T, Vec<String>) {
    // Only the first sets it; all are the same.
    if log::set_logger(&ByThread).is_ok() {
        log::set_max_level(LevelFilter::Trace);
    }
    LINES.set(Some(Vec::new()));
    let outcome = work();
    (outcome, LINES.take().unwrap_or_default())
}
