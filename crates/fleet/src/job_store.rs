//! The job's key-value store: which process hosts it, and where the others find it.
//!
//! `fleetrun` hosts the store of its jobs. Without it, worker 0 does: at the documented rendezvous
//! of gloo if one is configured, else at its own endpoint.

use crate::hadoop;
use fleet_base::file::AtomicFile;
use fleet_base::fs::{CommandFs, FileSystem, joined};
use fleet_base::sync::lock;
use fleet_base::temporary::TemporaryFolder;
use fleet_base::{Error, ErrorKind, Result};
use fleet_net::{Limits, Log, StoreClient, StoreServer, Token, Vigilance, resolve};
use fleet_topology::{Endpoint, GlooMembers, Rendezvous, Topology};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

/// The store, if this process hosts it.
pub(crate) struct JobStore {
    hosted: Mutex<Option<Hosted>>,
    /// Folder for temporary folders.
    temporary: PathBuf,
}

struct Hosted {
    server: StoreServer,
    file: Option<EndpointFile>,
}

impl Drop for Hosted {
    /// Removes the file, so that a later job of the same name does not read it.
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            file.remove();
        }
    }
}

/// Where processes find the store.
enum Place {
    At(Endpoint),
    Named(EndpointFile),
}

/// The file with the endpoint of a store, in a folder that all processes see. The host writes it.
enum EndpointFile {
    Local(PathBuf),
    Hdfs {
        fs: CommandFs,
        folder: String,
        name: String,
        /// Folder for the temporary folder of a copy.
        temporary: PathBuf,
    },
}

/// Time for one attempt at the endpoint in a file, which may be that of an earlier job.
const ATTEMPT_TIME: Duration = Duration::from_secs(2);
/// Interval between two looks at a local file.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Interval between two looks at a file in HDFS; each starts a Java program.
const POLL_INTERVAL_HDFS: Duration = Duration::from_secs(1);
/// An endpoint is far shorter; a longer file is another one.
const FILE_BYTES_MAX: u64 = 4096;

impl JobStore {
    /// `temporary` is the folder for temporary folders.
    pub(crate) fn new(temporary: &str) -> JobStore {
        JobStore { hosted: Mutex::new(None), temporary: temporary.into() }
    }

