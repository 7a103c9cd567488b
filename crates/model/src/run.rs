//! Runs a model.
//!
//! In: a [`Setup`], a [`SharedOwners`], a [`Together`] or a [`Quorum`]. Out: an [`Outcome`]: how much was explored,
//! and the broken rules.

use std::fmt::Debug;
use std::hash::Hash;
use std::time::{Duration, Instant};

use stateright::{Checker, CheckerBuilder, HasDiscoveries, Model};

use crate::quorum::Quorum;
use crate::setup::{Protocol, Setup};
use crate::shared::SharedOwners;
use crate::symmetry;
use crate::together::Together;

/// The intended machines have two cores.
const THREADS: usize = 2;

/// The result of a run.
#[derive(Debug)]
pub struct Outcome {
    /// Visited states, with repetitions.
    pub states: usize,
    /// Distinct states.
    pub unique: usize,
    /// The longest path from the start.
    pub depth: usize,
    /// The duration of the run.
    pub took: Duration,
    /// The rules that can be broken, and the steps that break them.
    pub broken: Vec<(&'static str, String)>,
}

/// Visits every state of a setup. States that differ only in the numbers of the processes count once.
pub fn explore(setup: Setup) -> Outcome {
    // If the last process only tries, it differs from the others.
    let alike = !setup.tries;
    let checker = checker(Protocol(setup), HasDiscoveries::Any);
    let checker = if alike { checker.symmetry_fn(symmetry::representative) } else { checker };
    outcome(|| checker.spawn_dfs().join())
}

/// Searches for a short path that breaks one of `rules`.
pub fn find(setup: Setup, rules: &[&'static str]) -> Outcome {
    shortest(Protocol(setup), rules)
}

/// Visits every state of the model of shared owners.
pub fn explore_shared(model: SharedOwners) -> Outcome {
    outcome(|| checker(model, HasDiscoveries::Any).spawn_bfs().join())
}

/// Visits every state of the model of a quorum.
pub fn explore_quorum(quorum: Quorum) -> Outcome {
    outcome(|| checker(quorum, HasDiscoveries::Any).spawn_dfs().join())
}

/// Searches the model of a quorum for a short path that breaks one of `rules`.
pub fn find_quorum(quorum: Quorum, rules: &[&'static str]) -> Outcome {
    shortest(quorum, rules)
}

/// Visits every state of the model of claims with a mode.
pub fn explore_together(together: Together) -> Outcome {
    outcome(|| checker(together, HasDiscoveries::Any).spawn_dfs().join())
}

/// Searches the model of claims with a mode for a short path that breaks one of `rules`.
pub fn find_together(together: Together, rules: &[&'static str]) -> Outcome {
    shortest(together, rules)
}

fn shortest<M>(model: M, rules: &[&'static str]) -> Outcome
where
    M: Model + Send + Sync + 'static,
    M::State: Debug + Hash + Clone + PartialEq + Send + Sync,
    M::Action: Debug + Clone + PartialEq,
{
    let found = HasDiscoveries::AnyOf(rules.iter().copied().collect());
    let mut outcome = outcome(|| checker(model, found).spawn_bfs().join());
    outcome.broken.retain(|(rule, _)| rules.contains(rule));
    outcome
}

fn checker<M>(model: M, until: HasDiscoveries) -> CheckerBuilder<M>
where
    M: Model + Send + Sync + 'static,
    M::State: Debug + Hash + PartialEq + Send + Sync,
{
    model.checker().threads(THREADS).finish_when(until)
}

fn outcome<M, C>(run: impl FnOnce() -> C) -> Outcome
where
    M: Model,
    M::State: Debug + Hash + Clone + PartialEq,
    M::Action: Debug + Clone + PartialEq,
    C: Checker<M>,
{
    let start = Instant::now();
    let checker = run();
    let broken = checker.discoveries().into_iter();
    Outcome {
        states: checker.state_count(),
        unique: checker.unique_state_count(),
        depth: checker.max_depth(),
        took: start.elapsed(),
        broken: broken.map(|(rule, path)| (rule, format!("{:?}", path.into_actions()))).collect(),
    }
}
