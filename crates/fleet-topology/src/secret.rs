//! The job's secret, read from the environment.

use fleet_base::{Error, Result};

/// A secret that the processes of a job authenticate with, so that no other process can join. It is
/// never printed: its debug form is a mask, and it has no display form.
///
/// ```
/// use fleet_topology::Secret;
/// let secret = Secret::new("0123456789abcdef")?;
/// assert_eq!(format!("{secret:?}"), "Secret(***)");
/// assert!(Secret::new("short").is_err());
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Returns the secret of a text of 16 to 512 visible ASCII characters. Errors do not show it.
    pub fn new(text: impl Into<String>) -> Result<Secret> {
        let text = text.into();
        let length = text.len();
        let plain = text.bytes().all(|byte| byte.is_ascii_graphic());
        if !(BYTES_MIN..=BYTES_MAX).contains(&length) || !plain {
            // The error must not contain any part of the token.
            return Err(Error::invalid("invalid job token")
                .expected(format!("{BYTES_MIN} to {BYTES_MAX} visible ASCII characters"))
                .got(format!("{length} bytes")));
        }
        Ok(Secret(text))
    }

    /// The public text by which processes of an open job authenticate ([`crate::Job::open`]).
    pub(crate) fn open() -> Secret {
        Secret(OPEN.to_string())
    }

    /// The secret itself. Use it only for the handshake and for the environment of a child process.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(***)")
    }
}

/// No secret: every process knows it.
const OPEN: &str = "open-to-every-process-of-this-machine";
/// Shorter secrets could be guessed.
const BYTES_MIN: usize = 16;
/// Far below the size of a handshake frame.
const BYTES_MAX: usize = 512;
