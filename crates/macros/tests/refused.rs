//! What the attribute refuses, and the words it has for it: `refused/*.rs`, each beside what the
//! compiler says. All words are ours, so that they are the same with every compiler.

/// E1: bad templates, times, arguments and functions are refused where they stand.
#[test]
fn e1_refusals_say_what_was_expected() {
    trybuild::TestCases::new().compile_fail("tests/refused/*.rs");
}
