//! The list of cases, as a macro that makes a test of each.

/// Makes one test per case and engine.
///
/// The fixture is an expression that is evaluated for each test. It must be usable from a module inside the
/// calling module.
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
            a_thread_reenters,
            a_thread_runs_a_body,
            a_loss_keeps_the_bodys_value,
            a_thread_renews_and_is_notified_of_its_loss,
            on_a_worker_it_errs,
            where_a_runtime_lets_it_block,
            a_thread_reads_and_writes,
            a_thread_takes_permits,
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
            a_renewal_never_shortens,
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
            a_loss_is_reported_at_the_release,
            a_detached_depth_is_released_by_key,
        }
        $crate::conformance_group! { $fixture; elections:
            b5_one_leads_and_all_see_it,
            b5_terms_rise,
            b5_each_leader_shows_its_own_value,
            b5_a_new_value_keeps_the_term,
            b5_values_have_a_limit,
            t97_proclaim_after_a_loss,
            b5_run_leads_for_the_body,
            b5_lead_campaigns_again,
            b5_a_campaign_has_limits,
            t95_a_dropped_campaign_leaves_nothing,
            b5_an_owner_leads_once,
            b5_an_owner_still_leads,
            b5_a_shutdown_resigns,
            t116_a_leader_is_removed_by_force,
            b5_a_dropped_observation_loses_nothing,
            b5_a_thread_leads,
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
            a_closed_lock_is_opened,
            a_newer_closed_lock_is_not_opened,
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
            holds_is_of_a_locker_or_an_owner,
            waiters_are_shown,
            list_takes_a_glob,
            t59_globs_in_names,
            inspecting_changes_nothing,
        }
        $crate::conformance_group! { $fixture; lease:
            renewal_keeps_a_lock,
            without_renewal_it_ends,
            max_hold_ends_a_lock,
            max_hold_is_each_holders_own,
            renewal_by_hand,
            remaining_is_honest,
            a_warning_comes_before_the_loss,
            min_hold_keeps_it_closed,
            min_hold_is_no_more,
            a_closed_lock_is_closed_to_all,
            a_waiter_gets_a_closed_lock,
        }
        $crate::conformance_group! { $fixture; log:
            e4_no_token_is_logged,
        }
        $crate::conformance_group! { $fixture; loss:
            a_loss_is_signalled,
            every_view_is_notified,
            no_loss_without_cause,
            a_lost_lock_is_not_handed_over,
            t02_a_late_release_hits_nobody,
        }
        $crate::conformance_group! { $fixture; multi:
            all_or_nothing,
            one_busy_key_is_enough,
            the_key_in_the_way_is_named,
            it_waits_upwards_only,
            a_lost_key_is_asked_for_again,
            attempts_pause_with_nothing,
            t91_no_order_dead_locks,
            t90_dropped_at_every_await,
            t92_one_of_three_is_lost,
            a_loss_names_its_key,
            max_hold_begins_with_the_last_key,
            some_keys_are_read,
            each_key_counts_once,
            bad_lists_are_refused,
            an_owner_reenters_each,
            a_thread_locks_several,
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
        $crate::conformance_group! { $fixture; permits:
            at_most_the_capacity,
            tries_go_side_by_side,
            a_waiter_gets_a_released_permit,
            a_permit_goes_from_task_to_task,
            a_heavy_request_is_not_passed,
            a_heavy_request_that_gives_up,
            the_request_brings_the_capacity,
            slots_are_numbered,
            other_kinds_are_kept_out,
            lost_permits_come_back_together,
            an_owner_takes_more,
            min_hold_closes_one_permit,
            bad_numbers_are_refused,
            modes_are_shown,
            one_permit_is_forced_out,
            a_shutdown_frees_permits,
            a_permit_is_not_adopted,
        }
        $crate::conformance_group! { $fixture; readers:
            readers_hold_together,
            a_writer_is_alone,
            a_waiting_writer_is_not_passed,
            a_waiting_reader_is_not_passed,
            readers_come_together,
            a_writer_that_gives_up_holds_nobody_back,
            fences_of_readers_and_writers,
            readers_of_a_process_share_a_lease,
            no_reader_joins_before_a_writer,
            a_second_writer_is_noticed,
            an_owner_reads_again,
            one_reader_is_forced_out,
            a_dropped_reader_leaves_nothing,
            a_body_reads,
            readers_without_renewal_expire,
            a_shutdown_ends_the_readers_of_a_process,
            a_reader_is_not_adopted,
        }
        $crate::conformance_group! { $fixture; reentry:
            an_owner_reenters,
            any_order_of_release,
            an_owner_in_scope_reenters,
            without_an_owner_nothing_reenters,
            another_owner_waits,
            an_owner_is_local,
            waiters_of_one_owner_share,
            reentry_can_be_refused,
            a_fence_is_not_made_up,
            a_loss_reaches_every_depth,
            a_lost_lock_is_not_reentered,
            after_a_loss_an_owner_acquires_again,
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
            a_loss_after_success_is_reported,
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
            a_try_that_waits_ends_with_none,
            a_try_that_waits_can_succeed,
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

/// One module of tests, for [`conformance!`](crate::conformance!).
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
    /// Every case is in the list.
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
