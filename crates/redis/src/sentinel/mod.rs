//! Finds the master of a service through Sentinels.
//!
//! In: the addresses of Sentinels and the name of a service. Out: the address of its current master, and how
//! often it has changed.
//!
//! Sentinels may disagree: a partitioned Sentinel still names the former master. Each of their configurations
//! has an epoch, which rises with every failover. The highest epoch is right, and an epoch lower than one we
//! have seen is not followed. So a former master that comes back, or that an isolated Sentinel still names,
//! is not trusted, whatever role it reports. (The role that a server reports is checked as well, see
//! `link/connection.rs`.)
//!
//! In reading order: `query` asks one Sentinel, this file compares their answers, `subscribe` follows changes,
//! `route` leads the links to the master. The URL is parsed in `url/sentinel.rs`.

mod query;
mod route;
mod subscribe;
#[cfg(test)]
mod tests;

use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_core::time::{Clock, Time};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::error::{Cause, EngineError};
use crate::link::{Connector, Found};
use crate::url::Address;
pub(crate) use query::MasterReport;

/// How long to wait for the other Sentinels when more than half have answered.
const LAGGARDS: Duration = Duration::from_millis(50);
/// How long more than half of the Sentinels have to name the same master in an epoch lower than one we have
/// seen, until they are trusted: they were set up anew, and count from zero. After a failover, Sentinels that
/// have not learned of it do so within two seconds.
const ANEW_AFTER: Duration = Duration::from_secs(10);

/// The Sentinels of one service.
pub(crate) struct Sentinels {
    service: String,
    addresses: Vec<Address>,
    connector: Connector,
    clock: Clock,
    known: Mutex<MasterState>,
    /// How often the master has changed; read at every reply.
    moves: AtomicU64,
    /// The same count, for tasks that wait for a change.
    news: watch::Sender<u64>,
}

/// The answers so far.
#[derive(Default)]
struct MasterState {
    master: Option<MasterReport>,
    /// The answer of a majority with a lower epoch than `master`, and since when.
    doubt: Option<(MasterReport, Time)>,
}

/// Without `connector`: it contains the password.
impl fmt::Debug for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sentinels").field("service", &self.service).finish_non_exhaustive()
    }
}

impl Sentinels {
    pub(crate) fn new(
        service: &str,
        addresses: &[Address],
        connector: Connector,
        clock: Clock,
    ) -> Self {
        let (service, addresses) = (service.into(), addresses.into());
        let (known, moves, news) = (Mutex::default(), AtomicU64::new(0), watch::Sender::new(0));
        Sentinels { service, addresses, connector, clock, known, moves, news }
    }

    /// Their name for the master.
    pub(crate) fn service(&self) -> &str {
        &self.service
    }

    /// Their addresses, as the URL names them.
    pub(crate) fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// The connector with the credentials for the Sentinels.
    pub(crate) fn connector(&self) -> &Connector {
        &self.connector
    }

    /// The service, and the last known address of its master.
    pub(crate) fn shown(&self) -> String {
        match &self.known().master {
            Some(report) => format!("{} at {}", self.service, report.address),
            None => self.service.clone(),
        }
    }

    /// How often the master has changed, as far as it is known.
    pub(crate) fn moves(&self) -> u64 {
        self.moves.load(Ordering::Acquire)
    }

