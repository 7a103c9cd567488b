//! Which servers can be relied on.
//!
//! In: the version that a server reports. Out: whether it can be used, and whether to warn.
//!
//! Older releases answer a keep-alive of a lease that was just revoked as if it were alive (etcd issue 20547,
//! fixed in 3.4.38, 3.5.23 and 3.6.5). A leader that was replaced without noticing continues to renew and
//! revoke leases (issue 15247, less frequent in newer releases). Because of either bug, a lock can seem to be
//! held that is not. The reply to a keep-alive is checked, see `session.rs`. That a server revokes a lease
//! which is kept alive can only be detected, see `background.rs`.

/// The oldest version with the transactions that we need.
const OLDEST: (u32, u32) = (3, 4);
/// The first version of each line without the bugs above.
const FLOORS: [(u32, u32, u32); 3] = [(3, 4, 38), (3, 5, 23), (3, 6, 5)];

/// The judgement of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Support {
    Good,
    /// Usable, but with the bugs above; the release that fixes them.
    Buggy(String),
    TooOld,
}

pub(crate) fn support(version: &str) -> Support {
    // An unreadable version is a future one or a fork: no reason to refuse it.
    let Some(version) = parse(version) else { return Support::Good };
    let (major, minor, patch) = version;
    if (major, minor) < OLDEST {
        return Support::TooOld;
    }
    match FLOORS.iter().find(|floor| (floor.0, floor.1) == (major, minor)) {
        Some(floor) if patch < floor.2 => {
            Support::Buggy(format!("{}.{}.{}", floor.0, floor.1, floor.2))
        }
        _ => Support::Good,
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
            assert_eq!(support(version), Support::Buggy(floor.into()), "{version}");
        }
        for version in ["3.4.38", "3.5.23", "3.6.5", "3.7.0", "4.0.0", "a fork", ""] {
            assert_eq!(support(version), Support::Good, "{version}");
        }
        for version in ["3.3.27", "2.3.8"] {
            assert_eq!(support(version), Support::TooOld, "{version}");
        }
    }
}
