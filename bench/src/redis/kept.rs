//! 10,000 held locks: the cost of keeping them, and that they need no more sockets than one lock. (The
//! sockets are our connections, and one that belongs to the runtime of the background thread.)

use crate::bench::Run;
use crate::error::Error;
use crate::redis::Site;
use crate::renewal_cost;
use crate::report::{Figure, Measure};
use crate::usage::sockets;

pub(crate) const HELD: &str = "held/10000";
pub(crate) const SOCKETS: &str = "sockets/10000";

pub(crate) async fn measure(run: &Run<'_>, site: &Site) -> Result<Vec<Figure>, Error> {
    let before = sockets()?;
    let locker = site.another_locker().await?;
    // Renew the lock, so that the connection for renewals exists.
    let one = locker.lock("one").await?;
    one.renew().await?;
    let bare = f64::from(sockets()? - before);
    let guards = renewal_cost::take(run, &locker).await?;
    let kept = renewal_cost::keep(run, &guards).await;
    let ours = f64::from(sockets()? - before);
    renewal_cost::give_back(guards).await?;
    one.release().await?;
    Ok(vec![
        Figure { name: HELD, measure: kept?, bar: renewal_cost::BAR },
        Figure { name: SOCKETS, measure: Measure::Count { ours, bare }, bar: 1.0 },
    ])
}
