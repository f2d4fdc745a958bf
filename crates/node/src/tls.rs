//! TLS servers from PEM files.
//!
//! Owns: loading certificates and keys. Never: accepts a file that cannot work later.
//! Invariant: a server configuration exists only if its key fits its certificate.

use crate::config::TlsFiles;
use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why TLS cannot be offered.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read or is not PEM of the right kind.
    #[error("cannot load {what} from {path}; it must be a readable PEM file")]
    Load {
        /// What was wanted from it.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: rustls_pki_types::pem::Error,
    },
    /// The file has no certificate.
    #[error("no certificate in {path}; it must hold at least one PEM CERTIFICATE block")]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A certificate of authority is not usable.
    #[error("a certificate in {path} cannot serve as an authority")]
    Authority {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: rustls::Error,
    },
    /// The verifier of client certificates cannot be made.
    #[error("client certificates cannot be verified against {path}")]
    Verifier {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: rustls::server::VerifierBuilderError,
    },
    /// Key and certificate do not fit.
    #[error("the key {key} does not fit the certificate {cert}")]
    Pair {
        /// The key's file.
        key: PathBuf,
        /// The certificate's file.
        cert: PathBuf,
        /// Why.
        #[source]
        source: rustls::Error,
    },
}

/// A TLS server configuration (TLS 1.2 and 1.3) from files.
///
/// # Errors
/// [`TlsError`] names the file and what is wrong with it.
pub fn server_config(files: &TlsFiles) -> Result<Arc<ServerConfig>, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
    let builder = builder.expect("ring offers TLS 1.2 and 1.3");
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(authorities(path)?), provider).build();
            let verifier = verifier.map_err(|source| TlsError::Verifier { path: path.clone(), source })?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let key = PrivateKeyDer::from_pem_file(&files.key);
    let key = key.map_err(|source| TlsError::Load { what: "a private key", path: files.key.clone(), source })?;
    let config = builder.with_single_cert(certificates(&files.cert)?, key);
    let pair = |source| TlsError::Pair { key: files.key.clone(), cert: files.cert.clone(), source };
    Ok(Arc::new(config.map_err(pair)?))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bad = |source| TlsError::Load { what: "certificates", path: path.to_owned(), source };
    let all = CertificateDer::pem_file_iter(path).map_err(bad)?.collect::<Result<Vec<_>, _>>().map_err(bad)?;
    if all.is_empty() { Err(TlsError::Empty { path: path.to_owned() }) } else { Ok(all) }
}

fn authorities(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|source| TlsError::Authority { path: path.to_owned(), source })?;
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair};

    #[test]
    fn each_bad_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let (key, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
        let cert = CertificateParams::new(vec!["localhost".into()]).unwrap().self_signed(&key).unwrap();
        std::fs::write(path("cert"), cert.pem()).unwrap();
        std::fs::write(path("key"), key.serialize_pem()).unwrap();
        std::fs::write(path("other"), other.serialize_pem()).unwrap();
        std::fs::write(path("empty"), "").unwrap();
        let files = |cert: &str, key: &str, ca: Option<&str>| TlsFiles {
            cert: path(cert),
            key: path(key),
            client_ca: ca.map(path),
        };
        assert!(server_config(&files("cert", "key", Some("cert"))).is_ok());
        let error = |f: TlsFiles| server_config(&f).unwrap_err();
        assert!(matches!(error(files("cert", "other", None)), TlsError::Pair { .. }));
        assert!(matches!(error(files("cert", "missing", None)), TlsError::Load { .. }));
        assert!(matches!(error(files("empty", "key", None)), TlsError::Empty { .. }));
        assert!(matches!(error(files("cert", "empty", None)), TlsError::Load { .. }));
        assert!(matches!(error(files("cert", "key", Some("empty"))), TlsError::Empty { .. }));
    }
}
