//! A claim's seat: its key at the server, and what is known of it.
//!
//! In: a claim. Out: the requests that ask for, look at and give back its key, and what we remember
//! between them. No request is sent here.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tenure_core::time::UnixMillis;
use tenure_core::{Claim, Key, Token};
use tokio::sync::Notify;

use crate::epoch;
use crate::keys::Keys;
use crate::proto::{Compare, KeyValue, Op, RangeRequest, RangeResponse, RequestOp, TxnRequest};
use crate::session::{Lasts, Session};
use crate::value::{self, Author};

/// All seats of this process.
#[derive(Debug, Default)]
pub(crate) struct Seats(Mutex<All>);

#[derive(Debug, Default)]
struct All {
    by_token: HashMap<Token, Arc<Seat>>,
    /// Whose key in a queue has the name that this client's keys have.
    named: HashMap<Bytes, Token>,
    /// How many names have been made besides.
    others: u64,
}

/// How many marks there are: locks that share one cost each other a request at times.
const MARKS: usize = 1024;

/// Which locks were wanted by others when last seen. A mark may stand for several locks: it only says
/// which request is likely to be enough.
#[derive(Debug)]
pub(crate) struct Wanted {
    marks: Box<[AtomicBool]>,
    hasher: RandomState,
}

impl Default for Wanted {
    fn default() -> Self {
        let marks = (0..MARKS).map(|_| AtomicBool::new(false)).collect();
        Wanted { marks, hasher: RandomState::new() }
    }
}

impl Wanted {
    /// Whether others wanted the lock with this queue.
    pub(crate) fn by_others(&self, queue: &Bytes) -> bool {
        self.mark(queue).load(Ordering::Relaxed)
    }

    pub(crate) fn seen(&self, queue: &Bytes, by_others: bool) {
        self.mark(queue).store(by_others, Ordering::Relaxed);
    }

    fn mark(&self, queue: &Bytes) -> &AtomicBool {
        let place = self.hasher.hash_one(queue) % MARKS as u64;
        &self.marks[place as usize]
    }
}

impl Seats {
    pub(crate) fn get(&self, token: Token) -> Option<Arc<Seat>> {
        self.all().by_token.get(&token).cloned()
    }

    pub(crate) fn add(&self, seat: Arc<Seat>) {
        self.all().by_token.insert(seat.token, seat);
    }

    /// The name of the key that the claim `token` is to have in `queue`: the one that this client's keys
    /// have there, unless that is in use.
    fn name(&self, keys: &Keys, queue: &Bytes, token: Token) -> Bytes {
        let mut all = self.all();
        if *all.named.entry(queue.clone()).or_insert(token) == token {
            return keys.claim(queue);
        }
        drop(all);
        self.another_name(keys, queue)
    }

    /// A name that no key has ever had.
    pub(crate) fn another_name(&self, keys: &Keys, queue: &Bytes) -> Bytes {
        let mut all = self.all();
        all.others += 1;
        keys.another_claim(queue, all.others)
    }

    /// Nobody has to do with it any more.
    pub(crate) fn remove(&self, token: Token) {
        let mut all = self.all();
        let Some(seat) = all.by_token.remove(&token) else { return };
        if all.named.get(&seat.queue) == Some(&token) {
            all.named.remove(&seat.queue);
        }
        drop(all);
        seat.end();
    }

    /// Those that hold a lock on `session`.
    pub(crate) fn held_on(&self, session: &Session) -> Vec<Arc<Seat>> {
        let on = |seat: &&Arc<Seat>| seat.is_held() && seat.session().lease() == session.lease();
        self.all().by_token.values().filter(on).cloned().collect()
    }

    fn all(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) key: Key,
    pub(crate) token: Token,
    /// What the keys of all claims on the lock start with.
    pub(crate) queue: Bytes,
    /// What says the base of fences.
    epoch: Bytes,
    state: Mutex<State>,
    /// Nobody has to do with it any more.
    over: AtomicBool,
    ended: Notify,
}

#[derive(Debug)]
struct State {
    name: Bytes,
    value: Bytes,
    /// What its fence counts from, as its value says.
    base: i64,
    session: Arc<Session>,
    /// Where its key may have gone without our knowing.
    perhaps: Option<Arc<Session>>,
    /// The revision at which the key was created; zero if that is not known.
    created: i64,
    /// The revision at which the key was last written by us; zero if that is not known.
    written: i64,
    /// Whether it was ever asked for.
    sent: bool,
    /// Whether a request may still be carried out that would create the key.
    stray: bool,
    held: bool,
    /// It has been asked to be given back, and whether it was ours for certain at the time.
    given_back: Option<bool>,
}

