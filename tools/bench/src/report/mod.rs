//! The report of a run: raw figures as JSON, medians and ratios as Markdown, and charts as SVG.

mod figure;
mod machine;
mod memory;
mod picture;
mod row;
mod sample;
pub mod table;

#[cfg(test)]
mod tests;

pub use figure::Figure;
pub use machine::Machine;
pub use picture::svg as picture;
pub use row::{Cell, Row, median};
pub use sample::Sample;

use crate::coordinator::Done;
use crate::options::RunOptions;
use crate::outcome::{Context, Outcome};
use crate::target::{Label, Target};
use crate::workload::{Step, Workload};
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

/// A workload that another file system failed at.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    pub workload: Workload,
    pub target: String,
    pub message: String,
}

/// What was measured.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Figures {
    /// Every step, every time.
    pub samples: Vec<Sample>,
    /// Where there is no figure, and why.
    pub failures: Vec<Failure>,
}

impl Figures {
    /// Adds the measurements of one turn, and prints its rates.
    pub fn add(&mut self, workload: Workload, target: &Target, repetition: u32, done: &[Done]) {
        let name = &target.label.name;
        let measured = done.iter().filter(|done| done.step.unit().is_some());
        let samples: Vec<_> = measured.map(|done| Sample::new(workload, name, repetition, done)).collect();
        let rates: Vec<String> = samples.iter().map(Sample::summary).collect();
        println!("{workload:?} {name}: {}", rates.join(", "));
        self.samples.extend(samples);
    }

    /// Records that `target` failed at `workload`, and drops its figures of earlier repetitions.
    pub fn fail(&mut self, workload: Workload, target: &str, message: String) {
        println!("{workload:?} {target}: {message}");
        self.samples.retain(|sample| sample.workload != workload || sample.target != target);
        self.failures.push(Failure { workload, target: target.to_owned(), message });
    }

    /// Returns true if `target` has failed at `workload`.
    pub fn has_failed(&self, workload: Workload, target: &str) -> bool {
        self.failures.iter().any(|failure| failure.workload == workload && failure.target == target)
    }
}

/// The content of `result.json`.
#[derive(Debug, Serialize)]
pub struct Report {
    machine: Machine,
    targets: Vec<Label>,
    base: String,
    ranks: u32,
    nodes: u32,
    repetitions: u32,
    #[serde(flatten)]
    figures: Figures,
}

impl Report {
    /// The report of `figures`, with ratios to the target `base`.
    pub fn new(options: &RunOptions, targets: &[Target], base: String, figures: Figures) -> Outcome<Self> {
        let targets = targets.iter().map(|target| target.label.clone()).collect();
        let repetitions = figures.samples.iter().map(|sample| sample.repetition + 1).max().unwrap_or(0);
        let (ranks, nodes) = (options.ranks, options.nodes);
        Ok(Self { machine: Machine::detect()?, targets, base, ranks, nodes, repetitions, figures })
    }

    /// Writes all its files to `place`.
    pub fn write(&self, place: &Path) -> Outcome<()> {
        let rows = self.rows();
        let raw = serde_json::to_string_pretty(self).context(|| "write the figures")?;
        let mut files = vec![
            ("result.json", raw + "\n"),
            ("report.md", table::markdown(self, &rows)),
            ("rates.svg", picture::of_report(self, &rows)),
        ];
        files.extend(memory::svg(self).map(|picture| ("memory.svg", picture)));
        write_files(place, &files)
    }

    /// A row per measured step, group by group, in the order of the run.
    fn rows(&self) -> Vec<Row> {
        let mut steps: Vec<(Workload, Step)> = Vec::new();
        for sample in &self.figures.samples {
            if !steps.contains(&(sample.workload, sample.step)) {
                steps.push((sample.workload, sample.step));
            }
        }
        steps.sort_by_key(|(workload, _)| workload.group());
        steps.into_iter().filter_map(|(workload, step)| Row::new(self, workload, step)).collect()
    }
}

/// Makes the directory of a report, and calls `write` with it. Removes the directory if that fails: it must not pass for a report.
pub fn in_directory(out: &Path, name: &str, write: impl FnOnce(&Path) -> Outcome<()>) -> Outcome<()> {
    let place = make_directory(out, name)?;
    let outcome = write(&place);
    match &outcome {
        Ok(()) => println!("report: {}", place.join("report.md").display()),
        Err(_) => drop(fs::remove_dir(&place)),
    }
    outcome
}

/// Makes the directory of a report, which must not exist.
fn make_directory(out: &Path, name: &str) -> Outcome<PathBuf> {
    let place = out.join(format!("{}-{name}", machine::date()?));
    fs::create_dir_all(out).context(|| format!("make {}", out.display()))?;
    fs::create_dir(&place).context(|| format!("make {} (take another --name?)", place.display()))?;
    Ok(place)
}

/// Writes the files of a report.
pub fn write_files(place: &Path, files: &[(impl AsRef<Path>, String)]) -> Outcome<()> {
    for (name, text) in files {
        let path = place.join(name);
        fs::write(&path, text).context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

/// A rate for people: 12,345 or 6.78.
fn grouped(rate: f64) -> String {
    if rate < 99.5 {
        return format!("{rate:.1}");
    }
    let digits = format!("{rate:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A ratio with two significant digits: 1.25 or 0.012.
pub fn ratio_text(ratio: f64) -> String {
    match ratio {
        ..0.01 => format!("{ratio:.4}"),
        ..0.1 => format!("{ratio:.3}"),
        _ => format!("{ratio:.2}"),
    }
}

/// The begin of an SVG picture: a white page, and a title above it.
pub fn svg_page(width: f64, height: f64, font: &str, title: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" {font}>\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"16\" y=\"24\" font-family=\"sans-serif\" font-size=\"15\">{title}</text>\n"
    )
}

/// The font of a picture.
pub const FONT: &str = "font-family=\"sans-serif\" font-size=\"12\"";

/// Text as it stands in a picture.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The palette of Okabe and Ito, for readers with any colour vision.
pub const COLOURS: [&str; 7] = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#666666"];
