//! Which values are read, which are refused, and which source wins.

use super::*;
use crate::fault::{Fault, FaultKind};

static FIELDS: [Field; 3] =
    [Field::new("host", &[]), Field::new("pool_size", &["poolSize"]), Field::secret("password")];

fn settings() -> Settings {
    Settings::new("redis", &["lock"], &FIELDS)
}

fn refused(toml: &str) -> String {
    settings().toml(toml, "tenure.toml").err().map(|error| error.to_string()).unwrap_or_default()
}

fn variables(all: &[(&str, &str)]) -> Result<Settings, Error> {
    let toml = "[redis]\nhost = 'file'\npoolSize = 3\n";
    let all = all.iter().map(|(name, value)| (name.into(), value.into()));
    settings().toml(toml, "tenure.toml")?.variables(all)
}

fn text(settings: &Settings, name: &str) -> Option<String> {
    settings.get(name, "", |text| Some(text.to_owned())).unwrap()
}

/// The environment overrides the file, field by field; an empty variable counts as not set.
#[test]
fn the_environment_is_stronger() {
    let all = [("TENURE_REDIS_HOST", "env"), ("TENURE_REDIS_POOL_SIZE", ""), ("TENURE_URL", "x")];
    let both = variables(&all).unwrap();
    assert_eq!(text(&both, "host").as_deref(), Some("env"));
    assert_eq!(text(&both, "pool_size").as_deref(), Some("3"));
    assert_eq!(text(&both, "password"), None);
    let both = variables(&[("TENURE_REDIS_POOLSIZE", "4")]).unwrap();
    assert_eq!(text(&both, "pool_size").as_deref(), Some("4"));
}

/// Unknown fields, repeated fields and values that are not single are refused by name.
#[test]
fn refusals_name_the_field() {
    assert_eq!(
        refused("[redis]\nhots = 'h'"),
        "unknown field `redis.hots` in `tenure.toml`, expected `host`, `pool_size`, `password`"
    );
    assert_eq!(
        refused("[redis]\npool_size = 1\npoolSize = 2"),
        "`redis.poolSize` and `redis.pool_size` in `tenure.toml` are the same field"
    );
    assert_eq!(
        refused("[redis]\nhost = ['h']"),
        "invalid `redis.host` in `tenure.toml`: expected a single value"
    );
    assert_eq!(refused("redis = 1"), "`redis` in `tenure.toml` must be a section");
    assert_eq!(
        variables(&[("TENURE_REDIS_PROT", "1")]).err().unwrap().to_string(),
        "unknown field `TENURE_REDIS_PROT` in the environment, expected `host`, `pool_size`, \
         `password`"
    );
}

/// A misspelt variable is refused with the nearest name, also if its section is misspelt. Variables that other
/// code sets or reads are accepted.
#[test]
fn misspelt_variables() {
    for (name, meant) in [
        ("TENURE_REDS_HOST", "TENURE_REDIS_HOST"),
        ("TENURE_LOCKS_TTL", "TENURE_LOCK_TTL"),
        ("TENURE_LOK_URL", "TENURE_LOCK_URL"),
        ("TENURE_POOL_SIZE", "TENURE_REDIS_POOL_SIZE"),
    ] {
        let refused = variables(&[(name, "x")]).err().map(|error| error.to_string());
        let message =
            format!("unknown variable `{name}` in the environment, did you mean `{meant}`?");
        assert_eq!(refused, Some(message));
    }
    for name in SET_BY_RUN.into_iter().chain(["TENURE_URL", "TENURE_LOCK_TTL", "TENURED", "HOME"]) {
        assert!(variables(&[(name, "x")]).is_ok(), "{name}");
    }
}

/// t66: a message shows an invalid value, but not a secret, and not a line with invalid syntax.
#[test]
fn t66_secrets_are_not_shown() {
    let toml = "[redis]\nhost = 'h'\npassword = 'hunter2'";
    let given = settings().toml(toml, "tenure.toml").unwrap();
    let wrong =
        |name| given.get(name, "what it should be", |_| None::<()>).unwrap_err().to_string();
    assert_eq!(
        wrong("host"),
        "invalid `redis.host` in `tenure.toml`: `h` is not what it should be"
    );
    assert_eq!(
        wrong("password"),
        "invalid `redis.password` in `tenure.toml`: it is not what it should be"
    );
    assert_eq!(
        refused("[redis]\npassword = 'hunter2"),
        "invalid `tenure.toml`: it is no TOML, look at line 2"
    );
}

/// A missing file is not an error; an unreadable file is.
#[test]
fn files() {
    assert!(settings().file(Path::new("/no/such/tenure.toml")).is_ok());
    assert!(settings().file(Path::new("/dev/null/tenure.toml")).is_ok(), "no directory");
    let denied = io::Error::from(ErrorKind::PermissionDenied);
    assert!(is_missing(Path::new("/no/such/tenure.toml"), &denied), "nobody can see it");
    assert!(!is_missing(Path::new("/"), &denied), "it is there and cannot be read");
    let error = settings().file(Path::new("/")).err().unwrap().to_string();
    assert!(error.starts_with("cannot read `/`: "), "{error}");
}

/// A file that the user named must exist.
#[test]
fn named_files() {
    let error = settings().named_file(Path::new("/no/such.toml")).err().unwrap().to_string();
    assert_eq!(error, "cannot read `/no/such.toml`: No such file or directory (os error 2)");
}

