//! Which servers can be relied on.
//!
//! In: the version that a server says it has. Out: whether it can be used, and what to be warned of.
//!
//! Older releases answer a keep-alive as if the lease lived that has just been revoked (etcd issue
//! 20547, mended in 3.4.38, 3.5.23 and 3.6.5), and a leader that has been replaced without noticing
//! goes on renewing and revoking leases (issue 15247). Both can make a lock seem held that is not. We
//! check what a keep-alive says, see `session.rs`, but what a server does by itself nobody can check: it may
//! revoke a lease that is kept alive.

/// The oldest that has the transactions we need.
const OLDEST: (u32, u32) = (3, 4);
/// The first of each line without the bugs above.
const FLOORS: [(u32, u32, u32); 3] = [(3, 4, 38), (3, 5, 23), (3, 6, 5)];

/// What to think of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Opinion {
    Good,
    /// It works, but for the bugs above; the release that has them mended.
    Buggy(String),
    TooOld,
}

pub(crate) fn opinion(version: &str) -> Opinion {
    // One that cannot be read is of a time to come, or a fork: no reason to refuse it.
    let Some(version) = parse(version) else { return Opinion::Good };
    let (major, minor, patch) = version;
    if (major, minor) < OLDEST {
        return Opinion::TooOld;
    }
    match FLOORS.iter().find(|floor| (floor.0, floor.1) == (major, minor)) {
        Some(floor) if patch < floor.2 => {
            Opinion::Buggy(format!("{}.{}.{}", floor.0, floor.1, floor.2))
        }
        _ => Opinion::Good,
    }
}

fn parse(version: &str) -> Option<(u32, u32, u32)> {
    let plain = version.split(['-', '+']).next()?;
    let mut parts = plain.split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??, parts.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The floors, from below and from above.
    #[test]
    fn floors() {
        for (version, floor) in
            [("3.4.23", "3.4.38"), ("3.5.22", "3.5.23"), ("3.6.0-rc.1", "3.6.5")]
        {
            assert_eq!(opinion(version), Opinion::Buggy(floor.into()), "{version}");
        }
        for version in ["3.4.38", "3.5.23", "3.6.5", "3.7.0", "4.0.0", "a fork", ""] {
            assert_eq!(opinion(version), Opinion::Good, "{version}");
        }
        for version in ["3.3.27", "2.3.8"] {
            assert_eq!(opinion(version), Opinion::TooOld, "{version}");
        }
    }
}
