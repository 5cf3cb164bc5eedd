//! Draws `tameike bench net --json` as SVG: a panel per figure over the sizes of messages, a line per fabric, both axes logarithmic.

use crate::options::PictureOptions;
use crate::outcome::{Context, Outcome};
use crate::report::{COLOURS, FONT, escaped, svg_page};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::BufReader;

const PANEL_WIDTH: f64 = 470.0;
const PANEL_HEIGHT: f64 = 300.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = 32.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 40.0;
const HEAD: f64 = 62.0;
const COLUMNS: usize = 3;
const LEGEND_STEP: f64 = 300.0;

/// The measurements.
#[derive(Deserialize)]
struct Network {
    series: Vec<Series>,
}

/// Those of two nodes over one fabric.
#[derive(Deserialize)]
struct Series {
    fabric: String,
    nodes: [u32; 2],
    outcomes: Vec<Point>,
}

/// One figure for one message size.
#[derive(Deserialize)]
struct Point {
    quantity: String,
    size: u32,
    median: f64,
    unit: String,
}

/// Prints the picture.
pub fn run(options: &PictureOptions) -> Outcome<()> {
    let path = options.json.display();
    let file = File::open(&options.json).context(|| format!("open {path}"))?;
    let network = serde_json::from_reader(BufReader::new(file)).context(|| format!("parse {path}"))?;
    print!("{}", svg(&network));
    Ok(())
}

fn svg(network: &Network) -> String {
    let points = || network.series.iter().flat_map(|series| &series.outcomes);
    let quantities: BTreeSet<&str> = points().map(|point| point.quantity.as_str()).collect();
    let rows = quantities.len().div_ceil(COLUMNS);
    let (width, height) = (COLUMNS as f64 * PANEL_WIDTH, HEAD + rows as f64 * PANEL_HEIGHT);
    let title = "Network between two agents, by message size; medians";
    let mut text = svg_page(width, height, FONT, title);
    for (index, Series { fabric, nodes: [one, other], .. }) in network.series.iter().enumerate() {
        let (x, colour) = (16.0 + index as f64 * LEGEND_STEP, COLOURS[index % COLOURS.len()]);
        text += &format!(
            "<text x=\"{x}\" y=\"48\" fill=\"{colour}\">{}: nodes {one} and {other}</text>\n",
            escaped(fabric)
        );
    }
    for (index, quantity) in quantities.into_iter().enumerate() {
        let left = (index % COLUMNS) as f64 * PANEL_WIDTH;
        text += &panel(network, quantity, left, HEAD + (index / COLUMNS) as f64 * PANEL_HEIGHT);
    }
    text + "</svg>\n"
}

/// Positions of values on the page; equal distances are equal ratios.
struct Axis {
    low: f64,
    high: f64,
    start: f64,
    end: f64,
}

impl Axis {
    fn at(&self, value: f64) -> f64 {
        let share = (value / self.low).ln() / (self.high / self.low).ln();
        self.start + share * (self.end - self.start)
    }
}

fn panel(network: &Network, quantity: &str, left: f64, top: f64) -> String {
    let of = |series: &Series| -> Vec<(f64, f64)> {
        // A rate of 0, by its rounding, has no position.
        let points = series.outcomes.iter().filter(|point| point.quantity == quantity && point.median > 0.0);
        points.map(|point| (f64::from(point.size), point.median)).collect()
    };
    let lines: Vec<Vec<(f64, f64)>> = network.series.iter().map(of).collect();
    let range = |value: fn(&(f64, f64)) -> f64| {
        let values = || lines.iter().flatten().map(value);
        (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max))
    };
    let ((first, last), (low, high)) = (range(|point| point.0), range(|point| point.1));
    if last == 0.0 {
        return String::new();
    }
    let x =
        Axis { low: first, high: last.max(2.0 * first), start: left + LEFT, end: left + PANEL_WIDTH - RIGHT };
    let lowest = low.log10().floor() as i32;
    let highest = (high.log10().ceil() as i32).max(lowest + 1);
    let (low, high) = (10f64.powi(lowest), 10f64.powi(highest));
    let y = Axis { low, high, start: top + PANEL_HEIGHT - BOTTOM, end: top + TOP };
    let units = network.series.iter().flat_map(|series| &series.outcomes);
    let unit = units.filter(|point| point.quantity == quantity).map(|point| point.unit.as_str()).next();
    let mut text = format!(
        "<text x=\"{}\" y=\"{}\" font-weight=\"bold\">{}, {}</text>\n",
        x.start,
        y.end - 10.0,
        escaped(quantity),
        escaped(unit.unwrap_or_default())
    );
    for decade in lowest..=highest {
        let value = 10f64.powi(decade);
        text += &grid(x.start, y.at(value), x.end, y.at(value), (x.start - 30.0, y.at(value) + 4.0), value);
    }
    for size in (0..32).step_by(4).map(|power| f64::from(1_u32 << power)) {
        if (first..=last).contains(&size) {
            let at = x.at(size);
            text += &grid(at, y.start, at, y.end, (at - 20.0, y.start + 18.0), size);
        }
    }
    for (index, line) in lines.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let points: Vec<String> =
            line.iter().map(|&(size, value)| format!("{:.1},{:.1}", x.at(size), y.at(value))).collect();
        text += &format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2.5\"/>\n",
            points.join(" ")
        );
    }
    text
}

/// A line of the grid with its value.
fn grid(x1: f64, y1: f64, x2: f64, y2: f64, (x, y): (f64, f64), value: f64) -> String {
    format!(
        "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"#dddddd\"/>\n\
         <text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"#666666\">{value}</text>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_series_has_a_line_of_finite_points_in_each_panel() {
        let outcome = |quantity: &str, size: u32, median: f64| {
            format!(r#"{{"quantity":"{quantity}","size":{size},"median":{median},"unit":"us"}}"#)
        };
        let outcomes = [outcome("put", 1, 0.0), outcome("put", 4096, 3.5), outcome("latency", 16, 20.0)];
        let series =
            |fabric| format!(r#"{{"fabric":"{fabric}","nodes":[0,2],"outcomes":[{}]}}"#, outcomes.join(","));
        let json = format!(r#"{{"version":"1","series":[{},{}]}}"#, series("auto"), series("a<b"));
        let text = svg(&serde_json::from_str(&json).expect("JSON"));
        assert_eq!(text.matches("<polyline").count(), 4, "{text}");
        assert!(text.contains("a&lt;b: nodes 0 and 2") && !text.contains("NaN") && !text.contains("inf"));
        assert!(svg(&Network { series: Vec::new() }).ends_with("</svg>\n"));
    }
}
