//! The fields of `[redis]`: their names, their precedence, and which server gets a password.

use super::*;

fn read(toml: &str, variables: &[(&str, &str)]) -> Result<Config, String> {
    let all = variables.iter().map(|(name, value)| (name.into(), value.into()));
    let settings = Settings::new("redis", OTHERS, &FIELDS).toml(toml, "tenure.toml");
    let settings = settings.and_then(|settings| settings.variables(all));
    settings.and_then(|settings| Config::of(&settings)).map_err(|error| error.to_string())
}

fn url(toml: &str) -> String {
    read(toml, &[]).unwrap().url().unwrap()
}

/// D9: without any setting, the server is on this machine.
#[test]
fn d9_defaults() {
    let config = read("", &[]).unwrap();
    assert_eq!(config.url().unwrap(), "redis://localhost:6379/0");
    assert_eq!((config.pool_size, config.timeout), (1, Duration::from_secs(2)));
    assert_eq!((config.prefix.as_str(), config.debug), ("tenure", false));
}

/// D9: every field by every name.
#[test]
fn d9_fields_and_their_other_names() {
    assert_eq!(
        url("[redis]\nhost = '::1'\nport = 7\ndatabase = 3\nusername = 'a@b'\npassword = 'p:/%'"),
        "redis://a%40b:p%3A%2F%25@[::1]:7/3"
    );
    for name in ["pool_size", "poolSize", "max_connections", "maxConnections"] {
        assert_eq!(read(&format!("redis.{name} = 5"), &[]).unwrap().pool_size, 5, "{name}");
    }
    for field in ["timeout = '700ms'", "timeout_ms = 700", "timeoutMs = 700"] {
        let config = read(&format!("redis.{field}"), &[]).unwrap();
        assert_eq!(config.timeout, Duration::from_millis(700), "{field}");
    }
    let config = read("redis = { timeout = '3s', debug = true, prefix = 'shop' }", &[]).unwrap();
    assert_eq!((config.timeout, config.debug), (Duration::from_secs(3), true));
    assert_eq!(config.prefix, "shop");
}

/// D9: file, environment, code; each overrides the one before.
#[test]
fn d9_each_is_stronger_than_the_one_before() {
    let toml = "[redis]\nhost = 'file'\nport = 1\nmaxConnections = 2";
    let variables = [("TENURE_REDIS_PORT", "2"), ("TENURE_REDIS_POOL_SIZE", "3")];
    let config = read(toml, &variables).unwrap().pool_size(4);
    assert_eq!((config.host.as_str(), config.port, config.pool_size), ("file", 2, 4));
}

/// D9: an invalid value is rejected with the field's name and the allowed values.
#[test]
fn d9_invalid_values_are_named() {
    let refused = |toml: &str| read(&format!("redis.{toml}"), &[]).unwrap_err();
    assert_eq!(
        refused("port = 70000"),
        "invalid `redis.port` in `tenure.toml`: `70000` is not a port, 1 to 65535"
    );
    assert_eq!(
        refused("maxConnections = 0"),
        "invalid `redis.maxConnections` in `tenure.toml`: `0` is not a number from 1 to 64"
    );
    assert_eq!(
        refused("timeoutMs = 31000"),
        "invalid `redis.timeoutMs` in `tenure.toml`: `31000ms` is not a time from 1ms to 30s"
    );
    assert_eq!(
        refused("timeout = 2"),
        "invalid `redis.timeout` in `tenure.toml`: `2` is not a time from 1ms to 30s"
    );
    for field in ["database = -1", "debug = 'yes'", "host = ''", "prefix = ''"] {
        let name = field.split_once(' ').unwrap().0;
        assert!(refused(field).starts_with(&format!("invalid `redis.{name}` in")), "{field}");
    }
    assert!(refused("pass = 'hunter2'").starts_with("unknown field `redis.pass` in"));
    assert_eq!(
        read("", &[("TENURE_REDIS_PORT", "x")]).unwrap_err(),
        "invalid `TENURE_REDIS_PORT` in the environment: `x` is not a port, 1 to 65535"
    );
    let refused = |config: Config| config.builder().unwrap_err().to_string();
    assert_eq!(refused(Config::default().username("u")), "`username` needs a `password`");
    assert_eq!(
        refused(read("redis.username = 'u'", &[]).unwrap()),
        "`redis.username` in `tenure.toml`: `username` needs a `password`"
    );
    assert_eq!(
        refused(Config::default().timeout(Duration::ZERO)),
        "timeout (0ns) is not a time from 1ms to 30s"
    );
}

