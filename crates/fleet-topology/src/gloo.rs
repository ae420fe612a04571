//! Settings of the barrier and all-reduce service beside training ("gloo" in the documents).

use crate::{Endpoint, Env, names};
use fleet_base::{Error, Result};

/// The members of the service and their rendezvous.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gloo {
    /// The processes that use the service.
    pub members: GlooMembers,
    /// `None` if the service has no members and no rendezvous is configured.
    pub rendezvous: Option<Rendezvous>,
    /// Job id that separates jobs which share a rendezvous.
    pub job: Option<String>,
}

/// The processes that use the service (`PADDLE_WITH_GLOO`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GlooMembers {
    /// No process.
    #[default]
    None,
    /// The workers.
    Workers,
    /// Workers and servers.
    All,
}

/// Where the members of the service find each other (`PADDLE_GLOO_RENDEZVOUS`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rendezvous {
    /// A folder in HDFS.
    Hdfs {
        /// Name of the file system.
        name: String,
        /// User and password.
        ugi: String,
        /// The folder.
        path: String,
    },
    /// A folder that all machines share.
    File {
        /// The folder.
        path: String,
    },
    /// Process 0 of each role listens here.
    Http {
        /// The endpoint of process 0.
        endpoint: Endpoint,
    },
}

impl Gloo {
    /// The HTTP endpoint at which members meet.
    pub(crate) fn http(&self) -> Option<&Endpoint> {
        match &self.rendezvous {
            Some(Rendezvous::Http { endpoint }) if self.members != GlooMembers::None => {
                Some(endpoint)
            }
            _ => None,
        }
    }

    pub(crate) fn from_env(env: &Env) -> Result<Gloo> {
        let members = match env.text(names::PADDLE_WITH_GLOO) {
            None | Some("0") => GlooMembers::None,
            Some("1") => GlooMembers::Workers,
            Some("2") => GlooMembers::All,
            Some(other) => {
                return Err(Error::invalid("invalid PADDLE_WITH_GLOO")
                    .expected("0 (off), 1 (workers) or 2 (workers and servers)")
                    .got(other));
            }
        };
        let job = env.text(names::SYS_JOB_ID).map(str::to_string);
        // Launchers export the rendezvous whether or not it is used.
        let rendezvous = match members {
            GlooMembers::None => rendezvous(env).unwrap_or_default(),
            _ => Some(rendezvous(env)?.ok_or_else(|| missing(names::PADDLE_GLOO_RENDEZVOUS))?),
        };
        Ok(Gloo { members, rendezvous, job })
    }
}

fn rendezvous(env: &Env) -> Result<Option<Rendezvous>> {
    let need = |name| env.text(name).map(str::to_string).ok_or_else(|| missing(name));
    Ok(Some(match env.text(names::PADDLE_GLOO_RENDEZVOUS) {
        None => return Ok(None),
        Some("1") => Rendezvous::Hdfs {
            name: need(names::PADDLE_GLOO_FS_NAME)?,
            ugi: need(names::PADDLE_GLOO_FS_UGI)?,
            path: need(names::PADDLE_GLOO_FS_PATH)?,
        },
        Some("2") => Rendezvous::File { path: need(names::PADDLE_GLOO_FS_PATH)? },
        Some("3") => {
            let text = need(names::PADDLE_GLOO_HTTP_ENDPOINT)?;
            let endpoint = text.parse::<Endpoint>();
            Rendezvous::Http {
                endpoint: endpoint.map_err(|error| error.at(names::PADDLE_GLOO_HTTP_ENDPOINT))?,
            }
        }
        Some(other) => {
            return Err(Error::invalid("invalid PADDLE_GLOO_RENDEZVOUS")
                .expected("1 (HDFS), 2 (files) or 3 (HTTP)")
                .got(other));
        }
    }))
}

fn missing(name: &str) -> Error {
    crate::env::not_found(name).at("PADDLE_WITH_GLOO is on")
}