/// A seat at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Now {
    pub(crate) name: Bytes,
    value: Bytes,
    pub(crate) base: i64,
    pub(crate) session: Arc<Session>,
    pub(crate) created: i64,
    pub(crate) written: i64,
    pub(crate) sent: bool,
    pub(crate) stray: bool,
    pub(crate) given_back: Option<bool>,
}

/// Who is before a claim, as of a revision.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) created: i64,
    pub(crate) revision: i64,
    pub(crate) term: u64,
    /// The claim right before; nobody if the lock is this claim's.
    pub(crate) before: Option<Bytes>,
    /// How many hold and wait.
    pub(crate) count: i64,
    /// The oldest claim, where it was read.
    pub(crate) first: Option<KeyValue>,
    /// What was known of the session before this was asked for, and so is confirmed by it.
    pub(crate) lasts: Option<Lasts>,
}

impl Seat {
    pub(crate) fn new(
        seats: &Seats,
        keys: &Keys,
        author: &Author,
        claim: &Claim,
        session: Arc<Session>,
        base: i64,
    ) -> Self {
        let queue = keys.queue(claim.key());
        let name = seats.name(keys, &queue, claim.token());
        let value = author.write(claim, UnixMillis::now(), base);
        Self::of(keys, claim, session, queue, name, value, base)
    }

    /// One that another process took, under the name that it has.
    pub(crate) fn adopted(
        keys: &Keys,
        claim: &Claim,
        session: Arc<Session>,
        found: KeyValue,
    ) -> Self {
        let queue = keys.queue(claim.key());
        let base = value::base(&found.value).unwrap_or_default();
        let seat = Self::of(keys, claim, session, queue, found.key, found.value, base);
        let mut state = seat.state();
        (state.created, state.written) = (found.create_revision, found.mod_revision);
        (state.sent, state.held) = (true, true);
        drop(state);
        seat
    }