/// A password goes to the server that the working directory's file names only if that file has the password.
#[test]
fn t66_passwords_for_the_working_directory() {
    let password = [("TENURE_REDIS_PASSWORD", "hunter2")];
    let url = |toml: &str| {
        let config = read(toml, &password).unwrap();
        config.url().map_err(|error| error.to_string())
    };
    for field in ["host = 'h'", "port = 7"] {
        let refused = url(&format!("redis.{field}")).unwrap_err();
        let start =
            "`TENURE_REDIS_PASSWORD` in the environment is not sent to the server that `redis.";
        assert!(refused.starts_with(start) && !refused.contains("hunter2"), "{refused}");
    }
    assert_eq!(url("redis.database = 3").unwrap(), "redis://:hunter2@localhost:6379/3");
    let by_code = read("redis.host = 'h'", &password).unwrap().host("code");
    assert_eq!(by_code.url().unwrap(), "redis://:hunter2@code:6379/0");
    let refused = read("redis.host = 'h'", &[]).unwrap().password("hunter2").url().unwrap_err();
    assert!(refused.to_string().starts_with("`password` is not sent to"), "{refused}");
    assert!(read("redis.host = 'h'", &[]).unwrap().url().is_ok(), "no password at all");
}

/// TLS: the section becomes the equivalent URL, and contradicting settings are rejected by name.
#[test]
fn tls_of_the_section() {
    assert_eq!(url("redis = { host = 'h', tls = true }"), "rediss://h:6379/0");
    let insecure = url("redis = { host = 'h', tls = true, insecure = true }");
    assert_eq!(insecure, "rediss://h:6379/0#insecure");
    let refused = |toml: &str| {
        read(toml, &[])
            .and_then(|config| config.builder().map(drop).map_err(|error| error.to_string()))
    };
    assert_eq!(
        refused("redis.ca_file = '/ca.pem'").unwrap_err(),
        "`redis.ca_file` in `tenure.toml`: `ca_file` needs `tls = true`"
    );
    assert_eq!(
        refused("redis.insecure = true").unwrap_err(),
        "`redis.insecure` in `tenure.toml`: `insecure` needs `tls = true`"
    );
    assert_eq!(
        refused("redis = { tls = true, client_cert_file = 'c.pem' }").unwrap_err(),
        "`redis.client_cert_file` in `tenure.toml`: `client_cert_file` and `client_key_file` need each \
         other"
    );
    let missing = "redis = { tls = true, client_cert_file = '/no/c', client_key_file = '/no/k' }";
    let missing = refused(missing).unwrap_err();
    let named = "`redis.client_cert_file` in `tenure.toml`: invalid `client_cert_file`: cannot read `/no/c`: ";
    assert!(missing.starts_with(named), "{missing}");
    assert_eq!(
        refused("redis.tls = 'on'").unwrap_err(),
        "invalid `redis.tls` in `tenure.toml`: `on` is not `true` or `false`"
    );
}

/// A file in the working directory cannot send a password to a server whose certificate is not checked.
#[test]
fn t66_passwords_and_tls_of_the_working_directory() {
    let trusted = [
        ("TENURE_REDIS_PASSWORD", "hunter2"),
        ("TENURE_REDIS_HOST", "h"),
        ("TENURE_REDIS_TLS", "true"),
    ];
    let url = |toml: &str, variables: &[(&str, &str)]| {
        let config = read(toml, variables).unwrap();
        config.url().map_err(|error| error.to_string())
    };
    for field in ["ca_file = '/tmp/ca.pem'", "insecure = true"] {
        let refused = url(&format!("redis.{field}"), &trusted).unwrap_err();
        let start =
            "`TENURE_REDIS_PASSWORD` in the environment is not sent to the server that `redis.";
        assert!(refused.starts_with(start) && !refused.contains("hunter2"), "{refused}");
    }
    assert!(url("redis.tls = false", &trusted[..2]).is_err(), "TLS may have been wanted");
    let asked_for = url("redis.tls = true", &trusted[..2]).unwrap();
    assert_eq!(asked_for, "rediss://:hunter2@h:6379/0");
    let by_code = read("redis.insecure = true", &trusted).unwrap().insecure(false);
    assert_eq!(by_code.url().unwrap(), "rediss://:hunter2@h:6379/0");
}

/// t66: the password is in no message and no debug output.
#[test]
fn t66_the_password_is_not_shown() {
    let config = read("redis.password = 'hunter2'", &[]).unwrap();
    let shown = format!("{config:?} {:?}", config.builder().unwrap());
    assert!(!shown.contains("hunter2"), "{shown}");
    let refused = read("redis.password = ['hunter2']", &[]).unwrap_err();
    assert!(!refused.contains("hunter2"), "{refused}");
}
