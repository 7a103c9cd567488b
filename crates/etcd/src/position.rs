//! Where a claim stands in the queue: whether it holds the lock, and otherwise what it waits for.
//!
//! In: the replies to [`ClaimKey::reads`]. Out: a [`Position`]. This module sends no request.

use bytes::Bytes;
use tenure_core::Mode;

use crate::claim_key::ClaimKey;
use crate::modes;
use crate::proto::{Event, EventType, KeyValue, RangeResponse};

/// The position of a claim, as of the revision of the reply.
#[derive(Debug)]
pub(crate) struct Position {
    /// The lease that its key is on.
    pub(crate) lease: i64,
    /// What it waits for; `None` if it holds the lock.
    pub(crate) before: Option<Before>,
    /// Whether another claim waits for the lock.
    pub(crate) contended: bool,
}

/// The claims that keep a claim from holding the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Before {
    /// The key to watch: that of the newest claim of another kind, or for permits among permits the whole queue.
    pub(crate) watched: Bytes,
    /// The names and modes of the claims before, the oldest first, as far as they are watched.
    claims: Vec<(Bytes, Mode)>,
    mode: Mode,
}

impl Position {
    /// The position of the claim whose key `name` was created at `created`. `None` if the key is not in `found`.
    pub(crate) fn of(
        claim_key: &ClaimKey,
        name: &Bytes,
        created: i64,
        found: Vec<RangeResponse>,
    ) -> Option<Self> {
        let (queue, mode) = (&claim_key.queue, &claim_key.mode);
        // The number of all claims that are in the way of such a claim, also of those that came later.
        let count = found.last().map_or(0, |last| last.count);
        let mut claims: Vec<KeyValue> = found.into_iter().flat_map(|range| range.kvs).collect();
        claims.sort_by_key(|claim| claim.create_revision);
        let is_mine = |kv: &KeyValue| kv.key == *name && kv.create_revision == created;
        let mine = claims.iter().position(is_mine)?;
        let modes: Vec<Mode> =
            claims.iter().map(|claim| modes::parse(&claim.key[queue.len()..])).collect();
        let holders = modes::holders(&modes);
        let contended = match mode {
            Mode::Permits { .. } => holders < claims.len(),
            Mode::Read => count > 0,
            Mode::Exclusive | Mode::SharedOwner(_) => count > 1,
        };
        let lease = claims[mine].lease;
        let names = claims.into_iter().map(|claim| claim.key);
        let before = (holders <= mine)
            .then(|| Before::new(queue, names.zip(modes).take(mine).collect(), mode.clone()));
        Some(Position { lease, before, contended })
    }
}

impl Before {
    fn new(queue: &Bytes, mut claims: Vec<(Bytes, Mode)>, mode: Mode) -> Self {
        let is_permit = |mode: &Mode| matches!(mode, Mode::Permits { .. });
        let other = claims.iter().rposition(|(_, theirs)| !is_permit(&mode) || !is_permit(theirs));
        let watched = match other {
            Some(other) => {
                claims = vec![claims.swap_remove(other)];
                claims[0].0.clone()
            }
            None => queue.clone(),
        };
        Before { watched, claims, mode }
    }

    /// Takes note of an event at the server. Returns whether the claim may hold the lock now, as far as is known.
    pub(crate) fn note(&mut self, event: &Event) -> bool {
        let gone = event.kv.as_ref().filter(|_| event.r#type() == EventType::Delete);
        self.claims.retain(|(name, _)| gone.is_none_or(|gone| gone.key != *name));
        let modes = self.claims.iter().map(|(_, mode)| mode).chain([&self.mode]);
        modes::holders(modes) > self.claims.len()
    }
}
