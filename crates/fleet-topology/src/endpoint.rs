//! Endpoints in the form `host:port`.

use fleet_base::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// A host (name or address) and a port.
///
/// ```
/// use fleet_topology::Endpoint;
/// let endpoint: Endpoint = "10.0.0.1:6170".parse()?;
/// assert_eq!((endpoint.host.as_str(), endpoint.port), ("10.0.0.1", 6170));
/// assert_eq!("[::1]:80".parse::<Endpoint>()?.to_string(), "[::1]:80");
/// assert!("10.0.0.1".parse::<Endpoint>().is_err());
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// Name or address; an IPv6 address has no brackets here.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

impl Endpoint {
    /// Returns the endpoint of a host and a port.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Endpoint { host: host.into(), port }
    }

    /// Parses a list of endpoints separated by commas. An empty text is an empty list. `what` names
    /// the list in errors.
    pub fn list(what: &str, text: &str) -> Result<Vec<Endpoint>> {
        let mut endpoints = Vec::new();
        if text.trim().is_empty() {
            return Ok(endpoints);
        }
        for item in text.split(',') {
            if endpoints.len() == ENDPOINTS_MAX {
                return Err(Error::exhausted(format!("{what} is too long"))
                    .expected(format!("at most {ENDPOINTS_MAX} endpoints")));
            }
            endpoints.push(item.trim().parse::<Endpoint>().map_err(|error| error.at(what))?);
        }
        Ok(endpoints)
    }

    /// Whether only processes of this machine reach the endpoint: a loopback address, or the name
    /// `localhost`.
    ///
    /// ```
    /// use fleet_topology::Endpoint;
    /// assert!(Endpoint::new("127.0.0.1", 80).is_loopback());
    /// assert!(!Endpoint::new("10.0.0.1", 80).is_loopback());
    /// ```
    pub fn is_loopback(&self) -> bool {
        let address = self.host.parse::<std::net::IpAddr>();
        address.map_or(self.host == "localhost", |address| address.is_loopback())
    }

    /// Formats a list in the form that environment variables use.
    pub fn join(endpoints: &[Endpoint]) -> String {
        endpoints.iter().map(Endpoint::to_string).collect::<Vec<_>>().join(",")
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl FromStr for Endpoint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Endpoint> {
        let wrong = || Error::invalid("not an endpoint").expected("HOST:PORT").got(shown(text));
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let host = match host.strip_prefix('[') {
            Some(inner) => inner.strip_suffix(']').ok_or_else(wrong)?,
            None if host.contains(':') => return Err(wrong()),
            None => host,
        };
        let fine = |c: char| !c.is_whitespace() && !c.is_control() && !"/[],;@".contains(c);
        if host.is_empty() || host.len() > HOST_BYTES_MAX || !host.chars().all(fine) {
            return Err(wrong());
        }
        let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let port = if digits { port.parse().map_err(|_| wrong())? } else { return Err(wrong()) };
        Ok(Endpoint::new(host, port))
    }
}

/// Quotes the text, cut short: it may be a whole file, pasted by mistake.
fn shown(text: &str) -> String {
    const CHARS_MAX: usize = 80;
    match text.chars().count() > CHARS_MAX {
        true => format!("'{}...'", text.chars().take(CHARS_MAX).collect::<String>()),
        false => format!("'{text}'"),
    }
}

/// More processes than any job has. A longer list is a mistake.
const ENDPOINTS_MAX: usize = 1 << 20;

/// Length of the longest domain name (RFC 1035).
const HOST_BYTES_MAX: usize = 253;
