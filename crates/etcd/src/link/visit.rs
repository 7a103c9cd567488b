//! A connection to one member, to look at it.
//!
//! In: which member. Out: what it says of itself, and answers to what it is asked besides. Unlike a link
//! it takes any member: one that is too old, has no leader or belongs elsewhere has to be looked at too.

use std::sync::Arc;
use std::time::Duration;

use super::cluster::Cluster;
use super::open::{self, Live};
use crate::proto::{Call, StatusResponse};
use crate::trouble::{Cause, Trouble};

pub(crate) struct Visit {
    live: Live,
    pub(crate) status: StatusResponse,
    within: Duration,
}

impl Visit {
    /// Connects, logs in, and asks the member what it is.
    pub(crate) async fn pay(cluster: &Cluster, member: usize) -> Result<Self, Trouble> {
        let (patience, within) = (cluster.connect_timeout, cluster.response_timeout);
        let made = tokio::time::timeout(patience, open::look_at(cluster, member)).await;
        let late = |_| {
            let what = format_args!("cannot connect: no answer within {patience:?}");
            Trouble::new(Cause::Down, &cluster.members[member].address, what)
        };
        let (live, status) = made.map_err(late)??;
        Ok(Visit { live, status, within })
    }

    pub(crate) async fn ask<Q: Call>(&self, ask: Q) -> Result<Q::Answer, Trouble> {
        let (address, within) = (self.live.address(), self.within);
        match tokio::time::timeout(within, self.live.unary(Arc::new(ask))).await {
            Ok(answer) => answer.map_err(|status| Trouble::of_status(address, &status)),
            Err(_) => {
                let what = format_args!("no answer within {within:?}");
                Err(Trouble::new(Cause::Silent, address, what))
            }
        }
    }

    pub(crate) fn is_logged_in(&self) -> bool {
        self.live.is_logged_in()
    }
}
