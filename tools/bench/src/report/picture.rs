//! The report as a picture: a panel per step, a bar per target, whiskers from the lowest to the highest rate.
//!
//! Written as SVG by hand: rectangles, lines and text are all it needs.

use super::{Cell, Report, Row, grouped};

const COLUMNS: usize = 2;
const PANEL_WIDTH: usize = 460;
const TITLE_HEIGHT: usize = 30;
const BAR_HEIGHT: usize = 20;
const GAP: usize = 6;
const MARGIN: usize = 20;
const HEAD_HEIGHT: usize = 50;
const LABEL_WIDTH: usize = 90;
const VALUE_WIDTH: usize = 120;
/// Told apart also by people who see few colours (Okabe and Ito).
const COLOURS: [&str; 6] = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00"];

/// The picture of `rows`.
pub fn svg(report: &Report, rows: &[Row]) -> String {
    let panel_height = TITLE_HEIGHT + report.targets.len() * (BAR_HEIGHT + GAP) + MARGIN;
    let width = COLUMNS * (PANEL_WIDTH + MARGIN) + MARGIN;
    let height = HEAD_HEIGHT + rows.len().div_ceil(COLUMNS) * panel_height + MARGIN;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"{MARGIN}\" y=\"26\" font-size=\"15\">Rates, higher is better; {ranks} ranks on {nodes} nodes, median \
         of {repetitions}, lowest and highest; ratio to {base}</text>\n",
        ranks = report.ranks,
        nodes = report.nodes,
        repetitions = report.repetitions,
        base = escaped(&report.base),
    );
    for (index, row) in rows.iter().enumerate() {
        let left = MARGIN + (index % COLUMNS) * (PANEL_WIDTH + MARGIN);
        let top = HEAD_HEIGHT + (index / COLUMNS) * panel_height;
        text += &panel(row, left, top);
    }
    text + "</svg>\n"
}

fn panel(row: &Row, left: usize, top: usize) -> String {
    let most = row.cells.iter().map(|cell| cell.highest).fold(0.0, f64::max);
    let title = format!("{} [{}]", escaped(row.title), row.unit.name());
    let mut text =
        format!("<text x=\"{left}\" y=\"{}\" font-weight=\"bold\">{title}</text>\n", top + TITLE_HEIGHT - 12);
    for (index, cell) in row.cells.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        text += &bar(cell, most, colour, left, top + TITLE_HEIGHT + index * (BAR_HEIGHT + GAP));
    }
    text
}

fn bar(cell: &Cell, most: f64, colour: &str, left: usize, top: usize) -> String {
    let start = left + LABEL_WIDTH;
    let room = (PANEL_WIDTH - LABEL_WIDTH - VALUE_WIDTH) as f64;
    let at = |rate: f64| start as f64 + rate / most * room;
    let (middle, baseline) = (top + BAR_HEIGHT / 2, top + BAR_HEIGHT / 2 + 4);
    let (lowest, median, highest) = (at(cell.lowest), at(cell.median), at(cell.highest));
    format!(
        "<text x=\"{label}\" y=\"{baseline}\" text-anchor=\"end\">{name}</text>\n\
         <rect x=\"{start}\" y=\"{top}\" width=\"{width:.1}\" height=\"{BAR_HEIGHT}\" fill=\"{colour}\"/>\n\
         <line x1=\"{lowest:.1}\" y1=\"{middle}\" x2=\"{highest:.1}\" y2=\"{middle}\" stroke=\"black\"/>\n\
         <text x=\"{value:.1}\" y=\"{baseline}\">{rate} ({ratio:.2})</text>\n",
        label = start - 6,
        name = escaped(&cell.target),
        width = median - start as f64,
        value = highest + 6.0,
        rate = grouped(cell.median),
        ratio = cell.ratio,
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
