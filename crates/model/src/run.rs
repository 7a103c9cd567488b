//! Running a model.
//!
//! In: a [`Setup`], a [`SharedOwners`] or a [`Quorum`]. Out: an [`Outcome`]: how much was explored, and the
//! rules that were found to break.

use std::fmt::Debug;
use std::hash::Hash;
use std::time::{Duration, Instant};

use stateright::{Checker, CheckerBuilder, HasDiscoveries, Model};

use crate::model::Protocol;
use crate::quorum::Quorum;
use crate::setup::Setup;
use crate::shared::SharedOwners;
use crate::symmetry;

/// The machines that this is meant for have two cores.
const THREADS: usize = 2;

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    /// States that were reached, repetitions included.
    pub states: usize,
    /// Different states.
    pub unique: usize,
    /// The longest way from the start that was walked.
    pub depth: usize,
    /// How long it took.
    pub took: Duration,
    /// The rules that can be broken, and the steps that do it.
    pub broken: Vec<(&'static str, String)>,
}

/// Visits every state of a setup; those that differ only in the numbers of the processes count
/// once.
pub fn explore(setup: Setup) -> Outcome {
    // The last process is not like the others if it only tries.
    let alike = !setup.tries;
    let checker = checker(Protocol(setup), HasDiscoveries::Any);
    let checker = if alike { checker.symmetry_fn(symmetry::representative) } else { checker };
    outcome(|| checker.spawn_dfs().join())
}

/// Looks for a short way to break one of `rules`.
pub fn find(setup: Setup, rules: &[&'static str]) -> Outcome {
    let found = HasDiscoveries::AnyOf(rules.iter().copied().collect());
    let mut outcome = outcome(|| checker(Protocol(setup), found).spawn_bfs().join());
    outcome.broken.retain(|(rule, _)| rules.contains(rule));
    outcome
}

/// Visits every state of the model of shared owners.
pub fn explore_shared(model: SharedOwners) -> Outcome {
    outcome(|| checker(model, HasDiscoveries::Any).spawn_bfs().join())
}

/// Visits every state of the model of a quorum.
pub fn explore_quorum(quorum: Quorum) -> Outcome {
    outcome(|| checker(quorum, HasDiscoveries::Any).spawn_dfs().join())
}

/// Looks for a short way to break one of `rules` there.
pub fn find_quorum(quorum: Quorum, rules: &[&'static str]) -> Outcome {
    let found = HasDiscoveries::AnyOf(rules.iter().copied().collect());
    let mut outcome = outcome(|| checker(quorum, found).spawn_bfs().join());
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
