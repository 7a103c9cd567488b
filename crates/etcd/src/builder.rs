//! Options that a URL does not have: prefix, time-outs, certificates.
//!
//! In: a URL, setters, and the variables that `etcdctl` reads. Out: an [`Etcd`], connected and checked, or
//! one that connects at its first request.

use std::ffi::OsString;
use std::fmt;

use tenure_core::Error;
use tenure_core::time::Clock;
use tenure_net::{Pem, Timeouts, Tls, server_name};

use crate::backend::Etcd;
use crate::client::Client;
use crate::keys::OURS;
use crate::link::Cluster;
use crate::url::{Endpoints, Login};

/// The protocol under gRPC. A server does not answer a client that does not offer it.
const ALPN: &[u8] = b"h2";
/// The default prefix of all our keys.
pub const PREFIX_DEFAULT: &str = "tenure";
/// The longest prefix, in bytes.
pub const PREFIX_MAX: usize = 64;

/// The names of these settings in error messages.
const ENDPOINTS: &str = "endpoints";
const LOGIN: &str = "login";

impl Etcd {
    /// Connects to the cluster at `url`. Values that the URL leaves open come from the variables that
    /// `etcdctl` reads (`ETCDCTL_ENDPOINTS`, `ETCDCTL_USER`, `ETCDCTL_CACERT` and so on).
    ///
    /// # Errors
    ///
    /// The errors of [`Builder::connect`].
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url).environment()?.connect().await
    }

    /// A builder that starts with `url` and has options that a URL does not have.
    pub fn builder(url: &str) -> Builder {
        Builder::new(url)
    }
}

impl Client {
    /// Connects to the cluster at `url`, like [`Etcd::connect`].
    ///
    /// # Errors
    ///
    /// The errors of [`Builder::connect`].
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url).environment()?.client().await
    }

    /// A builder that starts with `url` and has options that a URL does not have.
    pub fn builder(url: &str) -> Builder {
        Builder::new(url)
    }
}

