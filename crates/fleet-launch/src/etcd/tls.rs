//! TLS between launchers and etcd, with certificates from files.

use fleet_base::{Error, Result, input};
use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;
use ureq::config::ConfigBuilder;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};
use ureq::typestate::AgentScope;

/// The authorities to trust and the certificate to present.
#[derive(Clone)]
pub(super) struct Tls(TlsConfig);

impl Tls {
    /// Reads PEM files: the certificates of authorities and, if etcd demands one, this
    /// launcher's certificate with its key.
    pub fn read(authority: &Path, own: Option<(&Path, &Path)>) -> Result<Tls> {
        let provider = Arc::new(ring::default_provider());
        let trusted = certificates(authority)?;
        let mut store = RootCertStore::empty();
        for certificate in &trusted {
            store.add(certificate.clone()).map_err(|error| invalid(authority, &error))?;
        }
        let own = match own {
            None => None,
            Some((file, key_file)) => {
                let (chain, bytes) = (certificates(file)?, read(key_file)?);
                let key = PrivateKeyDer::from_pem_slice(&bytes)
                    .map_err(|error| invalid(key_file, &error))?;
                // The client of HTTP panics on a key that is not the certificate's.
                CertifiedKey::from_der(chain.clone(), key, &provider)
                    .map_err(|error| invalid(key_file, &error))?;
                let key =
                    PrivateKey::from_pem(&bytes).map_err(|error| invalid(key_file, &error))?;
                Some(ClientCert::new_with_certs(&passed_on(&chain), key))
            }
        };
        let config = TlsConfig::builder()
            .unversioned_rustls_crypto_provider(provider)
            .root_certs(RootCerts::new_with_certs(&passed_on(&trusted)))
            .client_cert(own);
        Ok(Tls(config.build()))
    }

    pub fn apply(&self, to: ConfigBuilder<AgentScope>) -> ConfigBuilder<AgentScope> {
        to.tls_config(self.0.clone())
    }

    /// Whether this launcher presents a certificate.
    pub fn has_own(&self) -> bool {
        self.0.client_cert().is_some()
    }
}

/// Returns the reason why TLS failed, if it did. A retry would fail as well.
pub(super) fn fault(error: &ureq::Error) -> Option<String> {
    match error {
        ureq::Error::Rustls(error) => Some(error.to_string()),
        ureq::Error::Io(error) => {
            let inner = error.get_ref()?.downcast_ref::<rustls::Error>()?;
            Some(inner.to_string())
        }
        _ => None,
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let bytes = read(path)?;
    let all = CertificateDer::pem_slice_iter(&bytes).collect::<std::result::Result<Vec<_>, _>>();
    let all = all.map_err(|error| invalid(path, &error))?;
    match all.is_empty() {
        true => Err(invalid(path, &"it has none")),
        false => Ok(all),
    }
}

fn passed_on(all: &[CertificateDer<'static>]) -> Vec<Certificate<'static>> {
    all.iter().map(|it| Certificate::from_der(it).to_owned()).collect()
}

fn read(path: &Path) -> Result<Vec<u8>> {
    input::read(path, "certificates", FILE_BYTES_MAX)
}

fn invalid(path: &Path, why: &dyn Display) -> Error {
    Error::invalid(format!("invalid certificate or key: {why}")).expected("PEM").at(path.display())
}

/// The certificates of all public authorities have about 250 KB.
const FILE_BYTES_MAX: u64 = 4 << 20;
