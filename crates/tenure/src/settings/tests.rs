//! Which settings are read, which are refused, and the messages.

use super::fields::DRIVERS;
use super::*;

const NO_FILES: [&str; 0] = [];

fn read(toml: &str, variables: &[(&str, &str)]) -> Result<Config, String> {
    let all = variables.iter().map(|(name, value)| (name.into(), value.into()));
    let application = variables.iter().find(|(name, _)| *name == REDIS_URL);
    let application = application.map(|(_, url)| url.into());
    let settings = Settings::new("lock", OTHERS, &FIELDS).toml(toml, "tenure.toml");
    let settings = settings.and_then(|settings| settings.variables(all));
    let config = settings.and_then(|settings| Config::of(&settings, &NO_FILES, application));
    config.map_err(|error| error.to_string())
}

fn refused(field: &str) -> String {
    read(&format!("[lock]\n{field}"), &[]).unwrap_err()
}

fn url(toml: &str, variables: &[(&str, &str)]) -> Option<String> {
    read(toml, variables).unwrap().chosen_url().unwrap()
}

/// C6: without a chosen engine, the error names what to set; code may have a default.
#[test]
fn c6_no_engine_is_an_error() {
    let config = read("", &[]).unwrap();
    assert_eq!(config.chosen_url().unwrap(), None);
    let message = format!(
        "no engine is configured: set `TENURE_URL`, or `url` of `[lock]` in `tenure.toml`, or call \
         `Config::url`; {}",
        expected()
    );
    assert_eq!(config.connect_later().unwrap_err().to_string(), message);
    assert_eq!(config.default_url("memory:").url_to_connect().unwrap(), "memory:");
    assert_eq!(url("lock.url = 'memory:a'", &[]).unwrap(), "memory:a");
}

/// A section that is not read could leave the choice of the engine to chance: it is refused.
#[test]
fn c6_unknown_sections_are_refused() {
    assert_eq!(
        read("[locks]\nurl = 'redis://h'", &[]).unwrap_err(),
        "unknown section `[locks]` in `tenure.toml`, expected the sections `[lock]`, `[redis]`"
    );
}

/// `REDIS_URL` is the weakest choice: every setting of tenure is stronger.
#[cfg(feature = "redis")]
#[test]
fn c6_the_application_s_redis() {
    let app = (REDIS_URL, "redis://app");
    assert_eq!(url("", &[app]).unwrap(), "redis://app");
    let config = read("", &[app]).unwrap();
    assert_eq!(config.chosen_by(), Some("`REDIS_URL` in the environment"));
    assert_eq!(config.default_url("memory:").url_to_connect().unwrap(), "redis://app");
    assert_eq!(url("lock.driver = 'redis'", &[app]).unwrap(), "redis://app");
    assert_eq!(url("lock.driver = 'memory'", &[app]).unwrap(), "memory:");
    assert_eq!(url("lock.url = 'redis://ours'", &[app]).unwrap(), "redis://ours");
    assert_eq!(url("", &[app, ("TENURE_URL", "memory:")]).unwrap(), "memory:");
    assert_eq!(read("", &[(REDIS_URL, " ")]).unwrap().chosen_url().unwrap(), None);
}

/// A URL can be in a file of its own; in the same source, the URL itself is stronger.
#[test]
fn c6_url_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("url");
    let path = path.to_str().unwrap();
    std::fs::write(path, "memory:secret\n").unwrap();
    let file = ("TENURE_URL_FILE", path);
    assert_eq!(url("lock.url = 'memory:weak'", &[file]).unwrap(), "memory:secret");
    assert_eq!(url("", &[file, ("TENURE_URL", "memory:url")]).unwrap(), "memory:url");
    assert_eq!(url("", &[("TENURE_LOCK_DRIVER", "memory"), file]).unwrap(), "memory:secret");
    assert_eq!(
        read("", &[("TENURE_LOCK_DRIVER", "file"), file]).unwrap_err(),
        "`TENURE_URL_FILE` in the environment is not for the engine of `TENURE_LOCK_DRIVER` in the \
         environment"
    );
    std::fs::write(path, "zookeeper://:hunter2@h").unwrap();
    let unknown = read("", &[file]).unwrap().connect_later().unwrap_err().to_string();
    let named = "`TENURE_URL_FILE` in the environment: unknown engine `zookeeper:` in url, ";
    assert!(unknown.starts_with(named), "{unknown}");
    std::fs::write(path, "\n").unwrap();
    let empty = format!("`TENURE_URL_FILE` in the environment: the URL in `{path}` is empty");
    assert_eq!(read("", &[file]).unwrap_err(), empty);
    assert_eq!(
        read("", &[("TENURE_URL_FILE", "/no/such")]).unwrap_err(),
        "`TENURE_URL_FILE` in the environment: cannot read the URL from `/no/such`: No such file or \
         directory (os error 2)"
    );
}

