//! Who has which slot, as far as is known.
//!
//! In: what nodes say, all of them now and then, and one about a single slot when it sends us elsewhere.
//! Out: the owner of a slot, and how often it has changed.
//!
//! Nodes may disagree: one that was cut off still names a former master. Every claim to a slot has the
//! epoch of its master, which rises with every failover and every slot that moves; the highest counts.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::time::Time;

use super::slot::SLOTS;
use super::view::View;
use crate::url::Address;

/// For how long nobody may confirm an epoch until a lower one is believed: the cluster was set up anew.
const ANEW_AFTER: Duration = Duration::from_secs(10);

/// The owners of all slots.
pub(super) struct Map<N> {
    slots: Vec<Slot<N>>,
}

struct Slot<N> {
    owner: Option<Arc<N>>,
    /// Twice the epoch of its claim, and one more if a node has sent us on since: others say for a while
    /// what was so before.
    rank: u64,
    changes: u64,
    /// When somebody last said so, or something newer.
    confirmed: Time,
}

/// What came of a view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Learnt {
    /// A slot has another owner.
    pub(super) changed: bool,
    /// Whoever said it is behind others.
    pub(super) behind: bool,
}

impl<N> Map<N> {
    pub(super) fn new() -> Self {
        let (rank, changes, confirmed) = (0, 0, Time::from_nanos(0));
        let slot = |_| Slot { owner: None, rank, changes, confirmed };
        Map { slots: (0..SLOTS).map(slot).collect() }
    }

    /// Takes in what a node says. `find` knows nodes by their address.
    pub(super) fn learn(
        &mut self,
        view: &View,
        now: Time,
        mut find: impl FnMut(&Address) -> Arc<N>,
    ) -> Learnt {
        let mut learnt = Learnt::default();
        for seen in view.0.iter().filter(|seen| !seen.slots.is_empty()) {
            let owner = find(&seen.address);
            for (first, last) in &seen.slots {
                let range = usize::from(*first)..=usize::from(*last);
                for slot in self.slots.get_mut(range).unwrap_or_default() {
                    learnt.add(slot.claim(&owner, seen.epoch, now));
                }
            }
        }
        learnt
    }

    /// A node that had `slot` says that `to` has it.
    pub(super) fn send(&mut self, slot: u16, to: &Arc<N>, now: Time) -> bool {
        let Some(slot) = self.slots.get_mut(usize::from(slot)) else { return false };
        (slot.rank, slot.confirmed) = (slot.rank | 1, now);
        slot.give(to)
    }

    /// Who has it, and how often that has changed.
    pub(super) fn owner(&self, slot: u16) -> Option<(&Arc<N>, u64)> {
        let slot = self.slots.get(usize::from(slot))?;
        Some((slot.owner.as_ref()?, slot.changes))
    }

    /// Whether it has changed so often and no more.
    pub(super) fn is_at(&self, slot: u16, changes: u64) -> bool {
        self.slots.get(usize::from(slot)).is_some_and(|slot| slot.changes == changes)
    }

    /// Whether `node` has any.
    pub(super) fn has_any(&self, node: &Arc<N>) -> bool {
        self.slots.iter().any(|slot| slot.is_of(node))
    }
}

impl<N> Slot<N> {
    fn is_of(&self, node: &Arc<N>) -> bool {
        self.owner.as_ref().is_some_and(|owner| Arc::ptr_eq(owner, node))
    }

    fn claim(&mut self, owner: &Arc<N>, epoch: u64, now: Time) -> Learnt {
        let rank = epoch.saturating_mul(2);
        if rank < self.rank && !self.is_of(owner) && now < self.confirmed.after(ANEW_AFTER) {
            return Learnt { changed: false, behind: true };
        }
        (self.rank, self.confirmed) = (rank.max(self.rank), now);
        if !self.is_of(owner) {
            self.rank = rank;
        }
        Learnt { changed: self.give(owner), behind: false }
    }

    fn give(&mut self, to: &Arc<N>) -> bool {
        if self.is_of(to) {
            return false;
        }
        // The first owner is no change: nobody has relied on another.
        self.changes += u64::from(self.owner.replace(to.clone()).is_some());
        true
    }
}

