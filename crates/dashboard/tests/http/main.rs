//! The page as a browser sees it: requests and answers, on `memory:`, `file:` and a real Redis.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod support;
mod pages;
mod safety;
mod release;
mod many;
