//! The order of service, as the server shows it: nobody passes a waiter that can be notified.
//!
//! In: a [`Snapshot`] of a key after another, taken on the server. Out: [`Turns`], with every claim that was granted
//! the key while another waited that had come before it.
//!
//! The snapshots name claims, not owners: a lease that is shared or handed over in memory is still the same claim. Two
//! snapshots are compared only if no client connected between them. Then a waiter whose inbox is subscribed in both
//! was subscribed all the time, so the server could notify it.

/// A claim on the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// Its token.
    pub token: String,
    /// Its label: `process/task/claim`.
    pub label: String,
}

/// A claim in the queue of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queued {
    /// The claim.
    pub claim: Claimed,
    /// Its ticket, which it keeps for as long as it is queued.
    pub ticket: String,
    /// Whether its inbox is subscribed.
    pub listens: bool,
}

/// A key on the server at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The claims that hold the key.
    pub holders: Vec<Claimed>,
    /// The claims that wait for it, the first one first. Empty if the engine has no queue on a server.
    pub waiters: Vec<Queued>,
    /// How many connections the server has accepted so far.
    pub connections: u64,
}

impl Snapshot {
    /// A key, if only the label of its holder is known.
    pub fn of(label: Option<String>) -> Self {
        let holder = label.map(|label| Claimed { token: label.clone(), label });
        Snapshot { holders: holder.into_iter().collect(), ..Snapshot::default() }
    }
}

/// A claim that was granted a key before a claim that was queued at an earlier position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passed {
    /// The key.
    pub key: String,
    /// The claim that was granted.
    pub granted: Claimed,
    /// The claim that waited.
    pub waiter: Claimed,
}

/// The result of the check of the order of service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turns {
    /// The number of grants that were seen while claims waited.
    pub seen: usize,
    /// Waiters that were passed.
    pub passed: Vec<Passed>,
}

impl Turns {
    /// Compares two snapshots of `key`.
    pub fn compare(&mut self, key: &str, before: &Snapshot, after: &Snapshot) {
        if before.connections != after.connections || before.waiters.is_empty() {
            return;
        }
        for granted in after.holders.iter().filter(|claim| !before.holders.contains(claim)) {
            self.seen += 1;
            // A claim that was not queued came after all that were.
            let earlier = before.waiters.iter().take_while(|waiter| waiter.claim != *granted);
            let stayed = |waiter: &&Queued| waiter.listens && after.waiters.contains(waiter);
            self.passed.extend(earlier.filter(stayed).map(|waiter| Passed {
                key: key.into(),
                granted: granted.clone(),
                waiter: waiter.claim.clone(),
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(name: &str) -> Claimed {
        Claimed { token: name.into(), label: name.into() }
    }

    fn queued(name: &str) -> Queued {
        Queued { claim: claim(name), ticket: format!("ticket of {name}"), listens: true }
    }

    fn snapshot(holders: &[&str], waiters: Vec<Queued>) -> Snapshot {
        let holders = holders.iter().map(|name| claim(name)).collect();
        Snapshot { holders, waiters, connections: 7 }
    }

    fn turns(before: Snapshot, after: Snapshot) -> (usize, Vec<(String, String)>) {
        let mut turns = Turns::default();
        turns.compare("k", &before, &after);
        let names = |passed: Passed| (passed.granted.label, passed.waiter.label);
        (turns.seen, turns.passed.into_iter().map(names).collect())
    }

    fn pair(granted: &str, waiter: &str) -> Vec<(String, String)> {
        vec![(granted.into(), waiter.into())]
    }

    /// 6: the first waiter is served, then the second; a later one and a newcomer are not.
    #[test]
    fn a_later_claim_passes_nobody() {
        let before = || snapshot(&["a"], vec![queued("b"), queued("c")]);
        let served = |who: &[&str], waiters| turns(before(), snapshot(who, waiters));
        assert_eq!(served(&["b"], vec![queued("c")]), (1, vec![]));
        assert_eq!(served(&["b", "c"], vec![]), (2, vec![]));
        assert_eq!(served(&["a", "c"], vec![queued("b")]), (1, pair("c", "b")), "a later one");
        let newcomer = vec![queued("c")];
        assert_eq!(served(&["b", "x"], newcomer), (2, pair("x", "c")), "a newcomer");
        assert_eq!(served(&["a"], vec![queued("b"), queued("c")]), (0, vec![]), "a holder stays");
    }

    /// 6: a waiter may be passed if it cannot be notified, has left and come again, or its process may have
    /// reconnected meanwhile.
    #[test]
    fn only_a_waiter_that_can_be_notified_is_passed() {
        let waits =
            |ticket: &str, listens| Queued { ticket: ticket.into(), listens, ..queued("b") };
        let run = |before, after, connections| {
            let after = Snapshot { connections, ..snapshot(&["x"], vec![after]) };
            turns(snapshot(&[], vec![before]), after).1.len()
        };
        assert_eq!(run(waits("1", true), waits("1", true), 7), 1);
        assert_eq!(run(waits("1", false), waits("1", true), 7), 0, "not subscribed before");
        assert_eq!(run(waits("1", true), waits("1", false), 7), 0, "not subscribed after");
        assert_eq!(run(waits("1", true), waits("2", true), 7), 0, "queued again");
        assert_eq!(run(waits("1", true), waits("1", true), 8), 0, "somebody connected");
    }
}
