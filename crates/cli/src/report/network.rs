//! Output of network measurements: as a table, as JSON, and as CSV.

use super::table;
use crate::settings::size::show;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io::Write;
use tameike_core::JobId;
use tameike_core::wire::measure::{Outcome, Quantity, Repetition};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// One series per pair of nodes and fabric.
    pub series: Vec<Series>,
}

/// Measurements between two nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Series {
    pub job: JobId,
    /// The transport between its agents.
    pub fabric: String,
    /// The node that measured, and its peer.
    pub nodes: [u32; 2],
    pub hosts: [String; 2],
    pub outcomes: Vec<Outcome>,
}

pub fn name(quantity: Quantity) -> &'static str {
    match quantity {
        Quantity::Latency => "latency",
        Quantity::OneWay => "one way",
        Quantity::BothWays => "both ways",
        Quantity::Put => "put",
        Quantity::Get => "get",
    }
}

/// Returns the median: one-way latency in microseconds ([`Quantity::Latency`]), else bandwidth in 10^6 bytes per second.
fn median(outcome: &Outcome) -> f64 {
    if let Some(trips) = outcome.one_way {
        return trips.median as f64 / 1000.0;
    }
    let figure = |one: &Repetition| {
        one.messages as f64 * f64::from(outcome.size) * 1000.0 / one.nanoseconds.max(1) as f64
    };
    let mut figures: Vec<_> = outcome.repetitions.iter().map(figure).collect();
    figures.sort_by(f64::total_cmp);
    let middle = figures.len() / 2;
    match figures.len() {
        0 => f64::NAN,
        count if count % 2 == 0 => (figures[middle - 1] + figures[middle]) / 2.0,
        _ => figures[middle],
    }
}

/// Formats a value with three digits.
fn figure(value: f64) -> String {
    let digits = if value >= 99.95 {
        0
    } else if value >= 9.995 {
        1
    } else {
        2
    };
    format!("{value:.digits$}")
}

impl Series {
    fn find(&self, quantity: Quantity, size: u32) -> Option<&Outcome> {
        self.outcomes.iter().find(|one| (one.quantity, one.size) == (quantity, size))
    }

    fn sizes(&self) -> BTreeSet<u32> {
        self.outcomes.iter().map(|outcome| outcome.size).collect()
    }

    fn row(&self, size: u32) -> [String; 7] {
        let none = || "-".to_owned();
        let of = |quantity| self.find(quantity, size).map_or_else(none, |one| figure(median(one)));
        let latency = self.find(Quantity::Latency, size).and_then(|one| one.one_way);
        [
            show(size.into()),
            of(Quantity::Latency),
            latency.map_or_else(none, |trips| figure(trips.p99 as f64 / 1000.0)),
            of(Quantity::OneWay),
            of(Quantity::BothWays),
            of(Quantity::Put),
            of(Quantity::Get),
        ]
    }

    fn write(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let [one, other] = self.nodes;
        let repetitions = self.outcomes.iter().map(|outcome| outcome.repetitions.len()).min().unwrap_or(0);
        writeln!(
            out,
            "job {}, fabric {}: node {one} ({}) with node {other} ({}), medians of {repetitions}",
            self.job, self.fabric, self.hosts[0], self.hosts[1]
        )?;
        let head =
            ["size", "latency us", "99 % us", "one way MB/s", "both ways MB/s", "put MB/s", "get MB/s"];
        let rows = self.sizes().into_iter().map(|size| self.row(size));
        let rows: Vec<_> = std::iter::once(head.map(str::to_owned)).chain(rows).collect();
        table(&rows, [true; 7], out)?;
        let window = |quantities: [Quantity; 2]| {
            self.outcomes.iter().filter(|one| quantities.contains(&one.quantity)).map(|one| one.window).min()
        };
        if let (Some(sent), Some(landed)) =
            (window([Quantity::OneWay, Quantity::BothWays]), window([Quantity::Put, Quantity::Get]))
        {
            writeln!(out, "up to {sent} messages in flight; for put and get, {landed} frames")?;
        }
        Ok(())
    }
}

/// A JSON outcome with its median.
#[derive(Serialize)]
struct Point<'a> {
    #[serde(flatten)]
    outcome: &'a Outcome,
    median: f64,
    unit: &'static str,
}

impl<'a> Point<'a> {
    fn of(outcome: &'a Outcome) -> Self {
        let unit = if outcome.quantity == Quantity::Latency { "us" } else { "MB/s" };
        Self { outcome, median: median(outcome), unit }
    }
}

