//! TLS: which servers we trust, and our client certificate.
//!
//! In: certificates in PEM, or the setting not to check them. Out: the configuration of a handshake.
//!
//! The cryptography is that of `ring`, selected here explicitly: nothing is installed for the whole process,
//! and another provider in the same program has no effect. Messages never repeat the content of a file.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, io};

use tenure_core::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{
    CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    self, AlertDescription as Alert, CertificateError as Flaw, ClientConfig, DigitallySignedStruct,
    RootCertStore, SignatureScheme,
};

/// The TLS settings that are not in the URL.
#[derive(Clone, Default)]
pub struct Tls {
    /// The authorities to trust instead of the system's.
    pub ca: Option<Pem>,
    /// Our certificate and its key.
    pub client: Option<(Pem, Pem)>,
    /// Trusts every server.
    pub insecure: bool,
}

/// Certificates or a key, as text or in a file.
#[derive(Clone)]
pub enum Pem {
    /// In this file.
    File(PathBuf),
    /// This text.
    Text(Vec<u8>),
}

impl Tls {
    /// The name of a setting that needs TLS, if one was made.
    pub fn needs_tls(&self) -> Option<&'static str> {
        match self {
            Tls { ca: Some(Pem::File(_)), .. } => Some("ca_file"),
            Tls { ca: Some(Pem::Text(_)), .. } => Some("ca_pem"),
            Tls { client: Some(_), .. } => Some("client_cert"),
            Tls { insecure: true, .. } => Some("insecure"),
            _ => None,
        }
    }

    /// The configuration of a handshake that offers the protocol `alpn`, if there is one.
    ///
    /// # Errors
    ///
    /// [`is_invalid`](Error::is_invalid) for certificates that cannot be read, and settings that contradict each other.
    pub fn config(&self, alpn: Option<&[u8]>) -> Result<Arc<ClientConfig>, Error> {
        let provider = Arc::new(ring::default_provider());
        let versions = ClientConfig::builder_with_provider(provider.clone());
        let versions = versions.with_safe_default_protocol_versions();
        let versions = versions.map_err(|error| Error::invalid(format!("no TLS: {error}")))?;
        let trusting = match (self.insecure, &self.ca) {
            (true, Some(_)) => return Err(contradiction()),
            (true, None) => {
                let anybody = Arc::new(Anybody(provider));
                versions.dangerous().with_custom_certificate_verifier(anybody)
            }
            (false, Some(ca)) => versions.with_root_certificates(roots(ca)?),
            (false, None) => versions.with_root_certificates(system_roots()?),
        };
        let mut config = match &self.client {
            None => trusting.with_no_client_auth(),
            Some((chain, key)) => {
                let chain = certificates("client_cert", &chain.read("client_cert")?)?;
                let key = private_key(&key.read("client_cert")?)?;
                trusting.with_client_auth_cert(chain, key).map_err(|_| {
                    Error::invalid(
                        "invalid `client_cert`: the key does not belong to the certificate",
                    )
                })?
            }
        };
        config.alpn_protocols = alpn.map(<[u8]>::to_vec).into_iter().collect();
        Ok(Arc::new(config))
    }
}

/// The name that a certificate must be for.
///
/// # Errors
///
/// [`is_invalid`](Error::is_invalid) for a host that no certificate can be for.
pub fn server_name(host: &str) -> Result<ServerName<'static>, Error> {
    ServerName::try_from(host.to_owned()).map_err(|_| {
        let shown = host.escape_debug();
        Error::invalid(format!("invalid host `{shown}`: no certificate can be for it"))
    })
}

/// A stream of bytes in both directions.
pub trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Duplex for S {}

/// The stream to `host`, encrypted if there is a configuration.
///
/// # Errors
///
/// Those of the handshake; [`explain_tls`] has their meaning.
pub async fn encrypted(
    config: Option<&Arc<ClientConfig>>,
    host: &str,
    stream: impl Duplex + 'static,
) -> io::Result<Box<dyn Duplex>> {
    let Some(config) = config else { return Ok(Box::new(stream)) };
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    Ok(Box::new(TlsConnector::from(config.clone()).connect(name, stream).await?))
}