impl Learnt {
    fn add(&mut self, other: Learnt) {
        self.changed |= other.changed;
        self.behind |= other.behind;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::cluster::view::Seen;

    struct World {
        map: Map<Address>,
        nodes: HashMap<Address, Arc<Address>>,
    }

    fn at(port: u16) -> Address {
        Address::Tcp("h".into(), port)
    }

    fn seen(port: u16, epoch: u64, slots: &[(u16, u16)]) -> Seen {
        Seen { address: at(port), serves: true, epoch, slots: slots.into() }
    }

    impl World {
        fn learn(&mut self, secs: u64, seen: Vec<Seen>) -> Learnt {
            let now = Time::from_nanos(1 + secs * 1_000_000_000);
            let nodes = &mut self.nodes;
            let find = |address: &Address| {
                nodes.entry(address.clone()).or_insert_with(|| Arc::new(address.clone())).clone()
            };
            self.map.learn(&View(seen), now, find)
        }

        fn owner(&self, slot: u16) -> Option<(Address, u64)> {
            self.map.owner(slot).map(|(owner, changes)| ((**owner).clone(), changes))
        }
    }

    fn world() -> World {
        World { map: Map::new(), nodes: HashMap::new() }
    }

    const CHANGED: Learnt = Learnt { changed: true, behind: false };
    const BEHIND: Learnt = Learnt { changed: false, behind: true };
    const NOTHING: Learnt = Learnt { changed: false, behind: false };

    /// The highest epoch counts, slot by slot, and one that is behind changes nothing.
    #[test]
    fn t38_the_highest_epoch_counts() {
        let mut world = world();
        assert_eq!(world.owner(7), None);
        assert_eq!(world.learn(0, vec![seen(1, 1, &[(0, 9)]), seen(2, 2, &[(10, 19)])]), CHANGED);
        assert_eq!((world.owner(7), world.owner(12)), (Some((at(1), 0)), Some((at(2), 0))));
        assert_eq!(world.learn(1, vec![seen(3, 5, &[(0, 9)])]), CHANGED);
        assert_eq!(world.owner(7), Some((at(3), 1)));
        assert_eq!(world.learn(2, vec![seen(1, 1, &[(0, 9)])]), BEHIND);
        assert_eq!(world.owner(7), Some((at(3), 1)));
        assert_eq!(world.learn(3, vec![seen(3, 5, &[(0, 9)])]), NOTHING);
    }

    /// A node that sends us elsewhere is believed at once, and what others say for a while changes
    /// nothing, unless it is newer.
    #[test]
    fn t36_sent_elsewhere() {
        let mut world = world();
        let before = || vec![seen(1, 3, &[(0, 9)]), seen(2, 2, &[(10, 19)])];
        world.learn(0, before());
        let (two, now) = (world.nodes[&at(2)].clone(), Time::from_nanos(2_000_000_000));
        assert!(world.map.send(3, &two, now) && !world.map.send(3, &two, now));
        assert_eq!((world.owner(3), world.owner(4)), (Some((at(2), 1)), Some((at(1), 0))));
        assert_eq!(world.learn(3, before()), BEHIND);
        assert_eq!(world.learn(4, vec![seen(2, 2, &[(3, 3)])]), NOTHING);
        assert_eq!(world.owner(3), Some((at(2), 1)));
        assert_eq!(world.learn(5, vec![seen(3, 4, &[(3, 3)])]), CHANGED);
        assert_eq!(world.owner(3), Some((at(3), 2)));
        let three = world.nodes[&at(3)].clone();
        assert!(!world.map.send(3, &three, now));
        assert_eq!(world.learn(20, before()), CHANGED, "nobody says anything else for long");
    }

    /// A cluster that was set up anew counts from the start: it is believed when nobody has said
    /// anything else for long.
    #[test]
    fn a_cluster_set_up_anew() {
        let mut world = world();
        world.learn(0, vec![seen(1, 9, &[(0, 9)])]);
        assert_eq!(world.learn(5, vec![seen(2, 1, &[(0, 9)])]), BEHIND);
        assert_eq!(world.learn(11, vec![seen(2, 1, &[(0, 9)])]), CHANGED);
        assert_eq!(world.owner(0), Some((at(2), 1)));
    }
}
