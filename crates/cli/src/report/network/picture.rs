//! The picture of network measurements: a panel per quantity over message sizes, a line per fabric, logarithmic axes. It is
//! written as SVG directly, because it needs only lines and text.

use super::{Network, Outcome, Quantity, median, name};
use crate::settings::size::show;

const PANEL_WIDTH: f64 = 470.0;
const PANEL_HEIGHT: f64 = 300.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = 32.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 40.0;
const HEAD: f64 = 62.0;
const COLUMNS: usize = 3;
const LEGEND_STEP: f64 = 300.0;
/// The palette of Okabe and Ito, which colour-blind readers can distinguish.
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

pub fn picture(network: &Network) -> String {
    let rows = Quantity::ALL.len().div_ceil(COLUMNS);
    let (width, height) = (COLUMNS as f64 * PANEL_WIDTH, HEAD + rows as f64 * PANEL_HEIGHT);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"16\" y=\"24\" font-size=\"15\">Network between two agents, by message size; medians, latency with the 90th \
         percentile (thin)</text>\n"
    );
    for (place, series) in network.series.iter().enumerate() {
        let (x, colour) = (16.0 + place as f64 * LEGEND_STEP, COLOURS[place % COLOURS.len()]);
        let [one, other] = series.nodes;
        let label = format!("{}: node {one} with node {other}", series.fabric);
        text += &format!(
            "<line x1=\"{x}\" y1=\"44\" x2=\"{}\" y2=\"44\" stroke=\"{colour}\" stroke-width=\"3\"/>\n\
             <text x=\"{}\" y=\"48\">{}</text>\n",
            x + 24.0,
            x + 30.0,
            escaped(&label)
        );
    }
    for (place, quantity) in Quantity::ALL.into_iter().enumerate() {
        let left = (place % COLUMNS) as f64 * PANEL_WIDTH;
        let top = HEAD + (place / COLUMNS) as f64 * PANEL_HEIGHT;
        text += &panel(network, quantity, left, top);
    }
    text + "</svg>\n"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// A logarithmic axis: maps a value to its position on the page.
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

/// Returns the decades that include all values; none without values.
fn decades(values: impl Iterator<Item = f64> + Clone) -> Option<(i32, i32)> {
    let (low, high) = (values.clone().fold(f64::INFINITY, f64::min), values.fold(0.0, f64::max));
    let first = low.log10().floor() as i32;
    (low > 0.0 && high.is_finite() && low <= high)
        .then(|| (first, (high.log10().ceil() as i32).max(first + 1)))
}

fn panel(network: &Network, quantity: Quantity, left: f64, top: f64) -> String {
    let outcomes =
        |place: usize| network.series[place].outcomes.iter().filter(move |one| one.quantity == quantity);
    let all = || (0..network.series.len()).flat_map(outcomes);
    let sizes = || all().map(|one| f64::from(one.size));
    let values = all().flat_map(|one| [Some(median(one)), ninety(one)]).flatten();
    let Some((first, last)) = decades(values) else { return String::new() };
    let (low, high) = (sizes().fold(f64::INFINITY, f64::min), sizes().fold(1.0, f64::max));
    let x = Axis { low, high: high.max(2.0 * low), start: left + LEFT, end: left + PANEL_WIDTH - RIGHT };
    let (bottom, ceiling) = (top + PANEL_HEIGHT - BOTTOM, top + TOP);
    let y = Axis { low: 10f64.powi(first), high: 10f64.powi(last), start: bottom, end: ceiling };
    let unit = if quantity == Quantity::Latency { "us, lower is better" } else { "MB/s, higher is better" };
    let mut text = format!(
        "<text x=\"{}\" y=\"{}\" font-weight=\"bold\">{}</text>\n\
         <text x=\"{}\" y=\"{}\" fill=\"#666666\" text-anchor=\"end\">{unit}</text>\n",
        x.start,
        top + TOP - 10.0,
        name(quantity),
        x.end,
        top + TOP - 10.0
    );
    text += &grid(&x, &y, (first, last));
    for place in 0..network.series.len() {
        let colour = COLOURS[place % COLOURS.len()];
        let line = |value: &dyn Fn(&Outcome) -> Option<f64>, style: &str| {
            let point = |one: &Outcome| {
                value(one).map(|value| format!("{:.1},{:.1}", x.at(one.size.into()), y.at(value)))
            };
            let points: Vec<_> = outcomes(place).filter_map(point).collect();
            format!("<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" {style}/>\n", points.join(" "))
        };
        text += &line(&|one| Some(median(one)), "stroke-width=\"2.5\"");
        text += &line(&ninety, "stroke-width=\"1\" stroke-dasharray=\"3 3\"");
        for one in outcomes(place) {
            let (cx, cy) = (x.at(one.size.into()), y.at(median(one)));
            text += &format!("<circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"3\" fill=\"{colour}\"/>\n");
        }
    }
    text
}

fn ninety(outcome: &Outcome) -> Option<f64> {
    outcome.half_trips.map(|trips| trips.p90 as f64 / 1000.0)
}

fn grid(x: &Axis, y: &Axis, (first, last): (i32, i32)) -> String {
    let mut text = String::new();
    for decade in first..=last {
        let value = 10f64.powi(decade);
        let at = y.at(value);
        text += &format!(
            "<line x1=\"{}\" y1=\"{at:.1}\" x2=\"{}\" y2=\"{at:.1}\" stroke=\"#dddddd\"/>\n\
             <text x=\"{}\" y=\"{:.1}\" fill=\"#666666\" text-anchor=\"end\">{value}</text>\n",
            x.start,
            x.end,
            x.start - 6.0,
            at + 4.0
        );
    }
    let powers = (0..=u64::from(u32::MAX).ilog2()).map(|power| 1_u64 << power);
    for size in powers.filter(|size| size.ilog2() % 4 == 0) {
        let value = size as f64;
        if value < x.low || value > x.high {
            continue;
        }
        let at = x.at(value);
        text += &format!(
            "<line x1=\"{at:.1}\" y1=\"{}\" x2=\"{at:.1}\" y2=\"{}\" stroke=\"#dddddd\"/>\n\
             <text x=\"{at:.1}\" y=\"{}\" fill=\"#666666\" text-anchor=\"middle\">{}</text>\n",
            y.start,
            y.end,
            y.start + 18.0,
            show(size)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::tests::network;
    use super::*;

    #[test]
    fn every_point_is_in_its_panel_and_every_series_has_lines() {
        let text = picture(&network());
        let number = |part: &str, name: &str| {
            let rest = &part[part.find(&format!(" {name}=\""))? + name.len() + 3..];
            rest[..rest.find('"')?].parse::<f64>().ok()
        };
        let circles: Vec<_> = text.split("<circle").skip(1).collect();
        assert_eq!(circles.len(), 2 * 2 * Quantity::ALL.len());
        for circle in circles {
            let (x, y) = (number(circle, "cx").expect("a place"), number(circle, "cy").expect("a place"));
            let column = (x / PANEL_WIDTH).floor() * PANEL_WIDTH;
            assert!((LEFT..=PANEL_WIDTH - RIGHT + 0.1).contains(&(x - column)), "{circle}");
            let row = ((y - HEAD) / PANEL_HEIGHT).floor() * PANEL_HEIGHT + HEAD;
            assert!((TOP - 0.1..=PANEL_HEIGHT - BOTTOM + 0.1).contains(&(y - row)), "{circle}");
        }
        assert!(text.contains("auto: node 0 with node 2") && text.contains(">1.00 MiB<"), "{text}");
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        assert!(picture(&Network::default()).ends_with("</svg>\n"));
    }
}
