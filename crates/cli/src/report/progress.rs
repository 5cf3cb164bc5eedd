//! Progress of drains, loads, checks and measurements: a bar on a terminal, else a line every ten seconds.

use super::{plural, say};
use crate::settings::size::show;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::Duration;
use tameike_agent::control::Progress;
use tameike_core::wire::admin::Warmed;
use tameike_io::os::process::monotonic;

/// Interval of lines without a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// The bar of a drain.
pub const DRAIN: &str = "tameike: draining {bar:30} {bytes}/{total_bytes}, {binary_bytes_per_sec}, {msg}";
/// The bar of `cache warm`, whose total is unknown.
pub const WARM: &str = "tameike: loading {spinner} {bytes}, {binary_bytes_per_sec}, {msg}";
/// The bar of measurements.
pub const BENCH: &str = "tameike: measuring {bar:30} {pos}/{len}, {msg}";
/// The bar of a check.
pub const CHECK: &str =
    "tameike: checking {bar:30} {bytes}/{total_bytes}, {binary_bytes_per_sec}, {eta} left";

/// The bar of a change of the nodes of a job, whose total may grow.
pub const RESIZE: &str = "tameike: {spinner} {msg}";

/// The display of one operation. It shows nothing before the first update.
pub struct Display {
    template: &'static str,
    bar: Option<ProgressBar>,
    terminal: bool,
    last_line: Duration,
}

impl Display {
    pub fn new(template: &'static str) -> Self {
        Self { template, bar: None, terminal: std::io::stderr().is_terminal(), last_line: monotonic() }
    }

    pub fn drained(&mut self, progress: Progress) {
        let Progress { files_left, bytes_left, bytes_flushed } = progress;
        let total = bytes_flushed + bytes_left;
        let files = format!("{files_left} {} left", plural(files_left as usize, "file"));
        let line = format!("draining: {} of {}, {files}", show(bytes_flushed), show(total));
        self.update(bytes_flushed, Some(total), files, line);
    }

    pub fn warmed(&mut self, so_far: &Warmed) {
        let files = format!("{} {}", so_far.files, plural(so_far.files as usize, "file"));
        let line = format!("loading: {} so far, {files}", show(so_far.bytes));
        self.update(so_far.bytes, None, files, line);
    }

    pub fn resizing(&mut self, copies: u64) {
        let left = match copies {
            1 => "1 copy of a home left to move".to_owned(),
            _ => format!("{copies} copies of homes left to move"),
        };
        self.update(copies, None, left.clone(), left);
    }

    /// There is no bar if there is nothing to compare.
    pub fn checked(&mut self, done: u64, all: u64) {
        let line = format!("checking: {} of {}", show(done), show(all));
        match all {
            0 => self.print(line),
            _ => self.update(done, Some(all), String::new(), line),
        }
    }

    /// Shows the measurement that begins, only on a terminal.
    pub fn measuring(&mut self, number: u64, count: u64, what: String) {
        if self.terminal {
            self.draw(number, Some(count), what);
        }
    }

    fn update(&mut self, done: u64, total: Option<u64>, message: String, line: String) {
        if self.terminal { self.draw(done, total, message) } else { self.print(line) }
    }

    fn draw(&mut self, done: u64, total: Option<u64>, message: String) {
        let style = ProgressStyle::with_template(self.template).expect("the template is valid");
        let new = || total.map_or_else(ProgressBar::no_length, ProgressBar::new).with_style(style);
        let bar = self.bar.get_or_insert_with(new);
        total.into_iter().for_each(|total| bar.set_length(total));
        bar.set_position(done);
        bar.set_message(message);
    }

    fn print(&mut self, line: String) {
        if monotonic() - self.last_line >= LINE_INTERVAL {
            self.last_line = monotonic();
            say(format_args!("{line}"));
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
