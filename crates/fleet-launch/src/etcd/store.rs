//! The store of a job in etcd, and the election of the leader.

use super::access::EtcdAccess;
use super::gateway::Gateway;
use super::messages::Entry;
use crate::protocol::{LEADER, PLAN, RUN};
use fleet_base::{Error, ErrorCode, Result};
use fleet_net::{Change, Changes, Limits, Store, Swap, Time};
use std::time::Duration;

/// The keys of one job in etcd, used by one machine.
#[derive(Clone)]
pub struct EtcdStore {
    gateway: Gateway,
    /// Prefix of every key.
    base: String,
    /// Id of this machine, written to the key `leader` when it leads.
    own: String,
    /// Lease of the run.
    lease: i64,
}

/// Result of an election.
pub enum Lead {
    Other,
    /// This machine leads, with this lease.
    Won(i64),
}

impl EtcdStore {
    /// Opens the current run, or creates one. A run ends when no member has kept it alive for
    /// `ttl`.
    pub fn open(access: &EtcdAccess, job_id: &str, own: &str, ttl: Duration) -> Result<EtcdStore> {
        let gateway = Gateway::new(access);
        let base = format!("/paddle/{job_id}/");
        let run = format!("{base}{RUN}");
        let made =
            |lease| EtcdStore { gateway: gateway.clone(), base, own: own.to_string(), lease };
        if let Some(lease) = running(&gateway, &run)? {
            return Ok(made(lease));
        }
        let lease = gateway.grant(ttl, CALL_TIME)?;
        if gateway.put_if((&run, None), (&run, lease.to_string().as_bytes(), lease), CALL_TIME)? {
            return Ok(made(lease));
        }
        // Another machine created the run first. A lease without keys expires if it cannot be
        // revoked.
        let _ = gateway.revoke(lease, CALL_TIME);
        let lease = running(&gateway, &run)?;
        lease.map(made).ok_or_else(|| Error::unavailable("the run has just ended in etcd"))
    }

    /// Keeps the run alive; returns false if it has ended.
    pub fn keep_run(&self) -> Result<bool> {
        self.gateway.keep_alive(self.lease, CALL_TIME)
    }

    /// Whether the run still exists.
    pub fn is_running(&self) -> Result<bool> {
        Ok(running(&self.gateway, &self.path(RUN))? == Some(self.lease))
    }

    /// Ends the run and deletes all of its keys.
    pub fn end_run(&self) {
        // If the call fails, the lease expires by itself.
        let _ = self.gateway.revoke(self.lease, CALL_TIME);
    }

    /// Makes this machine the leader if there is none. A leader that does not keep its lease alive
    /// for `ttl` loses the lead.
    pub fn campaign(&self, ttl: Duration) -> Result<Lead> {
        let leader = self.path(LEADER);
        if !self.gateway.range(&leader, false, CALL_TIME)?.0.is_empty() {
            return Ok(Lead::Other);
        }
        let lease = self.gateway.grant(ttl, CALL_TIME)?;
        match self.gateway.put_if((&leader, None), (&leader, self.own.as_bytes(), lease), CALL_TIME)
        {
            Ok(true) => Ok(Lead::Won(lease)),
            other => {
                let _ = self.gateway.revoke(lease, CALL_TIME);
                other.map(|_| Lead::Other)
            }
        }
    }

    /// Keeps the lead; returns false if another machine may lead by now.
    pub fn keep_lead(&self, lease: i64) -> Result<bool> {
        self.gateway.keep_alive(lease, CALL_TIME)
    }

    pub fn resign(&self, lease: i64) {
        let _ = self.gateway.revoke(lease, CALL_TIME);
    }

    fn path(&self, key: &str) -> String {
        format!("{}{key}", self.base)
    }

    /// Returns the entries whose key starts with `prefix`, without the base path, and the revision.
    fn entries(&self, prefix: &str, time: Duration) -> Result<(Vec<Entry>, u64)> {
        let (mut found, revision) = self.gateway.range(&self.path(prefix), true, time)?;
        for entry in &mut found {
            entry.key.drain(..self.base.len().min(entry.key.len()));
        }
        Ok((found, revision))
    }
}

/// Returns the lease of the current run, if there is one.
fn running(gateway: &Gateway, run: &str) -> Result<Option<i64>> {
    let (found, _) = gateway.range(run, false, CALL_TIME)?;
    let Some(entry) = found.first() else { return Ok(None) };
    let lease = std::str::from_utf8(&entry.value.0).ok().and_then(|text| text.parse().ok());
    lease.map(Some).ok_or_else(|| {
        Error::unavailable(format!("malformed value of the key '{run}' in etcd"))
            .help("another --job_id has keys of its own")
    })
}

