//! TLS to the Sentinels and to the master, with certificates made here: row 65.

use std::path::Path;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tenure_core::{Error, Locker};
use tenure_redis::{Builder, Redis};
use tenure_testkit::servers::SentinelSet;
use tenure_testkit::wait::{lapse, within};

use crate::support::{lock, whole};

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "ours");
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A set whose Sentinel and master have a certificate of `ca` for their address.
fn start(dir: &Path, ca: &CertifiedIssuer<'static, KeyPair>) -> SentinelSet {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    let cert = params.signed_by(&key, ca).unwrap().pem();
    let file = |name: &str, text: String| {
        let path = dir.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (cert, key) = (file("cert.pem", cert), file("key.pem", key.serialize_pem()));
    let ca = file("ca.pem", ca.pem());
    let papers = ["--tls-cert-file", &cert, "--tls-key-file", &key, "--tls-ca-cert-file", &ca];
    SentinelSet::start_tls(&[&papers[..], &["--tls-auth-clients", "no"]].concat())
}

async fn connect(builder: Builder) -> Result<Redis, Error> {
    within("an answer", builder.connect()).await
}

/// t65: with `rediss+sentinel://`, connections to Sentinels and master use TLS, also after a restart of the
/// master. A certificate of an unknown authority is refused.
#[tokio::test(flavor = "multi_thread")]
async fn t65_sentinels_with_tls() {
    let (dir, ca) = (tempfile::tempdir().unwrap(), authority());
    let set = start(dir.path(), &ca);
    let url = set.url();
    assert!(url.starts_with("rediss+sentinel://"), "{url}");
    let locker = Locker::new(connect(Redis::builder(&url).ca_pem(ca.pem())).await.unwrap());
    let guard = locker.lock("k").ttl(Duration::from_millis(600)).await.unwrap();
    lapse(Duration::from_secs(1)).await;
    assert!(guard.is_held(), "renewals are encrypted too");
    assert!(lock(&set.nodes()[0], "k").is_some());
    guard.release().await.unwrap();

    tokio::task::block_in_place(|| set.nodes()[0].restart());
    let guard = within("a lock", locker.lock("k").into_future()).await.unwrap();
    guard.release().await.unwrap();

    let error = connect(Redis::builder(&url).ca_pem(authority().pem())).await.unwrap_err();
    assert!(error.is_refused(), "{error:?}");
    assert!(whole(&error).contains("certificate"), "{}", whole(&error));
    let plain = url.replace("rediss", "redis");
    assert!(connect(Redis::builder(&plain)).await.is_err(), "they speak no plain text there");
}
