//! A backend in the middle: passes every call on, or does something else instead.
//!
//! In: a real backend and a [`Meddler`] that overrides the calls it cares about. Out: a backend for
//! a `Locker`. [`Plain`] overrides nothing: it makes a backend of an `Arc` of one.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure_core::backend::{
    Answers, Attempt, Backend, BoxFuture, Capabilities, Fate, Fault, Grant, Hints, LockInfo,
    Notices, Query, Release, Renewal, Term, Then,
};
use tenure_core::time::Clock;
use tenure_core::{Claim, Key, Lease, Token};

/// What to do instead of passing a call on. Every method passes on unless it is overridden.
pub trait Meddler: Send + Sync + 'static {
    /// Instead of [`Backend::capabilities`].
    fn capabilities(&self, inner: &dyn Backend) -> Capabilities {
        inner.capabilities()
    }

    /// Instead of [`Backend::try_acquire`].
    fn try_acquire<'a>(
        &'a self,
        inner: &'a dyn Backend,
        claim: &'a Arc<Claim>,
    ) -> BoxFuture<'a, Result<Attempt, Fault>> {
        inner.try_acquire(claim)
    }

    /// Instead of [`Backend::acquire`].
    fn acquire<'a>(
        &'a self,
        inner: &'a dyn Backend,
        claim: &'a Arc<Claim>,
    ) -> BoxFuture<'a, Result<Grant, Fault>> {
        inner.acquire(claim)
    }

    /// Instead of [`Backend::renew`].
    fn renew<'a>(
        &'a self,
        inner: &'a dyn Backend,
        leases: &'a [Arc<Lease>],
        answers: &'a Answers<'a>,
    ) -> BoxFuture<'a, ()> {
        inner.renew(leases, answers)
    }

    /// Instead of [`Backend::release`].
    fn release<'a>(
        &'a self,
        inner: &'a dyn Backend,
        lease: &'a Arc<Lease>,
        then: Then,
    ) -> BoxFuture<'a, Result<Release, Fault>> {
        inner.release(lease, then)
    }

    /// Instead of [`Backend::abandon`].
    fn abandon<'a>(
        &'a self,
        inner: &'a dyn Backend,
        claim: &'a Arc<Claim>,
    ) -> BoxFuture<'a, Result<(), Fault>> {
        inner.abandon(claim)
    }

    /// Instead of [`Backend::adopt`].
    fn adopt<'a>(
        &'a self,
        inner: &'a dyn Backend,
        claim: &'a Arc<Claim>,
    ) -> BoxFuture<'a, Result<Option<Term>, Fault>> {
        inner.adopt(claim)
    }

    /// Instead of [`Backend::let_go`].
    fn let_go<'a>(
        &'a self,
        inner: &'a dyn Backend,
        lease: &'a Arc<Lease>,
    ) -> BoxFuture<'a, Result<(), Fault>> {
        inner.let_go(lease)
    }

    /// Instead of [`Backend::heed`].
    fn heed(&self, inner: &dyn Backend, lease: &Arc<Lease>) {
        inner.heed(lease);
    }

    /// Instead of [`Backend::tend`].
    fn tend<'a>(&'a self, inner: &'a dyn Backend) -> BoxFuture<'a, ()> {
        inner.tend()
    }

    /// Instead of [`Backend::notices`].
    fn notices(&self, inner: &dyn Backend) -> Notices {
        inner.notices()
    }

    /// Instead of [`Backend::inspect`].
    fn inspect<'a>(
        &'a self,
        inner: &'a dyn Backend,
        query: &'a Query,
    ) -> BoxFuture<'a, Result<Vec<LockInfo>, Fault>> {
        inner.inspect(query)
    }

    /// Instead of [`Backend::hints`].
    fn hints<'a>(&'a self, inner: &'a dyn Backend) -> BoxFuture<'a, Result<Option<Hints>, Fault>> {
        inner.hints()
    }

    /// Instead of [`Backend::fates`].
    fn fates<'a>(
        &'a self,
        inner: &'a dyn Backend,
        ended: &'a [(Key, Token)],
    ) -> BoxFuture<'a, Result<Vec<Option<Fate>>, Fault>> {
        inner.fates(ended)
    }

    /// Instead of [`Backend::force_release`].
    fn force_release<'a>(
        &'a self,
        inner: &'a dyn Backend,
        key: &'a Key,
        seen: Token,
        by: &'a str,
    ) -> BoxFuture<'a, Result<Release, Fault>> {
        inner.force_release(key, seen, by)
    }

    /// Instead of [`Backend::close`].
    fn close<'a>(&'a self, inner: &'a dyn Backend) -> BoxFuture<'a, ()> {
        inner.close()
    }
}

