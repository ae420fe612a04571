//! The limit on file descriptors of this process, and the part of it that connections may use.
//!
//! Connections must not use up the descriptors that a save or a log needs: a checkpoint that cannot
//! open its file ends the job.

use std::os::fd::{AsRawFd, RawFd};

/// The limit on open descriptors of this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descriptors {
    limit: u64,
}

/// Upper bound for raising the soft limit. Some programs walk over all possible descriptors: that
/// takes milliseconds for this number, and seconds for the billion that some hosts allow.
const RAISED_MAX: u64 = 1 << 16;
/// Connections in a handshake may use 1/16 of the limit. A process listens on at most three ports,
/// so unauthenticated peers hold less than a fifth of its descriptors.
const SHARE: u64 = 16;
/// Number of connections in a handshake that are allowed under any limit.
const PENDING_MIN: usize = 8;
/// Descriptors reserved for files: 1/8 of the limit, and at most [`RESERVE_MAX`].
const RESERVE_SHARE: u64 = 8;
const RESERVE_MAX: u64 = 64;

impl Descriptors {
    /// Raises the soft limit of the process as far as the hard limit and [`RAISED_MAX`] allow. If
    /// the system refuses, the soft limit stays.
    pub(crate) fn raise() -> Descriptors {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let now = getrlimit(Resource::Nofile);
        let soft = now.current.unwrap_or(u64::MAX);
        let wanted = now.maximum.unwrap_or(u64::MAX).min(RAISED_MAX);
        if wanted <= soft {
            return Descriptors { limit: soft };
        }
        let raised = Rlimit { current: Some(wanted), maximum: now.maximum };
        match setrlimit(Resource::Nofile, raised) {
            Ok(()) => Descriptors { limit: wanted },
            Err(_) => Descriptors { limit: soft },
        }
    }

    /// The number of connections in a handshake that this limit allows, up to `most`.
    pub(crate) fn share(self, most: usize) -> usize {
        let part = usize::try_from(self.limit / SHARE).unwrap_or(usize::MAX);
        part.clamp(PENDING_MIN.min(most), most)
    }

    /// Whether a descriptor is one of those reserved for files. The system assigns the lowest free
    /// number, so a number near the limit means that nearly all are in use.
    pub(crate) fn is_reserved(self, descriptor: &impl AsRawFd) -> bool {
        let reserve = (self.limit / RESERVE_SHARE).min(RESERVE_MAX);
        let first = RawFd::try_from(self.limit - reserve).unwrap_or(RawFd::MAX);
        descriptor.as_raw_fd() >= first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_limits_leave_descriptors_for_files() {
        struct Number(RawFd);
        impl AsRawFd for Number {
            fn as_raw_fd(&self) -> RawFd {
                self.0
            }
        }
        let of = |limit| Descriptors { limit };
        let shares = [16, 300, 1024, 65536].map(|limit| of(limit).share(512));
        assert_eq!(shares, [8, 18, 64, 512]);
        let first = |limit| (0..).find(|at| of(limit).is_reserved(&Number(*at))).unwrap();
        assert_eq!([16, 300, 1024].map(first), [14, 263, 960]);
        assert!(!of(u64::MAX).is_reserved(&Number(1 << 20)));
    }
}
