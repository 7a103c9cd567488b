//! The compile errors of the attribute: `refused/*.rs`, each with the expected compiler output. All texts are
//! ours, so that they are the same with every compiler.

/// E1: invalid templates, times, arguments and functions are rejected at their place.
#[test]
fn e1_refusals_say_what_was_expected() {
    trybuild::TestCases::new().compile_fail("tests/refused/*.rs");
}