/// Meddles with nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plain;

impl Meddler for Plain {}

/// A backend with a meddler in front of it.
#[derive(Clone)]
pub struct Meddled<M> {
    inner: Arc<dyn Backend>,
    meddler: Arc<M>,
}

impl<M: Meddler> Meddled<M> {
    /// Puts `meddler` in front of `inner`.
    pub fn new(inner: Arc<dyn Backend>, meddler: Arc<M>) -> Self {
        Meddled { inner, meddler }
    }
}

/// Renews and gives one answer for each lease, `None` where there was none.
pub async fn renewals(backend: &dyn Backend, leases: &[Arc<Lease>]) -> Vec<Option<Renewal>> {
    let given = Mutex::new(leases.iter().map(|_| None).collect::<Vec<_>>());
    let answers = |index: usize, renewal| {
        let mut given = given.lock().unwrap_or_else(PoisonError::into_inner);
        given[index] = Some(renewal);
    };
    backend.renew(leases, &answers).await;
    given.into_inner().unwrap_or_else(PoisonError::into_inner)
}

impl<M: Meddler> Backend for Meddled<M> {
    fn capabilities(&self) -> Capabilities {
        self.meddler.capabilities(&*self.inner)
    }

    fn clock(&self) -> Clock {
        self.inner.clock()
    }

    fn expect_ttl(&self, ttl: Duration) {
        self.inner.expect_ttl(ttl);
    }

    fn try_acquire<'a>(&'a self, claim: &'a Arc<Claim>) -> BoxFuture<'a, Result<Attempt, Fault>> {
        self.meddler.try_acquire(&*self.inner, claim)
    }

    fn acquire<'a>(&'a self, claim: &'a Arc<Claim>) -> BoxFuture<'a, Result<Grant, Fault>> {
        self.meddler.acquire(&*self.inner, claim)
    }

    fn renew<'a>(
        &'a self,
        leases: &'a [Arc<Lease>],
        answers: &'a Answers<'a>,
    ) -> BoxFuture<'a, ()> {
        self.meddler.renew(&*self.inner, leases, answers)
    }

    fn release<'a>(
        &'a self,
        lease: &'a Arc<Lease>,
        then: Then,
    ) -> BoxFuture<'a, Result<Release, Fault>> {
        self.meddler.release(&*self.inner, lease, then)
    }

    fn abandon<'a>(&'a self, claim: &'a Arc<Claim>) -> BoxFuture<'a, Result<(), Fault>> {
        self.meddler.abandon(&*self.inner, claim)
    }

    fn adopt<'a>(&'a self, claim: &'a Arc<Claim>) -> BoxFuture<'a, Result<Option<Term>, Fault>> {
        self.meddler.adopt(&*self.inner, claim)
    }

    fn let_go<'a>(&'a self, lease: &'a Arc<Lease>) -> BoxFuture<'a, Result<(), Fault>> {
        self.meddler.let_go(&*self.inner, lease)
    }

    fn tend(&self) -> BoxFuture<'_, ()> {
        self.meddler.tend(&*self.inner)
    }

    fn heed(&self, lease: &Arc<Lease>) {
        self.meddler.heed(&*self.inner, lease);
    }

    fn notices(&self) -> Notices {
        self.meddler.notices(&*self.inner)
    }

    fn inspect<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Vec<LockInfo>, Fault>> {
        self.meddler.inspect(&*self.inner, query)
    }

    fn hints(&self) -> BoxFuture<'_, Result<Option<Hints>, Fault>> {
        self.meddler.hints(&*self.inner)
    }

    fn fates<'a>(
        &'a self,
        ended: &'a [(Key, Token)],
    ) -> BoxFuture<'a, Result<Vec<Option<Fate>>, Fault>> {
        self.meddler.fates(&*self.inner, ended)
    }

    fn force_release<'a>(
        &'a self,
        key: &'a Key,
        seen: Token,
        by: &'a str,
    ) -> BoxFuture<'a, Result<Release, Fault>> {
        self.meddler.force_release(&*self.inner, key, seen, by)
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.meddler.close(&*self.inner)
    }
}
