//! TLS on a real server, with certificates made here.

use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd,
};
use tempfile::TempDir;
use tenure_core::Locker;
use tenure_redis::Config;
use tenure_redis::{Builder, KvExt, Redis};
use tenure_testkit::servers::RedisServer;
use tenure_testkit::wait::{lapse, within};
use tokio_rustls::rustls::crypto::CryptoProvider;

use crate::support::{get, whole};

/// An authority that signs certificates.
struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, in PEM.
struct Papers {
    cert: String,
    key: String,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        Authority(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for `host`, valid until the start of the year `until`.
    fn papers(&self, host: &str, until: i32) -> Papers {
        let mut params = CertificateParams::new([host.to_owned()]).unwrap();
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.0).unwrap().pem();
        Papers { cert, key: key.serialize_pem() }
    }
}

/// A server that speaks TLS on a second port.
struct Server {
    server: RedisServer,
    port: u16,
    files: TempDir,
}

impl Server {
    /// Starts a server with this certificate. It requires client certificates signed by `ca` if `auth` is `yes`.
    fn start(ca: &Authority, papers: &Papers, auth: &str) -> Self {
        let files = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = files.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let (cert, key) = (file("cert.pem", &papers.cert), file("key.pem", &papers.key));
        let ca = file("ca.pem", &ca.pem());
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let args = ["--tls-port", &port.to_string(), "--tls-auth-clients", auth];
        let more = ["--tls-cert-file", &cert, "--tls-key-file", &key, "--tls-ca-cert-file", &ca];
        let server = RedisServer::start_with(&[&args[..], &more].concat());
        Server { server, port, files }
    }

    /// The server has no password, and accepts any.
    fn url(&self) -> String {
        format!("rediss://:hunter2@127.0.0.1:{}", self.port)
    }

    fn builder(&self) -> Builder {
        Redis::builder(&format!("rediss://127.0.0.1:{}", self.port))
    }
}

async fn refused(builder: Builder) -> String {
    let error = within("a refusal", builder.connect()).await.unwrap_err();
    assert!(error.is_refused(), "{error:?}");
    let (text, debug) = (whole(&error), format!("{error:?}"));
    assert!(!text.contains("hunter2") && !debug.contains("hunter2"), "{text} {debug}");
    text
}

/// Acquires a lock, holds it for longer than its ttl, and releases it.
async fn works(builder: Builder) {
    let locker = Locker::new(within("a connection", builder.connect()).await.unwrap());
    let guard = locker.lock("k").ttl(Duration::from_millis(600)).await.unwrap();
    lapse(Duration::from_secs(1)).await;
    assert!(guard.is_held(), "renewals are encrypted too");
    guard.release().await.unwrap();
}

/// t65: a server with a certificate of a private authority is trusted once the authority is configured; no
/// crypto provider is installed for the whole process.
#[tokio::test]
async fn t65_an_authority_of_our_own() {
    let ca = Authority::new("ours");
    let server = Server::start(&ca, &ca.papers("127.0.0.1", 2100), "no");
    works(server.builder().ca_pem(ca.pem())).await;
    works(server.builder().ca_file(server.files.path().join("ca.pem")).pool_size(2)).await;
    works(Redis::builder(&server.url().replace("rediss", "valkeys")).ca_pem(ca.pem())).await;
    assert_eq!(get(&server.server, "tenure:lock:k"), None);
    assert!(CryptoProvider::get_default().is_none());
}

/// C8, t65: a certificate that is from an unknown authority, expired or for another host is refused, and each error
/// gives its reason.
#[tokio::test]
async fn t65_bad_certificates() {
    let (ca, stranger) = (Authority::new("ours"), Authority::new("a stranger"));
    let good = Server::start(&ca, &ca.papers("127.0.0.1", 2100), "no");
    let trusting = |server: &Server, ca: &Authority| Redis::builder(&server.url()).ca_pem(ca.pem());
    let at = format!("redis `127.0.0.1:{}`: ", good.port);
    let text = refused(trusting(&good, &stranger)).await;
    let said = "the server's certificate is from nobody that we trust (`ca_file`): ";
    assert!(text.contains(&format!("{at}{said}")), "{text}");

    let expired = Server::start(&ca, &ca.papers("127.0.0.1", 2002), "no");
    let text = refused(trusting(&expired, &ca)).await;
    assert!(text.contains("the server's certificate has expired: "), "{text}");

    let other = Server::start(&ca, &ca.papers("elsewhere.example", 2100), "no");
    let text = refused(trusting(&other, &ca)).await;
    assert!(text.contains("the server's certificate is for another host: "), "{text}");
    for insecure in [
        other.builder().insecure(),
        expired.builder().insecure(),
        Redis::builder(&format!("rediss://127.0.0.1:{}#insecure", other.port)),
    ] {
        works(insecure).await;
    }
}

