//! A claim's key at the server, and the known state of it.
//!
//! In: a claim. Out: the requests that create, read and delete its key, and the state to remember between
//! them. This module sends no request.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tenure_core::time::UnixMillis;
use tenure_core::{Claim, Key, Mode, Token};
use tokio_util::sync::CancellationToken;

use crate::epoch;
use crate::keys::Keys;
use crate::modes;
use crate::proto::{Compare, KeyValue, Op, RangeRequest, RequestOp, TxnRequest};
use crate::session::Session;
use crate::value::{self, ValueWriter};

/// The keys of all claims of this process.
#[derive(Debug)]
pub(crate) struct ClaimKeys {
    keys: Arc<Keys>,
    writer: ValueWriter,
    registry: Mutex<Registry>,
}

#[derive(Debug, Default)]
struct Registry {
    by_token: HashMap<Token, Arc<ClaimKey>>,
    /// The claims by the names of their keys.
    named: HashMap<Bytes, Token>,
}

impl ClaimKeys {
    pub(crate) fn new(keys: Arc<Keys>) -> Self {
        ClaimKeys { keys, writer: ValueWriter::new(), registry: Mutex::default() }
    }

    pub(crate) fn get(&self, token: Token) -> Option<Arc<ClaimKey>> {
        self.registry().by_token.get(&token).cloned()
    }

    /// The prefix of the keys of all claims on the claim's lock.
    pub(crate) fn queue(&self, claim: &Claim) -> Bytes {
        self.keys.queue(claim.key())
    }

    /// The key of a new claim.
    pub(crate) fn create(&self, claim: &Claim, session: Arc<Session>, base: i64) -> Arc<ClaimKey> {
        let queue = self.keys.queue(claim.key());
        let name = self.name(&queue, claim.mode(), claim.token(), 0);
        let value = self.writer.write(claim, UnixMillis::now(), base);
        self.add(ClaimKey::new(&self.keys, claim, queue, KeyState::new(name, value, base, session)))
    }

    /// The key of a claim that another process acquired, under its present name.
    pub(crate) fn adopt(&self, claim: &Claim, session: Arc<Session>, found: KeyValue) {
        let base = value::base(&found.value).unwrap_or_default();
        let mut state = KeyState::new((found.key, 0), found.value, base, session);
        (state.created, state.written) = (found.create_revision, found.mod_revision);
        (state.sent, state.held) = (true, true);
        self.add(ClaimKey::new(&self.keys, claim, self.keys.queue(claim.key()), state));
    }

    fn add(&self, claim_key: ClaimKey) -> Arc<ClaimKey> {
        let claim_key = Arc::new(claim_key);
        self.registry().by_token.insert(claim_key.token, claim_key.clone());
        claim_key
    }

    /// A name for the key of the claim `token` in `queue`: with the lowest number, from `number` on, that no claim
    /// of ours has.
    fn name(&self, queue: &[u8], mode: &Mode, token: Token, mut number: u32) -> (Bytes, u32) {
        let mut registry = self.registry();
        loop {
            let name = self.keys.claim(queue, mode, number);
            if *registry.named.entry(name.clone()).or_insert(token) == token {
                return (name, number);
            }
            number = number.saturating_add(1);
        }
    }

    /// Gives the claim's key another name: the key of another claim has its name at the server.
    pub(crate) fn rename(&self, claim_key: &ClaimKey) {
        let (token, state) = (claim_key.token, claim_key.snapshot());
        let next = state.number.saturating_add(1);
        let name = self.name(&claim_key.queue, &claim_key.mode, token, next);
        self.registry().named.remove(&state.name);
        claim_key.set_name(name);
    }

    /// Forgets a claim, and marks its key as ended.
    pub(crate) fn remove(&self, token: Token) {
        let mut registry = self.registry();
        let Some(claim_key) = registry.by_token.remove(&token) else { return };
        let name = claim_key.snapshot().name;
        if registry.named.get(&name) == Some(&token) {
            registry.named.remove(&name);
        }
        drop(registry);
        claim_key.end();
    }

