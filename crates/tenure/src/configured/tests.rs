//! What is read, what is refused, and in which words.

use super::*;

const NO_FILES: [&str; 0] = [];

fn read(toml: &str, variables: &[(&str, &str)]) -> Result<Config, String> {
    let all = variables.iter().map(|(name, value)| (name.into(), value.into()));
    let settings = Settings::new("lock", &FIELDS).toml(toml, "tenure.toml");
    let settings = settings.and_then(|settings| settings.variables(all));
    let config = settings.and_then(|settings| Config::of(&settings, &NO_FILES));
    config.map_err(|error| error.to_string())
}

fn refused(field: &str) -> String {
    read(&format!("[lock]\n{field}"), &[]).unwrap_err()
}

fn url(toml: &str, variables: &[(&str, &str)]) -> Option<String> {
    read(toml, variables).unwrap().chosen_url().unwrap()
}

/// C6: nothing given is the directory that the command `tenure` uses, or what the code prefers.
#[test]
fn c6_defaults() {
    let config = read("", &[]).unwrap();
    assert_eq!(config.chosen_url().unwrap(), None);
    assert_eq!(config.place().unwrap(), default_dir());
    assert_eq!(config.default_url("memory:").place().unwrap(), "memory:");
    assert_eq!(url("lock.url = 'memory:a'", &[]).unwrap(), "memory:a");
}

/// C6: one configuration chooses, by name or by URL.
#[test]
fn c6_driver_or_url() {
    assert_eq!(url("lock.driver = 'memory'", &[]).unwrap(), "memory:");
    assert_eq!(url("lock.driver = 'file'", &[]).unwrap(), default_dir());
    assert_eq!(url("lock = { driver = 'file', url = 'file:/a' }", &[]).unwrap(), "file:/a");
    assert_eq!(
        refused("driver = 'redlock'"),
        format!("invalid `lock.driver` in `tenure.toml`: `redlock` is not {DRIVERS}")
    );
    assert_eq!(
        refused("driver = 'memory'\nurl = 'redis://:hunter2@h'"),
        "`lock.url` in `tenure.toml` is not for the engine of `lock.driver` in `tenure.toml`"
    );
}

/// C6: `redis` without a URL is the server of `[redis]`, or the one on this machine.
#[cfg(feature = "redis")]
#[test]
fn c6_redis_by_its_section() {
    assert_eq!(url("lock.driver = 'redis'", &[]).unwrap(), "redis://localhost:6379/0");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tenure.toml");
    std::fs::write(&path, "[redis]\nhost = 'h'\npassword = 'p'\nprefix = 'shop'").unwrap();
    let config = Config::read_file(&path).unwrap();
    assert_eq!(config.chosen_url().unwrap().unwrap(), "redis://:p@h:6379/0", "implied");
    std::fs::write(&path, "[lock]\ndriver = 'memory'\n[redis]\nhost = 'h'").unwrap();
    let config = Config::read_file(&path).unwrap();
    assert_eq!(config.chosen_url().unwrap().unwrap(), "memory:", "said otherwise");
    let config = config.driver(Driver::Redis);
    assert_eq!(config.chosen_url().unwrap().unwrap(), "redis://h:6379/0", "by code");
}

/// C6: what a stronger place chooses is chosen, whatever a weaker one says of another engine.
#[test]
fn c6_the_strongest_place_chooses() {
    let dev = "lock.driver = 'memory'";
    assert_eq!(url(dev, &[("TENURE_URL", "redis://h")]).unwrap(), "redis://h");
    let file = "lock.url = 'file:/a'";
    assert_eq!(url(file, &[("TENURE_LOCK_DRIVER", "memory")]).unwrap(), "memory:");
    assert_eq!(url(file, &[("TENURE_LOCK_DRIVER", "file")]).unwrap(), "file:/a");
    let code = read(file, &[("TENURE_URL", "memory:env")]).unwrap().url("memory:code");
    assert_eq!(code.chosen_url().unwrap().unwrap(), "memory:code");
    let code = read(file, &[]).unwrap().driver(Driver::File);
    assert_eq!(code.chosen_url().unwrap().unwrap(), "file:/a");
    assert_eq!(code.driver(Driver::Memory).chosen_url().unwrap().unwrap(), "memory:");
}

