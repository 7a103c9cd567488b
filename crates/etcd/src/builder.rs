//! What a URL cannot say: prefix, time-outs, certificates.
//!
//! In: a URL, setters, and the variables that `etcdctl` reads. Out: an [`Etcd`], connected and checked,
//! or one that connects when it is first asked.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use tenure_core::Error;

use crate::backend::Etcd;
use crate::keys::OURS;
use crate::link::{Cluster, Member};
use crate::tls::{Pem, Tls, server_name};
use crate::url::{Login, Place};

/// What all our keys start with.
pub const PREFIX_DEFAULT: &str = "tenure";
/// The longest prefix, in bytes.
pub const PREFIX_MAX: usize = 64;
/// How long a connection may take to be ready: name, network, password, checks. Two seconds ride
/// out a lost packet.
pub const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(2);
/// How long an answer may take before it counts as unknown and another member is asked. Above the
/// time that a cluster usually takes to find a new leader, and far below the default ttl.
pub const RESPONSE_TIMEOUT_DEFAULT: Duration = Duration::from_secs(2);

/// The bounds of both time-outs. The engine gives up on any call after ten seconds.
const TIMEOUT_MIN: Duration = Duration::from_millis(1);
const TIMEOUT_MAX: Duration = Duration::from_secs(4);

/// How to reach a cluster; made by [`Etcd::builder`].
#[derive(Clone)]
#[must_use = "a builder does nothing until it connects"]
pub struct Builder {
    url: String,
    prefix: String,
    connect_timeout: Duration,
    response_timeout: Duration,
    tls: Tls,
    /// What the environment says, where the URL does not.
    endpoints: Option<String>,
    login: Option<Login>,
}

