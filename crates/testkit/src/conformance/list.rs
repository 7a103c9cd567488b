//! The list of cases, as a macro that makes a test of each.

/// Makes one test per case and engine.
///
/// The fixture is an expression, evaluated anew for each test; it must be usable from a module
/// inside this one.
///
/// ```text
/// mod memory {
///     tenure_testkit::conformance!(crate::Fresh::new());
/// }
/// ```
#[macro_export]
macro_rules! conformance {
    ($fixture:expr) => {
        $crate::conformance_group! { $fixture; blocking:
            a_thread_locks_and_releases,
            a_thread_waits_its_turn,
            a_thread_drops_its_guard,
            inside_a_runtime_it_errs,
        }
        $crate::conformance_group! { $fixture; cancel:
            a_dropped_wait_leaves_nothing,
            a_dropped_local_wait_leaves_nothing,
            a_dropped_head_is_succeeded,
            a_dropped_head_of_other_terms_is_succeeded,
            a_timed_out_wait_leaves_nothing,
            an_unpolled_request_does_nothing,
            an_aborted_task_leaves_nothing,
            many_dropped_waits_leave_nothing,
        }
        $crate::conformance_group! { $fixture; contract:
            granted_twice_is_granted_once,
            released_twice_is_not_held,
            renewed_after_release_is_lost,
            renewals_are_answered_in_order,
            abandoned_twice_is_abandoned_once,
            an_abandoned_wait_is_over,
            a_wait_sees_and_ends,
            a_wait_can_be_taken_up_again,
            closed_is_closed,
            clients_share_a_store,
            times_are_honest,
        }
        $crate::conformance_group! { $fixture; detach:
            released_by_key,
            nothing_is_not_held,
            written_down_and_adopted,
            what_has_ended_is_not_adopted,
            a_loss_is_told_at_the_release,
            a_detached_depth_is_released_by_key,
        }
        $crate::conformance_group! { $fixture; error:
            kinds_are_told_apart,
            the_holder_is_named,
            the_local_holder_is_named,
        }
        $crate::conformance_group! { $fixture; fence:
            it_rises_with_each_grant,
            it_rises_within_a_process,
            it_rises_over_a_loss,
            it_can_be_switched_off,
            t25_a_resource_refuses_the_stale,
        }
        $crate::conformance_group! { $fixture; force:
            it_is_taken_away,
            a_newer_claim_is_not_hit,
        }
        $crate::conformance_group! { $fixture; input:
            t55_bad_ttls,
            t56_the_shortest_ttl_is_honest,
            t57_late_renewals,
            t58_bad_names,
            t58_odd_names,
            other_bad_values,
            the_largest_values,
        }
        $crate::conformance_group! { $fixture; inspect:
            nothing_is_none,
            the_holder_is_shown,
            long_words_are_cut,
            hold_count_is_mine,
            waiters_are_shown,
            list_takes_a_glob,
            t59_globs_in_names,
            looking_changes_nothing,
        }
        $crate::conformance_group! { $fixture; lease:
            renewal_keeps_a_lock,
            without_renewal_it_ends,
            max_hold_ends_a_lock,
            max_hold_is_each_holders_own,
            a_renewal_never_shortens,
            renewal_by_hand,
            remaining_is_honest,
            a_warning_comes_before_the_loss,
            at_least_keeps_it_closed,
            at_least_is_no_more,
            a_closed_lock_is_closed_to_all,
            a_waiter_gets_a_closed_lock,
        }
        $crate::conformance_group! { $fixture; log:
            e4_no_token_is_logged,
        }
        $crate::conformance_group! { $fixture; loss:
            a_loss_is_signalled,
            every_view_hears_it,
            no_loss_without_cause,
            a_lost_lock_is_not_handed_over,
            t02_a_late_release_hits_nobody,
        }
        $crate::conformance_group! { $fixture; mutex:
            busy_is_none,
            busy_is_none_within_a_process,
            free_is_some,
            processes_take_turns,
            tasks_take_turns,
            keys_are_independent,
            a_guard_moves_between_tasks,
            a_clone_is_the_same_process,
            a_guard_outlives_its_locker,
            defaults,
            every_option_can_be_given,
            a_plain_counter_loses_nothing,
            a_history_is_clean,
        }
        $crate::conformance_group! { $fixture; reentry:
            an_owner_reenters,
            any_order_of_release,
            an_owner_in_scope_reenters,
            nobody_does_not_reenter,
            another_owner_waits,
            an_owner_is_local,
            waiting_mates_share,
            reentry_can_be_refused,
            a_fence_is_not_made_up,
            a_loss_reaches_every_depth,
            a_lost_lock_is_not_reentered,
            after_a_loss_an_owner_asks_afresh,
        }
        $crate::conformance_group! { $fixture; release:
            release_frees,
            drop_releases,
            drop_wakes_the_next,
            a_dropped_release_is_done,
            t52_a_panic_releases,
            again_and_again,
        }
        $crate::conformance_group! { $fixture; run:
            a_value_comes_back,
            an_error_comes_back,
            a_panic_releases,
            a_loss_ends_the_body,
            a_loss_after_success_is_told,
            a_loss_does_not_mask_the_error,
            a_dropped_run_releases,
            busy_does_not_run,
            the_body_reenters,
            the_bodys_owner_is_the_requests,
        }
        $crate::conformance_group! { $fixture; shared:
            processes_share_an_owner,
            other_owners_are_kept_out,
            a_shared_lease_is_not_handed_over,
        }
        $crate::conformance_group! { $fixture; shutdown:
            nothing_new,
            what_is_held_is_freed,
            holders_may_finish,
            waits_are_closed,
            twice_is_once,
            two_at_once,
            an_unused_locker,
        }
        $crate::conformance_group! { $fixture; waiting:
            a_bounded_wait_times_out,
            a_bounded_wait_can_succeed,
            a_wait_of_zero_asks_once,
            attempts_are_counted,
            attempts_do_not_queue,
            attempts_can_succeed,
            a_signal_cancels,
            a_silent_signal_does_no_harm,
            a_shutdown_closes_waits,
            within_process_can_fail,
            tasks_are_served_in_order,
            processes_are_served_in_order,
            a_busy_process_lets_others_in,
        }
        $crate::conformance_group! { $fixture; watch:
            acquired_and_released,
            handed_over,
            lost,
            renewals_are_no_events,
            forced,
            closed,
            a_dropped_wait_loses_nothing,
            ends_with_the_locker,
        }
    };
}

/// One module of tests. What [`conformance!`](crate::conformance!) calls.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_group {
    ($fixture:expr; $group:ident: $($case:ident,)+) => {
        mod $group {
            #[allow(unused_imports, reason = "the fixture may be named by a full path")]
            use super::*;

            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    let fixture = $fixture;
                    let case = $crate::conformance::$group::$case(&fixture);
                    $crate::conformance::run_case(stringify!($case), case).await;
                }
            )+
        }
    };
}

#[cfg(test)]
mod tests {
    /// Every case that is written is also run.
    #[test]
    fn the_list_is_complete() {
        let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/conformance");
        let list = include_str!("list.rs");
        let mut cases = 0;
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let source = std::fs::read_to_string(&path).unwrap();
            let names = source
                .split("pub async fn ")
                .skip(1)
                .filter_map(|rest| rest.split_once("<F: Fixture>").map(|(name, _)| name));
            for name in names.filter(|name| name.chars().all(|c| c.is_alphanumeric() || c == '_')) {
                assert!(list.contains(&format!(" {name},")), "`{name}` of {path:?} is not listed");
                cases += 1;
            }
        }
        assert!(cases > 80, "only {cases} cases found");
    }
}