#[derive(Serialize)]
struct Document<'a> {
    version: &'static str,
    series: Vec<Points<'a>>,
}

#[derive(Serialize)]
struct Points<'a> {
    job: &'a JobId,
    fabric: &'a str,
    nodes: [u32; 2],
    hosts: &'a [String; 2],
    outcomes: Vec<Point<'a>>,
}

impl Network {
    /// Prints tables.
    pub fn write(&self, out: &mut dyn Write) -> std::io::Result<()> {
        for (place, series) in self.series.iter().enumerate() {
            if place > 0 {
                writeln!(out)?;
            }
            series.write(out)?;
        }
        Ok(())
    }

    /// Prints JSON: the outcomes with medians. It can be parsed as a [`Network`].
    pub fn write_json(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let series = self.series.iter().map(|one| Points {
            job: &one.job,
            fabric: &one.fabric,
            nodes: one.nodes,
            hosts: &one.hosts,
            outcomes: one.outcomes.iter().map(Point::of).collect(),
        });
        let document = Document { version: env!("CARGO_PKG_VERSION"), series: series.collect() };
        writeln!(out, "{}", serde_json::to_string_pretty(&document)?)
    }
}

impl Network {
    /// Prints CSV: a line with the median of each fabric, quantity and size.
    pub fn write_csv(&self, out: &mut dyn Write) -> std::io::Result<()> {
        writeln!(out, "job,fabric,node,with,figure,bytes,median,unit")?;
        for Series { job, fabric, nodes: [node, with], outcomes, .. } in &self.series {
            for Point { outcome, median, unit } in outcomes.iter().map(Point::of) {
                let (name, size) = (name(outcome.quantity), outcome.size);
                writeln!(out, "{job},{fabric},{node},{with},{name},{size},{median},{unit}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tameike_core::wire::measure::OneWayLatency;

    fn network() -> Network {
        let outcome = |quantity, size: u32| {
            let one = |nanoseconds| Repetition { messages: 100, nanoseconds };
            let one_way = OneWayLatency { median: 2000, p90: 3000, p99: 40_000, longest: 50_000 };
            Outcome {
                quantity,
                size,
                window: 64,
                repetitions: vec![one(900_000), one(200_000), one(100_000)],
                one_way: (quantity == Quantity::Latency).then_some(one_way),
            }
        };
        let all = |size| Quantity::ALL.map(|quantity| outcome(quantity, size));
        let series = |fabric: &str, sizes: &[u32]| Series {
            job: JobId::new("test").expect("a name"),
            fabric: fabric.to_owned(),
            nodes: [0, 2],
            hosts: ["here".to_owned(), "there".to_owned()],
            outcomes: sizes.iter().flat_map(|size| all(*size)).collect(),
        };
        Network { series: vec![series("auto", &[1, 1 << 20]), series("tcp", &[1, 4096])] }
    }

    #[test]
    fn the_table_shows_medians_in_their_units() {
        let mut out = Vec::new();
        network().write(&mut out).expect("memory takes it");
        let text = String::from_utf8(out).expect("text");
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "job test, fabric auto: node 0 (here) with node 2 (there), medians of 3");
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(lines[2]), ["1", "B", "2.00", "40.0", "0.50", "0.50", "0.50", "0.50"]);
        assert_eq!(words(lines[3])[2..], ["2.00", "40.0", "524288", "524288", "524288", "524288"]);
        assert_eq!(lines[4], "up to 64 messages in flight; for put and get, 64 frames");
        assert!(lines[6].contains("fabric tcp"), "{text}");
    }

    #[test]
    fn csv_has_a_line_per_quantity_and_size() {
        let mut out = Vec::new();
        network().write_csv(&mut out).expect("memory takes it");
        let text = String::from_utf8(out).expect("text");
        assert_eq!(text.lines().count(), 1 + 2 * 2 * Quantity::ALL.len(), "{text}");
        assert_eq!(text.lines().nth(1), Some("test,auto,0,2,latency,1,2,us"), "{text}");
    }

    #[test]
    fn json_survives_a_round_trip() {
        let mut out = Vec::new();
        network().write_json(&mut out).expect("memory takes it");
        assert_eq!(serde_json::from_slice::<Network>(&out).expect("as written"), network());
        let text = String::from_utf8(out).expect("text");
        assert!(text.contains(r#""unit": "us""#) && text.contains(r#""median": 2.0"#), "{text}");
    }
}
