//! Fault t58: unusual names.

use crate::common::{Space, assert_matches};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

/// Unusual names work like any other: they can be locked, shown and released.
#[test]
fn t58_odd_names_work() {
    let space = Space::new();
    for key in ["}x", "{}", "a}b{c", "a b", "* ? [ ]", "🔒", "订单:42", "a/../b", ".", "..", "~"]
    {
        let run = space.done(["run", key, "--", "sh", "-c", "printf %s \"$TENURE_KEY\""]);
        assert_eq!((run.code, run.out.as_str(), run.err.as_str()), (Some(0), key, ""));
        assert!(space.is_free(key), "{key}");
    }
}

/// Names that cannot be read are rejected with 64; the message escapes them and is short.
#[test]
fn t58_bad_names_are_refused() {
    let space = Space::new();
    let cases = [
        ("", "invalid key ``: it is empty"),
        ("a\nb", r"invalid key `a\nb`: it contains the control character `\n`"),
        ("\u{1b}[31m", r"invalid key `\u{1b}[31m`: it contains the control character `\u{1b}`"),
    ];
    for (key, message) in cases {
        for run in [space.done(["run", key, "--", "true"]), space.done(["show", key])] {
            assert_eq!(run.code, Some(64));
            assert_eq!(run.err, format!("tenure: error: {message}\n"));
        }
    }
}

/// A name of any length produces a short message.
#[test]
fn t58_huge_names_are_refused() {
    let space = Space::new();
    // The limit of one argument is 128 KiB, so a longer one would not reach us.
    let run = space.done(["run", &"x".repeat(100 << 10), "--", "true"]);
    assert_eq!(run.code, Some(64));
    assert_matches(
        &run.err,
        "tenure: error: invalid key `x+…`: it is 102400 bytes long, at most 512 are allowed\n",
    );
    assert!(run.err.len() < 300, "{run:?}");
}

/// A name that is not UTF-8 is rejected; the message shows the valid part of it.
#[test]
fn t58_names_that_are_not_text() {
    let space = Space::new();
    let odd = OsStr::from_bytes(b"a\xff\x1bb");
    let run = space.done([OsStr::new("run"), odd, OsStr::new("--"), OsStr::new("true")]);
    assert_eq!(run.code, Some(64));
    assert_eq!(run.err, "tenure: error: invalid key `a\u{fffd}\\u{1b}b`: it is not valid UTF-8\n");
}