    fn of(
        keys: &Keys,
        claim: &Claim,
        session: Arc<Session>,
        queue: Bytes,
        name: Bytes,
        value: Bytes,
        base: i64,
    ) -> Self {
        let state = State {
            name,
            value,
            base,
            session,
            perhaps: None,
            created: 0,
            written: 0,
            sent: false,
            stray: false,
            held: false,
            given_back: None,
        };
        Seat {
            key: claim.key().clone(),
            token: claim.token(),
            queue,
            epoch: keys.epoch(),
            state: Mutex::new(state),
            over: AtomicBool::new(false),
            ended: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nobody has to do with it any more.
    pub(crate) fn end(&self) {
        if !self.over.swap(true, Ordering::AcqRel) {
            self.ended.notify_waiters();
        }
    }

    /// Waits until that is so.
    pub(crate) async fn over(&self) {
        let ended = self.ended.notified();
        if !self.over.load(Ordering::Acquire) {
            ended.await;
        }
    }

    pub(crate) fn now(&self) -> Now {
        let state = self.state();
        Now {
            name: state.name.clone(),
            value: state.value.clone(),
            base: state.base,
            session: state.session.clone(),
            created: state.created,
            written: state.written,
            sent: state.sent,
            stray: state.stray,
            given_back: state.given_back,
        }
    }

    pub(crate) fn session(&self) -> Arc<Session> {
        self.state().session.clone()
    }

    pub(crate) fn is_held(&self) -> bool {
        self.state().held
    }

    /// It is asked for now. Until that is answered, it may be had at any later time.
    pub(crate) fn sending(&self) -> Sending<'_> {
        let mut state = self.state();
        state.sent = true;
        Sending { seat: self, before: std::mem::replace(&mut state.stray, true) }
    }

    /// Its key is to be called so from now on.
    pub(crate) fn rename(&self, name: Bytes) {
        self.state().name = name;
    }

    /// Its fence is to count from `base`. Only while nothing can have created its key.
    pub(crate) fn rebase(&self, base: i64) {
        let mut state = self.state();
        state.value = value::rebased(&state.value, base);
        state.base = base;
    }

    /// Whether a key of its name is its own, by what it says.
    pub(crate) fn owns(&self, found: &KeyValue) -> bool {
        value::token(&found.value) == Some(self.token)
    }

    /// Its key is there: when it was created, and last written.
    pub(crate) fn found(&self, created: i64, written: i64) {
        let mut state = self.state();
        (state.created, state.written) = (created, written);
        if state.session.is_own() {
            state.session.guard_moved(created);
        }
    }

    pub(crate) fn set_held(&self) {
        self.state().held = true;
    }

    /// Nothing can be carried out late any more.
    pub(crate) fn no_strays(&self) {
        self.state().stray = false;
    }

    /// It is asked to be given back; `ours` says whether it is ours for certain. The first time counts.
    pub(crate) fn giving_back(&self, ours: bool) {
        self.state().given_back.get_or_insert(ours);
    }

    /// Its key may move to `session`, or may have moved.
    pub(crate) fn moving_to(&self, session: Arc<Session>) {
        self.state().perhaps = Some(session);
    }

    /// Whether it is not known to which session its key has moved.
    pub(crate) fn may_have_moved(&self) -> bool {
        self.state().perhaps.is_some()
    }

    /// Its key was written at `revision`, on the session that it has: it has not moved, and will not. The
    /// session that it might have moved to.
    pub(crate) fn stays(&self, revision: i64) -> Option<Arc<Session>> {
        let mut state = self.state();
        state.written = revision;
        state.perhaps.take()
    }

    /// Its key was written at `revision`, by the request that moved it to `session`.
    pub(crate) fn moved(&self, session: &Arc<Session>, revision: i64) {
        let mut state = self.state();
        (state.session, state.perhaps, state.written) = (session.clone(), None, revision);
    }

    /// Its key hangs on `lease` since `written`: whether that is a session of ours.
    pub(crate) fn found_on(&self, lease: i64, written: i64) -> bool {
        let mut state = self.state();
        match state.perhaps.take_if(|session| session.lease() == lease) {
            Some(session) => {
                (state.session, state.written) = (session, written);
                true
            }
            None => state.session.lease() == lease,
        }
    }

    /// Asks for the lock if nobody has it and nobody waits, without standing in the queue.
    pub(crate) fn try_it(&self, now: &Now) -> TxnRequest {
        let free = Compare::none_under(self.queue.clone());
        TxnRequest {
            compare: vec![free, now.unguarded(), self.counts_from(now)],
            success: self.put(now),
            failure: vec![self.read_first(), now.read_guard(), self.read_epoch()],
        }
    }

    /// Takes a lock that nobody has or wants, and does nothing else: what costs the server least.
    pub(crate) fn take(&self, now: &Now) -> TxnRequest {
        let free = Compare::none_under(self.queue.clone());
        let compare = vec![free, now.unguarded(), self.counts_from(now)];
        TxnRequest { compare, success: self.put(now), failure: vec![] }
    }

    /// Stands in the queue, free or not.
    pub(crate) fn stand(&self, now: &Now) -> TxnRequest {
        let absent = Compare::created(now.name.clone(), 0);
        let last_two = RangeRequest::under(self.queue.clone()).newest_first().limit(2).keys_only();
        let mut success = self.put(now);
        success.extend([self.read_first(), Op::range(last_two)]);
        // Why it cannot is asked for then, which is rare: the server reads through all that it might have to do.
        let compare = vec![absent, now.unguarded(), self.counts_from(now)];
        TxnRequest { compare, success, failure: vec![] }
    }

    /// Looks at what keeps it from standing in the queue.
    pub(crate) fn why_not(&self, now: &Now) -> TxnRequest {
        let mine = Op::range(RangeRequest::one(now.name.clone()));
        let success = vec![now.read_guard(), mine, self.read_epoch()];
        TxnRequest { success, ..Default::default() }
    }

    /// Looks at who is right before us, and whether we are still there.
    pub(crate) fn look(&self, created: i64) -> RangeRequest {
        let queue = RangeRequest::under(self.queue.clone());
        queue.created_by(created).newest_first().limit(2).keys_only()
    }

    /// Looks at who has the lock, and whether anybody else wants it.
    pub(crate) fn check(&self) -> RequestOp {
        let queue = RangeRequest::under(self.queue.clone());
        Op::range(queue.oldest_first().limit(1).keys_only())
    }

    /// Gives the lock back. Which session the key hangs on is asked for only where that is in doubt: the
    /// other one has to be ended as well.
    pub(crate) fn give_back(&self, now: &Now) -> TxnRequest {
        let mut success = vec![Op::delete(now.name.clone())];
        success.extend(now.shut_out_strays());
        let mut compare = vec![now.ours()];
        compare.extend(self.may_have_moved().then(|| now.here()));
        TxnRequest { compare, success, failure: vec![] }
    }

    /// Gives the lock back, and keeps it closed for as long as `lease` lasts.
    pub(crate) fn close(&self, now: &Now, lease: i64) -> TxnRequest {
        let closed = Op::put(now.name.clone(), value::closed(&now.value), lease);
        let mut success = vec![closed];
        success.extend(now.shut_out_strays());
        TxnRequest { compare: vec![now.ours(), now.here()], success, failure: vec![] }
    }

    /// Looks at what became of the key, and whether somebody has left a word about it.
    pub(crate) fn what_became(&self, keys: &Keys, now: &Now) -> TxnRequest {
        let mine = Op::range(RangeRequest::one(now.name.clone()));
        let forced = Op::range(RangeRequest::one(keys.forced(self.token)));
        TxnRequest { success: vec![mine, forced], ..Default::default() }
    }

    /// Hangs the key on a session of its own, if nobody has written it since we did. Its place in the queue
    /// and its fence stay.
    pub(crate) fn move_to(&self, keys: &Keys, now: &Now, lease: i64) -> TxnRequest {
        let mut moved = self.hang_on(now, lease);
        moved.success.push(Op::put(keys.session(lease), Bytes::new(), lease));
        moved
    }

    /// Hangs the key on the session that it has, which shuts out every move that was sent before.
    pub(crate) fn stay(&self, now: &Now) -> TxnRequest {
        self.hang_on(now, now.session.lease())
    }

    fn hang_on(&self, now: &Now, lease: i64) -> TxnRequest {
        let moved = Op::put(now.name.clone(), now.value.clone(), lease);
        let unwritten = Compare::modified(now.name.clone(), now.written);
        TxnRequest {
            compare: vec![now.ours(), now.here(), unwritten],
            success: vec![moved],
            failure: vec![Op::range(RangeRequest::one(now.name.clone()))],
        }
    }

    /// Deletes the key if it is this claim's, whenever it was created, and shuts out what would still
    /// create it. What it says tells whose it is: a later claim may have the same name when this is carried
    /// out. One that somebody has written over is told by its revision, where that is known.
    pub(crate) fn undo(&self, now: &Now) -> TxnRequest {
        let delete = || Op::delete(now.name.clone());
        let written_over = TxnRequest {
            compare: vec![Compare::created(now.name.clone(), now.created)],
            success: vec![delete()],
            failure: vec![],
        };
        let (mut success, mut failure) = (vec![delete()], vec![Op::Txn(written_over).into()]);
        success.extend(now.shut_out_strays());
        failure.extend(now.shut_out_strays());
        let compare = vec![Compare::valued(now.name.clone(), now.value.clone())];
        TxnRequest { compare, success, failure }
    }

    /// Puts the claim's key, and with it the own key of a session that has only this claim: that both go
    /// at once tells whoever watches that the session has ended.
    fn put(&self, now: &Now) -> Vec<RequestOp> {
        let lease = now.session.lease();
        let mine = Op::put(now.name.clone(), now.value.clone(), lease);
        match now.session.is_own() {
            true => vec![mine, Op::put(now.session.key(), Bytes::new(), lease)],
            false => vec![mine],
        }
    }

    /// The base of fences is the one that the claim says.
    fn counts_from(&self, now: &Now) -> Compare {
        Compare::valued(self.epoch.clone(), epoch::text(now.base))
    }

    fn read_epoch(&self) -> RequestOp {
        Op::range(RangeRequest::one(self.epoch.clone()))
    }

    fn read_first(&self) -> RequestOp {
        Op::range(RangeRequest::under(self.queue.clone()).oldest_first().limit(1))
    }
}

impl Now {
    /// The key is the one that we created.
    fn ours(&self) -> Compare {
        Compare::created(self.name.clone(), self.created)
    }