    /// The claims that hold a lock on `session`.
    pub(crate) fn held_on(&self, session: &Session) -> Vec<Arc<ClaimKey>> {
        let on =
            |held: &&Arc<ClaimKey>| held.is_held() && held.session().lease() == session.lease();
        self.registry().by_token.values().filter(on).cloned().collect()
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub(crate) struct ClaimKey {
    pub(crate) key: Key,
    pub(crate) token: Token,
    pub(crate) mode: Mode,
    /// The prefix of the keys of all claims on the lock.
    pub(crate) queue: Bytes,
    /// The key with the base of fences.
    epoch: Bytes,
    state: Mutex<KeyState>,
    /// Whether the background work watches for claims that wait for its lock.
    watched: AtomicBool,
    /// Cancelled when the claim is released, abandoned or forgotten.
    ended: CancellationToken,
}

/// The state of a claim's key at one moment.
#[derive(Clone, Debug)]
pub(crate) struct KeyState {
    pub(crate) name: Bytes,
    /// The number in its name.
    number: u32,
    value: Bytes,
    /// The base of its fence, the same as in its value.
    pub(crate) base: i64,
    pub(crate) session: Arc<Session>,
    /// The session that its key may have moved to: the reply to the move was lost, or is still to come.
    maybe_moved_to: Option<Arc<Session>>,
    /// The revision at which the key was created; zero if unknown.
    pub(crate) created: i64,
    /// The revision at which we last wrote the key; zero if unknown.
    pub(crate) written: i64,
    /// Whether a request that creates the key was ever sent.
    pub(crate) sent: bool,
    /// Whether a request that would create the key may still be executed.
    pub(crate) in_flight: bool,
    held: bool,
    /// Set when a release was sent: whether the lock was certainly ours at that time.
    pub(crate) release_sent: Option<bool>,
}

impl ClaimKey {
    fn new(keys: &Keys, claim: &Claim, queue: Bytes, state: KeyState) -> Self {
        ClaimKey {
            key: claim.key().clone(),
            token: claim.token(),
            mode: claim.mode().clone(),
            queue,
            epoch: keys.epoch(),
            state: Mutex::new(state),
            watched: AtomicBool::new(false),
            ended: CancellationToken::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, KeyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the use of this key: it is released, abandoned or forgotten.
    pub(crate) fn end(&self) {
        self.ended.cancel();
    }

    /// Waits until [`end`](Self::end) was called.
    pub(crate) async fn wait_until_ended(&self) {
        self.ended.cancelled().await;
    }

    /// Records whether it is watched for waiters from now on. Returns whether it was.
    pub(crate) fn set_watched(&self, watched: bool) -> bool {
        self.watched.swap(watched, Ordering::AcqRel)
    }

    /// Its state now.
    pub(crate) fn snapshot(&self) -> KeyState {
        self.state().clone()
    }

    pub(crate) fn session(&self) -> Arc<Session> {
        self.state().session.clone()
    }

    pub(crate) fn is_held(&self) -> bool {
        self.state().held
    }

    /// Marks that a request which may create the key is sent now. Until its reply comes, the key may be
    /// created at any later time.
    pub(crate) fn begin_request(&self) -> InFlight<'_> {
        let mut state = self.state();
        state.sent = true;
        InFlight { claim_key: self, before: std::mem::replace(&mut state.in_flight, true) }
    }

    /// Uses this name, and its number, for its key from now on.
    fn set_name(&self, (name, number): (Bytes, u32)) {
        let mut state = self.state();
        (state.name, state.number) = (name, number);
    }

    /// Uses `base` for its fence from now on. Only while no request can have created its key.
    pub(crate) fn set_base(&self, base: i64) {
        let mut state = self.state();
        state.value = value::rebased(&state.value, base);
        state.base = base;
    }

    /// Whether a key of this name belongs to this claim, by the token in its value.
    pub(crate) fn owns(&self, found: &KeyValue) -> bool {
        value::token(&found.value) == Some(self.token)
    }

    /// Records that its key exists, with the revisions at which it was created and last written.
    pub(crate) fn set_revisions(&self, created: i64, written: i64) {
        let mut state = self.state();
        (state.created, state.written) = (created, written);
        if state.session.is_single() {
            state.session.record_revision(created);
        }
    }

    /// Records that its key was written with the slot of a numbered permit, at the revision `written`.
    pub(crate) fn set_slot(&self, slot: u32, written: i64) {
        let mut state = self.state();
        (state.value, state.written) = (value::numbered(&state.value, slot), written);
    }

    pub(crate) fn set_held(&self) {
        self.state().held = true;
    }

    /// Records that no earlier request can be executed any more.
    pub(crate) fn none_in_flight(&self) {
        self.state().in_flight = false;
    }

    /// Marks that a release is sent; `ours` is whether the lock is certainly ours. The first call counts.
    pub(crate) fn set_release_sent(&self, ours: bool) {
        self.state().release_sent.get_or_insert(ours);
    }

    /// Records that its key may move to `session`, or may have moved.
    pub(crate) fn set_moving_to(&self, session: Arc<Session>) {
        self.state().maybe_moved_to = Some(session);
    }

    /// Whether it is unknown which session its key is on, because of a move.
    pub(crate) fn may_have_moved(&self) -> bool {
        self.state().maybe_moved_to.is_some()
    }

    /// Records that its key was written at `revision` on its present session, so that no earlier move can
    /// happen. Returns the session that it might have moved to.
    pub(crate) fn pinned(&self, revision: i64) -> Option<Arc<Session>> {
        let mut state = self.state();
        state.written = revision;
        state.maybe_moved_to.take()
    }

    /// Records that its key was found on its session, last written at `written`: the reply to that was lost.
    pub(crate) fn set_written(&self, written: i64) {
        self.state().written = written;
    }

    /// Records that its key was written with `label` at `revision`, as [`pinned`](Self::pinned).
    pub(crate) fn set_labelled(&self, label: &str, revision: i64) -> Option<Arc<Session>> {
        let mut state = self.state();
        state.value = value::relabelled(&state.value, label);
        drop(state);
        self.pinned(revision)
    }

    /// Records that its key was moved to `session`, at `revision`.
    pub(crate) fn set_moved(&self, session: &Arc<Session>, revision: i64) {
        let mut state = self.state();
        (state.session, state.maybe_moved_to, state.written) = (session.clone(), None, revision);
    }

    /// Records that its key was found on `lease`, last written at `written`. Returns whether that is a
    /// session of ours.
    pub(crate) fn locate(&self, lease: i64, written: i64) -> bool {
        let mut state = self.state();
        match state.maybe_moved_to.take_if(|session| session.lease() == lease) {
            Some(session) => {
                (state.session, state.written) = (session, written);
                true
            }
            None => state.session.lease() == lease,
        }
    }

    /// Acquires the lock if no other claim is in the way. Does not enter the queue.
    pub(crate) fn txn_try(&self, state: &KeyState) -> TxnRequest {
        let oldest = modes::in_the_way(&self.queue, &self.mode).oldest_first().limit(1);
        let mut failure = vec![Op::range(oldest)];
        failure.extend(self.txn_diagnose(state).success);
        TxnRequest { failure, ..self.txn_take(state) }
    }

    /// Acquires a lock if no other claim is in the way, and reads nothing: the cheapest request for the server.
    pub(crate) fn txn_take(&self, state: &KeyState) -> TxnRequest {
        let free = Compare::none_in(modes::in_the_way(&self.queue, &self.mode));
        let mut compare = vec![free, state.session_unchanged(), self.counts_from(state)];
        // Other readers are not in the way, and one of them may have the name.
        compare.extend((self.mode == Mode::Read).then(|| state.absent()));
        TxnRequest { compare, success: self.put(state), failure: vec![] }
    }

    /// Enters the queue, whether the lock is free or not.
    pub(crate) fn txn_enqueue(&self, state: &KeyState) -> TxnRequest {
        let mut success = self.put(state);
        success.push(Op::range(RangeRequest::under(self.queue.clone()).oldest_first().limit(1)));
        success.extend(self.reads(&state.name, 0).into_iter().map(Op::range));
        // The reason for a failure is read by a second request, which is rare. The server goes through all
        // operations that a transaction might have to do.
        let compare = vec![state.absent(), state.session_unchanged(), self.counts_from(state)];
        TxnRequest { compare, success, failure: vec![] }
    }

    /// Reads why the claim could not enter the queue.
    pub(crate) fn txn_diagnose(&self, state: &KeyState) -> TxnRequest {
        let mine = Op::range(RangeRequest::one(state.name.clone()));
        let success = vec![state.read_session_key(), mine, self.read_epoch()];
        TxnRequest { success, ..Default::default() }
    }

    /// Reads our key, and the claims that decide whether it holds the lock: see [`Position`]. `created` is the revision
    /// at which our key was created; zero if it is created by the same request.
    pub(crate) fn reads(&self, name: &Bytes, created: i64) -> Vec<RangeRequest> {
        let others = modes::in_the_way(&self.queue, &self.mode).keys_only();
        let newest = |range: RangeRequest| range.created_by(created).newest_first();
        match self.mode {
            Mode::Read => {
                let mine = RangeRequest::one(name.clone()).keys_only();
                vec![mine, newest(others).limit(1)]
            }
            Mode::Permits { .. } => vec![others],
            // Ours and the one before it.
            Mode::Exclusive | Mode::SharedOwner(_) => vec![newest(others).limit(2)],
        }
    }

    /// Gives a permit that holds the lock its number, if its key is as we last wrote or saw it. Otherwise reads all
    /// claims.
    pub(crate) fn txn_number(&self, state: &KeyState, slot: Option<u32>) -> TxnRequest {
        let all = Op::range(RangeRequest::under(self.queue.clone()).oldest_first());
        let Some(slot) = slot else {
            return TxnRequest { success: vec![all], ..Default::default() };
        };
        let value = value::numbered(&state.value, slot);
        TxnRequest {
            compare: vec![state.owned(), state.unwritten()],
            success: vec![Op::put(state.name.clone(), value, state.session.lease())],
            failure: vec![all],
        }
    }

    /// Releases the lock. The session of the key is compared only if a move may have happened: then the other
    /// session has to be ended too.
    pub(crate) fn txn_release(&self, state: &KeyState) -> TxnRequest {
        let mut success = vec![Op::delete(state.name.clone())];
        success.extend(state.block_late_requests());
        let mut compare = vec![state.owned()];
        compare.extend(self.may_have_moved().then(|| state.on_session()));
        TxnRequest { compare, success, failure: vec![] }
    }

    /// Releases the lock, and keeps it closed until `lease` ends.
    pub(crate) fn txn_close(&self, state: &KeyState, lease: i64) -> TxnRequest {
        let closed = Op::put(state.name.clone(), value::closed(&state.value), lease);
        let mut success = vec![closed];
        success.extend(state.block_late_requests());
        TxnRequest { compare: vec![state.owned(), state.on_session()], success, failure: vec![] }
    }

    /// Reads the present state of the key, and whether an operator has forced a release.
    pub(crate) fn txn_outcome(&self, keys: &Keys, state: &KeyState) -> TxnRequest {
        TxnRequest::read([state.name.clone(), keys.forced(self.token)].map(RangeRequest::one))
    }

    /// Moves the key to a session of its own, if it was not written since our last write. Its position in the
    /// queue and its fence stay the same.
    pub(crate) fn txn_move(&self, keys: &Keys, state: &KeyState, lease: i64) -> TxnRequest {
        let mut set_moved = self.attach_lease(state, lease);
        set_moved.success.push(Op::put(keys.session(lease), Bytes::new(), lease));
        set_moved
    }

    /// Writes the key on its present session, so that every move that was sent before fails.
    pub(crate) fn txn_pin_lease(&self, state: &KeyState) -> TxnRequest {
        self.attach_lease(state, state.session.lease())
    }

    /// Writes the key with another label, if it was not written since our last write. Its position in the queue and its
    /// fence stay the same. `None` if it has that label already.
    pub(crate) fn txn_label(&self, state: &KeyState, label: &str) -> Option<TxnRequest> {
        let value = value::relabelled(&state.value, label);
        let labelled = KeyState { value, ..state.clone() };
        (labelled.value != state.value).then(|| self.txn_pin_lease(&labelled))
    }

    fn attach_lease(&self, state: &KeyState, lease: i64) -> TxnRequest {
        let set_moved = Op::put(state.name.clone(), state.value.clone(), lease);
        TxnRequest {
            compare: vec![state.owned(), state.on_session(), state.unwritten()],
            success: vec![set_moved],
            failure: vec![Op::range(RangeRequest::one(state.name.clone()))],
        }
    }

    /// Deletes the key if it belongs to this claim, at whatever revision it was created, and blocks requests
    /// that would still create it. The value identifies the claim, because a later claim may have
    /// the same name when this request is executed. A key whose value was overwritten is identified by its
    /// create revision, if that is known.
    pub(crate) fn txn_undo(&self, state: &KeyState) -> TxnRequest {
        let delete = || Op::delete(state.name.clone());
        let written_over = TxnRequest {
            compare: vec![Compare::created(state.name.clone(), state.created)],
            success: vec![delete()],
            failure: vec![],
        };
        let (mut success, mut failure) = (vec![delete()], vec![Op::Txn(written_over).into()]);
        success.extend(state.block_late_requests());
        failure.extend(state.block_late_requests());
        let compare = vec![Compare::valued(state.name.clone(), state.value.clone())];
        TxnRequest { compare, success, failure }
    }

    /// Puts the claim's key. A session of one claim gets its own key by the same request: if both keys are
    /// deleted at one revision, watchers know that the session has ended.
    fn put(&self, state: &KeyState) -> Vec<RequestOp> {
        let lease = state.session.lease();
        let mine = Op::put(state.name.clone(), state.value.clone(), lease);
        match state.session.is_single() {
            true => vec![mine, Op::put(state.session.key(), Bytes::new(), lease)],
            false => vec![mine],
        }
    }

    /// The condition that the base of fences is the one in the claim's value.
    fn counts_from(&self, state: &KeyState) -> Compare {
        Compare::valued(self.epoch.clone(), epoch::text(state.base))
    }

    fn read_epoch(&self) -> RequestOp {
        Op::range(RangeRequest::one(self.epoch.clone()))
    }
}

impl KeyState {
    fn new((name, number): (Bytes, u32), value: Bytes, base: i64, session: Arc<Session>) -> Self {
        KeyState {
            name,
            number,
            value,
            base,
            session,
            maybe_moved_to: None,
            created: 0,
            written: 0,
            sent: false,
            in_flight: false,
            held: false,
            release_sent: None,
        }
    }

    /// The condition that the key is the one that we created.
    fn owned(&self) -> Compare {
        Compare::created(self.name.clone(), self.created)
    }

    /// The condition that no key has the name.
    fn absent(&self) -> Compare {
        Compare::created(self.name.clone(), 0)
    }

    /// The condition that the key was not written since our last write.
    fn unwritten(&self) -> Compare {
        Compare::modified(self.name.clone(), self.written)
    }

    /// The condition that the key is on our session.
    fn on_session(&self) -> Compare {
        Compare::leased(self.name.clone(), self.session.lease())
    }

    /// The condition that no claim of the session was undone since we last read the session's key.
    fn session_unchanged(&self) -> Compare {
        Compare::modified(self.session.key(), self.session.session_revision())
    }

    fn read_session_key(&self) -> RequestOp {
        Op::range(RangeRequest::one(self.session.key()).keys_only())
    }

    /// Makes all requests fail that were sent before now. Only needed on a session that outlives the claim.
    fn block_late_requests(&self) -> Option<RequestOp> {
        let needed = self.in_flight && !self.session.is_single();
        let lease = self.session.lease();
        needed.then(|| Op::put(self.session.key(), Bytes::new(), lease))
    }
}

/// A request that was sent. If it is dropped without [`answered`](Self::answered), it may still be executed
/// at any later time.
pub(crate) struct InFlight<'a> {
    claim_key: &'a ClaimKey,
    before: bool,
}

impl InFlight<'_> {
    /// The request was executed, or never will be.
    pub(crate) fn answered(self) {
        self.claim_key.state().in_flight = self.before;
    }
}