impl Store for EtcdStore {
    fn set(&self, key: &str, value: &[u8], limits: &Limits) -> Result<()> {
        let (path, time) = (self.path(key), time(limits)?);
        if key != PLAN.as_str() {
            return self.gateway.put(&path, value, self.lease, time);
        }
        let leads = (&*self.path(LEADER), Some(self.own.as_bytes()));
        match self.gateway.put_if(leads, (&path, value, self.lease), time)? {
            true => Ok(()),
            false => Err(Error::unavailable("another machine has become the leader of the job")),
        }
    }

    fn get(&self, key: &str, limits: &Limits) -> Result<Option<Vec<u8>>> {
        let (found, _) = self.gateway.range(&self.path(key), false, time(limits)?)?;
        Ok(found.into_iter().next().map(|entry| entry.value.0))
    }

    fn wait(&self, keys: &[&str], limits: &Limits) -> Result<Vec<Vec<u8>>> {
        loop {
            let found = keys.iter().map(|key| self.get(key, limits)).collect::<Result<Vec<_>>>()?;
            let missing = found.iter().filter(|value| value.is_none()).count();
            if missing == 0 {
                return Ok(found.into_iter().flatten().collect());
            }
            if left(limits).is_zero() {
                let count = keys.len();
                let text = format!("{missing} of {count} keys are missing in etcd");
                return Err(Error::unavailable(text).with_code(ErrorCode::KeysMissing));
            }
            std::thread::sleep(POLL.min(left(limits)));
        }
    }

    fn add(&self, key: &str, delta: i64, limits: &Limits) -> Result<i64> {
        loop {
            let now = self.get(key, limits)?;
            let count = now
                .as_deref()
                .map_or(Some(0), |text| std::str::from_utf8(text).ok()?.parse::<i64>().ok());
            let count =
                count.ok_or_else(|| Error::invalid(format!("the key '{key}' is not a counter")))?;
            let next = count.saturating_add(delta);
            let swap =
                self.compare_and_set(key, now.as_deref(), next.to_string().as_bytes(), limits)?;
            if swap == Swap::Done {
                return Ok(next);
            }
        }
    }

    fn compare_and_set(
        &self,
        key: &str,
        expected: Option<&[u8]>,
        value: &[u8],
        limits: &Limits,
    ) -> Result<Swap> {
        let path = self.path(key);
        match self.gateway.put_if((&path, expected), (&path, value, self.lease), time(limits)?)? {
            true => Ok(Swap::Done),
            false => Ok(Swap::Lost(self.get(key, limits)?)),
        }
    }

    fn delete(&self, key: &str, limits: &Limits) -> Result<bool> {
        self.gateway.delete(&self.path(key), time(limits)?)
    }

    fn list(&self, prefix: &str, limits: &Limits) -> Result<Vec<(String, Vec<u8>)>> {
        let (found, _) = self.entries(prefix, time(limits)?)?;
        Ok(found.into_iter().map(|entry| (entry.key, entry.value.0)).collect())
    }

    /// Polls for changes. Revisions count changes of the whole etcd, so that the returned entries
    /// may be unchanged.
    fn watch(&self, prefix: &str, revision: u64, limits: &Limits) -> Result<Changes> {
        let begun = Time::now();
        loop {
            // A read may take longer than the watch itself.
            let (found, now) = self.entries(prefix, CALL_TIME)?;
            if now > revision {
                let change = |entry: Entry| Change {
                    key: entry.key,
                    value: Some(entry.value.0),
                    revision: entry.revision.unsigned_abs(),
                };
                let changes = found.into_iter().map(change).collect();
                // Limits the rate of returns, since changes by other users of the etcd advance the
                // revision too.
                std::thread::sleep(POLL.saturating_sub(Time::now().since(begun)).min(left(limits)));
                return Ok(Changes { revision: now, complete: true, changes });
            }
            if left(limits).is_zero() {
                return Ok(Changes { revision, ..Changes::default() });
            }
            std::thread::sleep(POLL.min(left(limits)));
        }
    }
}

fn left(limits: &Limits) -> Duration {
    limits.deadline.remaining(Time::now()).unwrap_or(CALL_TIME)
}

/// Returns the time limit for one call, or an error if the deadline has passed.
fn time(limits: &Limits) -> Result<Duration> {
    match left(limits) {
        left if left.is_zero() => {
            Err(Error::unavailable("the deadline passed before the request to etcd"))
        }
        left => Ok(left.min(CALL_TIME)),
    }
}

/// Limit on a call; with a slower etcd no leader could keep its lease.
const CALL_TIME: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(200);