    /// It hangs on our session.
    fn here(&self) -> Compare {
        Compare::leased(self.name.clone(), self.session.lease())
    }

    /// No claim of the session has been undone since we last looked.
    fn unguarded(&self) -> Compare {
        Compare::modified(self.session.key(), self.session.guard())
    }

    fn read_guard(&self) -> RequestOp {
        Op::range(RangeRequest::one(self.session.key()).keys_only())
    }

    /// Makes every request fail that was sent before now, on a session that outlives the claim.
    fn shut_out_strays(&self) -> Option<RequestOp> {
        let needed = self.stray && !self.session.is_own();
        let lease = self.session.lease();
        needed.then(|| Op::put(self.session.key(), Bytes::new(), lease))
    }
}

/// A request that is under way. Dropped without [`answered`](Self::answered), it may be carried out at
/// any later time.
pub(crate) struct Sending<'a> {
    seat: &'a Seat,
    before: bool,
}

impl Sending<'_> {
    /// It was carried out, or never will be.
    pub(crate) fn answered(self) {
        self.seat.state().stray = self.before;
    }
}

/// Who is right before the claim with the key `name` that was created at `created`, as the server showed
/// it: the claim itself first, if it is still there.
pub(crate) fn before(name: &Bytes, created: i64, found: &RangeResponse) -> Option<Option<Bytes>> {
    let mine = found.kvs.first()?;
    let is_mine = mine.key == *name && mine.create_revision == created;
    is_mine.then(|| found.kvs.get(1).map(|kv| kv.key.clone()))
}
