//! The owner of each slot, as far as it is known.
//!
//! In: reports of nodes about all slots, and redirects about a single one. Out: the owner of a slot, and how
//! often it has changed.
//!
//! Nodes may disagree: a partitioned node still names a former master. Every claim to a slot carries the
//! epoch of its master, which rises with every failover and every slot that moves; the highest epoch wins.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::time::Time;

use super::cluster_nodes::View;
use crate::url::Address;
use crate::wire::slot::SLOTS;

/// If no node confirms an epoch for this long, a lower epoch is accepted: the cluster was set up anew.
const ANEW_AFTER: Duration = Duration::from_secs(10);

/// The owners of all slots.
pub(super) struct Map<N> {
    slots: Vec<Slot<N>>,
}

struct Slot<N> {
    owner: Option<Arc<N>>,
    /// Twice the epoch of the owner's claim, plus one if a node has redirected us since: other nodes report
    /// the old owner for a while.
    rank: u64,
    changes: u64,
    /// When a node last confirmed this owner, or named a newer one.
    confirmed: Time,
}

/// The effect of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SlotMapUpdate {
    /// A slot has another owner.
    pub(super) changed: bool,
    /// The node that sent the report has older data than others.
    pub(super) stale: bool,
}

impl<N> Map<N> {
    pub(super) fn new() -> Self {
        let (rank, changes, confirmed) = (0, 0, Time::from_nanos(0));
        let slot = |_| Slot { owner: None, rank, changes, confirmed };
        Map { slots: (0..SLOTS).map(slot).collect() }
    }

    /// Applies the report of a node. `find` returns the node of an address.
    pub(super) fn apply(
        &mut self,
        view: &View,
        now: Time,
        mut find: impl FnMut(&Address) -> Arc<N>,
    ) -> SlotMapUpdate {
        let mut update = SlotMapUpdate::default();
        for seen in view.0.iter().filter(|seen| !seen.slots.is_empty()) {
            let owner = find(&seen.address);
            for (first, last) in &seen.slots {
                let range = usize::from(*first)..=usize::from(*last);
                for slot in self.slots.get_mut(range).unwrap_or_default() {
                    update.add(slot.claim(&owner, seen.epoch, now));
                }
            }
        }
        update
    }

    /// A node that owned `slot` has redirected us to `to`.
    pub(super) fn redirect(&mut self, slot: u16, to: &Arc<N>, now: Time) -> bool {
        let Some(slot) = self.slots.get_mut(usize::from(slot)) else { return false };
        (slot.rank, slot.confirmed) = (slot.rank | 1, now);
        slot.give(to)
    }

    /// The owner of `slot`, and how often it has changed.
    pub(super) fn owner(&self, slot: u16) -> Option<(&Arc<N>, u64)> {
        let slot = self.slots.get(usize::from(slot))?;
        Some((slot.owner.as_ref()?, slot.changes))
    }

    /// Whether the owner of `slot` has changed exactly `changes` times.
    pub(super) fn is_at(&self, slot: u16, changes: u64) -> bool {
        self.slots.get(usize::from(slot)).is_some_and(|slot| slot.changes == changes)
    }

    /// Whether `node` owns any slot.
    pub(super) fn has_any(&self, node: &Arc<N>) -> bool {
        self.slots.iter().any(|slot| slot.is_of(node))
    }
}

impl<N> Slot<N> {
    fn is_of(&self, node: &Arc<N>) -> bool {
        self.owner.as_ref().is_some_and(|owner| Arc::ptr_eq(owner, node))
    }

    fn claim(&mut self, owner: &Arc<N>, epoch: u64, now: Time) -> SlotMapUpdate {
        let rank = epoch.saturating_mul(2);
        if rank < self.rank && !self.is_of(owner) && now < self.confirmed.after(ANEW_AFTER) {
            return SlotMapUpdate { changed: false, stale: true };
        }
        (self.rank, self.confirmed) = (rank.max(self.rank), now);
        if !self.is_of(owner) {
            self.rank = rank;
        }
        SlotMapUpdate { changed: self.give(owner), stale: false }
    }

    fn give(&mut self, to: &Arc<N>) -> bool {
        if self.is_of(to) {
            return false;
        }
        // The first owner does not count as a change: no caller relied on an earlier one.
        self.changes += u64::from(self.owner.replace(to.clone()).is_some());
        true
    }
}