fn contradiction() -> Error {
    Error::invalid("a CA to trust and `insecure`, which trusts anybody, contradict each other")
}

impl Pem {
    /// In the file at `path`.
    pub fn file(path: impl AsRef<Path>) -> Self {
        Pem::File(path.as_ref().into())
    }

    fn read(&self, setting: &str) -> Result<Vec<u8>, Error> {
        match self {
            Pem::Text(text) => Ok(text.clone()),
            Pem::File(path) => std::fs::read(path).map_err(|error| {
                let shown = path.display();
                Error::invalid(format!("invalid `{setting}`: cannot read `{shown}`: {error}"))
            }),
        }
    }
}

fn roots(ca: &Pem) -> Result<RootCertStore, Error> {
    let setting = if matches!(ca, Pem::File(_)) { "ca_file" } else { "ca_pem" };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(setting, &ca.read(setting)?)? {
        roots.add(certificate).map_err(|_| bad_pem(setting, "a certificate that can be read"))?;
    }
    Ok(roots)
}

/// The authorities that this machine trusts, as users of its other programs expect.
fn system_roots() -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    // A file that cannot be read is skipped; the others still count.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    match roots.is_empty() {
        true => Err(Error::invalid(
            "this system trusts no certificate authority; name one with `ca_file`",
        )),
        false => Ok(roots),
    }
}

/// At least one certificate.
fn certificates(setting: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        // The parser's error repeats its input, which may be a key.
        _ => Err(bad_pem(setting, "a certificate")),
    }
}

fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, Error> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|_| bad_pem("client_cert", "a private key"))
}

fn bad_pem(setting: &str, wanted: &str) -> Error {
    Error::invalid(format!("invalid `{setting}`: it is not {wanted} in PEM form"))
}

/// Trusts every server that has the key of the certificate that it shows.
struct Anybody(Arc<CryptoProvider>);

impl fmt::Debug for Anybody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Anybody")
    }
}

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Why the two sides do not trust each other, for people; `None` if the stream failed for another reason.
pub fn explain_tls(error: &io::Error) -> Option<String> {
    let error: &rustls::Error = error.get_ref()?.downcast_ref()?;
    let what = match error {
        rustls::Error::InvalidCertificate(flaw) => meaning_of_flaw(flaw),
        rustls::Error::AlertReceived(alert) => meaning_of_alert(*alert),
        rustls::Error::InvalidMessage(_) => "the server does not speak TLS here",
        _ => "no TLS connection can be agreed on",
    };
    Some(format!("{what}: {error}"))
}

fn meaning_of_flaw(flaw: &Flaw) -> &'static str {
    match flaw {
        Flaw::Expired | Flaw::ExpiredContext { .. } => "the server's certificate has expired",
        Flaw::NotValidYet | Flaw::NotValidYetContext { .. } => {
            "the server's certificate is not valid yet"
        }
        Flaw::NotValidForName | Flaw::NotValidForNameContext { .. } => {
            "the server's certificate is for another host"
        }
        Flaw::UnknownIssuer => "the server's certificate is from nobody that we trust (`ca_file`)",
        _ => "the server's certificate is not acceptable",
    }
}

fn meaning_of_alert(alert: Alert) -> &'static str {
    match alert {
        Alert::CertificateRequired | Alert::NoCertificate => {
            "the server wants a certificate of ours (`client_cert`)"
        }
        Alert::BadCertificate
        | Alert::UnsupportedCertificate
        | Alert::CertificateRevoked
        | Alert::CertificateExpired
        | Alert::CertificateUnknown
        | Alert::UnknownCA
        | Alert::AccessDenied
        | Alert::DecryptError => "the server does not accept our certificate (`client_cert`)",
        _ => "the server does not agree to a TLS connection",
    }
}
