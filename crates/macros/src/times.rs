//! Times as people write them, checked as far as possible without an engine.

use std::time::Duration;

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Error, LitStr};

// The same as in `tenure`'s `options.rs`, which a macro cannot depend on; a test compares them.
pub(crate) const TTL_MIN: Duration = Duration::from_millis(10);
pub(crate) const TTL_MAX: Duration = Duration::from_secs(365 * 24 * 3600);
pub(crate) const RETRY_INTERVAL_MIN: Duration = Duration::from_millis(10);
pub(crate) const RENEW_EVERY_MIN: Duration = Duration::from_millis(10);
pub(crate) const MAX_HOLD_MIN: Duration = Duration::from_millis(10);

/// A time of at least `min`.
pub(crate) fn time(name: &str, text: &LitStr, min: Duration) -> Result<Duration, Error> {
    let value = text.value();
    let refused = |what: String| Err(Error::new(text.span(), what));
    match humantime::parse_duration(&value) {
        Err(_) => refused(format!(
            "`{name}`: `{value}` is not a time with its unit, such as `15s`, `500ms` or `1m 30s`"
        )),
        Ok(time) if time.is_zero() && !min.is_zero() => {
            refused(format!("`{name}` must be more than zero"))
        }
        Ok(time) if time < min => refused(format!("`{name}` ({time:?}) must be at least {min:?}")),
        Ok(time) if time > TTL_MAX => {
            refused(format!("`{name}` ({time:?}) must be at most {TTL_MAX:?}"))
        }
        Ok(time) => Ok(time),
    }
}

/// A ttl, in whole milliseconds.
pub(crate) fn ttl(text: &LitStr) -> Result<Duration, Error> {
    let ttl = time("ttl", text, TTL_MIN)?;
    if !ttl.subsec_nanos().is_multiple_of(1_000_000) {
        let what = format!("`ttl` ({ttl:?}) must be in whole milliseconds");
        return Err(Error::new(text.span(), what));
    }
    Ok(ttl)
}

/// The shortest expression for this time.
pub(crate) fn tokens(time: Duration) -> TokenStream {
    let (secs, nanos) = (time.as_secs(), time.subsec_nanos());
    match nanos {
        0 => quote!(::core::time::Duration::from_secs(#secs)),
        _ => quote!(::core::time::Duration::new(#secs, #nanos)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The limits are the same as those at run time.
    #[test]
    fn bounds_are_the_engines() {
        assert_eq!((TTL_MIN, TTL_MAX), (tenure::TTL_MIN, tenure::TTL_MAX));
        assert_eq!(RETRY_INTERVAL_MIN, tenure::RETRY_INTERVAL_MIN);
        assert_eq!(RENEW_EVERY_MIN, tenure::RENEW_EVERY_MIN);
        assert_eq!(MAX_HOLD_MIN, tenure::MAX_HOLD_MIN);
    }
}
