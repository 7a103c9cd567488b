//! 10,000 held locks: what keeping them costs, and that it takes no more sockets than one. (Those are our
//! connections, and one that the runtime of the background thread has for itself.)

use crate::bench::Run;
use crate::error::Error;
use crate::held;
use crate::redis::Site;
use crate::report::{Figure, Measure};
use crate::usage::sockets;

pub(crate) const HELD: &str = "held/10000";
pub(crate) const SOCKETS: &str = "sockets/10000";

pub(crate) async fn measure(run: &Run<'_>, site: &Site) -> Result<Vec<Figure>, Error> {
    let before = sockets()?;
    let locker = site.another_locker().await?;
    // Renewed, so that the connection for that is there.
    let one = locker.lock("one").await?;
    one.renew().await?;
    let bare = f64::from(sockets()? - before);
    let guards = held::take(run, &locker).await?;
    let kept = held::keep(run, &guards).await;
    let ours = f64::from(sockets()? - before);
    held::give_back(guards).await?;
    one.release().await?;
    Ok(vec![
        Figure { name: HELD, measure: kept?, bar: held::BAR },
        Figure { name: SOCKETS, measure: Measure::Count { ours, bare }, bar: 1.0 },
    ])
}