/// t65: a server that requires a client certificate gets ours. Without one, or with one from an unknown
/// authority, it refuses, and our error gives the reason.
#[tokio::test]
async fn t65_client_certificates() {
    let (ca, stranger) = (Authority::new("ours"), Authority::new("a stranger"));
    let server = Server::start(&ca, &ca.papers("127.0.0.1", 2100), "yes");
    let Papers { cert, key } = ca.papers("a.client", 2100);
    works(server.builder().ca_pem(ca.pem()).client_cert(cert.clone(), key)).await;
    let text = refused(server.builder().ca_pem(ca.pem())).await;
    assert!(text.contains("the server wants a certificate of ours (`client_cert`): "), "{text}");
    let Papers { cert: other, key } = stranger.papers("a.client", 2100);
    let text = refused(server.builder().ca_pem(ca.pem()).client_cert(other, key.clone())).await;
    assert!(text.contains("the server does not accept our certificate (`client_cert`)"), "{text}");
    let error = server.builder().ca_pem(ca.pem()).client_cert(cert, key).connect_later();
    assert_eq!(
        error.unwrap_err().to_string(),
        "invalid `client_cert`: the key does not belong to the certificate"
    );
}

/// `[redis]` of a configuration file accepts the same TLS settings as the URL and the builder, for the client
/// and for locks.
#[tokio::test]
async fn tls_by_configuration() {
    let ca = Authority::new("ours");
    let server = Server::start(&ca, &ca.papers("127.0.0.1", 2100), "yes");
    let Papers { cert, key } = ca.papers("a.client", 2100);
    let file = |name: &str, text: &str| {
        let path = server.files.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (cert, key) = (file("ours.pem", &cert), file("ours.key", &key));
    let port = server.port;
    let start = format!("[redis]\nhost = '127.0.0.1'\nport = {port}\ntls = true\n");
    let trust = format!("ca_file = '{}'\n", server.files.path().join("ca.pem").display());
    let papers = format!("client_cert_file = '{cert}'\nclient_key_file = '{key}'\n");
    let config = |text: &str| Config::read_file(file("tenure.toml", text)).unwrap();
    let whole = config(&[&*start, &trust, &papers].concat());
    let client = within("a connection", whole.connect()).await.unwrap();
    client.set("k", "v").await.unwrap();
    assert_eq!(get(&server.server, "tenure:k").as_deref(), Some("v"));
    works(whole.builder_at(&whole.url().unwrap()).unwrap()).await;
    works(config(&[&*start, "insecure = true\n", &papers].concat()).builder().unwrap()).await;
    let without = config(&[&*start, &trust].concat()).builder().unwrap();
    let text = refused(without).await;
    assert!(text.contains("the server wants a certificate of ours"), "{text}");
    let strange = config(&[&*start, &papers].concat()).builder().unwrap();
    let text = refused(strange).await;
    assert!(text.contains("from nobody that we trust (`ca_file`)"), "{text}");
    let other = format!("rediss://127.0.0.1:{port}/1");
    let text = refused(whole.builder_at(&other).unwrap()).await;
    assert!(text.contains("from nobody that we trust"), "they are for that server alone: {text}");
}

/// TLS on one side only is an error in bounded time, not a hang.
#[tokio::test]
async fn t65_tls_on_one_side_only() {
    let ca = Authority::new("ours");
    let server = Server::start(&ca, &ca.papers("127.0.0.1", 2100), "no");
    let plain = format!("rediss://:hunter2@127.0.0.1:{}", server.server.port());
    let plain = Redis::builder(&plain).ca_pem(ca.pem()).connect_timeout(Duration::from_secs(1));
    let error = within("an error", plain.connect()).await.unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    let text = whole(&error);
    assert!(text.ends_with("no connection within 1s; does it speak TLS there?"), "{text}");
    let tls = Redis::builder(&format!("redis://:hunter2@127.0.0.1:{}", server.port));
    let error = within("an error", tls.connect_timeout(Duration::from_secs(1)).connect()).await;
    let error = error.unwrap_err();
    assert!(error.is_unavailable() && !whole(&error).contains("hunter2"), "{}", whole(&error));
}

/// Set for the child process, which trusts the authorities of the system.
const THERE: &str = "TENURE_TEST_TLS_URL";

/// t65: if no authority is configured, those of the system are trusted. The environment variable
/// `SSL_CERT_FILE` selects them, which needs a process of its own: this same test.
#[tokio::test]
async fn t65_the_authorities_of_the_system() {
    if let Ok(url) = std::env::var(THERE) {
        return works(Redis::builder(&url)).await;
    }
    let ca = Authority::new("ours");
    let server = Server::start(&ca, &ca.papers("127.0.0.1", 2100), "no");
    let myself = std::env::current_exe().unwrap();
    let mut child = Command::new(myself);
    child.args(["--exact", "tls::t65_the_authorities_of_the_system"]);
    child.env(THERE, format!("rediss://127.0.0.1:{}", server.port));
    child.env("SSL_CERT_FILE", server.files.path().join("ca.pem"));
    let ended = tokio::task::spawn_blocking(move || child.output()).await.unwrap().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
}
