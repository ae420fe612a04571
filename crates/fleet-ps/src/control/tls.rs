//! TLS for control over gRPC, with certificates that any tool can check. The TLS of a job's own
//! connections (`fleet-net`) has keys without certificates, which such tools do not support.

use fleet_base::{Error, Result};
use fleet_net::HANDSHAKE_SPAN;
use std::path::Path;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity, Server, ServerTlsConfig};

/// Returns the sources of a transport's error, which state its cause.
pub(super) fn cause(error: &dyn std::error::Error) -> String {
    let sources = std::iter::successors(error.source(), |source| source.source());
    sources.map(|source| format!(": {source}")).collect()
}

/// A server's certificate, those of its issuers, and its key.
pub struct ServerTls {
    config: ServerTlsConfig,
    files: String,
}

impl ServerTls {
    /// Reads PEM files.
    pub fn read(certificate: &Path, key: &Path) -> Result<ServerTls> {
        let identity = Identity::from_pem(read(certificate, "certificate")?, read(key, "key")?);
        let config = ServerTlsConfig::new().identity(identity).timeout(HANDSHAKE_SPAN);
        let files = format!("{} and {}", certificate.display(), key.display());
        Ok(ServerTls { config, files })
    }

    pub(super) fn apply(self, server: Server) -> Result<Server> {
        server.tls_config(self.config).map_err(|error| {
            Error::invalid(format!("invalid certificate or key{}", cause(&error)))
                .expected("PEM: a certificate with those of its issuers, and its key")
                .at(self.files)
        })
    }
}

/// The authority that an operator trusts.
pub struct ClientTls(ClientTlsConfig);

impl ClientTls {
    /// Trusts servers whose certificate is in a PEM file, or was signed by one in it. `name` is
    /// the name in the certificate, if it is not the host of the address.
    pub fn read(authority: &Path, name: Option<&str>) -> Result<ClientTls> {
        let authority = Certificate::from_pem(read(authority, "certificate")?);
        let config = ClientTlsConfig::new().ca_certificate(authority).timeout(HANDSHAKE_SPAN);
        Ok(ClientTls(match name {
            Some(name) => config.domain_name(name),
            None => config,
        }))
    }

    pub(super) fn apply(self, endpoint: Endpoint) -> Result<Endpoint> {
        endpoint
            .tls_config(self.0)
            .map_err(|error| Error::invalid(format!("invalid certificate{}", cause(&error))))
    }
}

fn read(path: &Path, what: &str) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| Error::io(&format!("read the {what} from"), path, &error))
}
