//! A wrapper around a backend that forwards every call, or does something else instead.
//!
//! In: a real backend and an [`Interceptor`] that overrides some of the calls. Out: a backend for a `Locker`.
//! [`Plain`] overrides nothing: it turns an `Arc<dyn Backend>` into a backend.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::backend::{
    AfterRelease, Answers, Attempt, Backend, BoxFuture, Capabilities, ClaimEnd, Fault, Grant,
    Hints, LockInfo, Notices, Operator, Query, Release, Renewal, Validity,
};
use tenure_core::time::Clock;
use tenure_core::{Claim, Key, Lease, Token};

/// Code that runs instead of a call to the wrapped backend. Every method forwards the call unless it is
/// overridden.
pub trait Interceptor: Send + Sync + 'static {
    /// Called instead of [`Backend::capabilities`].
    fn capabilities(&self, inner: &dyn Backend) -> Capabilities {
        inner.capabilities()
    }

    /// Called instead of [`Backend::try_acquire`].
    fn try_acquire<'a>(
        &'a self,
        inner: &'a dyn Backend,
        claim: &'a Arc<Claim>,
    ) -> BoxFuture<'a, Result<Attempt, Fault>> {
        inner.try_acquire(claim)
    }

    /// Called instead of [`Backend::acquire`].
    fn acquire<'a>(
        &'a self,
        inner: &'a dyn Backend,
        claim: &'a Arc<Claim>,
    ) -> BoxFuture<'a, Result<Grant, Fault>> {
        inner.acquire(claim)
    }

    /// Called instead of [`Backend::renew`].
    fn renew<'a>(
        &'a self,
        inner: &'a dyn Backend,
        leases: &'a [Arc<Lease>],
        answers: &'a Answers<'a>,
    ) -> BoxFuture<'a, ()> {
        inner.renew(leases, answers)
    }

    /// Called instead of [`Backend::release`].
    fn release<'a>(
        &'a self,
        inner: &'a dyn Backend,
        lease: &'a Arc<Lease>,
        then: AfterRelease,
    ) -> BoxFuture<'a, Result<Release, Fault>> {
        inner.release(lease, then)
    }

    /// Called instead of [`Backend::abandon`].
    fn abandon<'a>(
        &'a self,
        inner: &'a dyn Backend,
        claim: &'a Arc<Claim>,
    ) -> BoxFuture<'a, Result<(), Fault>> {
        inner.abandon(claim)
    }

    /// Called instead of [`Backend::adopt`].
    fn adopt<'a>(
        &'a self,
        inner: &'a dyn Backend,
        claim: &'a Arc<Claim>,
    ) -> BoxFuture<'a, Result<Option<Validity>, Fault>> {
        inner.adopt(claim)
    }

    /// Called instead of [`Backend::relinquish`].
    fn relinquish<'a>(
        &'a self,
        inner: &'a dyn Backend,
        lease: &'a Arc<Lease>,
    ) -> BoxFuture<'a, Result<(), Fault>> {
        inner.relinquish(lease)
    }

    /// Called instead of [`Backend::watch_contention`].
    fn watch_contention(&self, inner: &dyn Backend, lease: &Arc<Lease>) {
        inner.watch_contention(lease);
    }

    /// Called instead of [`Backend::run`].
    fn run<'a>(&'a self, inner: &'a dyn Backend) -> BoxFuture<'a, ()> {
        inner.run()
    }

    /// Called instead of [`Backend::subscribe`].
    fn subscribe(&self, inner: &dyn Backend, default_ttl: Duration) -> Notices {
        inner.subscribe(default_ttl)
    }

    /// Called instead of [`Operator::inspect`].
    fn inspect<'a>(
        &'a self,
        inner: &'a dyn Operator,
        query: &'a Query,
    ) -> BoxFuture<'a, Result<Vec<LockInfo>, Fault>> {
        inner.inspect(query)
    }

    /// Called instead of [`Operator::change_hints`].
    fn change_hints<'a>(
        &'a self,
        inner: &'a dyn Operator,
        query: &'a Query,
    ) -> BoxFuture<'a, Result<Option<Hints>, Fault>> {
        inner.change_hints(query)
    }

    /// Called instead of [`Operator::end_reasons`].
    fn end_reasons<'a>(
        &'a self,
        inner: &'a dyn Operator,
        ended: &'a [(Key, Token)],
    ) -> BoxFuture<'a, Result<Vec<Option<ClaimEnd>>, Fault>> {
        inner.end_reasons(ended)
    }

    /// Called instead of [`Operator::force_release`].
    fn force_release<'a>(
        &'a self,
        inner: &'a dyn Operator,
        key: &'a Key,
        seen: Token,
        by: &'a str,
    ) -> BoxFuture<'a, Result<Release, Fault>> {
        inner.force_release(key, seen, by)
    }

    /// Called instead of [`Backend::close`].
    fn close<'a>(&'a self, inner: &'a dyn Backend) -> BoxFuture<'a, ()> {
        inner.close()
    }
}

