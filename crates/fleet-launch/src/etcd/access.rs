//! Where an etcd is, and how launchers enter it: by TLS, as a user.

use super::tls::Tls;
use crate::flags::Given;
use fleet_base::{Error, Result, input};
use fleet_topology::{Endpoint, Env, names};
use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The etcd in which the machines of a job meet.
#[derive(Clone)]
pub struct EtcdAccess {
    pub endpoint: Endpoint,
    /// `None` for connections without TLS.
    pub(super) tls: Option<Tls>,
    pub(super) user: Option<User>,
}

#[derive(Clone)]
pub(super) struct User {
    pub name: String,
    pub password: String,
}

impl EtcdAccess {
    /// Reads the address, given by `flag`, and the files that other flags or the environment name.
    pub fn new(
        address: &str,
        flag: &str,
        given: &Given,
        env: &Env,
        warnings: &mut Vec<String>,
    ) -> Result<EtcdAccess> {
        let text = |name: &str, variable: &str| given.text(name).or(env.text(variable));
        let (is_tls, host) = match address.strip_prefix("https://") {
            Some(host) => (true, host),
            None => (false, address.strip_prefix("http://").unwrap_or(address)),
        };
        let endpoint = host.trim_end_matches('/').parse::<Endpoint>();
        let endpoint = endpoint.map_err(|error| {
            error.at(flag).help("for example --elastic_server 10.0.0.1:2379, or https:// and that")
        })?;
        let files = (
            text("etcd_ca", names::FLEET_ETCD_CA),
            text("etcd_cert", names::FLEET_ETCD_CERT),
            text("etcd_key", names::FLEET_ETCD_KEY),
        );
        let tls = match (is_tls, files) {
            (true, (Some(authority), certificate, key)) => {
                let own = pair(certificate, key, "--etcd_cert", "--etcd_key")?;
                warnings.extend(key.and_then(|key| open_to_all(key, "the key for etcd")));
                Some(Tls::read(
                    Path::new(authority),
                    own.map(|(it, key)| (it.as_ref(), key.as_ref())),
                )?)
            }
            (true, (None, ..)) => {
                return Err(Error::invalid("--etcd_ca is missing").got(address).expected(
                    "the file with the certificate of the authority that etcd's certificate is by",
                ));
            }
            (false, (None, None, None)) => None,
            (false, _)
                if ["etcd_ca", "etcd_cert", "etcd_key"].iter().any(|it| given.is_given(it)) =>
            {
                return Err(Error::invalid("certificates for etcd need TLS")
                    .expected(format!("{flag} https://{endpoint}"))
                    .got(address));
            }
            (false, _) => None,
        };
        let name = text("etcd_user", names::FLEET_ETCD_USER);
        let file = text("etcd_password_file", names::FLEET_ETCD_PASSWORD_FILE);
        let user = match pair(name, file, "--etcd_user", "--etcd_password_file")? {
            None => None,
            Some((name, file)) => {
                warnings.extend(open_to_all(file, "the password for etcd"));
                if tls.is_none() {
                    let line = "the password for etcd crosses the network in clear: use https://";
                    warnings.push(line.into());
                }
                Some(User { name: name.into(), password: password(Path::new(file))? })
            }
        };
        Ok(EtcdAccess { endpoint, tls, user })
    }

    /// Returns an error if flags are given that only an etcd needs.
    pub fn refuse_flags(given: &Given) -> Result<()> {
        match FLAGS.iter().find(|name| given.is_given(name)) {
            Some(name) => Err(Error::invalid(format!("--{name} needs an etcd"))
                .expected("--elastic_server HOST:PORT")),
            None => Ok(()),
        }
    }

    /// Returns the URL of a method of the API.
    pub(super) fn url(&self, method: &str) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}/v3/{method}", self.endpoint)
    }
}

impl fmt::Display for EtcdAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls.is_some() { "https://" } else { "" };
        write!(f, "{scheme}{}", self.endpoint)
    }
}

/// Returns a warning if every user of this machine can read a file with a secret.
pub(crate) fn open_to_all(file: &str, what: &str) -> Option<String> {
    let mode = Path::new(file).metadata().ok()?.permissions().mode();
    let is_open = mode & OTHERS_READ != 0;
    is_open.then(|| format!("every user of this machine can read {what}: chmod 600 {file}"))
}

/// Returns two values that are given together or not at all.
fn pair<'a>(
    first: Option<&'a str>,
    second: Option<&'a str>,
    first_flag: &str,
    second_flag: &str,
) -> Result<Option<(&'a str, &'a str)>> {
    let missing = match (first, second) {
        (Some(first), Some(second)) => return Ok(Some((first, second))),
        (None, None) => return Ok(None),
        (Some(_), None) => (first_flag, second_flag),
        (None, Some(_)) => (second_flag, first_flag),
    };
    Err(Error::invalid(format!("{} needs {}", missing.0, missing.1)))
}

fn password(path: &Path) -> Result<String> {
    let bytes = input::read(path, "a password", PASSWORD_BYTES_MAX)?;
    let text = String::from_utf8(bytes).map_err(|error| {
        Error::invalid("the password for etcd is not text").at(path.display()).caused(error)
    })?;
    match text.trim_end_matches(['\r', '\n']) {
        "" => Err(Error::invalid("the password for etcd is empty").at(path.display())),
        text => Ok(text.to_string()),
    }
}

/// Flags that only an etcd needs.
const FLAGS: [&str; 5] = ["etcd_ca", "etcd_cert", "etcd_key", "etcd_user", "etcd_password_file"];
/// Mode bit that lets every user read a file. Secrets mounted by Kubernetes have it, in containers
/// without other users, so this is not an error.
const OTHERS_READ: u32 = 0o004;
/// A password has some dozens of characters, so a larger file is the wrong one.
const PASSWORD_BYTES_MAX: u64 = 4096;
