//! Captures the log lines that product and simulator write on the thread of a run.

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

/// Runs `work` on this thread, and returns its result with its log.
pub fn traced<T>(work: impl FnOnce() -> T) -> (T, Vec<String>) {
    // Only the first call installs the logger; it serves all threads.
    if log::set_logger(&ByThread).is_ok() {
        log::set_max_level(LevelFilter::Trace);
    }
    LINES.set(Some(Vec::new()));
    let outcome = work();
    (outcome, LINES.take().unwrap_or_default())
}
