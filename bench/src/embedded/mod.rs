//! The embedded engines `memory:` and `file:`, in a separate space.

mod attribute;
mod processes;

use crate::bench::{Entry, Run};
use crate::error::Error;
use crate::local;
use crate::renewal_cost;
use crate::report::Figure;

pub use processes::contend;

/// The kind of a figure.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Local,
    Attribute,
    Held,
    Processes,
}

pub(crate) const ENTRIES: &[Entry<Kind>] = &[
    Entry { names: &[local::NAME], kind: Kind::Local },
    Entry { names: &[attribute::NAME], kind: Kind::Attribute },
    Entry { names: &[HELD], kind: Kind::Held },
    Entry { names: &[processes::WAITING, processes::HANDOVER], kind: Kind::Processes },
];

const HELD: &str = "held/10000";

pub(crate) async fn measure(run: &Run<'_>, kind: Kind) -> Result<Vec<Figure>, Error> {
    match kind {
        Kind::Local => {
            let locker = tenure::connect("memory:bench").await?;
            Ok(vec![local::measure(run, &locker).await?])
        }
        Kind::Attribute => Ok(vec![attribute::measure(run).await?]),
        Kind::Held => Ok(vec![measure_held(run).await?]),
        Kind::Processes => processes::measure(run).await,
    }
}

async fn measure_held(run: &Run<'_>) -> Result<Figure, Error> {
    let locker = tenure::connect("memory:held").await?;
    let guards = renewal_cost::take(run, &locker).await?;
    let measure = renewal_cost::keep(run, &guards).await?;
    Ok(Figure { name: HELD, measure, bar: renewal_cost::BAR })
}
