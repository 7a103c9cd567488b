//! Whom we trust, and who we are to a server that wants to know.
//!
//! In: certificates in PEM, or the word that none matter. Out: what a handshake needs.
//!
//! The cryptography is `ring`'s, chosen here by name: nothing is installed for the whole process, and
//! another provider in the same program changes nothing. Messages never repeat what a file holds.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use tenure_core::Error;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{
    CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    self, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};

/// What was said about TLS beside the URL.
#[derive(Clone, Default)]
pub(crate) struct Tls {
    pub(crate) ca: Option<Ca>,
    pub(crate) client: Option<(Vec<u8>, Vec<u8>)>,
    pub(crate) insecure: bool,
}

/// Authorities to trust instead of the system's.
#[derive(Clone)]
pub(crate) enum Ca {
    File(PathBuf),
    Pem(Vec<u8>),
}

/// What a handshake needs.
#[derive(Clone)]
pub(crate) struct Secure {
    pub(crate) config: Arc<ClientConfig>,
}

impl Tls {
    /// Which setting only makes sense with TLS, if one was made.
    pub(crate) fn said(&self) -> Option<&'static str> {
        match self {
            Tls { ca: Some(Ca::File(_)), .. } => Some("ca_file"),
            Tls { ca: Some(Ca::Pem(_)), .. } => Some("ca_pem"),
            Tls { client: Some(_), .. } => Some("client_cert"),
            Tls { insecure: true, .. } => Some("insecure"),
            _ => None,
        }
    }

    /// All that is needed to speak to `host`.
    pub(crate) fn secure(&self, host: &str) -> Result<Secure, Error> {
        ServerName::try_from(host).map_err(|_| {
            let shown = host.escape_debug();
            Error::invalid(format!("invalid host `{shown}`: no certificate can be for it"))
        })?;
        Ok(Secure { config: Arc::new(self.config()?) })
    }

    fn config(&self) -> Result<ClientConfig, Error> {
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
            (false, Some(ca)) => versions.with_root_certificates(ca.roots()?),
            (false, None) => versions.with_root_certificates(system_roots()?),
        };
        let Some((chain, key)) = &self.client else { return Ok(trusting.with_no_client_auth()) };
        let (chain, key) = (certificates("client_cert", chain)?, private_key(key)?);
        trusting.with_client_auth_cert(chain, key).map_err(|_| {
            Error::invalid("invalid `client_cert`: the key does not belong to the certificate")
        })
    }
}

fn contradiction() -> Error {
    Error::invalid("a CA to trust and `insecure`, which trusts anybody, contradict each other")
}

impl Ca {
    fn roots(&self) -> Result<RootCertStore, Error> {
        match self {
            Ca::Pem(pem) => roots("ca_pem", pem),
            Ca::File(path) => {
                let shown = path.display();
                let pem = std::fs::read(path).map_err(|error| {
                    Error::invalid(format!("invalid `ca_file`: cannot read `{shown}`: {error}"))
                })?;
                roots("ca_file", &pem)
            }
        }
    }
}

fn roots(setting: &str, pem: &[u8]) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(setting, pem)? {
        roots.add(certificate).map_err(|_| bad_pem(setting, "a certificate that can be read"))?;
    }
    Ok(roots)
}

/// The authorities that this machine trusts: what users of other programs on it expect.
fn system_roots() -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    // A file that cannot be read costs what it holds, not all the others.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    match roots.is_empty() {
        true => Err(Error::invalid(
            "this system trusts no certificate authority; name one with `ca_file`",
        )),
        false => Ok(roots),
    }
}

/// At least one.
fn certificates(setting: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        // The parser's error repeats what it read, which may be a key.
        _ => Err(bad_pem(setting, "a certificate")),
    }
}

fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, Error> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|_| bad_pem("client_cert", "a private key"))
}

fn bad_pem(setting: &str, wanted: &str) -> Error {
    Error::invalid(format!("invalid `{setting}`: it is not {wanted} in PEM form"))
}

/// Trusts whoever answers, as long as they have the key of the certificate that they show.
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