/// How to reach a cluster; made by [`Etcd::builder`] or [`Client::builder`].
///
/// The connect time-out is for all members together. After a response time-out, another member is asked.
#[derive(Clone)]
#[must_use = "a builder does nothing until it connects"]
pub struct Builder {
    url: String,
    prefix: String,
    timeouts: Timeouts,
    tls: Tls,
    /// Endpoints and login from code or from the environment, used if the URL has none. The first value is
    /// the name of their source, for messages.
    endpoints: Option<(&'static str, String)>,
    login: Option<(&'static str, Login)>,
}

/// Without the URL, which may contain a password, and without keys.
impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

tenure_net::connection_setters!(Builder, "etcds://");

impl Builder {
    pub(crate) fn new(url: &str) -> Self {
        Builder {
            url: url.into(),
            prefix: PREFIX_DEFAULT.into(),
            timeouts: Timeouts::default(),
            tls: Tls::default(),
            endpoints: None,
            login: None,
        }
    }

    /// The members, as values instead of in the URL, which must then be `etcd://` or `etcds://`. For a
    /// program that has them in the configuration of its own client. `https://` asks for TLS.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), tenure_core::Error> {
    /// use tenure_etcd::Etcd;
    ///
    /// let etcd = Etcd::builder("etcd://")
    ///     .endpoints(["http://etcd-1:2379", "http://etcd-2:2379"])
    ///     .login("app", "p@ss/word"); // as it is: only a URL is percent-encoded
    /// let locker = tenure_core::Locker::new(etcd.connect().await?);
    /// # drop(locker);
    /// # Ok(()) }
    /// ```
    pub fn endpoints<E: AsRef<str>>(mut self, endpoints: impl IntoIterator<Item = E>) -> Self {
        let all: Vec<_> = endpoints.into_iter().map(|one| one.as_ref().to_owned()).collect();
        self.endpoints = Some((ENDPOINTS, all.join(",")));
        self
    }

    /// The user and its password, as values instead of in the URL.
    pub fn login(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.login = Some((LOGIN, Login { user: user.into(), password: password.into() }));
        self
    }

    /// Reads values that are still open from the variables that `etcdctl` reads: `ETCDCTL_ENDPOINTS` if the
    /// URL names no host, `ETCDCTL_USER` and `ETCDCTL_PASSWORD` if it has no login, and with TLS
    /// `ETCDCTL_CACERT`, `ETCDCTL_CERT` and `ETCDCTL_KEY`.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for a variable that is not UTF-8, or that needs another variable
    /// which is not set.
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
        let endpoints = set("ETCDCTL_ENDPOINTS")?.map(|all| ("ETCDCTL_ENDPOINTS", all));
        self.endpoints = self.endpoints.or(endpoints);
        let login = login(set("ETCDCTL_USER")?, set("ETCDCTL_PASSWORD")?)?;
        self.login = self.login.or(login.map(|login| ("ETCDCTL_USER", login)));
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

    /// Whether the login of the environment would be sent to members that the URL names.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for an invalid URL.
    pub fn lends_login(&self) -> Result<bool, Error> {
        let endpoints = Endpoints::parse(&self.url)?;
        Ok(self.login.is_some() && endpoints.login.is_none() && !endpoints.addresses.is_empty())
    }

    /// Whether TLS is requested. Without TLS, certificates in the environment are meant for other clusters.
    fn wants_tls(&self) -> Result<bool, Error> {
        let endpoints = Endpoints::parse(&self.url)?;
        let named = match &self.endpoints {
            Some((name, all)) if endpoints.addresses.is_empty() => {
                Endpoints::parse_endpoints(all, name)?.1
            }
            _ => false,
        };
        Ok((endpoints.tls || named) && !endpoints.insecure)
    }

    /// Connects, and checks that the cluster can be used for locks.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for an invalid URL or setting,
    /// [`is_unavailable`](Error::is_unavailable) if no member can be reached, or none has a leader,
    /// [`is_refused`](Error::is_refused) if the cluster rejects our credentials, or its certificate cannot be
    /// trusted, [`is_unsupported`](Error::is_unsupported) if it is too old.
    pub async fn connect(self) -> Result<Etcd, Error> {
        Ok(Etcd::alone_with(&self.client().await?))
    }

    /// Makes the object without connecting. It connects at its first request, on the runtime of that request.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for an invalid URL or setting.
    pub fn connect_later(self) -> Result<Etcd, Error> {
        Ok(Etcd::alone_with(&self.client_later()?))
    }

    /// Connects, for several lockers.
    ///
    /// # Errors
    ///
    /// The errors of [`connect`](Self::connect).
    pub async fn client(self) -> Result<Client, Error> {
        Clock::system().must_run()?;
        let client = self.client_later()?;
        client.check().await?;
        Ok(client)
    }

    /// Like [`client`](Self::client), without connecting.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for an invalid URL or setting.
    pub fn client_later(self) -> Result<Client, Error> {
        self.validate()?;
        Client::new(self.cluster()?, &self.prefix)
    }

    pub(crate) fn cluster(&self) -> Result<Cluster, Error> {
        let endpoints = self.resolve_endpoints()?;
        let mut tls = self.tls.clone();
        tls.insecure |= endpoints.insecure;
        if let (false, Some(setting)) = (endpoints.tls, tls.needs_tls()) {
            return Err(Error::invalid(format!("`{setting}` needs an `etcds://` url")));
        }
        if tls.insecure {
            tracing::warn!(component = "tenure", "every server is trusted (`insecure`)");
        }
        let config = if endpoints.tls { Some(tls.config(Some(ALPN))?) } else { None };
        for address in endpoints.addresses.iter().filter(|_| endpoints.tls) {
            server_name(&address.host)?;
        }
        Ok(Cluster::new(endpoints.addresses, endpoints.login, config, self.timeouts))
    }

    /// The endpoints and the login: those of the URL, otherwise those of code or of the environment.
    fn resolve_endpoints(&self) -> Result<Endpoints, Error> {
        let mut endpoints = Endpoints::parse(&self.url)?;
        match &self.endpoints {
            Some((name, all)) if endpoints.addresses.is_empty() => {
                let (addresses, tls) = Endpoints::parse_endpoints(all, name)?;
                (endpoints.addresses, endpoints.tls) = (addresses, endpoints.tls || tls);
            }
            Some((ENDPOINTS, _)) => return Err(twice(ENDPOINTS)),
            _ => {}
        }
        match &self.login {
            Some((_, login)) if endpoints.login.is_none() => endpoints.login = Some(login.clone()),
            Some((LOGIN, _)) => return Err(twice(LOGIN)),
            _ => {}
        }
        match endpoints.addresses.is_empty() {
            true => Err(Error::invalid(
                "invalid etcd url: it names no host, and neither `endpoints` nor `ETCDCTL_ENDPOINTS` does",
            )),
            false => Ok(endpoints),
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
        // Otherwise the keys of one locker would be among the keys of another.
        if let Some(ours) = prefix.split('/').find(|part| OURS.contains(part)) {
            return Err(Error::invalid(format!("invalid prefix `{prefix}`: `{ours}` is ours")));
        }
        self.timeouts.validate()
    }
}

/// The error for a value that both the URL and code set.
fn twice(setting: &str) -> Error {
    Error::invalid(format!("`{setting}` is in the etcd url too: say it once"))
}

/// The login of the environment. `ETCDCTL_USER` may be `user:password`.
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn refused(builder: Builder) -> String {
        builder.connect_later().unwrap_err().to_string()
    }

    /// Invalid settings are named in the error, with the allowed values.
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
            "response_timeout (0ns) must be between 1ms and 30s"
        );
        assert_eq!(
            refused(Etcd::builder("etcd://")),
            "invalid etcd url: it names no host, and neither `endpoints` nor `ETCDCTL_ENDPOINTS` does"
        );
    }