/// C6: one configuration chooses the engine, by name or by URL.
#[test]
fn c6_driver_or_url() {
    assert_eq!(url("lock.driver = 'memory'", &[]).unwrap(), "memory:");
    assert_eq!(url("lock.driver = 'file'", &[]).unwrap(), "file:");
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

/// `driver = "redis"` with a `REDIS_URL` of another engine is refused; the error names both, and not the rest of the
/// URL, which may have a password.
#[cfg(feature = "redis")]
#[test]
fn c6_the_driver_and_the_applications_url() {
    let app = |url| read("lock.driver = 'redis'", &[(REDIS_URL, url)]).unwrap().chosen_url();
    for (url, scheme) in [("memory:", "memory"), ("file:/hunter2", "file")] {
        let refused = app(url).unwrap_err();
        assert!(refused.is_invalid());
        assert_eq!(
            refused.to_string(),
            format!(
                "`lock.driver` in `tenure.toml` is `redis`, but `REDIS_URL` in the environment is for the engine \
                 `{scheme}:`"
            )
        );
    }
    // No engine: the error of the URL itself says more.
    assert_eq!(app("localhost:6379").unwrap().unwrap(), "localhost:6379");
    let code = read("", &[(REDIS_URL, "memory:")]).unwrap().driver(Driver::Redis);
    assert_eq!(
        code.chosen_url().unwrap_err().to_string(),
        "the driver is `redis`, but `REDIS_URL` in the environment is for the engine `memory:`"
    );
    for url in ["valkey://h", "redis+sentinel://h/s", "rediss+quorum://a,b,c", "redis-cluster://h"]
    {
        assert_eq!(app(url).unwrap().unwrap(), url);
    }
}

/// A configuration with this `tenure.toml` and this `REDIS_URL`.
#[cfg(feature = "redis")]
fn with_section(toml: &str, application: Option<&str>) -> (String, Config) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tenure.toml");
    std::fs::write(&path, toml).unwrap();
    let settings = Settings::new("lock", OTHERS, &FIELDS).file(&path).unwrap();
    let config = Config::of(&settings, &[&path], application.map(Into::into)).unwrap();
    (path.display().to_string(), config)
}

/// C6: of `[redis]`, only `host` and `port` choose a server. Without them `REDIS_URL` does, or nothing.
#[cfg(feature = "redis")]
#[test]
fn c6_only_host_and_port_choose_a_server() {
    let url = |toml: &str, application| with_section(toml, application).1.chosen_url().unwrap();
    let app = Some("redis://app");
    for field in ["prefix = 'shop'", "timeout = '1s'", "pool_size = 2", "debug = true"] {
        let toml = format!("[redis]\n{field}");
        assert_eq!(url(&toml, app).as_deref(), app, "{field}");
        assert_eq!(url(&toml, None), None, "{field}");
    }
    let (_, config) = with_section("redis.timeout = '1s'", app);
    assert_eq!(config.chosen_by(), Some("`REDIS_URL` in the environment"));
    assert_eq!(url("redis.host = 'h'", app).unwrap(), "redis://h:6379/0");
    assert_eq!(url("redis.port = 7", app).unwrap(), "redis://localhost:7/0");
    let local = url("lock.driver = 'redis'\nredis.password = 'p'", None);
    assert_eq!(local.unwrap(), "redis://:p@localhost:6379/0", "by its driver");
    let nothing = with_section("redis.password = 'p'", None).1.connect_later().unwrap_err();
    let message = "no engine is configured: set `TENURE_URL`, or `url` of `[lock]` in `tenure.toml`, or call \
                   `Config::url`, or `host` of `[redis]`; expected ";
    assert!(nothing.to_string().starts_with(message), "{nothing}");
}