/// Without the URL, which may hold a password, and without keys.
impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl Builder {
    pub(crate) fn new(url: &str) -> Self {
        Builder {
            url: url.into(),
            prefix: PREFIX_DEFAULT.into(),
            connect_timeout: CONNECT_TIMEOUT_DEFAULT,
            response_timeout: RESPONSE_TIMEOUT_DEFAULT,
            tls: Tls::default(),
            endpoints: None,
            login: None,
        }
    }

    /// What all keys start with: `tenure` unless said otherwise. Lockers with different prefixes do
    /// not see each other's locks.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long connecting may take, all members together.
    pub fn connect_timeout(mut self, longest: Duration) -> Self {
        self.connect_timeout = longest;
        self
    }

    /// How long an answer may take. After that it is unknown, and another member is asked.
    pub fn response_timeout(mut self, longest: Duration) -> Self {
        self.response_timeout = longest;
        self
    }

    /// Trusts the certificate authorities in this PEM file, and not the system's. Read once, when
    /// the builder connects. Needs `etcds://`.
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.tls.ca = Some(Pem::File(path.into()));
        self
    }

    /// The same with the text of such a file.
    pub fn ca_pem(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.tls.ca = Some(Pem::Text(pem.into()));
        self
    }

    /// Shows this certificate to a server that asks for one: the chain and its private key, both as
    /// PEM. Needs `etcds://`.
    pub fn client_cert(mut self, chain: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.tls.client = Some((Pem::Text(chain.into()), Pem::Text(key.into())));
        self
    }

    /// Encrypts without checking who answers: anybody between us and the server can read and change
    /// everything. For trying things out; `#insecure` at the end of the URL says the same.
    pub fn insecure(mut self) -> Self {
        self.tls.insecure = true;
        self
    }

    /// Takes what has not been said from the variables that `etcdctl` reads: `ETCDCTL_ENDPOINTS` where
    /// the URL names no host, `ETCDCTL_USER` and `ETCDCTL_PASSWORD` where it has no login, and with TLS
    /// `ETCDCTL_CACERT`, `ETCDCTL_CERT` and `ETCDCTL_KEY`.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for one that is not text, or that another is missing for.
    pub fn environment(self) -> Result<Self, Error> {
        self.environment_of(|name| std::env::var_os(name))
    }

    fn environment_of(mut self, env: impl Fn(&str) -> Option<OsString>) -> Result<Self, Error> {
        let set = |name: &'static str| match env(name).filter(|value| !value.is_empty()) {
            None => Ok(None),
            Some(value) => value
                .into_string()
                .map(Some)
                .map_err(|_| Error::invalid(format!("invalid `{name}`: it is not UTF-8"))),
        };
        self.endpoints = set("ETCDCTL_ENDPOINTS")?;
        self.login = login(set("ETCDCTL_USER")?, set("ETCDCTL_PASSWORD")?)?;
        let (ca, cert, key) = (set("ETCDCTL_CACERT")?, set("ETCDCTL_CERT")?, set("ETCDCTL_KEY")?);
        if !self.wants_tls()? {
            return Ok(self);
        }
        if let Some(ca) = ca.filter(|_| self.tls.ca.is_none() && !self.tls.insecure) {
            self.tls.ca = Some(Pem::file(ca));
        }
        match (cert, key) {
            _ if self.tls.client.is_some() => {}
            (Some(cert), Some(key)) => self.tls.client = Some((Pem::file(cert), Pem::file(key))),
            (None, None) => {}
            _ => {
                let what = "`ETCDCTL_CERT` and `ETCDCTL_KEY` need each other";
                return Err(Error::invalid(what));
            }
        }
        Ok(self)
    }

    /// Whether the login of the environment goes to members that the URL names.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for a URL that makes no sense.
    pub fn lends_login(&self) -> Result<bool, Error> {
        let place = Place::parse(&self.url)?;
        Ok(self.login.is_some() && place.login.is_none() && !place.addresses.is_empty())
    }

    /// Whether TLS is asked for; certificates in the environment are for other clusters otherwise.
    fn wants_tls(&self) -> Result<bool, Error> {
        let place = Place::parse(&self.url)?;
        let named = match &self.endpoints {
            Some(endpoints) if place.addresses.is_empty() => Place::parse_endpoints(endpoints)?.1,
            _ => false,
        };
        Ok((place.tls || named) && !place.insecure)
    }

    /// Connects, and checks that the cluster can keep locks.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for a URL or setting that makes no sense,
    /// [`is_unavailable`](Error::is_unavailable) if no member can be reached, or none has a leader,
    /// [`is_refused`](Error::is_refused) if it wants other credentials, or its certificate is not to
    /// be trusted, [`is_unsupported`](Error::is_unsupported) if it is too old.
    pub async fn connect(self) -> Result<Etcd, Error> {
        let etcd = self.connect_later()?;
        etcd.check().await?;
        Ok(etcd)
    }

    /// The same without connecting: that happens when it is first asked for something, on the
    /// runtime that asks.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for a URL or setting that makes no sense.
    pub fn connect_later(self) -> Result<Etcd, Error> {
        self.validate()?;
        let number = getrandom::u64().map_err(|error| {
            Error::invalid(format!("the system gives no random numbers: {error}"))
        })?;
        Ok(Etcd::new(self.cluster()?, &self.prefix, number))
    }

    pub(crate) fn cluster(&self) -> Result<Cluster, Error> {
        let place = self.place()?;
        let mut tls = self.tls.clone();
        tls.insecure |= place.insecure;
        if let (false, Some(setting)) = (place.tls, tls.said()) {
            return Err(Error::invalid(format!("`{setting}` needs an `etcds://` url")));
        }
        if tls.insecure {
            tracing::warn!(component = "tenure", "whoever answers is trusted (`insecure`)");
        }
        let config = if place.tls { Some(tls.config()?) } else { None };
        let mut members = Vec::with_capacity(place.addresses.len());
        for address in place.addresses {
            let name = if place.tls { Some(server_name(&address.host)?) } else { None };
            members.push(Member { address, name });
        }
        let (connect, response) = (self.connect_timeout, self.response_timeout);
        Ok(Cluster::new(members, place.login, config, connect, response))
    }

    /// What the URL says, and the environment where it says nothing.
    fn place(&self) -> Result<Place, Error> {
        let mut place = Place::parse(&self.url)?;
        if place.addresses.is_empty()
            && let Some(endpoints) = &self.endpoints
        {
            let (addresses, tls) = Place::parse_endpoints(endpoints)?;
            (place.addresses, place.tls) = (addresses, place.tls || tls);
        }
        place.login = place.login.or_else(|| self.login.clone());
        match place.addresses.is_empty() {
            true => Err(Error::invalid(
                "invalid etcd url: it names no host, and `ETCDCTL_ENDPOINTS` names none",
            )),
            false => Ok(place),
        }
    }

    fn validate(&self) -> Result<(), Error> {
        let prefix = &self.prefix;
        let bad =
            prefix.is_empty() || prefix.len() > PREFIX_MAX || prefix.contains(char::is_control);
        if bad || prefix.ends_with('/') {
            let shown = prefix.escape_debug();
            return Err(Error::invalid(format!(
                "invalid prefix `{shown}`: one to {PREFIX_MAX} bytes without control characters and \
                 without `/` at the end"
            )));
        }
        // The keys of one locker would stand among those of another.
        if let Some(ours) = prefix.split('/').find(|part| OURS.contains(part)) {
            return Err(Error::invalid(format!("invalid prefix `{prefix}`: `{ours}` is ours")));
        }
        bounded("connect_timeout", self.connect_timeout)?;
        bounded("response_timeout", self.response_timeout)
    }
}

