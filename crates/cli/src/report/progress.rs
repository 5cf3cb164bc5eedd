//! How far a drain or a check is: a bar on a terminal, a plain line now and then elsewhere.

use super::say;
use crate::settings::size::show;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;
use tameike_agent::control::Progress;
use tameike_core::wire::admin::Warmed;
use tameike_io::os::process::monotonic;

/// Between two plain lines.
const LINE_INTERVAL: Duration = Duration::from_secs(10);
const TEMPLATE: &str = "tameike: draining {bar:30} {bytes}/{total_bytes}, {binary_bytes_per_sec}, {msg}";

/// The display of one drain. It shows nothing until the agents report something.
pub struct DrainProgress {
    bar: Option<ProgressBar>,
    terminal: bool,
    last_line: Duration,
}

impl DrainProgress {
    /// A display on standard error.
    pub fn new() -> Self {
        Self { bar: None, terminal: std::io::stderr().is_terminal(), last_line: monotonic() }
    }

    /// Shows how far the drain is.
    pub fn update(&mut self, progress: Progress) {
        let total = progress.bytes_flushed + progress.bytes_left;
        let files =
            format!("{} {} left", progress.files_left, super::plural(progress.files_left as usize, "file"));
        if self.terminal {
            let style = ProgressStyle::with_template(TEMPLATE).expect("the template is right");
            let bar = self.bar.get_or_insert_with(|| ProgressBar::new(total).with_style(style));
            bar.set_length(total);
            bar.set_position(progress.bytes_flushed);
            bar.set_message(files);
        } else if monotonic() - self.last_line >= LINE_INTERVAL {
            self.last_line = monotonic();
            say(format_args!("draining: {} of {}, {files}", show(progress.bytes_flushed), show(total)));
        }
    }

    /// Says something beside the display, which would leave a part of itself on the line.
    pub fn beside(&self, say: impl FnOnce()) {
        match &self.bar {
            Some(bar) => bar.suspend(say),
            None => say(),
        }
    }

    /// Takes the display away.
    pub fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

const WARM_TEMPLATE: &str = "tameike: loading {spinner} {bytes}, {binary_bytes_per_sec}, {msg}";

/// The display of a loading, of which nobody knows how long it will take. It shows nothing until something is told.
pub struct WarmProgress {
    bar: Option<ProgressBar>,
    terminal: bool,
    last_line: Duration,
}

impl WarmProgress {
    /// A display on standard error.
    pub fn new() -> Self {
        Self { bar: None, terminal: std::io::stderr().is_terminal(), last_line: monotonic() }
    }

    /// So much is loaded.
    pub fn update(&mut self, so_far: &Warmed) {
        let files = format!("{} {}", so_far.files, super::plural(so_far.files as usize, "file"));
        if self.terminal {
            let style = ProgressStyle::with_template(WARM_TEMPLATE).expect("the template is right");
            let bar = self.bar.get_or_insert_with(|| ProgressBar::no_length().with_style(style));
            bar.set_position(so_far.bytes);
            bar.set_message(files);
        } else if monotonic() - self.last_line >= LINE_INTERVAL {
            self.last_line = monotonic();
            say(format_args!("loading: {} so far, {files}", show(so_far.bytes)));
        }
    }

    /// Takes the display away.
    pub fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

const BENCH_TEMPLATE: &str = "tameike: measuring {bar:30} {pos}/{len}, {msg}";

/// The display of measurements. It shows nothing but on a terminal.
pub struct BenchProgress {
    bar: Option<ProgressBar>,
}

impl BenchProgress {
    /// A display of so many measurements on standard error.
    pub fn new(count: u64) -> Self {
        let style = ProgressStyle::with_template(BENCH_TEMPLATE).expect("the template is right");
        let is_shown = std::io::stderr().is_terminal();
        Self { bar: is_shown.then(|| ProgressBar::new(count).with_style(style)) }
    }

    /// The next one begins.
    pub fn update(&mut self, what: String) {
        if let Some(bar) = &self.bar {
            bar.set_message(what);
            bar.inc(1);
        }
    }

    /// Takes the display away.
    pub fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

const CHECK_TEMPLATE: &str =
    "tameike: checking {bar:30} {bytes}/{total_bytes}, {binary_bytes_per_sec}, {eta} left";

/// The display of a check. It shows nothing where there is nothing to compare.
pub struct CheckProgress {
    bar: Option<ProgressBar>,
    terminal: bool,
    last_line: Duration,
}

impl CheckProgress {
    /// A display on standard error.
    pub fn new() -> Self {
        Self { bar: None, terminal: std::io::stderr().is_terminal(), last_line: monotonic() }
    }

    /// So many of so many bytes are compared.
    pub fn update(&mut self, done: u64, all: u64) {
        if self.terminal && all > 0 {
            let style = ProgressStyle::with_template(CHECK_TEMPLATE).expect("the template is right");
            let bar = self.bar.get_or_insert_with(|| ProgressBar::new(all).with_style(style));
            bar.set_length(all);
            bar.set_position(done);
        } else if monotonic() - self.last_line >= LINE_INTERVAL {
            self.last_line = monotonic();
            say(format_args!("checking: {} of {}", show(done), show(all)));
        }
    }

    /// Takes the display away.
    pub fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
