//! Resident memory of each target's processes over the run, in figures and as a picture.

use super::{COLOURS, FONT, Report, escaped, grouped, svg_page};

const WIDTH: f64 = 980.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 50.0;
const RIGHT: f64 = 170.0;
const BOTTOM: f64 = 50.0;
/// Lines across the picture.
const LINES: u32 = 5;
const MIB: f64 = (1 << 20) as f64;

/// What one target's processes held together.
#[derive(Debug, PartialEq, Eq)]
pub struct Memory {
    /// After the first step.
    pub first_bytes: u64,
    /// The most after any step.
    pub most_bytes: u64,
    /// After the last step.
    pub last_bytes: u64,
    /// Sum of the peaks of all processes, at the end.
    pub peak_bytes: u64,
}

impl Memory {
    /// Of the target `name`, when processes serve it.
    pub fn of(report: &Report, name: &str) -> Option<Self> {
        let points = points(report, name);
        let last = report.figures.samples.iter().rev().find(|sample| sample.target == name)?.servers?;
        Some(Self {
            first_bytes: points.first()?.1,
            most_bytes: points.iter().map(|&(_, bytes)| bytes).max()?,
            last_bytes: last.resident_bytes,
            peak_bytes: last.peak_bytes,
        })
    }
}

/// Seconds and bytes after each step.
fn points(report: &Report, name: &str) -> Vec<(f64, u64)> {
    let samples = report.figures.samples.iter().filter(|sample| sample.target == name);
    samples.filter_map(|sample| Some((sample.at_seconds, sample.servers?.resident_bytes))).collect()
}

/// From seconds and MiB to their place on the page.
struct Axes {
    end_seconds: f64,
    top_mib: f64,
}

impl Axes {
    fn across(&self, seconds: f64) -> f64 {
        LEFT + seconds / self.end_seconds * (WIDTH - LEFT - RIGHT)
    }

    fn down(&self, mib: f64) -> f64 {
        TOP + (1.0 - mib / self.top_mib) * (HEIGHT - TOP - BOTTOM)
    }

    fn draw(&self) -> String {
        let mut text = String::new();
        for step in 0..=LINES {
            let share = f64::from(step) / f64::from(LINES);
            let (mib, seconds) = (share * self.top_mib, share * self.end_seconds);
            text += &format!(
                "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right:.1}\" y2=\"{y:.1}\" stroke=\"#cccccc\"/>\n\
                 <text x=\"{:.1}\" y=\"{:.1}\" font-size=\"9\" text-anchor=\"end\">{}</text>\n\
                 <text x=\"{:.1}\" y=\"{:.1}\" font-size=\"9\" text-anchor=\"middle\">{seconds:.0}</text>\n",
                LEFT - 6.0,
                self.down(mib) + 3.0,
                grouped(mib),
                self.across(seconds),
                HEIGHT - BOTTOM + 16.0,
                y = self.down(mib),
                right = self.across(self.end_seconds),
            );
        }
        text
    }

    fn line(&self, points: &[(f64, u64)], colour: &str) -> String {
        let place = |&(seconds, bytes): &(f64, u64)| {
            format!("{:.1},{:.1}", self.across(seconds), self.down(bytes as f64 / MIB))
        };
        let places: Vec<String> = points.iter().map(place).collect();
        format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\n",
            places.join(" ")
        )
    }
}

/// A line per target whose processes are known; `None` when there is no such target.
pub fn svg(report: &Report) -> Option<String> {
    let servers = report.figures.samples.iter().filter_map(|sample| sample.servers);
    let most = servers.map(|all| all.resident_bytes).max()?;
    let end_seconds = report.figures.samples.iter().map(|sample| sample.at_seconds).fold(1.0, f64::max);
    let axes = Axes { end_seconds, top_mib: (most as f64 / MIB).max(1.0) };
    let title = "Resident memory of each target's processes [MiB] over the run [s]";
    let mut text = svg_page(WIDTH, HEIGHT, FONT, title) + &axes.draw();
    for (index, label) in report.targets.iter().enumerate() {
        let points = points(report, &label.name);
        if points.is_empty() {
            continue;
        }
        let colour = COLOURS[index % COLOURS.len()];
        text += &axes.line(&points, colour);
        text += &format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{}</text>\n",
            WIDTH - RIGHT + 16.0,
            TOP + 10.0 + index as f64 * 18.0,
            escaped(&label.name),
        );
    }
    Some(text + "</svg>\n")
}