/// C6: a field of `[redis]` that describes a server contradicts `REDIS_URL`; the error names both.
#[cfg(feature = "redis")]
#[test]
fn c6_a_login_beside_the_application_s_redis() {
    for field in ["password = 'p'", "database = 3", "tls = true", "insecure = true"] {
        let (path, config) = with_section(&format!("[redis]\n{field}"), Some("redis://app"));
        let name = field.split_once(' ').unwrap().0;
        let message = format!(
            "`redis.{name}` in `{path}` is not for the server of `REDIS_URL` in the environment: put it into \
             that URL, or set `host` of `[redis]`"
        );
        assert_eq!(config.connect_later().unwrap_err().to_string(), message);
        assert!(config.url("redis://ours").connect_later().is_ok(), "another server was named");
    }
}

/// The form of lock keys is set by `lock_key` of the file, the environment or code, the last the strongest.
#[cfg(feature = "redis")]
#[test]
fn lock_key_is_read() {
    let refused = |config: &Config| config.connect_later().map(drop).unwrap_err().to_string();
    let file = "[lock]\nurl = 'redis://h'\nlock_key = 'file'";
    let flaw = "expected `{key}` once, as in `distributed_lock:{key}`";
    let config = read(file, &[]).unwrap();
    let named = "`lock.lock_key` in `tenure.toml`";
    assert_eq!(refused(&config), format!("{named}: invalid lock_key `file`: {flaw}"));
    let config = read(file, &[("TENURE_LOCK_LOCK_KEY", "variable")]).unwrap();
    let named = "`TENURE_LOCK_LOCK_KEY` in the environment";
    assert_eq!(refused(&config), format!("{named}: invalid lock_key `variable`: {flaw}"));
    assert_eq!(refused(&config.lock_key("code")), format!("invalid lock_key `code`: {flaw}"));
    let config = read(file, &[]).unwrap().lock_key("{key}");
    assert!(config.connect_later().is_ok());
    let config = config.url("redis://h?lock_key=distributed_lock:{key}");
    assert_eq!(
        refused(&config),
        "lock_key `{key}` is not that of the url, `distributed_lock:{key}`"
    );
    assert!(config.url("memory:").connect_later().is_ok(), "it is for Redis");
}

/// C6: the stronger source chooses the engine, even if a weaker one names another.
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

/// A program that did not choose the engine in code can find out which setting did.
#[test]
fn c6_the_setting_that_chose_the_engine() {
    let by = |toml: &str, variables: &[(&str, &str)]| {
        read(toml, variables).unwrap().chosen_by().map(str::to_owned)
    };
    assert_eq!(by("lock.url = 'memory:'", &[]).unwrap(), "`lock.url` in `tenure.toml`");
    assert_eq!(by("lock.driver = 'memory'", &[]).unwrap(), "`lock.driver` in `tenure.toml`");
    let env = by("lock.driver = 'memory'", &[("TENURE_URL", "file:/a")]);
    assert_eq!(env.unwrap(), "`TENURE_URL` in the environment");
    assert_eq!(by("", &[]), None);
    assert_eq!(
        by("lock.url = 'memory:'", &[("TENURE_LOCK_DRIVER", "file")]).unwrap(),
        "`TENURE_LOCK_DRIVER` in the environment"
    );
    let code = read("lock.url = 'memory:'", &[]).unwrap().url("memory:a");
    assert_eq!(code.chosen_by(), None);
}

/// C6: every field, from every source.
#[test]
fn c6_fields() {
    let toml = "[lock]\nprefix = 'shop'\nttl = '15s'\nwait = '500ms'\nretry = '20ms'\n\
                watchdog_ratio = 0.25\nmax_hold = '10m'\nwithin_process = 'fail'\n\
                flush_timeout = '2s'\nunavailable_after = '3s'";
    let secs = |secs| Some(Duration::from_secs(secs));
    let config = read(toml, &[("TENURE_LOCK_TTL", "20s"), ("TENURE_LOCK_WAIT", "")]).unwrap();
    assert_eq!((config.ttl, config.max_hold), (secs(20), secs(600)));
    assert_eq!((config.flush_timeout, config.unavailable_after), (secs(2), secs(3)));
    assert_eq!(config.wait, Some(Wait::For(Duration::from_millis(500))));
    assert_eq!(config.within_process, Some(WithinProcess::Fail));
    assert_eq!(config.retry_interval, Some(Duration::from_millis(20)));
    assert_eq!((config.renew, config.prefix.as_deref()), (Some(Renew::Ratio(0.25)), Some("shop")));
    assert_eq!(config.ttl(Duration::from_secs(25)).ttl, secs(25));
    let off = read(toml, &[("TENURE_LOCK_WATCHDOG", "false"), ("TENURE_LOCK_WAIT", "forever")]);
    let off = off.unwrap();
    assert_eq!((off.renew, off.wait), (Some(Renew::Off), Some(Wait::Forever)));
    assert_eq!(read("lock.watchdog = true", &[]).unwrap().renew, Some(Renew::Auto));
}

