//! Progress of drains, loads, checks and measurements: a bar on a terminal, else a line every ten seconds.

use super::say;
use crate::settings::size::show;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;
use tameike_agent::control::Progress;
use tameike_core::wire::admin::Warmed;
use tameike_io::os::process::monotonic;

/// Interval of lines without a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);
const TEMPLATE: &str = "tameike: draining {bar:30} {bytes}/{total_bytes}, {binary_bytes_per_sec}, {msg}";

/// The display of one drain. It shows nothing until the agents report something.
pub struct DrainProgress {
    bar: Option<ProgressBar>,
    terminal: bool,
    last_line: Duration,
}

impl DrainProgress {
    pub fn new() -> Self {
        Self { bar: None, terminal: std::io::stderr().is_terminal(), last_line: monotonic() }
    }

    pub fn update(&mut self, progress: Progress) {
        let total = progress.bytes_flushed + progress.bytes_left;
        let files =
            format!("{} {} left", progress.files_left, super::plural(progress.files_left as usize, "file"));
        if self.terminal {
            let style = ProgressStyle::with_template(TEMPLATE).expect("the template is valid");
            let bar = self.bar.get_or_insert_with(|| ProgressBar::new(total).with_style(style));
            bar.set_length(total);
            bar.set_position(progress.bytes_flushed);
            bar.set_message(files);
        } else if monotonic() - self.last_line >= LINE_INTERVAL {
            self.last_line = monotonic();
            say(format_args!("draining: {} of {}, {files}", show(progress.bytes_flushed), show(total)));
        }
    }

    /// Prints a message without leaving a part of the bar on its line.
    pub fn beside(&self, say: impl FnOnce()) {
        match &self.bar {
            Some(bar) => bar.suspend(say),
            None => say(),
        }
    }

    pub fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

const WARM_TEMPLATE: &str = "tameike: loading {spinner} {bytes}, {binary_bytes_per_sec}, {msg}";

/// The display of `cache warm`, whose total is unknown. It shows nothing until a node reports something.
pub struct WarmProgress {
    bar: Option<ProgressBar>,
    terminal: bool,
    last_line: Duration,
}

impl WarmProgress {
    pub fn new() -> Self {
        Self { bar: None, terminal: std::io::stderr().is_terminal(), last_line: monotonic() }
    }

    pub fn update(&mut self, so_far: &Warmed) {
        let files = format!("{} {}", so_far.files, super::plural(so_far.files as usize, "file"));
        if self.terminal {
            let style = ProgressStyle::with_template(WARM_TEMPLATE).expect("the template is valid");
            let bar = self.bar.get_or_insert_with(|| ProgressBar::no_length().with_style(style));
            bar.set_position(so_far.bytes);
            bar.set_message(files);
        } else if monotonic() - self.last_line >= LINE_INTERVAL {
            self.last_line = monotonic();
            say(format_args!("loading: {} so far, {files}", show(so_far.bytes)));
        }
    }

    pub fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

const BENCH_TEMPLATE: &str = "tameike: measuring {bar:30} {pos}/{len}, {msg}";

/// The display of measurements, only on a terminal.
pub struct BenchProgress {
    bar: Option<ProgressBar>,
}

impl BenchProgress {
    /// `count` is the number of measurements.
    pub fn new(count: u64) -> Self {
        let style = ProgressStyle::with_template(BENCH_TEMPLATE).expect("the template is valid");
        let is_shown = std::io::stderr().is_terminal();
        Self { bar: is_shown.then(|| ProgressBar::new(count).with_style(style)) }
    }

    /// Shows the measurement that begins.
    pub fn update(&mut self, what: String) {
        if let Some(bar) = &self.bar {
            bar.set_message(what);
            bar.inc(1);
        }
    }

    pub fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

const CHECK_TEMPLATE: &str =
    "tameike: checking {bar:30} {bytes}/{total_bytes}, {binary_bytes_per_sec}, {eta} left";

/// The display of a check. It shows nothing if there is nothing to compare.
pub struct CheckProgress {
    bar: Option<ProgressBar>,
    terminal: bool,
    last_line: Duration,
}

impl CheckProgress {
    pub fn new() -> Self {
        Self { bar: None, terminal: std::io::stderr().is_terminal(), last_line: monotonic() }
    }

    pub fn update(&mut self, done: u64, all: u64) {
        if self.terminal && all > 0 {
            let style = ProgressStyle::with_template(CHECK_TEMPLATE).expect("the template is valid");
            let bar = self.bar.get_or_insert_with(|| ProgressBar::new(all).with_style(style));
            bar.set_length(all);
            bar.set_position(done);
        } else if monotonic() - self.last_line >= LINE_INTERVAL {
            self.last_line = monotonic();
            say(format_args!("checking: {} of {}", show(done), show(all)));
        }
    }

    pub fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
