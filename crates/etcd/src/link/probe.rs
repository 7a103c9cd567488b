//! A connection that inspects one member.
//!
//! In: a member. Out: its status, and replies to further requests. Unlike a link it accepts any member, also
//! one that is too old, has no leader or belongs to another cluster.

use std::sync::Arc;
use std::time::Duration;

use tenure_net::Timeouts;

use super::cluster::Cluster;
use super::connection::{self, Connection};
use crate::error::{EngineError, ErrorKind};
use crate::proto::{Call, StatusResponse};

pub(crate) struct Probe {
    connection: Connection,
    pub(crate) status: StatusResponse,
    within: Duration,
}

impl Probe {
    /// Connects, logs in, and asks the member for its status.
    pub(crate) async fn connect(cluster: &Cluster, member: usize) -> Result<Self, EngineError> {
        let Timeouts { connect, response: within } = cluster.timeouts;
        let made = connection::connect_unchecked(cluster, member);
        let made = tokio::time::timeout(connect, made).await;
        let late = |_| {
            let what = format_args!("cannot connect: no answer within {connect:?}");
            EngineError::new(ErrorKind::Unreachable, &cluster.members[member], what)
        };
        let (connection, status) = made.map_err(late)??;
        Ok(Probe { connection, status, within })
    }

    pub(crate) async fn call<Q: Call>(&self, request: Q) -> Result<Q::Answer, EngineError> {
        let (address, within) = (self.connection.address(), self.within);
        match tokio::time::timeout(within, self.connection.unary(Arc::new(request))).await {
            Ok(answer) => answer.map_err(|status| EngineError::of_status(address, &status)),
            Err(_) => {
                let what = format_args!("no answer within {within:?}");
                Err(EngineError::new(ErrorKind::TimedOut, address, what))
            }
        }
    }

    pub(crate) fn is_logged_in(&self) -> bool {
        self.connection.is_logged_in()
    }
}
