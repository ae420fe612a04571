//! The job's key-value store: which process hosts it, and where the others find it.
//!
//! `fleetrun` hosts the store of its jobs. Without it, worker 0 does: at the documented rendezvous
//! of gloo if one is configured, else at its own endpoint.

use fleet_base::file::AtomicFile;
use fleet_base::output::note;
use fleet_base::sync::lock;
use fleet_base::{Error, Result};
use fleet_net::{Limits, Log, StoreClient, StoreServer, Token, Vigilance, resolve};
use fleet_topology::{Endpoint, GlooMembers, Rendezvous, Topology};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

/// The store, if this process hosts it.
#[derive(Default)]
pub(crate) struct JobStore(Mutex<Option<Hosted>>);

struct Hosted {
    server: StoreServer,
    /// The file with the store's endpoint.
    file: Option<PathBuf>,
}

impl Drop for Hosted {
    /// Removes the file, so that a later job of the same name does not read it.
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            let _ = fs::remove_file(file);
        }
    }
}

/// Where processes find the store.
enum Place {
    At(Endpoint),
    /// A file that the host writes, with the endpoint.
    Named(PathBuf),
}

/// Time for one attempt at the endpoint in a file, which may be that of an earlier job.
const ATTEMPT_TIME: Duration = Duration::from_secs(2);
/// Interval between two looks at the file.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// An endpoint is far shorter; a longer file is another one.
const FILE_BYTES_MAX: u64 = 4096;

impl JobStore {
    /// Starts the store if this process is its host and has not done so yet. Returns whether it is
    /// the host.
    pub(crate) fn host(&self, topology: &Topology, token: &Token) -> Result<bool> {
        let mut hosted = lock(&self.0);
        let is_host = topology.job().store.is_none() && topology.is_first_worker();
        if hosted.is_some() || !is_host {
            return Ok(is_host);
        }
        if let Some(Rendezvous::Hdfs { .. }) = configured(topology) {
            note("processes meet at worker 0: the rendezvous on HDFS has no effect");
        }
        let bind = |host: &str, port: u16| {
            StoreServer::bind((host, port), token, Vigilance::default(), Log::stderr())
        };
        *hosted = Some(match place(topology)? {
            Place::At(endpoint) => {
                Hosted { server: bind(&endpoint.host, endpoint.port)?, file: None }
            }
            Place::Named(file) => {
                let own = topology.endpoint().or(topology.worker_endpoints().first());
                let host = own.map_or("127.0.0.1", |own| own.host.as_str());
                let server = bind(host, 0)?;
                let endpoint = Endpoint::new(host, server.address().port());
                if let Some(folder) = file.parent() {
                    fs::create_dir_all(folder)
                        .map_err(|error| Error::io("create", folder, &error))?;
                }
                let hosted = Hosted { server, file: Some(file.clone()) };
                AtomicFile::create(&file)?.commit_with(endpoint.to_string().as_bytes())?;
                hosted
            }
        });
        Ok(true)
    }

    /// Connects to the store, and waits until it is there. Returns its address, too.
    pub(crate) fn connect(
        &self,
        topology: &Topology,
        token: &Token,
        limits: &Limits,
    ) -> Result<(StoreClient, SocketAddr)> {
        let own = lock(&self.0).as_ref().map(|hosted| hosted.server.address());
        let address = match (own, place(topology)?) {
            (Some(own), _) => own,
            (None, Place::At(endpoint)) => resolve(&endpoint.to_string())?,
            (None, Place::Named(file)) => return find(&file, token, limits),
        };
        Ok((StoreClient::connect(address, token, limits)?, address))
    }
}

/// Returns where the processes of a job find its store.
fn place(topology: &Topology) -> Result<Place> {
    let (job, gloo) = (topology.job(), topology.gloo());
    if let Some(store) = &job.store {
        return Ok(Place::At(store.clone()));
    }
    match configured(topology) {
        Some(Rendezvous::Http { endpoint }) => return Ok(Place::At(endpoint.clone())),
        Some(Rendezvous::File { path }) => {
            let job = gloo.job.as_deref().or(job.id.as_deref()).unwrap_or("job");
            return Ok(Place::Named(Path::new(path).join(file_name(job))));
        }
        Some(Rendezvous::Hdfs { .. }) | None => {}
    }
    topology.worker_endpoints().first().cloned().map(Place::At).ok_or_else(|| {
        Error::invalid("no rendezvous endpoint for the ranks of this job")
            .expected("FLEET_STORE=HOST:PORT, or PADDLE_TRAINER_ENDPOINTS")
            .help(
                "start the job with fleetrun, or set worker_endpoints or store of \
                 UserDefinedRoleMaker",
            )
    })
}

/// Returns the rendezvous of gloo, if it is on.
fn configured(topology: &Topology) -> Option<&Rendezvous> {
    let gloo = topology.gloo();
    gloo.rendezvous.as_ref().filter(|_| gloo.members != GlooMembers::None)
}

/// Returns the name of a job's file in the rendezvous folder.
fn file_name(job: &str) -> String {
    let fine = |c: char| if c.is_ascii_alphanumeric() || "-_".contains(c) { c } else { '_' };
    format!("fleet-store-{}", job.chars().map(fine).collect::<String>())
}

/// Waits for the file with the store's endpoint and for the store.
fn find(file: &Path, token: &Token, limits: &Limits) -> Result<(StoreClient, SocketAddr)> {
    let mut last = Error::unavailable("the file with the endpoint of the job's store is missing")
        .help("worker 0 writes it; all processes must see the folder");
    loop {
        if let Some(address) = read(file)? {
            match StoreClient::connect(address, token, &limits.at_most(ATTEMPT_TIME)) {
                Ok(store) => return Ok((store, address)),
                Err(error) => last = error,
            }
        }
        if limits.deadline.is_past(fleet_net::Time::now()) {
            return Err(last.at(file.display()));
        }
        limits.abort.sleep(POLL_INTERVAL)?;
    }
}

/// Reads the endpoint; `None` if there is no file yet.
fn read(file: &Path) -> Result<Option<SocketAddr>> {
    if !file.exists() {
        return Ok(None);
    }
    let bytes = fleet_base::input::read(file, "the endpoint of a store", FILE_BYTES_MAX)?;
    let text = String::from_utf8_lossy(&bytes);
    let endpoint: Endpoint = text.trim().parse().map_err(|e: Error| e.at(file.display()))?;
    resolve(&endpoint.to_string()).map(Some)
}