/// An interceptor that forwards every call.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plain;

impl Interceptor for Plain {}

/// A backend behind an interceptor.
#[derive(Clone)]
pub struct Intercepted<M> {
    inner: Arc<dyn Backend>,
    interceptor: Arc<M>,
}

impl<M: Interceptor> Intercepted<M> {
    /// Puts the interceptor `interceptor` in front of `inner`.
    pub fn new(inner: Arc<dyn Backend>, interceptor: Arc<M>) -> Self {
        Intercepted { inner, interceptor }
    }

    fn inner_operator(&self) -> &dyn Operator {
        self.inner.operator().expect("`operator` has checked it")
    }
}

/// Renews `leases` and returns one answer for each, `None` where the backend gave no answer.
pub async fn renewals(backend: &dyn Backend, leases: &[Arc<Lease>]) -> Vec<Option<Renewal>> {
    let given = Mutex::new(leases.iter().map(|_| None).collect::<Vec<_>>());
    let answers = |index: usize, renewal| {
        let mut given = given.lock().unwrap_or_else(PoisonError::into_inner);
        given[index] = Some(renewal);
    };
    backend.renew(leases, &answers).await;
    given.into_inner().unwrap_or_else(PoisonError::into_inner)
}

#[async_trait]
impl<M: Interceptor> Backend for Intercepted<M> {
    fn capabilities(&self) -> Capabilities {
        self.interceptor.capabilities(&*self.inner)
    }

    fn clock(&self) -> Clock {
        self.inner.clock()
    }

    async fn try_acquire(&self, claim: &Arc<Claim>) -> Result<Attempt, Fault> {
        self.interceptor.try_acquire(&*self.inner, claim).await
    }

    async fn acquire(&self, claim: &Arc<Claim>) -> Result<Grant, Fault> {
        self.interceptor.acquire(&*self.inner, claim).await
    }

    async fn renew(&self, leases: &[Arc<Lease>], answers: &Answers<'_>) {
        self.interceptor.renew(&*self.inner, leases, answers).await
    }

    async fn release(&self, lease: &Arc<Lease>, then: AfterRelease) -> Result<Release, Fault> {
        self.interceptor.release(&*self.inner, lease, then).await
    }

    async fn abandon(&self, claim: &Arc<Claim>) -> Result<(), Fault> {
        self.interceptor.abandon(&*self.inner, claim).await
    }

    async fn adopt(&self, claim: &Arc<Claim>) -> Result<Option<Validity>, Fault> {
        self.interceptor.adopt(&*self.inner, claim).await
    }

    async fn relinquish(&self, lease: &Arc<Lease>) -> Result<(), Fault> {
        self.interceptor.relinquish(&*self.inner, lease).await
    }

    async fn run(&self) {
        self.interceptor.run(&*self.inner).await
    }

    fn watch_contention(&self, lease: &Arc<Lease>) {
        self.interceptor.watch_contention(&*self.inner, lease);
    }

    fn subscribe(&self, default_ttl: Duration) -> Notices {
        self.interceptor.subscribe(&*self.inner, default_ttl)
    }

    async fn close(&self) {
        self.interceptor.close(&*self.inner).await
    }

    fn operator(&self) -> Option<&dyn Operator> {
        self.inner.operator().map(|_| self as &dyn Operator)
    }
}

#[async_trait]
impl<M: Interceptor> Operator for Intercepted<M> {
    async fn inspect(&self, query: &Query) -> Result<Vec<LockInfo>, Fault> {
        self.interceptor.inspect(self.inner_operator(), query).await
    }

    async fn change_hints(&self, query: &Query) -> Result<Option<Hints>, Fault> {
        self.interceptor.change_hints(self.inner_operator(), query).await
    }

    async fn end_reasons(&self, ended: &[(Key, Token)]) -> Result<Vec<Option<ClaimEnd>>, Fault> {
        self.interceptor.end_reasons(self.inner_operator(), ended).await
    }

    async fn force_release(&self, key: &Key, seen: Token, by: &str) -> Result<Release, Fault> {
        self.interceptor.force_release(self.inner_operator(), key, seen, by).await
    }
}
