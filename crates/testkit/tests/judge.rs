//! The judge is judged: each seeded bug makes it fail, and the same run without the bug does not.

use tenure_testkit::seeded::backend::{Bug, run};

/// What the judge says of each bug at the server or its client.
#[tokio::test]
async fn bugs_of_the_backend_are_caught() {
    for bug in Bug::ALL {
        run(bug, false).await.assert_clean();
        let verdict = run(bug, true).await;
        assert!(!verdict.is_clean(), "{bug:?} was not caught:\n{verdict}");
    }
}

/// Each bug is caught by the check that is there for it.
#[tokio::test]
async fn each_bug_breaks_its_own_promise() {
    assert_eq!(run(Bug::ReleaseWithoutCompare, true).await.overlaps(), 1);
    assert_eq!(run(Bug::RenewAfterRelease, true).await.not_had(), 1);
    assert_eq!(run(Bug::RenewAfterEnd, true).await.overlaps(), 1);
    assert_eq!(run(Bug::IgnoreValidUntil, true).await.overlaps(), 1);
    assert_eq!(run(Bug::RetryWithNewToken, true).await.not_had(), 1);
    assert!(run(Bug::BareCounterFence, true).await.regressions() > 0);
    assert!(run(Bug::SameFence, true).await.tally.fenced_lost() > 0);
}
