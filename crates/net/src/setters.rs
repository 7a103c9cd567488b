//! The setters that the builders of all engines have.

/// Gives a builder the setters of its fields `prefix`, `timeouts` and `tls`. The scheme is that of a URL with
/// TLS, for the documentation.
#[macro_export]
macro_rules! connection_setters {
    ($builder:ty, $tls_scheme:literal) => {
        impl $builder {
            /// The start of all keys: `tenure` by default. Lockers with different prefixes do not see each
            /// other's locks.
            pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
                self.prefix = prefix.into();
                self
            }

            /// How long connecting may take: 2 s by default, at most 30 s. If this and
            /// [`response_timeout`](Self::response_timeout) are more than 8 s together, the ttl of every lock
            /// must be at least twice their sum: otherwise one lost reply could cost the lock.
            pub fn connect_timeout(mut self, longest: std::time::Duration) -> Self {
                self.timeouts.connect = longest;
                self
            }

            /// How long a reply may take: 2 s by default, at most 30 s, and bound to the ttl as described at
            /// [`connect_timeout`](Self::connect_timeout). After that the result is unknown, and the
            /// connection is replaced.
            pub fn response_timeout(mut self, longest: std::time::Duration) -> Self {
                self.timeouts.response = longest;
                self
            }

            /// Trusts the certificate authorities in this PEM file, and not the system's. It is read once,
            #[doc = concat!("when the builder connects. Needs `", $tls_scheme, "`.")]
            pub fn ca_file(mut self, path: impl Into<std::path::PathBuf>) -> Self {
                self.tls.ca = Some($crate::Pem::File(path.into()));
                self
            }

            /// Like [`ca_file`](Self::ca_file), with the text of such a file.
            pub fn ca_pem(mut self, pem: impl Into<Vec<u8>>) -> Self {
                self.tls.ca = Some($crate::Pem::Text(pem.into()));
                self
            }

            /// Presents this certificate to a server that requires one: the chain and its private key, both
            #[doc = concat!("as PEM. Needs `", $tls_scheme, "`.")]
            pub fn client_cert(
                mut self,
                chain: impl Into<Vec<u8>>,
                key: impl Into<Vec<u8>>,
            ) -> Self {
                let (chain, key) = (chain.into(), key.into());
                self.tls.client = Some(($crate::Pem::Text(chain), $crate::Pem::Text(key)));
                self
            }

            /// Encrypts without a check of the server's certificate: anybody between us and the server can
            /// read and change everything. For experiments; `#insecure` at the end of the URL is the same.
            pub fn insecure(mut self) -> Self {
                self.tls.insecure = true;
                self
            }
        }
    };
}