/// A field before the first section, and an unknown section, are refused by name.
#[test]
fn unknown_sections() {
    assert_eq!(refused("host = 'h'"), "`host` in `tenure.toml` stands before `[redis]`");
    assert_eq!(refused("[lock]\nurl = 'memory:'"), "", "somebody else reads it");
    let known = "in `tenure.toml`, expected the sections `[redis]`, `[lock]`";
    assert_eq!(refused("[locks]\nurl = 'memory:'"), format!("unknown section `[locks]` {known}"));
    assert_eq!(refused("[host]\nx = 1"), format!("unknown section `[host]` {known}"));
    assert_eq!(refused("title = 'mine'"), format!("unknown field `title` {known}"));
}

/// A variable outside of the naming scheme sets the same field; setting both is an error.
#[test]
fn variables_of_another_form() {
    static FIELDS: [Field; 1] = [Field::secret("url").variable("TENURE_URL")];
    let given = |all: &[(&str, &str)]| {
        let all = all.iter().map(|(name, value)| (name.into(), value.into()));
        Settings::new("lock", &[], &FIELDS).variables(all.collect::<Vec<_>>())
    };
    assert_eq!(text(&given(&[("TENURE_URL", "a")]).unwrap(), "url").as_deref(), Some("a"));
    assert_eq!(text(&given(&[("TENURE_LOCK_URL", "b")]).unwrap(), "url").as_deref(), Some("b"));
    let both = given(&[("TENURE_URL", "a"), ("TENURE_LOCK_URL", "b")]).err().unwrap();
    assert_eq!(
        both.to_string(),
        "`TENURE_URL` and `TENURE_LOCK_URL` in the environment are the same field"
    );
}

/// The source that was added last wins, and messages name it.
#[test]
fn ranks() {
    let both = variables(&[("TENURE_REDIS_HOST", "env")]).unwrap();
    assert!(both.rank("host") > both.rank("pool_size"));
    assert_eq!(both.rank("password"), None);
    let shown = |name| both.shown(name).unwrap();
    assert_eq!(shown("host"), "`TENURE_REDIS_HOST` in the environment");
    assert_eq!(shown("pool_size"), "`redis.poolSize` in `tenure.toml`");
}

/// A server named by a file in the working directory gets only the password of that file. A server named
/// elsewhere gets any.
#[test]
fn passwords_go_to_trusted_places() {
    let given = |place: &str, toml: &str, variables: &[(&str, &str)]| {
        let all = variables.iter().map(|(name, value)| (name.into(), value.into()));
        let given =
            settings().toml(toml, place).unwrap().variables(all.collect::<Vec<_>>()).unwrap();
        let (host, password) = (given.origin("host").unwrap(), given.origin("password"));
        host.may_receive("`password`", password.as_ref()).map_err(|error| error.to_string())
    };
    let (host, both) = ("redis.host = 'h'", "redis = { host = 'h', password = 'p' }");
    let password = ("TENURE_REDIS_PASSWORD", "p");
    assert_eq!(given("tenure.toml", both, &[]), Ok(()));
    assert_eq!(given("/etc/tenure.toml", host, &[password]), Ok(()));
    assert_eq!(given("tenure.toml", host, &[password, ("TENURE_REDIS_HOST", "h")]), Ok(()));
    assert_eq!(given("tenure.toml", both, &[("TENURE_REDIS_HOST", "h")]), Ok(()));
    let why = "is not sent to the server that `redis.host` in `tenure.toml` names: a file in the working \
               directory is not trusted with it; name the server where the password is, or in a file outside";
    let env = format!("`TENURE_REDIS_PASSWORD` in the environment {why}");
    assert_eq!(given("tenure.toml", host, &[password]), Err(env.clone()));
    assert_eq!(given("tenure.toml", both, &[password]), Err(env));
    assert_eq!(given("tenure.toml", host, &[]), Err(format!("`password` {why}")));
}

/// An error that is found after reading names the origin of its fields, once.
#[test]
fn later_errors_name_their_origin() {
    let origins = variables(&[("TENURE_REDIS_PASSWORD", "p")]).unwrap().origins();
    let host = origins.get("host").cloned().unwrap();
    let blame = |error: Error| origins.blame(error, Some(&host)).to_string();
    assert_eq!(
        blame(Error::invalid("pool_size (3) must be less")),
        "`redis.poolSize` in `tenure.toml`: pool_size (3) must be less"
    );
    assert_eq!(
        blame(Error::invalid("`password` needs")),
        "`TENURE_REDIS_PASSWORD` in the environment: `password` needs"
    );
    let once = "`redis.host` in `tenure.toml`: invalid url";
    assert_eq!(blame(Error::invalid("invalid url")), once);
    assert_eq!(blame(Error::invalid(once)), once);
    let fault = Fault::new(FaultKind::Unavailable, "cannot connect");
    assert_eq!(blame(fault.into()), "engine unavailable: cannot connect");
    let mut code = origins.clone();
    code.forget("pool_size");
    let plain = code.blame(Error::invalid("pool_size (3) must be less"), None).to_string();
    assert_eq!(plain, "pool_size (3) must be less");
}

/// A duration needs a unit, as on the command line, unless the name of its field ends with one.
#[test]
fn durations() {
    assert_eq!(duration("2s"), Some(Duration::from_secs(2)));
    assert_eq!(duration("250ms"), Some(Duration::from_millis(250)));
    for text in ["15", "1500", "-1", "soon", "1.5", ""] {
        assert_eq!(duration(text), None, "{text}");
    }
    for (name, text, time) in [
        ("timeout", "700", "700"),
        ("timeout_ms", "700", "700ms"),
        ("timeoutMs", "700", "700ms"),
        ("TENURE_REDIS_TIMEOUT_MS", "700", "700ms"),
        ("timeout_ms", "2s", "2s"),
    ] {
        assert_eq!(with_unit(name, text.into()), time, "{name} {text}");
    }
}
