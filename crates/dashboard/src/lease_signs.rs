//! Whether a holder is alive, as far as the engine's answers say.
//!
//! In: what two looks at a lock show of one claim. Out: a [`Life`].
//!
//! A live holder renews at a third of its ttl, so the end of its lease moves. The ttl itself is not stored; the longest
//! rest of the lease that was seen stands for it.

use std::time::Duration;

use tenure_core::text::short;
use tenure_core::{Capabilities, Holder, Holding};
use tokio::time::Instant;

/// Two looks at a lease that was not renewed differ in its end by no more than the time of a reply.
const SAME_END: Duration = Duration::from_millis(500);

/// What was seen of one claim's lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseSigns {
    /// When this claim was first seen.
    first: Instant,
    /// When its end was last seen to have moved.
    renewed: Option<Instant>,
    /// The end of the lease.
    ends: Option<Instant>,
    /// The longest rest that was seen.
    pub(crate) longest: Option<Duration>,
}

/// Whether a holder is alive. The word is shown beside a sign, never a colour alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Life {
    /// `alive`, `silent`, `held` (too early to say), `closed` or `unknown`: also the name of the style.
    pub(crate) word: &'static str,
    /// Why, in words.
    pub(crate) why: String,
}

impl LeaseSigns {
    /// The signs after a look at `now`, with those of the look before.
    pub(crate) fn seen(holding: &Holding, before: Option<&LeaseSigns>, now: Instant) -> Self {
        let left = holding.holder.lease_left;
        let ends = left.map(|left| now + left);
        let Some(before) = before else {
            return LeaseSigns { first: now, renewed: None, ends, longest: left };
        };
        let moved = matches!((ends, before.ends), (Some(now), Some(then)) if now > then + SAME_END);
        let renewed = if moved { Some(now) } else { before.renewed };
        LeaseSigns { renewed, ends, longest: left.max(before.longest), ..*before }
    }

    /// The judgement at `now`.
    pub(crate) fn life(&self, holder: &Holder, can: &Capabilities, now: Instant) -> Life {
        let ago = |at: Instant| short(now.saturating_duration_since(at));
        let (left, longest) = (self.left(now), self.longest.unwrap_or_default());
        let granted = holder.since.map(|since| since.elapsed());
        let (word, why) = match (left, self.renewed) {
            _ if holder.cooling_down => ("closed", "released, and kept closed".into()),
            (None, _) if !can.expires && holder.process.is_some() => {
                ("alive", "its process runs".into())
            }
            (None, _) => ("unknown", "its lease does not expire".into()),
            (Some(left), Some(at)) if left * 2 >= longest => {
                ("alive", format!("renewed {} ago", ago(at)))
            }
            (Some(_), Some(at)) => ("silent", format!("not renewed for {}", ago(at))),
            (Some(left), None)
                if granted.is_some_and(|age| age + left <= longest + SAME_END * 4)
                    && left * 2 >= longest =>
            {
                ("alive", format!("granted {} ago", short(granted.unwrap_or_default())))
            }
            (Some(left), None) if left * 2 < longest => {
                ("silent", format!("no renewal seen for {}", ago(self.first)))
            }
            (Some(_), None) => ("held", "watching for its renewal".into()),
        };
        Life { word, why }
    }

    /// What is left of the lease at `now`.
    pub(crate) fn left(&self, now: Instant) -> Option<Duration> {
        self.ends.map(|ends| ends.saturating_duration_since(now))
    }

    /// The rest of the lease in percent of the longest that was seen.
    pub(crate) fn percent(&self, now: Instant) -> Option<u32> {
        let (left, longest) = (self.left(now)?.as_millis(), self.longest?.as_millis().max(1));
        Some(u32::try_from((left * 100 / longest).min(100)).unwrap_or(100))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_core::time::UnixMillis;

    const TTL: Duration = Duration::from_secs(30);

    fn held(left: Option<Duration>) -> Holding {
        let mut holder = Holder::unknown();
        holder.lease_left = left;
        Holding::new(holder, None, None)
    }

    fn word(signs: &LeaseSigns, holding: &Holding, now: Instant) -> &'static str {
        signs.life(&holding.holder, &Capabilities::full("x"), now).word
    }

    /// F2: a lease whose end moves is alive; one that runs down past its half is silent; one look alone says neither,
    /// only that it is held.
    #[tokio::test]
    async fn f2_a_holder_that_renews_is_alive() {
        let (start, first) = (Instant::now(), held(Some(TTL)));
        let signs = LeaseSigns::seen(&first, None, start);
        assert_eq!(word(&signs, &first, start), "held");
        let later = start + TTL / 3;
        let renewed = LeaseSigns::seen(&held(Some(TTL)), Some(&signs), later);
        assert_eq!(word(&renewed, &first, later), "alive");
        let late = later + TTL * 2 / 3;
        let ran_down = LeaseSigns::seen(&held(Some(TTL / 3)), Some(&renewed), late);
        assert_eq!(word(&ran_down, &first, late), "silent");
        assert_eq!(
            ran_down.life(&first.holder, &Capabilities::full("x"), late).why,
            "not renewed for 20s"
        );
        assert_eq!(ran_down.percent(late), Some(33));
    }

    /// A fresh grant is a sign of life. Without leases the kernel answers; a foreign lock without an end is unknown.
    #[tokio::test]
    async fn f2_grants_and_leases_without_end() {
        let now = Instant::now();
        let mut fresh = held(Some(TTL));
        fresh.holder.since = Some(UnixMillis::now());
        assert_eq!(word(&LeaseSigns::seen(&fresh, None, now), &fresh, now), "alive");
        let endless = held(None);
        let signs = LeaseSigns::seen(&endless, None, now);
        assert_eq!(word(&signs, &endless, now), "unknown");
        let mut ours = held(None);
        ours.holder.process = Some(tenure_core::Process::this_process().clone());
        let mut can = Capabilities::full("file");
        can.expires = false;
        assert_eq!(signs.life(&ours.holder, &can, now).word, "alive");
        fresh.holder.cooling_down = true;
        assert_eq!(word(&LeaseSigns::seen(&fresh, None, now), &fresh, now), "closed");
    }
}
