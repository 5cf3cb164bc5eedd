//! The report as a picture: a panel per step, a line per target, a dot at the median of its rates.
//!
//! The axes are logarithmic, as a file system in memory may be a hundred times as fast as one over a network:
//! equal distances are equal ratios. Written as SVG by hand: lines, dots and text are all it needs.

use super::row::{Cell, Row};
use super::{COLOURS, FONT, Report, escaped, grouped, ratio_text, svg_page};
use crate::target::Label;

const COLUMNS: usize = 2;
const PANEL_WIDTH: usize = 540;
const TITLE_HEIGHT: usize = 30;
const LINE_HEIGHT: usize = 20;
const AXIS_HEIGHT: usize = 34;
const MARGIN: usize = 20;
const HEAD_HEIGHT: usize = 50;
const LABEL_WIDTH: usize = 100;
const VALUE_WIDTH: usize = 130;

/// The picture of a report.
pub fn of_report(report: &Report, rows: &[Row]) -> String {
    let Report { ranks, nodes, repetitions, base, .. } = report;
    let title = format!(
        "Rates, higher is better; {ranks} ranks, up to {nodes} nodes, median of {repetitions} with lowest and highest; \
         (ratio to {base})"
    );
    svg(&title, &report.targets, rows)
}

/// The picture of `rows`, whose cells are those of `targets`.
pub fn svg(title: &str, targets: &[Label], rows: &[Row]) -> String {
    let panel_height = TITLE_HEIGHT + targets.len() * LINE_HEIGHT + AXIS_HEIGHT;
    let width = COLUMNS * (PANEL_WIDTH + MARGIN) + MARGIN;
    let height = HEAD_HEIGHT + rows.len().div_ceil(COLUMNS) * panel_height + MARGIN;
    let mut text = svg_page(width as f64, height as f64, FONT, &escaped(title));
    for (index, row) in rows.iter().enumerate() {
        let left = MARGIN + (index % COLUMNS) * (PANEL_WIDTH + MARGIN);
        let top = HEAD_HEIGHT + (index / COLUMNS) * panel_height;
        text += &panel(targets, row, left, top);
    }
    text + "</svg>\n"
}

/// From a rate to its place on the page.
#[derive(Clone, Copy, Debug)]
struct Axis {
    start: usize,
    /// The decades at both ends: 3 stands for 1,000.
    first: i32,
    last: i32,
}

impl Axis {
    /// Whole decades that hold all rates of `row`.
    fn over(row: &Row, start: usize) -> Self {
        let cells = || row.cells.iter().flatten();
        let lowest = cells().map(|cell| cell.lowest).fold(f64::INFINITY, f64::min);
        let highest = cells().map(|cell| cell.highest).fold(0.0, f64::max);
        let first = lowest.log10().floor() as i32;
        Self { start, first, last: (highest.log10().ceil() as i32).max(first + 1) }
    }

    fn at(self, rate: f64) -> f64 {
        let share = (rate.log10() - f64::from(self.first)) / f64::from(self.last - self.first);
        self.start as f64 + share * (PANEL_WIDTH - LABEL_WIDTH - VALUE_WIDTH) as f64
    }
}

fn panel(targets: &[Label], row: &Row, left: usize, top: usize) -> String {
    let axis = Axis::over(row, left + LABEL_WIDTH);
    let first_line = top + TITLE_HEIGHT;
    let bottom = first_line + row.cells.len() * LINE_HEIGHT;
    let mut text = format!(
        "<text x=\"{left}\" y=\"{}\" font-size=\"11\" font-weight=\"bold\">{}: {} [{}]</text>\n",
        first_line - 10,
        row.group,
        escaped(&row.title),
        row.unit.name()
    );
    for decade in axis.first..=axis.last {
        let rate = 10f64.powi(decade);
        text += &format!(
            "<line x1=\"{at:.1}\" y1=\"{first_line}\" x2=\"{at:.1}\" y2=\"{bottom}\" stroke=\"#cccccc\"/>\n\
             <text x=\"{at:.1}\" y=\"{}\" font-size=\"9\" fill=\"#666666\" text-anchor=\"middle\">{}</text>\n",
            bottom + 11,
            if rate < 99.5 { rate.to_string() } else { grouped(rate) },
            at = axis.at(rate),
        );
    }
    for (index, (label, cell)) in targets.iter().zip(&row.cells).enumerate() {
        let baseline = first_line + index * LINE_HEIGHT + LINE_HEIGHT / 2 + 4;
        text += &format!(
            "<text x=\"{}\" y=\"{baseline}\" text-anchor=\"end\">{}</text>\n",
            left + LABEL_WIDTH - 8,
            escaped(&label.name)
        );
        let value = left + PANEL_WIDTH - VALUE_WIDTH + 10;
        text += &match cell {
            Some(cell) => line(cell, axis, COLOURS[index % COLOURS.len()], value, baseline),
            None => format!("<text x=\"{value}\" y=\"{baseline}\">no figure</text>\n"),
        };
    }
    text
}

fn line(cell: &Cell, axis: Axis, colour: &str, value: usize, baseline: usize) -> String {
    format!(
        "<line x1=\"{lowest:.1}\" y1=\"{middle}\" x2=\"{highest:.1}\" y2=\"{middle}\" stroke=\"{colour}\" stroke-width=\"3\"/>\n\
         <circle cx=\"{median:.1}\" cy=\"{middle}\" r=\"5\" fill=\"{colour}\"/>\n\
         <text x=\"{value}\" y=\"{baseline}\">{rate}{ratio}</text>\n",
        middle = baseline - 4,
        lowest = axis.at(cell.lowest),
        highest = axis.at(cell.highest),
        median = axis.at(cell.median),
        rate = grouped(cell.median),
        ratio = cell.ratio.map_or_else(String::new, |ratio| format!(" ({})", ratio_text(ratio))),
    )
}
