//! Figures of the noise on a compute processor, from windows.

use super::quantum::Window;
use crate::report::median;
use serde::Serialize;

/// A shorter delay is not called a gap.
const GAP_NS: u32 = 10_000;
/// The machine of the slowdown: nodes, and the seconds between two barriers of its program.
const NODES: f64 = 100_000.0;
const GRAIN_SECONDS: f64 = 1e-3;
/// Up to this rate without any agent, this machine is quiet; buyers of A64FX clusters required this rate.
const QUIET_RATE: f64 = 5.0e-5;

/// All windows of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Noise {
    /// Time lost over time worked: median of the windows.
    pub rate: f64,
    /// Delays of at least 10 us, a second: median of the windows.
    pub gaps_per_second: f64,
    /// The longest delay of all windows.
    pub longest_us: f64,
    /// Times a second that another process took the processor: median of the windows.
    pub switches_per_second: f64,
    /// Share of the time that the hypervisor gave to others: median of the windows.
    pub stolen: f64,
    /// How much longer a program takes on 100,000 such nodes with a barrier each millisecond (Tsafrir's formula).
    pub slowdown: f64,
}

impl Noise {
    /// Of `windows`, where a piece of work takes `shortest_ns` undisturbed.
    pub fn of(windows: &[Window], shortest_ns: u32) -> Option<Self> {
        let delays = |window: &Window| -> Vec<u32> {
            window.quanta_ns.iter().map(|quantum| quantum.saturating_sub(shortest_ns)).collect()
        };
        let middle = |figure: &dyn Fn(&Window) -> f64| median(windows.iter().map(figure));
        let all: Vec<u32> = windows.iter().flat_map(delays).collect();
        let longest_ns = *all.iter().max()?;
        // Of delays like the longest one: how often they come.
        let like_it = all.iter().filter(|&&delay| delay >= longest_ns / 2).count();
        let between_seconds = windows.iter().map(seconds).sum::<f64>() / like_it as f64;
        let gaps = |window: &Window| delays(window).iter().filter(|&&delay| delay >= GAP_NS).count() as f64;
        let lost = |window: &Window| delays(window).iter().map(|&delay| f64::from(delay)).sum::<f64>();
        Some(Self {
            rate: middle(&|window| lost(window) / 1e9 / seconds(window))?,
            gaps_per_second: middle(&|window| gaps(window) / seconds(window))?,
            longest_us: f64::from(longest_ns) / 1e3,
            switches_per_second: middle(&|window| window.switches as f64 / seconds(window))?,
            stolen: middle(&|window| window.stolen_seconds / seconds(window))?,
            slowdown: slowdown(f64::from(longest_ns) / 1e9, between_seconds),
        })
    }

    /// Whether a machine with so little noise by itself shows that of agents.
    pub fn is_quiet(&self) -> bool {
        self.rate <= QUIET_RATE
    }
}

/// Tsafrir's formula: `1 + (1 - e^(-N*G/T)) * D/G` for delays of D seconds that come every T seconds on each of N
/// nodes, where all nodes wait for each other every G seconds.
fn slowdown(delay_seconds: f64, between_seconds: f64) -> f64 {
    1.0 + (1.0 - (-NODES * GRAIN_SECONDS / between_seconds).exp()) * delay_seconds / GRAIN_SECONDS
}

fn seconds(window: &Window) -> f64 {
    window.quanta_ns.iter().map(|&quantum| f64::from(quantum)).sum::<f64>() / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_slowdown_of_fugaku_comes_out() {
        // 41 us about once a second: 4.1 %.
        assert!((slowdown(41e-6, 1.0) - 1.041).abs() < 1e-6);
        // So seldom that hardly any of the nodes is hit in a grain.
        assert!(slowdown(41e-6, 1e6) < 1.000_01);
    }

    #[test]
    fn delays_are_those_beyond_the_shortest_piece_of_work() {
        let window =
            |quanta_ns: &[u32]| Window { quanta_ns: quanta_ns.to_vec(), switches: 3, stolen_seconds: 0.0 };
        let mut quanta = vec![100_000; 10_000];
        quanta[17] += 50_000;
        quanta[18] += 9_000;
        let noise = Noise::of(&[window(&quanta)], 100_000).expect("figures");
        assert!((noise.rate - 59e-6 / 1.000_059).abs() < 1e-9, "{noise:?}");
        assert!((noise.gaps_per_second - 1.0).abs() < 1e-3 && (noise.switches_per_second - 3.0).abs() < 1e-3);
        assert_eq!(noise.longest_us, 50.0);
        assert!((noise.slowdown - 1.05).abs() < 1e-6);
        assert!(!noise.is_quiet());
        assert!(Noise::of(&[window(&[100_000; 100])], 100_000).expect("figures").is_quiet());
        assert_eq!(Noise::of(&[], 1), None);
    }
}