/// `ETCDCTL_USER` may be `user:password`.
fn login(user: Option<String>, password: Option<String>) -> Result<Option<Login>, Error> {
    let Some(user) = user else { return Ok(None) };
    let (user, password) = match (user.split_once(':'), password) {
        (_, Some(password)) => (user, password),
        (Some((user, password)), None) => (user.to_owned(), password.to_owned()),
        (None, None) => {
            return Err(Error::invalid(
                "`ETCDCTL_USER` has no password, nor is `ETCDCTL_PASSWORD` set",
            ));
        }
    };
    Ok(Some(Login { user, password }))
}

fn bounded(name: &str, timeout: Duration) -> Result<(), Error> {
    match (TIMEOUT_MIN..=TIMEOUT_MAX).contains(&timeout) {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "{name} ({timeout:?}) must be between {TIMEOUT_MIN:?} and {TIMEOUT_MAX:?}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(builder: Builder) -> String {
        builder.connect_later().unwrap_err().to_string()
    }

    /// Settings that make no sense are named, with what is allowed.
    #[test]
    fn settings_are_checked() {
        let etcd = || Etcd::builder("etcd://h");
        assert_eq!(
            refused(etcd().prefix("")),
            "invalid prefix ``: one to 64 bytes without control characters and without `/` at the end"
        );
        assert_eq!(refused(etcd().prefix("a/lock/b")), "invalid prefix `a/lock/b`: `lock` is ours");
        assert_eq!(
            refused(etcd().response_timeout(Duration::ZERO)),
            "response_timeout (0ns) must be between 1ms and 4s"
        );
        assert_eq!(
            refused(Etcd::builder("etcd://")),
            "invalid etcd url: it names no host, and `ETCDCTL_ENDPOINTS` names none"
        );
    }

    /// t65: certificates that make no sense are refused by their setting, without their text.
    #[test]
    fn t65_certificates_are_checked() {
        let (plain, tls) = (Etcd::builder("etcd://h"), Etcd::builder("etcds://h"));
        assert_eq!(refused(plain.clone().ca_pem("x")), "`ca_pem` needs an `etcds://` url");
        assert_eq!(refused(plain.insecure()), "`insecure` needs an `etcds://` url");
        assert_eq!(
            refused(tls.clone().ca_pem("-----BEGIN hunter2")),
            "invalid `ca_pem`: it is not a certificate in PEM form"
        );
        assert_eq!(
            refused(tls.clone().ca_file("/no/such.pem")),
            "invalid `ca_file`: cannot read `/no/such.pem`: No such file or directory (os error 2)"
        );
        assert_eq!(
            refused(Etcd::builder("etcds://h#insecure").ca_pem("x")),
            "a CA to trust and `insecure`, which trusts anybody, contradict each other"
        );
        assert_eq!(
            refused(tls.insecure().client_cert("hunter2", "hunter2")),
            "invalid `client_cert`: it is not a certificate in PEM form"
        );
    }

    /// What `etcdctl` reads fills the gaps of the URL, and only those.
    #[test]
    fn the_environment() {
        let with = |url: &str, pairs: &[(&str, &str)]| {
            let find = |name: &str| {
                let pair = pairs.iter().find(|(known, _)| *known == name);
                pair.map(|(_, value)| OsString::from(value))
            };
            Etcd::builder(url).environment_of(find)
        };
        let place = |url: &str, pairs: &[(&str, &str)]| with(url, pairs).unwrap().place().unwrap();
        let endpoints = ("ETCDCTL_ENDPOINTS", "https://e1:1,https://e2:2");
        let found = place("etcd://", &[endpoints, ("ETCDCTL_USER", "u:p:w")]);
        assert_eq!((found.addresses.len(), found.tls), (2, true));
        assert_eq!(found.login.unwrap().password, "p:w");
        let found = place("etcd://a:b@h", &[endpoints, ("ETCDCTL_USER", "u:pw")]);
        assert_eq!((found.addresses.len(), found.tls), (1, false));
        assert_eq!(found.login.unwrap().user, "a");
        let found = place("etcd://h", &[("ETCDCTL_USER", "u:x"), ("ETCDCTL_PASSWORD", "p")]);
        assert_eq!((found.login.as_ref().unwrap().user.as_str()), "u:x");
        let cert = ("ETCDCTL_CERT", "/c.pem");
        assert_eq!(
            with("etcds://h", &[cert]).unwrap_err().to_string(),
            "`ETCDCTL_CERT` and `ETCDCTL_KEY` need each other"
        );
        assert!(with("etcd://h", &[cert]).is_ok(), "it is for another cluster");
        let builder = with("etcds://h", &[("ETCDCTL_CACERT", "/no/ca.pem")]).unwrap();
        assert!(refused(builder).contains("`/no/ca.pem`"));
    }

    /// t66: neither a builder nor what it makes shows the password.
    #[test]
    fn t66_debug_keeps_the_password() {
        let builder = Etcd::builder("etcd://u:hunter2@h");
        let shown = format!("{builder:?} {:?}", builder.clone().connect_later().unwrap());
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
