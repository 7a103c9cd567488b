//! Who waits for whom, across keys.
//!
//! In: one look at all locks. Out: waiters with the holders that they wait for, and which of them form a cycle.
//!
//! A process is one node: the engines do not know tasks. So a cycle is a suspicion, not a proof: the tasks of a process
//! may be independent of each other.

use std::collections::HashMap;

use tenure_core::Process;

use crate::snapshot::{Seen, Snapshot};

/// More are not looked at.
const EDGES_MAX: usize = 20_000;

/// A process waits for another one to release a key.
#[derive(Debug)]
pub(crate) struct Edge<'a> {
    pub(crate) waiter: &'a Process,
    pub(crate) key: &'a str,
    pub(crate) holder: &'a Process,
    /// Whether the holder waits, over any number of keys, for the waiter.
    pub(crate) in_cycle: bool,
}

/// All edges, those of cycles first.
pub(crate) fn edges(snapshot: &Snapshot) -> Vec<Edge<'_>> {
    let mut edges: Vec<_> =
        snapshot.locks.iter().flat_map(|seen| of_lock(seen)).take(EDGES_MAX).collect();
    let groups = groups(&edges);
    for edge in &mut edges {
        let (one, other) = (groups.get(edge.waiter), groups.get(edge.holder));
        edge.in_cycle = one == other && edge.waiter != edge.holder;
    }
    edges.sort_by_key(|edge| !edge.in_cycle);
    edges
}

fn of_lock(seen: &Seen) -> impl Iterator<Item = Edge<'_>> {
    let key = seen.info.key.as_str();
    let waiters = seen.waiters().iter().filter_map(|waiting| waiting.process.as_ref());
    waiters.flat_map(move |waiter| {
        let holders = seen.info.holders.iter().filter(|holding| !holding.holder.cooling_down);
        let holders = holders.filter_map(|holding| holding.holder.process.as_ref());
        holders.map(move |holder| Edge { waiter, key, holder, in_cycle: false })
    })
}

/// The strongly connected component of each process, by Tarjan's algorithm with a stack of our own: a chain of waiters
/// may be longer than the thread's stack.
fn groups<'a>(edges: &[Edge<'a>]) -> HashMap<&'a Process, usize> {
    let mut numbers = HashMap::new();
    for process in edges.iter().flat_map(|edge| [edge.waiter, edge.holder]) {
        let next = numbers.len();
        numbers.entry(process).or_insert(next);
    }
    let mut after = vec![Vec::new(); numbers.len()];
    edges.iter().for_each(|edge| after[numbers[edge.waiter]].push(numbers[edge.holder]));
    let of = Components::of(&after);
    numbers.into_iter().map(|(process, number)| (process, of[number])).collect()
}

/// The state of one search.
struct Components<'a> {
    after: &'a [Vec<usize>],
    /// The order in which a node was found, from 1; 0 if it was not found yet.
    found: Vec<usize>,
    low: Vec<usize>,
    open: Vec<usize>,
    group: Vec<Option<usize>>,
    count: usize,
}

impl Components<'_> {
    fn of(after: &[Vec<usize>]) -> Vec<usize> {
        let zeros = vec![0; after.len()];
        let (found, low, group) = (zeros.clone(), zeros, vec![None; after.len()]);
        let mut search = Components { after, found, low, open: Vec::new(), group, count: 0 };
        (0..after.len()).for_each(|node| search.from(node));
        search.group.into_iter().map(Option::unwrap_or_default).collect()
    }

    fn from(&mut self, start: usize) {
        if self.found[start] > 0 {
            return;
        }
        let mut path = vec![(start, 0)];
        self.enter(start);
        while let Some((node, next)) = path.pop() {
            match self.after[node].get(next) {
                None => self.leave(node, path.last().map(|(before, _)| *before)),
                Some(&to) => {
                    path.push((node, next + 1));
                    if self.found[to] == 0 {
                        self.enter(to);
                        path.push((to, 0));
                    } else if self.group[to].is_none() {
                        self.low[node] = self.low[node].min(self.found[to]);
                    }
                }
            }
        }
    }

    fn enter(&mut self, node: usize) {
        self.count += 1;
        (self.found[node], self.low[node]) = (self.count, self.count);
        self.open.push(node);
    }

    fn leave(&mut self, node: usize, before: Option<usize>) {
        if let Some(before) = before {
            self.low[before] = self.low[before].min(self.low[node]);
        }
        if self.low[node] < self.found[node] {
            return;
        }
        while let Some(member) = self.open.pop() {
            self.group[member] = Some(node);
            if member == node {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_core::{Holder, Holding, Key, LockInfo, Waiting};
    use tokio::time::Instant;

    fn process(pid: u32) -> Holder {
        let mut holder = Holder::unknown();
        holder.process = Some(Process { pid, ..Process::this_process().clone() });
        holder
    }

    fn lock(name: &str, holder: u32, waiters: &[u32]) -> LockInfo {
        let queue = waiters.iter().map(|pid| Waiting::new(process(*pid), None)).collect();
        let held = vec![Holding::new(process(holder), None, None)];
        LockInfo::new(Key::new(name).unwrap(), held, Some(queue))
    }

    /// F2: processes that wait for each other are marked, over any number of keys; who only waits for them is not.
    #[tokio::test]
    async fn f2_cycles_are_marked() {
        let found =
            vec![lock("a", 1, &[2]), lock("b", 2, &[3]), lock("c", 3, &[1, 4]), lock("d", 5, &[5])];
        let snapshot = Snapshot::none().after(found, Instant::now());
        let edges = edges(&snapshot);
        let shown = |edge: &Edge<'_>| (edge.waiter.pid, edge.holder.pid, edge.in_cycle);
        let mut all: Vec<_> = edges.iter().map(shown).collect();
        assert!(all[..3].iter().all(|(.., in_cycle)| *in_cycle));
        all.sort_unstable();
        assert_eq!(all, [(1, 3, true), (2, 1, true), (3, 2, true), (4, 3, false), (5, 5, false)]);
    }

    /// A chain as long as we look at needs no deep stack.
    #[tokio::test]
    async fn long_chains() {
        let links = (0..EDGES_MAX as u32).map(|n| lock(&format!("k{n}"), n, &[n + 1]));
        let snapshot = Snapshot::none().after(links.collect(), Instant::now());
        assert!(edges(&snapshot).iter().all(|edge| !edge.in_cycle));
    }
}