    /// Starts the store if this process is its host and has not done so yet. Returns whether it is
    /// the host.
    pub(crate) fn host(&self, topology: &Topology, token: &Token) -> Result<bool> {
        let mut hosted = lock(&self.hosted);
        let is_host = topology.job().store.is_none() && topology.is_first_worker();
        if hosted.is_some() || !is_host {
            return Ok(is_host);
        }
        let bind = |host: &str, port: u16| {
            StoreServer::bind((host, port), token, Vigilance::default(), Log::stderr())
        };
        *hosted = Some(match self.place(topology)? {
            Place::At(endpoint) => {
                Hosted { server: bind(&endpoint.host, endpoint.port)?, file: None }
            }
            Place::Named(file) => {
                let own = topology.endpoint().or(topology.worker_endpoints().first());
                let host = own.map_or("127.0.0.1", |own| own.host.as_str());
                let server = bind(host, 0)?;
                let endpoint = Endpoint::new(host, server.address().port());
                file.write(&endpoint).map_err(|error| error.at(file.path()))?;
                Hosted { server, file: Some(file) }
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
        let own = lock(&self.hosted).as_ref().map(|hosted| hosted.server.address());
        let address = match (own, self.place(topology)?) {
            (Some(own), _) => own,
            (None, Place::At(endpoint)) => resolve(&endpoint.to_string())?,
            (None, Place::Named(file)) => return find(&file, topology, token, limits),
        };
        Ok((StoreClient::connect(address, token, limits)?, address))
    }

    /// Returns where the processes of a job find its store.
    fn place(&self, topology: &Topology) -> Result<Place> {
        let (job, gloo) = (topology.job(), topology.gloo());
        if let Some(store) = &job.store {
            return Ok(Place::At(store.clone()));
        }
        let name = || file_name(gloo.job.as_deref().or(job.id.as_deref()).unwrap_or("job"));
        match configured(topology) {
            Some(Rendezvous::Http { endpoint }) => return Ok(Place::At(endpoint.clone())),
            Some(Rendezvous::File { path }) => {
                return Ok(Place::Named(EndpointFile::Local(Path::new(path).join(name()))));
            }
            Some(Rendezvous::Hdfs { name: uri, ugi, path }) => {
                let (fs, folder) = (hadoop::of_rendezvous(uri, ugi), path.clone());
                let (name, temporary) = (name(), self.temporary.clone());
                return Ok(Place::Named(EndpointFile::Hdfs { fs, folder, name, temporary }));
            }
            None => {}
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
}

/// Returns the rendezvous of gloo, if it is on.
fn configured(topology: &Topology) -> Option<&Rendezvous> {
    let gloo = topology.gloo();
    gloo.rendezvous.as_ref().filter(|_| gloo.members != GlooMembers::None)
}

/// Returns the name of a job's file in the rendezvous folder.
fn file_name(job: &str) -> String {
    let fine = |c: char| if c.is_ascii_alphanumeric() || "-_".contains(c) { c } else { '_' };
    format!("{PREFIX}-{}", job.chars().map(fine).collect::<String>())
}

/// Beginning of the names of files and temporary folders.
const PREFIX: &str = "fleet-store";

/// Waits for the file with the store's endpoint and for the store.
fn find(
    file: &EndpointFile,
    topology: &Topology,
    token: &Token,
    limits: &Limits,
) -> Result<(StoreClient, SocketAddr)> {
    let mut last = Error::unavailable("the file with the endpoint of the job's store is missing")
        .help("worker 0 writes it; all processes must see the folder");
    loop {
        if file.exists()? {
            match file.read() {
                Ok(address) => {
                    check_open(topology, address)?;
                    match StoreClient::connect(address, token, &limits.at_most(ATTEMPT_TIME)) {
                        Ok(store) => return Ok((store, address)),
                        // It may be the file of an earlier job, which the host replaces.
                        Err(error) => last = error,
                    }
                }
                Err(error) if error.kind() == ErrorKind::Unavailable => last = error,
                Err(error) => return Err(error.at(file.path())),
            }
        }
        if limits.deadline.is_past(fleet_net::Time::now()) {
            return Err(last.at(file.path()));
        }
        limits.abort.sleep(file.poll_interval())?;
    }
}

/// Refuses an address outside this machine in an open job, which has no secret.
fn check_open(topology: &Topology, address: SocketAddr) -> Result<()> {
    match topology.job().open && !address.ip().is_loopback() {
        false => Ok(()),
        true => Err(Error::invalid("an open job has loopback addresses only")
            .expected("127.0.0.1, ::1 or localhost for the store")
            .got(address)),
    }
}

impl EndpointFile {
    fn path(&self) -> String {
        match self {
            EndpointFile::Local(path) => path.display().to_string(),
            EndpointFile::Hdfs { folder, name, .. } => joined(folder, name),
        }
    }

    fn poll_interval(&self) -> Duration {
        match self {
            EndpointFile::Local(_) => POLL_INTERVAL,
            EndpointFile::Hdfs { .. } => POLL_INTERVAL_HDFS,
        }
    }

    /// Writes the file, which appears whole.
    fn write(&self, endpoint: &Endpoint) -> Result<()> {
        let bytes = endpoint.to_string().into_bytes();
        match self {
            EndpointFile::Local(path) => {
                if let Some(folder) = path.parent() {
                    fs::create_dir_all(folder)
                        .map_err(|error| Error::io("create", folder, &error))?;
                }
                AtomicFile::create(path)?.commit_with(&bytes)
            }
            EndpointFile::Hdfs { fs, folder, name, temporary } => {
                let staged = TemporaryFolder::new(temporary, PREFIX)?;
                let path = staged.path().join(name);
                fleet_base::file::write_file(&path, &bytes)?;
                fs.mkdirs(folder)?;
                fs.upload(&[&path], folder)
            }
        }
    }

    fn exists(&self) -> Result<bool> {
        match self {
            EndpointFile::Local(path) => Ok(path.exists()),
            EndpointFile::Hdfs { fs, .. } => fs.exists(&self.path()),
        }
    }

    fn read(&self) -> Result<SocketAddr> {
        let read =
            |path: &Path| fleet_base::input::read(path, "the endpoint of a store", FILE_BYTES_MAX);
        let bytes = match self {
            EndpointFile::Local(path) => read(path)?,
            EndpointFile::Hdfs { fs, name, temporary, .. } => {
                let copy = TemporaryFolder::new(temporary, PREFIX)?;
                fs.download(&[&self.path()], copy.path())?;
                read(&copy.path().join(name))?
            }
        };
        let endpoint: Endpoint = String::from_utf8_lossy(&bytes).trim().parse()?;
        resolve(&endpoint.to_string())
    }

    /// Removes the file. One that stays is harmless: the next host replaces it.
    fn remove(&self) {
        match self {
            EndpointFile::Local(path) => drop(fs::remove_file(path)),
            EndpointFile::Hdfs { fs, .. } => drop(fs.delete(&self.path())),
        }
    }
}
