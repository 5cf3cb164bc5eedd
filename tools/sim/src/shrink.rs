//! Reduces a failing program.

use crate::program::{Action, Program, Step};
use crate::run::{Failure, run};

/// Maximum number of candidate programs to run.
const ATTEMPTS_MAX: u32 = 2000;

/// Returns a smaller program that fails, with its failure. Removes ranges of steps, then single actions of steps.
pub fn shrink(program: &Program, failure: Failure) -> (Program, Failure) {
    let mut best = (program.clone(), failure);
    best.0.steps.truncate(best.1.step + 1);
    let mut attempts = 0;
    let mut attempt = |candidate: Program, best: &mut (Program, Failure)| {
        attempts += 1;
        if attempts > ATTEMPTS_MAX {
            return false;
        }
        match run(&candidate) {
            Ok(()) => false,
            Err(failure) => {
                *best = (candidate, failure);
                true
            }
        }
    };
    loop {
        let before = best.0.clone();
        let mut chunk = (best.0.steps.len() / 2).max(1);
        loop {
            let mut at = 0;
            while at < best.0.steps.len() {
                let mut candidate = best.0.clone();
                candidate.steps.drain(at..(at + chunk).min(candidate.steps.len()));
                if !attempt(candidate, &mut best) {
                    at += chunk;
                }
            }
            if chunk == 1 {
                break;
            }
            chunk /= 2;
        }
        for step in 0..best.0.steps.len() {
            let mut part = 0;
            while let Some(Step::Together(actions)) = best.0.steps.get(step)
                && actions.len() > 1
                && part < actions.len()
            {
                let mut candidate = best.0.clone();
                if let Step::Together(actions) = &mut candidate.steps[step] {
                    actions.remove(part);
                }
                if !attempt(candidate, &mut best) {
                    part += 1;
                }
            }
        }
        simplify(&mut best, &mut attempt);
        if best.0 == before {
            return best;
        }
    }
}

fn simplify(
    best: &mut (Program, Failure),
    attempt: &mut impl FnMut(Program, &mut (Program, Failure)) -> bool,
) {
    let mut plainer = vec![best.0.clone(); 5];
    plainer[0].crashes = false;
    plainer[1].world.slowness.iter_mut().for_each(|slowness| *slowness = std::time::Duration::ZERO);
    plainer[2].world.skew.iter_mut().for_each(|skew| *skew = std::time::Duration::ZERO);
    plainer[3].world.view_frames = u32::MAX;
    plainer[4].world.service_frames = u32::MAX;
    for candidate in plainer {
        if candidate != best.0 {
            attempt(candidate, best);
        }
    }
    let uses_last = |program: &Program| {
        let last = program.world.devices.len() - 1;
        program.steps.iter().any(|step| match step {
            Step::Together(actions) => {
                actions.iter().any(|action| matches!(action, Action::Call { node, .. } if *node == last))
            }
            Step::Rest(_) | Step::Drain | Step::Check => false,
        })
    };
    while best.0.world.devices.len() > 1 && !uses_last(&best.0) {
        let mut candidate = best.0.clone();
        candidate.world.devices.pop();
        candidate.world.slowness.pop();
        candidate.world.skew.pop();
        if !candidate.world.devices.contains(&true) || !attempt(candidate, best) {
            return;
        }
    }
}
