//! The route to the master that the Sentinels name.

use std::sync::Arc;

use tenure_core::backend::{BoxFuture, Notifier};
use tokio::sync::watch;

use super::Sentinels;
use crate::error::EngineError;
use crate::link::{Found, Route};

impl Route for Arc<Sentinels> {
    fn shown(&self) -> String {
        Sentinels::shown(self)
    }

    fn find(&self) -> BoxFuture<'_, Result<Found, EngineError>> {
        Box::pin(Sentinels::find(self))
    }

    fn has_stand_ins(&self) -> bool {
        true
    }

    fn moves(&self) -> u64 {
        Sentinels::moves(self)
    }

    fn changes(&self) -> Option<watch::Receiver<u64>> {
        Some(Sentinels::changes(self))
    }

    fn watcher(&self, notifier: Notifier) -> Option<BoxFuture<'static, ()>> {
        Some(Box::pin(self.clone().watch(notifier)))
    }
}
