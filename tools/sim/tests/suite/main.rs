//! Simulated clusters with faults: each test runs seeds or countdowns, and checks every result against the reference model.

mod countdowns;
mod descriptors;
mod failures;
mod found;
mod full;
mod holders;
mod locks;
mod power;
mod programs;
mod regions;
mod replaced;
mod replicas;
mod rot;
mod scale;
mod seeds;
mod unreachable;
