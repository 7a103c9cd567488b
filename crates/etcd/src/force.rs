//! Forced release of a lock by an operator.
//!
//! In: a lock, and the token that the operator saw. Out: a free lock, and a note for its former holder. The
//! note is kept for as long as the holder's lease could have lasted. A lock that is only kept closed has no
//! holder, so it is opened without a note.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{Fault, Loss, Notice, Notifier, Release};
use tenure_core::{Key, Mode, Token};
use tenure_net::ForkGuard;

use crate::cleanup::{Cleanup, Cleanups};
use crate::error::EngineError;
use crate::keys::Keys;
use crate::link::Link;
use crate::modes;
use crate::proto::{Compare, KeyValue, LeaseGrantRequest, Op, RangeRequest, TxnRequest};
use crate::session::seconds;
use crate::value;

/// The operator's text is cut to this number of characters: it is stored at the server for a while.
const BY_MAX: usize = 200;
/// The shortest time that the note is kept, in seconds.
const NOTE_TTL_MIN: i64 = 10;

#[derive(Debug)]
pub(crate) struct Forcer {
    pub(crate) fork_guard: ForkGuard,
    pub(crate) keys: Arc<Keys>,
    pub(crate) calls: Arc<Link>,
    pub(crate) cleanups: Arc<Cleanups>,
    pub(crate) notifier: Notifier,
}

impl Forcer {
    pub(crate) async fn force(&self, key: &Key, seen: Token, by: &str) -> Result<Release, Fault> {
        self.fork_guard.refuse_forked()?;
        let by: String = by.chars().take(BY_MAX).collect();
        let queue = RangeRequest::under(self.keys.queue(key)).oldest_first();
        let claims = self.calls.call(queue).await?.kvs;
        let modes: Vec<Mode> =
            claims.iter().filter_map(|kv| Some(self.keys.parse(&kv.key)?.1)).collect();
        let mut held = claims.into_iter().take(modes::holders(&modes));
        let Some(held) = held.find(|kv| value::token(&kv.value) == Some(seen)) else {
            return Ok(Release::NotHeld);
        };
        if value::is_closed(&held.value) {
            let opened = self.calls.call(delete_unchanged(&held)).await?.succeeded;
            return Ok(if opened { Release::Freed } else { Release::NotHeld });
        }
        let (note, ttl) = self.lease_for_note(held.lease).await?;
        let mut request = delete_unchanged(&held);
        request.success.push(Op::put(self.keys.forced(seen), by.clone().into(), note));
        if !self.calls.call(request).await?.succeeded {
            self.cleanups.queue(Cleanup::Revoke(note, ttl));
            return Ok(Release::NotHeld);
        }
        // A holder in this process is notified at once; other processes watch for the note, or find it. Without
        // a listener, the notice is not needed.
        let loss = Loss::Forced(by);
        self.notifier.send(Notice::Lost { key: key.clone(), token: seen, loss });
        Ok(Release::Freed)
    }

    /// A lease for the note, which lasts as long as the holder's lease could have.
    async fn lease_for_note(&self, held: i64) -> Result<(i64, Duration), EngineError> {
        let left = self.calls.time_to_live(held, self.calls.response_timeout()).await?;
        let ttl = left.granted_ttl.max(NOTE_TTL_MIN);
        Ok((self.calls.call(LeaseGrantRequest { ttl }).await?.id, seconds(ttl)))
    }
}

/// Deletes the claim's key, if it is unchanged since it was found.
fn delete_unchanged(found: &KeyValue) -> TxnRequest {
    let name = found.key.clone();
    TxnRequest {
        compare: vec![
            Compare::created(name.clone(), found.create_revision),
            Compare::leased(name.clone(), found.lease),
        ],
        success: vec![Op::delete(name)],
        failure: vec![],
    }
}