/// Whoever did not choose the engine in code can be told who did.
#[test]
fn c6_who_has_chosen() {
    let by = |toml: &str, variables: &[(&str, &str)]| {
        read(toml, variables).unwrap().chosen_by().map(str::to_owned)
    };
    assert_eq!(by("lock.url = 'memory:'", &[]).unwrap(), "`lock.url` in `tenure.toml`");
    assert_eq!(by("lock.driver = 'memory'", &[]).unwrap(), "`lock.driver` in `tenure.toml`");
    let env = by("lock.driver = 'memory'", &[("TENURE_URL", "file:/a")]);
    assert_eq!(env.unwrap(), "`TENURE_URL` in the environment");
    assert_eq!(by("", &[]), None);
    let code = read("lock.url = 'memory:'", &[]).unwrap().url("memory:a");
    assert_eq!(code.chosen_by(), None);
}

/// C6: every field, from every place.
#[test]
fn c6_fields() {
    let toml = "[lock]\nprefix = 'shop'\nttl = '15s'\nwait = 500\nretry = '20ms'\n\
                watchdog_ratio = 0.25\nmax_hold = '10m'";
    let secs = |secs| Some(Duration::from_secs(secs));
    let config = read(toml, &[("TENURE_LOCK_TTL", "20s"), ("TENURE_LOCK_WAIT", "")]).unwrap();
    assert_eq!((config.ttl, config.max_hold), (secs(20), secs(600)));
    assert_eq!(config.wait, Some(Wait::For(Duration::from_millis(500))));
    assert_eq!(config.retry_interval, Some(Duration::from_millis(20)));
    assert_eq!((config.renew, config.prefix.as_deref()), (Some(Renew::Ratio(0.25)), Some("shop")));
    assert_eq!(config.ttl(Duration::from_secs(25)).ttl, secs(25));
    let off = read(toml, &[("TENURE_LOCK_WATCHDOG", "false"), ("TENURE_LOCK_WAIT", "forever")]);
    let off = off.unwrap();
    assert_eq!((off.renew, off.wait), (Some(Renew::Off), Some(Wait::Forever)));
    assert_eq!(read("lock.watchdog = true", &[]).unwrap().renew, Some(Renew::Auto));
}

/// C6: what is invalid is refused with the field, its value and what is allowed.
#[test]
fn c6_invalid_values_are_named() {
    let long = "is not a time from 10ms to 365 days, such as `15s`";
    let cases = [
        ("ttl = '5ms'", format!("invalid `lock.ttl` in `tenure.toml`: `5ms` {long}")),
        ("ttl = 'soon'", format!("invalid `lock.ttl` in `tenure.toml`: `soon` {long}")),
        ("retry = 5", format!("invalid `lock.retry` in `tenure.toml`: `5` {long}")),
        (
            "wait = 'never'",
            "invalid `lock.wait` in `tenure.toml`: `never` is not a time from 0ns to 365 days, such \
             as `15s` or `forever`"
                .into(),
        ),
        (
            "watchdog = 'on'",
            "invalid `lock.watchdog` in `tenure.toml`: `on` is not `true` or `false`".into(),
        ),
        (
            "watchdog_ratio = 0.5",
            "invalid `lock.watchdog_ratio` in `tenure.toml`: `0.5` is not a number between 0 and 0.5"
                .into(),
        ),
        ("prefix = ''", "invalid `lock.prefix` in `tenure.toml`: `` is not text".into()),
        ("url = ''", "invalid `lock.url` in `tenure.toml`: it is not a url".into()),
    ];
    for (field, message) in cases {
        assert_eq!(refused(field), message, "{field}");
    }
    assert!(
        refused("max_hold = 0").starts_with("invalid `lock.max_hold` in `tenure.toml`: `0` is")
    );
    assert!(
        refused("tll = '15s'").starts_with("unknown field `lock.tll` in `tenure.toml`, expected")
    );
    assert_eq!(
        read("ttl = '15s'", &[]).unwrap_err(),
        "`ttl` in `tenure.toml` stands before `[lock]`"
    );
    assert!(
        read("", &[("TENURE_LOCK_TLL", "1s")])
            .unwrap_err()
            .starts_with("unknown field `TENURE_LOCK_TLL` in the environment, expected")
    );
}

/// C6: values that are fine by themselves and do not go together.
#[test]
fn c6_relations() {
    let config = read("lock = { url = 'memory:', ttl = '1s' }", &[]).unwrap();
    let error = config.renew(Renew::Every(Duration::from_secs(1))).connect_later().unwrap_err();
    assert_eq!(error.to_string(), "renew_every (1s) must be less than half of ttl (1s)");
}

/// t66: the password is in no message and no debug output.
#[test]
fn t66_the_password_is_not_shown() {
    let config = read("lock.url = 'redis://:hunter2@h'", &[]).unwrap();
    assert!(!format!("{config:?}").contains("hunter2"));
    let config = read("lock.url = 'zookeeper://:hunter2@h'", &[]).unwrap();
    assert!(!config.connect_later().unwrap_err().to_string().contains("hunter2"));
}
