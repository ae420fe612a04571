//! Control of a server over gRPC (`FLEET_GRPC_PORT`), with the feature `grpc`.

#[cfg(feature = "grpc")]
pub(super) use built_in::Control;
#[cfg(not(feature = "grpc"))]
pub(super) use unsupported::Control;

#[cfg(feature = "grpc")]
mod built_in {
    use fleet_base::{Error, Result};
    use fleet_net::{Log, Token};
    use fleet_ps::ServerTables;
    use fleet_ps::control::{ControlServer, ServerTls};
    use fleet_topology::{Endpoint, Env, names};
    use std::net::SocketAddr;
    use std::path::Path;
    use std::sync::Arc;

    pub struct Control(ControlServer);

    impl Control {
        /// Binds on the host where the server accepts workers, and logs the address.
        pub fn bind(
            endpoint: &Endpoint,
            port: u16,
            token: &Token,
            (server, env): (usize, &Env),
        ) -> Result<Control> {
            let (log, address) = (Log::stderr(), (endpoint.host.as_str(), port));
            let bound = match certificate(env) {
                Ok(Some(tls)) => ControlServer::bind_under(address, token, tls, log.clone()),
                Ok(None) => ControlServer::bind(address, token, log.clone()),
                Err(error) => Err(error),
            };
            let control = bound.map_err(|error| error.at(format!("server {server}")))?;
            log.line(format!("server {server}: control over gRPC at {}", control.address()));
            Ok(Control(control))
        }

        pub fn serve(&self, tables: Arc<ServerTables>, addresses: &[SocketAddr]) -> Result<()> {
            self.0.serve(tables, addresses)
        }
    }

    /// Returns the server's certificate, or `None` without TLS.
    fn certificate(env: &Env) -> Result<Option<ServerTls>> {
        let (cert, key) = (names::FLEET_GRPC_CERT, names::FLEET_GRPC_KEY);
        match (env.text(cert), env.text(key)) {
            (None, None) => Ok(None),
            (Some(cert), Some(key)) => ServerTls::read(Path::new(cert), Path::new(key)).map(Some),
            (Some(_), None) => Err(Error::invalid(format!("{cert} needs {key}"))),
            (None, Some(_)) => Err(Error::invalid(format!("{key} needs {cert}"))),
        }
    }
}

#[cfg(not(feature = "grpc"))]
mod unsupported {
    use fleet_base::{Error, Result};
    use fleet_net::Token;
    use fleet_ps::ServerTables;
    use fleet_topology::{Endpoint, Env, names};
    use std::net::SocketAddr;
    use std::sync::Arc;

    /// Stand-in without the feature `grpc`.
    pub enum Control {}

    impl Control {
        pub fn bind(
            _: &Endpoint,
            port: u16,
            _: &Token,
            (server, _): (usize, &Env),
        ) -> Result<Control> {
            Err(Error::unsupported(
                "FLEET_GRPC_PORT requests control over gRPC, but this program was built without it",
            )
            .expected(format!("no {}", names::FLEET_GRPC_PORT))
            .got(port)
            .at(format!("server {server}"))
            .help(
                "build it with the feature `grpc` (cargo build --features grpc), or unset the \
                 variable",
            ))
        }

        pub fn serve(&self, _: Arc<ServerTables>, _: &[SocketAddr]) -> Result<()> {
            match *self {}
        }
    }
}
