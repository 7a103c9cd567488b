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

/// A certificate authority.
struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, in PEM.
struct Certificate {
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

    /// A certificate for `host`, valid until the given year.
    fn certificate(&self, host: &str, until: i32) -> Certificate {
        let mut params = CertificateParams::new([host.to_owned()]).unwrap();
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.0).unwrap().pem();
        Certificate { cert, key: key.serialize_pem() }
    }
}

/// A server with TLS, and the files of its certificates.
struct Server {
    server: EtcdServer,
    files: TempDir,
}

impl Server {
    fn start(ca: &Authority, certificate: &Certificate, clients_too: bool) -> Self {
        let files = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| -> PathBuf {
            let path = files.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let (cert, key) = (file("cert.pem", &certificate.cert), file("key.pem", &certificate.key));
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

/// The text of a refusal, checked to contain no secret.
async fn refused(builder: Builder) -> String {
    let error = within("a refusal", builder.connect()).await.unwrap_err();
    assert!(error.is_refused(), "{error:?}");
    let (text, debug) = (whole(&error), format!("{error:?}"));
    assert!(!text.contains("hunter2") && !debug.contains("hunter2"), "{text} {debug}");
    text
}

/// Acquires a lock, keeps it for longer than its ttl, and releases it.
async fn works(builder: Builder) {
    let locker = Locker::new(within("a connection", builder.connect()).await.unwrap());
    let guard = locker.lock("k").ttl(SHORT).await.unwrap();
    lapse(SHORT + Duration::from_millis(500)).await;
    assert!(guard.is_held(), "keep-alives are encrypted too");
    guard.release().await.unwrap();
}

/// A server with a certificate of a private authority is trusted if the authority is configured; nothing is
/// installed for the whole process.
#[tokio::test]
async fn t65_an_authority_of_our_own() {
    let ca = Authority::new("ours");
    let server = Server::start(&ca, &ca.certificate("127.0.0.1", 2100), false);
    works(server.builder().ca_pem(ca.pem())).await;
    works(server.builder().ca_file(server.ca())).await;
    assert!(CryptoProvider::get_default().is_none());
}

/// C8, t65: a certificate from an unknown authority, an expired one and one for another host are refused with the
/// reason, unless `insecure` is set.
#[tokio::test]
async fn t65_bad_certificates() {
    let (ca, stranger) = (Authority::new("ours"), Authority::new("a stranger"));
    let good = Server::start(&ca, &ca.certificate("127.0.0.1", 2100), false);
    let text = refused(good.builder().ca_pem(stranger.pem())).await;
    assert!(text.contains("nobody that we trust"), "{text}");
    let expired = Server::start(&ca, &ca.certificate("127.0.0.1", 2002), false);
    let text = refused(expired.builder().ca_pem(ca.pem())).await;
    assert!(text.contains("has expired"), "{text}");
    let other = Server::start(&ca, &ca.certificate("elsewhere.example", 2100), false);
    let text = refused(other.builder().ca_pem(ca.pem())).await;
    assert!(text.contains("for another host"), "{text}");
    works(other.builder().insecure()).await;
}

/// A server that asks for a client certificate gets ours. Without one, or with one of an unknown authority,
/// it refuses, and our error shows that.
#[tokio::test]
async fn t65_client_certificates() {
    let (ca, stranger) = (Authority::new("ours"), Authority::new("a stranger"));
    let server = Server::start(&ca, &ca.certificate("127.0.0.1", 2100), true);
    let Certificate { cert, key } = ca.certificate("a.client", 2100);
    works(server.builder().ca_pem(ca.pem()).client_cert(cert, key)).await;
    let text = refused(server.builder().ca_pem(ca.pem())).await;
    assert!(text.contains("certificate"), "{text}");
    let Certificate { cert, key } = stranger.certificate("a.client", 2100);
    let text = refused(server.builder().ca_pem(ca.pem()).client_cert(cert, key)).await;
    assert!(text.contains("certificate"), "{text}");
}

/// TLS on one side only, in both combinations: an error in bounded time, not a hang.
#[tokio::test]
async fn t65_tls_on_one_side_only() {
    let ca = Authority::new("ours");
    let plain = EtcdServer::start();
    let url = format!("etcds://app:hunter2@127.0.0.1:{}", plain.port());
    let connecting = Etcd::builder(&url).ca_pem(ca.pem()).connect_timeout(Duration::from_secs(1));
    let error = within("an error", connecting.connect()).await.unwrap_err();
    assert!(!whole(&error).contains("hunter2"), "{}", whole(&error));
    let server = Server::start(&ca, &ca.certificate("127.0.0.1", 2100), false);
    let url = format!("etcd://app:hunter2@127.0.0.1:{}", server.server.port());
    let connecting = Etcd::builder(&url).connect_timeout(Duration::from_secs(1));
    let error = within("an error", connecting.connect()).await.unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    assert!(!whole(&error).contains("hunter2"), "{}", whole(&error));
}
