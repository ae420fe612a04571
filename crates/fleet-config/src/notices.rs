//! Notices of an assignment, which must not get lost.

use crate::problem::Problem;
use fleet_base::output::note;
use std::cell::Cell;
use std::fmt;
use std::ops::Deref;

/// Notices of [`set`](crate::DistributedStrategy::set). On drop, notices that the caller has not
/// read are printed to standard error, as the original does. `set(..)?` thus prints them.
///
/// ```
/// # use fleet_config::DistributedStrategy;
/// let mut strategy = DistributedStrategy::new();
/// let notices = strategy.set("amp", 3)?; // not a bool: ignored
/// assert_eq!(notices.len(), 1); // looked at, so that nothing is printed
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Default)]
pub struct Notices {
    list: Vec<Problem>,
    is_seen: Cell<bool>,
}

impl Notices {
    pub(crate) fn new(list: Vec<Problem>) -> Notices {
        Notices { list, is_seen: Cell::new(false) }
    }

    /// Returns the notices. They then count as handled, and are not printed.
    pub fn into_vec(mut self) -> Vec<Problem> {
        std::mem::take(&mut self.list)
    }
}

impl Deref for Notices {
    type Target = [Problem];

    fn deref(&self) -> &[Problem] {
        self.is_seen.set(true);
        &self.list
    }
}

impl fmt::Debug for Notices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Drop for Notices {
    fn drop(&mut self) {
        if self.is_seen.get() {
            return;
        }
        self.list.iter().for_each(note);
    }
}
