//! Keys made of parameters.

use tenure::{Error, Locker};

use crate::support::{alone, only_key};

#[tenure::lock(key = "{id}", locker = locker)]
async fn bare(locker: &Locker, id: &str) -> Result<Option<String>, Error> {
    Ok(only_key(locker).await)
}

/// t58: an invalid key is refused before any request; the body does not run.
#[tokio::test]
async fn t58_invalid_keys_are_errors() {
    let (_, locker) = alone();
    let refused = async |id: &str| bare(&locker, id).await.unwrap_err();
    assert_eq!(refused("").await.to_string(), "invalid key ``: it is empty");
    let long = refused(&"x".repeat(513)).await;
    assert!(long.is_invalid());
    assert!(long.to_string().ends_with("it is 513 bytes long, at most 512 are allowed"), "{long}");
    assert!(refused("a\nb").await.is_invalid());
}

/// A parameter whose `Display` fails makes no key, not even part of one.
#[tokio::test]
async fn a_parameter_that_cannot_be_shown() {
    struct Shy;
    impl std::fmt::Display for Shy {
        fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            Err(std::fmt::Error)
        }
    }
    #[tenure::lock(key = "order:{id}", locker = locker)]
    async fn pay(locker: &Locker, id: Shy) -> Result<(), Error> {
        Ok(())
    }
    let (_, locker) = alone();
    let error = pay(&locker, Shy).await.unwrap_err();
    assert_eq!(error.to_string(), "no key `order:{id}`: a parameter cannot be shown");
}

/// A parameter whose `Display` uses a lock itself is formatted correctly.
#[tokio::test]
async fn a_parameter_that_locks() {
    struct Nested(Locker);
    impl std::fmt::Display for Nested {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            drop(self.0.lock_for_macro("inner", format_args!("inner:{}", 1)));
            f.write_str("x")
        }
    }
    #[tenure::lock(key = "{a}:{b}", locker = locker)]
    async fn pay(locker: &Locker, a: &str, b: Nested) -> Result<Option<String>, Error> {
        Ok(only_key(locker).await)
    }
    let (_, locker) = alone();
    let key = pay(&locker, "a", Nested(locker.clone())).await.unwrap();
    assert_eq!(key.as_deref(), Some("a:x"));
}

/// The value of a parameter is used as it is: braces in it are no placeholders.
#[tokio::test]
async fn values_are_not_templates() {
    let (_, locker) = alone();
    for id in ["{id}", "{}", "a}b{c", "订单", "%s"] {
        assert_eq!(bare(&locker, id).await.unwrap().as_deref(), Some(id));
    }
}

/// Doubled braces are braces, and raw strings work like others.
#[tokio::test]
async fn braces() {
    #[tenure::lock(key = r#"{{{id}}}:"{{}}""#, locker = locker)]
    async fn braces(locker: &Locker, id: u8) -> Result<Option<String>, Error> {
        Ok(only_key(locker).await)
    }
    let (_, locker) = alone();
    assert_eq!(braces(&locker, 7).await.unwrap().unwrap(), r#"{7}:"{}""#);
}

/// A key without a placeholder is one lock for all calls.
#[tokio::test]
async fn no_placeholder() {
    #[tenure::lock(key = "nightly", locker = locker)]
    async fn nightly(locker: &Locker) -> Result<Option<String>, Error> {
        Ok(only_key(locker).await)
    }
    let (_, locker) = alone();
    assert_eq!(nightly(&locker).await.unwrap().unwrap(), "nightly");
}

/// A function made by `macro_rules`, whose parameter and template have different origins.
#[tokio::test]
async fn made_by_another_macro() {
    macro_rules! under {
        ($name:ident, $key:literal, $id:ident) => {
            #[tenure::lock(key = $key, locker = locker, ttl = "15s")]
            async fn $name(locker: &Locker, $id: u64) -> Result<Option<String>, Error> {
                Ok(only_key(locker).await)
            }
        };
    }
    under!(pay, "pay:{order}", order);
    let (_, locker) = alone();
    assert_eq!(pay(&locker, 7).await.unwrap().unwrap(), "pay:7");
}
