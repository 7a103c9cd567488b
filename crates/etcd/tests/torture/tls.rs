//! TLS on a real server, with certificates made here.

use std::path::PathBuf;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd,
};
use tempfile::TempDir;
use tenure_core::Locker;
use tenure_etcd::{Builder, Etcd};
use tenure_testkit::servers::{EtcdServer, EtcdTls};
use tenure_testkit::wait::{lapse, within};
use tokio_rustls::rustls::crypto::CryptoProvider;

use crate::support::{SHORT, whole};

/// Someone who signs certificates.
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

    /// Papers for `host`, good until a certain year.
    fn papers(&self, host: &str, until: i32) -> Papers {
        let mut params = CertificateParams::new([host.to_owned()]).unwrap();
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.0).unwrap().pem();
        Papers { cert, key: key.serialize_pem() }
    }
}

/// A server that speaks TLS, and the files of its papers.
struct Server {
    server: EtcdServer,
    files: TempDir,
}

impl Server {
    fn start(ca: &Authority, papers: &Papers, clients_too: bool) -> Self {
        let files = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| -> PathBuf {
            let path = files.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let (cert, key) = (file("cert.pem", &papers.cert), file("key.pem", &papers.key));
        let ca = file("ca.pem", &ca.pem());
        let server = EtcdServer::start_with_tls(EtcdTls { cert, key, ca, clients_too });
        Server { server, files }
    }

    fn builder(&self) -> Builder {
        let url = format!("etcds://app:hunter2@127.0.0.1:{}", self.server.port());
        Etcd::builder(&url).connect_timeout(Duration::from_secs(2))
    }

    fn ca(&self) -> PathBuf {
        self.files.path().join("ca.pem")
    }
}

/// The text of a refusal, which shows no secret.
async fn refused(builder: Builder) -> String {
    let error = within("a refusal", builder.connect()).await.unwrap_err();
    assert!(error.is_refused(), "{error:?}");
    let (text, debug) = (whole(&error), format!("{error:?}"));
    assert!(!text.contains("hunter2") && !debug.contains("hunter2"), "{text} {debug}");
    text
}

/// Takes a lock, keeps it for longer than its ttl, gives it back.
async fn works(builder: Builder) {
    let locker = Locker::new(within("a connection", builder.connect()).await.unwrap());
    let guard = locker.lock("k").ttl(SHORT).await.unwrap();
    lapse(SHORT + Duration::from_millis(500)).await;
    assert!(guard.is_held(), "keep-alives are encrypted too");
    guard.release().await.unwrap();
}

/// A server with a certificate of our own authority is trusted once the authority is named; nothing
/// is installed for the whole process.
#[tokio::test]
async fn t65_an_authority_of_our_own() {
    let ca = Authority::new("ours");
    let server = Server::start(&ca, &ca.papers("127.0.0.1", 2100), false);
    works(server.builder().ca_pem(ca.pem())).await;
    works(server.builder().ca_file(server.ca())).await;
    assert!(CryptoProvider::get_default().is_none());
}

/// t65: a certificate that is from a stranger, past its time or for another host is refused, and each
/// says what it is; unless that was asked for.
#[tokio::test]
async fn t65_bad_certificates() {
    let (ca, stranger) = (Authority::new("ours"), Authority::new("a stranger"));
    let good = Server::start(&ca, &ca.papers("127.0.0.1", 2100), false);
    let text = refused(good.builder().ca_pem(stranger.pem())).await;
    assert!(text.contains("nobody that we trust"), "{text}");
    let expired = Server::start(&ca, &ca.papers("127.0.0.1", 2002), false);
    let text = refused(expired.builder().ca_pem(ca.pem())).await;
    assert!(text.contains("has expired"), "{text}");
    let other = Server::start(&ca, &ca.papers("elsewhere.example", 2100), false);
    let text = refused(other.builder().ca_pem(ca.pem())).await;
    assert!(text.contains("for another host"), "{text}");
    works(other.builder().insecure()).await;
}

/// A server that wants to know who we are gets our certificate; without one, or with one that it does
/// not know, it refuses, and we say so.
#[tokio::test]
async fn t65_client_certificates() {
    let (ca, stranger) = (Authority::new("ours"), Authority::new("a stranger"));
    let server = Server::start(&ca, &ca.papers("127.0.0.1", 2100), true);
    let Papers { cert, key } = ca.papers("a.client", 2100);
    works(server.builder().ca_pem(ca.pem()).client_cert(cert, key)).await;
    let text = refused(server.builder().ca_pem(ca.pem())).await;
    assert!(text.contains("certificate"), "{text}");
    let Papers { cert, key } = stranger.papers("a.client", 2100);
    let text = refused(server.builder().ca_pem(ca.pem()).client_cert(cert, key)).await;
    assert!(text.contains("certificate"), "{text}");
}

/// TLS where there is none, and none where there is: an error in bounded time, not a hang.
#[tokio::test]
async fn t65_tls_on_one_side_only() {
    let ca = Authority::new("ours");
    let plain = EtcdServer::start();
    let url = format!("etcds://app:hunter2@127.0.0.1:{}", plain.port());
    let connecting = Etcd::builder(&url).ca_pem(ca.pem()).connect_timeout(Duration::from_secs(1));
    let error = within("an error", connecting.connect()).await.unwrap_err();
    assert!(!whole(&error).contains("hunter2"), "{}", whole(&error));
    let server = Server::start(&ca, &ca.papers("127.0.0.1", 2100), false);
    let url = format!("etcd://app:hunter2@127.0.0.1:{}", server.server.port());
    let connecting = Etcd::builder(&url).connect_timeout(Duration::from_secs(1));
    let error = within("an error", connecting.connect()).await.unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    assert!(!whole(&error).contains("hunter2"), "{}", whole(&error));
}