    /// t65: an invalid certificate is refused with the name of its setting and without its content.
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

    /// The variables of `etcdctl` are used only for values that the URL leaves open.
    #[test]
    fn the_environment() {
        let with = |url: &str, pairs: &[(&str, &str)]| {
            let find = |name: &str| {
                let pair = pairs.iter().find(|(known, _)| *known == name);
                pair.map(|(_, value)| OsString::from(value))
            };
            Etcd::builder(url).environment_of(find)
        };
        let resolve = |url: &str, pairs: &[(&str, &str)]| {
            with(url, pairs).unwrap().resolve_endpoints().unwrap()
        };
        let endpoints = ("ETCDCTL_ENDPOINTS", "https://e1:1,https://e2:2");
        let found = resolve("etcd://", &[endpoints, ("ETCDCTL_USER", "u:p:w")]);
        assert_eq!((found.addresses.len(), found.tls), (2, true));
        assert_eq!(found.login.unwrap().password, "p:w");
        let found = resolve("etcd://a:b@h", &[endpoints, ("ETCDCTL_USER", "u:pw")]);
        assert_eq!((found.addresses.len(), found.tls), (1, false));
        assert_eq!(found.login.unwrap().user, "a");
        let found = resolve("etcd://h", &[("ETCDCTL_USER", "u:x"), ("ETCDCTL_PASSWORD", "p")]);
        assert_eq!((found.login.as_ref().unwrap().user.as_str()), "u:x");
        let code = Etcd::builder("etcd://").endpoints(["c1:1", "c2:2", "c3:3"]).login("me", "p:@/");
        let found = code
            .environment_of(|_| Some("https://e1:1".into()))
            .unwrap()
            .resolve_endpoints()
            .unwrap();
        assert_eq!((found.addresses.len(), found.tls), (3, false), "code is stronger");
        assert_eq!(found.login.unwrap().password, "p:@/");
        let cert = ("ETCDCTL_CERT", "/c.pem");
        assert_eq!(
            with("etcds://h", &[cert]).unwrap_err().to_string(),
            "`ETCDCTL_CERT` and `ETCDCTL_KEY` need each other"
        );
        assert!(with("etcd://h", &[cert]).is_ok(), "it is for another cluster");
        let builder = with("etcds://h", &[("ETCDCTL_CACERT", "/no/ca.pem")]).unwrap();
        assert!(refused(builder).contains("`/no/ca.pem`"));
    }

    /// Values set in code are checked under their own names. None is silently dropped in favour of the URL's.
    #[test]
    fn endpoints_and_login_are_checked() {
        let bad = refused(Etcd::builder("etcd://").endpoints(["ftp://h"]));
        assert_eq!(bad, "invalid `endpoints`: expected `http[s]://host:port[,…]`");
        let both = refused(Etcd::builder("etcd://h").endpoints(["g:1"]));
        assert_eq!(both, "`endpoints` is in the etcd url too: say it once");
        let both = refused(Etcd::builder("etcd://u:p@h").login("v", "hunter2"));
        assert_eq!(both, "`login` is in the etcd url too: say it once");
    }

    /// t66: the `Debug` output of a builder and of its result does not contain the password.
    #[test]
    fn t66_debug_keeps_the_password() {
        let builder = Etcd::builder("etcd://u:hunter2@h");
        let shown = format!("{builder:?} {:?}", builder.clone().connect_later().unwrap());
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