    /// Notifies of every change of the master.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.news.subscribe()
    }

    /// Asks all Sentinels for the master.
    pub(crate) async fn find(self: &Arc<Self>) -> Result<Found, EngineError> {
        let (reports, errors) = self.ask_all().await;
        if reports.is_empty() {
            return Err(self.nobody_knows(&errors));
        }
        self.apply(&reports);
        let known = self.known();
        let moves = self.moves();
        let master = known.master.as_ref().ok_or_else(|| self.nobody_knows(&errors))?;
        Ok(Found { address: master.address.clone(), moves })
    }

    /// The answer or the error of each Sentinel. Once more than half have answered, slow ones are not waited
    /// for.
    async fn ask_all(self: &Arc<Self>) -> (Vec<MasterReport>, Vec<EngineError>) {
        let mut asked = JoinSet::new();
        for address in &self.addresses {
            let (sentinels, address) = (self.clone(), address.clone());
            asked.spawn(async move { sentinels.ask(&address).await });
        }
        let (mut reports, mut errors) = (Vec::new(), Vec::new());
        let mut late = pin!(tokio::time::sleep(self.connector.connect_timeout() / 2));
        loop {
            let received = tokio::select! {
                received = asked.join_next() => received,
                () = &mut late => None,
            };
            match received {
                None => return (reports, errors),
                Some(Ok(Ok(report))) => reports.push(report),
                Some(Ok(Err(error))) => errors.push(error),
                Some(Err(_)) => {}
            }
            if self.is_majority(reports.len()) {
                late.set(tokio::time::sleep(LAGGARDS));
            }
        }
    }

    fn is_majority(&self, count: usize) -> bool {
        count > self.addresses.len() / 2
    }

    /// Applies answers, and counts a move if they name another master.
    fn apply(&self, reports: &[MasterReport]) {
        let mut known = self.known();
        let Some(report) = self.best(&mut known, reports) else { return };
        let before = known.master.replace(report.clone());
        let Some(before) = before.filter(|before| before.address != report.address) else { return };
        tracing::info!(service = self.service, from = %before.address, to = %report.address,
            epoch = report.epoch, "another server is the master");
        // With the mutex held: a reader of the new address also reads the new count.
        let moves = self.moves.fetch_add(1, Ordering::AcqRel) + 1;
        self.news.send_replace(moves);
    }

    /// The answer to follow, if it differs from what is known.
    fn best(&self, known: &mut MasterState, reports: &[MasterReport]) -> Option<MasterReport> {
        let epoch = reports.iter().map(|report| report.epoch).max()?;
        if known.master.as_ref().is_some_and(|master| epoch < master.epoch) {
            return self.anew(known, reports);
        }
        known.doubt = None;
        let mut newest = reports.iter().filter(|report| report.epoch == epoch);
        match &known.master {
            // An epoch has one master. A Sentinel that names another one has old data or is misconfigured.
            Some(master) if epoch == master.epoch => {
                newest.find(|report| *report != master && self.is_majority_report(reports, report))
            }
            _ => newest.next(),
        }
        .cloned()
    }

    /// The answer to follow when all epochs are lower than the known one: what a majority has said for long
    /// enough.
    fn anew(&self, known: &mut MasterState, reports: &[MasterReport]) -> Option<MasterReport> {
        let most = reports.iter().find(|report| self.is_majority_report(reports, report))?;
        let now = self.clock.now();
        let since = match &known.doubt {
            Some((doubt, since)) if doubt == most => *since,
            _ => now,
        };
        known.doubt = Some((most.clone(), since));
        (now >= since.after(ANEW_AFTER)).then(|| most.clone())
    }

    fn is_majority_report(&self, reports: &[MasterReport], report: &MasterReport) -> bool {
        self.is_majority(reports.iter().filter(|other| *other == report).count())
    }

    /// The error when no master is known. It is permanent if all Sentinels refuse us or do not know the
    /// service.
    fn nobody_knows(&self, errors: &[EngineError]) -> EngineError {
        let refused = !errors.is_empty() && errors.iter().all(EngineError::is_permanent);
        let cause = if refused { Cause::Refused } else { Cause::Unreachable };
        let said: Vec<String> = errors.iter().map(ToString::to_string).collect();
        let said = if said.is_empty() { "none answered in time".into() } else { said.join("; ") };
        EngineError::new(cause, &self.service, format_args!("no Sentinel names its master: {said}"))
    }

    fn known(&self) -> MutexGuard<'_, MasterState> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