impl SlotMapUpdate {
    fn add(&mut self, other: SlotMapUpdate) {
        self.changed |= other.changed;
        self.stale |= other.stale;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::cluster::cluster_nodes::NodeLine;

    struct World {
        map: Map<Address>,
        nodes: HashMap<Address, Arc<Address>>,
    }

    fn at(port: u16) -> Address {
        Address::Tcp("h".into(), port)
    }

    fn seen(port: u16, epoch: u64, slots: &[(u16, u16)]) -> NodeLine {
        NodeLine { address: at(port), serves: true, epoch, slots: slots.into() }
    }

    impl World {
        fn apply(&mut self, secs: u64, seen: Vec<NodeLine>) -> SlotMapUpdate {
            let now = Time::from_nanos(1 + secs * 1_000_000_000);
            let nodes = &mut self.nodes;
            let find = |address: &Address| {
                nodes.entry(address.clone()).or_insert_with(|| Arc::new(address.clone())).clone()
            };
            self.map.apply(&View(seen), now, find)
        }

        fn owner(&self, slot: u16) -> Option<(Address, u64)> {
            self.map.owner(slot).map(|(owner, changes)| ((**owner).clone(), changes))
        }
    }

    fn world() -> World {
        World { map: Map::new(), nodes: HashMap::new() }
    }

    const CHANGED: SlotMapUpdate = SlotMapUpdate { changed: true, stale: false };
    const STALE: SlotMapUpdate = SlotMapUpdate { changed: false, stale: true };
    const NOTHING: SlotMapUpdate = SlotMapUpdate { changed: false, stale: false };

    /// The highest epoch wins, slot by slot; a node with old data changes nothing.
    #[test]
    fn t38_the_highest_epoch_counts() {
        let mut world = world();
        assert_eq!(world.owner(7), None);
        assert_eq!(world.apply(0, vec![seen(1, 1, &[(0, 9)]), seen(2, 2, &[(10, 19)])]), CHANGED);
        assert_eq!((world.owner(7), world.owner(12)), (Some((at(1), 0)), Some((at(2), 0))));
        assert_eq!(world.apply(1, vec![seen(3, 5, &[(0, 9)])]), CHANGED);
        assert_eq!(world.owner(7), Some((at(3), 1)));
        assert_eq!(world.apply(2, vec![seen(1, 1, &[(0, 9)])]), STALE);
        assert_eq!(world.owner(7), Some((at(3), 1)));
        assert_eq!(world.apply(3, vec![seen(3, 5, &[(0, 9)])]), NOTHING);
    }

    /// A redirect is applied at once; older reports of other nodes then change nothing, newer ones do.
    #[test]
    fn t36_redirects_are_applied_at_once() {
        let mut world = world();
        let before = || vec![seen(1, 3, &[(0, 9)]), seen(2, 2, &[(10, 19)])];
        world.apply(0, before());
        let (two, now) = (world.nodes[&at(2)].clone(), Time::from_nanos(2_000_000_000));
        assert!(world.map.redirect(3, &two, now) && !world.map.redirect(3, &two, now));
        assert_eq!((world.owner(3), world.owner(4)), (Some((at(2), 1)), Some((at(1), 0))));
        assert_eq!(world.apply(3, before()), STALE);
        assert_eq!(world.apply(4, vec![seen(2, 2, &[(3, 3)])]), NOTHING);
        assert_eq!(world.owner(3), Some((at(2), 1)));
        assert_eq!(world.apply(5, vec![seen(3, 4, &[(3, 3)])]), CHANGED);
        assert_eq!(world.owner(3), Some((at(3), 2)));
        let three = world.nodes[&at(3)].clone();
        assert!(!world.map.redirect(3, &three, now));
        assert_eq!(world.apply(20, before()), CHANGED, "nobody says anything else for long");
    }

    /// A cluster that was set up anew starts with low epochs. They are accepted when no node has confirmed
    /// the old epoch for a while.
    #[test]
    fn a_cluster_set_up_anew() {
        let mut world = world();
        world.apply(0, vec![seen(1, 9, &[(0, 9)])]);
        assert_eq!(world.apply(5, vec![seen(2, 1, &[(0, 9)])]), STALE);
        assert_eq!(world.apply(11, vec![seen(2, 1, &[(0, 9)])]), CHANGED);
        assert_eq!(world.owner(0), Some((at(2), 1)));
    }
}