/// C6: an invalid setting is refused with the field, its value and the allowed values.
#[test]
fn c6_invalid_values_are_named() {
    let long = "is not a time from 10ms to 365 days, such as `15s`";
    let cases = [
        ("ttl = '5ms'", format!("invalid `lock.ttl` in `tenure.toml`: `5ms` {long}")),
        ("ttl = 'soon'", format!("invalid `lock.ttl` in `tenure.toml`: `soon` {long}")),
        ("ttl = 15", format!("invalid `lock.ttl` in `tenure.toml`: `15` {long}")),
        ("retry = '5ms'", format!("invalid `lock.retry` in `tenure.toml`: `5ms` {long}")),
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
        (
            "within_process = 'wait'",
            "invalid `lock.within_process` in `tenure.toml`: `wait` is not `queue` or `fail`".into(),
        ),
        ("prefix = ''", "invalid `lock.prefix` in `tenure.toml`: `` is not text".into()),
        ("url = ''", "invalid `lock.url` in `tenure.toml`: it is not a url".into()),
    ];
    for (field, message) in cases {
        assert_eq!(refused(field), message, "{field}");
    }
    assert!(
        refused("max_hold = '0s'").starts_with("invalid `lock.max_hold` in `tenure.toml`: `0s` is")
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

/// C6: values that are valid alone but contradict each other are named with their sources.
#[test]
fn c6_relations() {
    let config = read("lock = { url = 'memory:', ttl = '1s' }", &[]).unwrap();
    let every = config.renew(Renew::Every(Duration::from_secs(1)));
    let relation = "renew_every (1s) must be less than half of ttl (1s)";
    assert_eq!(
        every.connect_later().unwrap_err().to_string(),
        format!("`lock.ttl` in `tenure.toml`: {relation}")
    );
    let code = every.ttl(Duration::from_secs(1)).connect_later().unwrap_err().to_string();
    assert_eq!(code, relation, "code is not in a file");
}

/// An error of the engine names the field that was read, also a field that belongs to another.
#[test]
fn refusals_of_the_engine_name_the_field() {
    let refused = |toml: &str, variables: &[(&str, &str)]| {
        read(toml, variables).unwrap().connect_later().unwrap_err().to_string()
    };
    let unknown = format!("unknown engine `zookeeper:` in url, {}", expected());
    assert_eq!(
        refused("lock.url = 'zookeeper://:hunter2@h'", &[]),
        format!("`lock.url` in `tenure.toml`: {unknown}")
    );
    assert_eq!(
        refused("", &[("TENURE_URL", "zookeeper:")]),
        format!("`TENURE_URL` in the environment: {unknown}")
    );
    #[cfg(feature = "redis")]
    {
        let prefix = refused("lock = { url = 'redis://h', prefix = 'tenure:lock' }", &[]);
        let named = "`lock.prefix` in `tenure.toml`: invalid prefix `tenure:lock`: ";
        assert!(prefix.starts_with(named), "{prefix}");
        let app = refused("", &[(REDIS_URL, "redis://h/x")]);
        assert!(app.starts_with("`REDIS_URL` in the environment: invalid redis url: "), "{app}");
    }
}

/// G4: `within_process` of the configuration applies to plain locks and to `#[lock]`.
#[tokio::test]
async fn g4_within_process_is_configured() {
    let toml = "lock = { url = 'memory:g4', within_process = 'fail' }";
    let locker = read(toml, &[]).unwrap().connect().await.unwrap();
    let _guard = locker.lock("k").await.unwrap();
    let of_attribute = locker.lock_for_macro("k", format_args!("k"));
    for request in [locker.lock("k"), of_attribute] {
        let error = request.wait(Duration::from_secs(60)).await.unwrap_err();
        assert!(error.is_already_held(), "{error}");
    }
}

/// t66: the password is in no message and no debug output.
#[test]
fn t66_the_password_is_not_shown() {
    let config = read("lock.url = 'redis://:hunter2@h'", &[]).unwrap();
    assert!(!format!("{config:?}").contains("hunter2"));
    let config = read("lock.url = 'zookeeper://:hunter2@h'", &[]).unwrap();
    assert!(!config.connect_later().unwrap_err().to_string().contains("hunter2"));
}
