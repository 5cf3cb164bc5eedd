//! One measurement, as tables and pictures need it.

/// What one target did in one step, measured once.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    pub rate: f64,
    /// Median and 99th percentile of single operations, in microseconds.
    pub latency_us: Option<(f64, f64)>,
    /// Processor time of the programs that read and wrote.
    pub programs_seconds: f64,
    /// The same of the target's processes.
    pub servers_seconds: Option<f64>,
    pub bytes: f64,
    pub operations: f64,
}
