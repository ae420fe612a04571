//! The server: starts its parts, and stops them in order.

use crate::access::{Token, listen};
use crate::app::App;
use crate::args::ServeArgs;
use crate::metrics::Metrics;
use crate::workers::Workers;
use crate::{http, reload, signals};
use fleet_base::output::{ExitReason, Output};
use fleet_base::{Error, Result, text};
use fleet_job::serving::{Env, RecommendOptions, ServedModel};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::runtime::Builder;
use tokio::sync::watch;

/// A running server. It stops when it is dropped.
pub struct Server {
    http: SocketAddr,
    grpc: Option<SocketAddr>,
    threads: usize,
    workers: Arc<Workers>,
    stop: watch::Sender<bool>,
    reload: Sender<()>,
    running: Vec<JoinHandle<()>>,
}

/// Runs the command: serves until SIGTERM or SIGINT, and finishes the requests that it accepted.
pub fn run(args: &ServeArgs, env: &Env, out: &mut Output) -> Result<(), ExitReason> {
    let mut server = Server::start(args, env)?;
    signals::forward(server.stop.clone(), server.reload.clone())?;
    let grpc = server.grpc.map_or(String::new(), |address| format!(", gRPC at {address}"));
    out.line(format!(
        "serving version {} of {} at http://{}{grpc}, {}",
        server.workers.model().version(),
        args.model.display(),
        server.http,
        text::counted(server.threads, "thread"),
    ))?;
    out.flush()?;
    server.wait();
    out.line("stopped")
}

impl Server {
    /// Listens, reads the model, and starts the threads.
    pub fn start(args: &ServeArgs, env: &Env) -> Result<Server> {
        let token = args.token_file.as_deref().map(Token::read).transpose()?;
        let listener = listen(&args.listen, token.as_ref(), "--listen")?;
        let http = address(&listener)?;
        let grpc_listener = grpc_listener(args, token.as_ref())?;
        let grpc = grpc_listener.as_ref().map(address).transpose()?;
        let threads = args.threads.started();
        let options = RecommendOptions::new(args.search, &args.exclude, env, args.threads)?;
        let model = ServedModel::open(&args.model, &options)?;
        let (workers, mut running) =
            Workers::start(model, threads, args.queue as usize, args.rows as usize)?;
        let metrics = Arc::new(Metrics::default());
        let (reload, requests) = channel();
        let (stop, stopped) = watch::channel(false);
        let interval = (args.watch > 0).then(|| Duration::from_secs(u64::from(args.watch)));
        let watching = {
            let (folder, workers) = (args.model.clone(), Arc::clone(&workers));
            let metrics = Arc::clone(&metrics);
            move || reload::watch((folder, options), interval, workers, metrics, requests)
        };
        spawn("fleet-reload", watching)?;
        let app =
            Arc::new(App { workers: Arc::clone(&workers), metrics, token, body_max: args.body });
        running.insert(0, spawn("fleet-http", serving(app, listener, grpc_listener, stopped)?)?);
        Ok(Server { http, grpc, threads, workers, stop, reload, running })
    }

    /// Returns the address for HTTP, with the port that the system chose for port 0.
    pub fn address(&self) -> SocketAddr {
        self.http
    }

    /// Returns the address for gRPC.
    pub fn grpc_address(&self) -> Option<SocketAddr> {
        self.grpc
    }

    /// Waits until the server has been stopped, and its requests are answered.
    fn wait(&mut self) {
        let mut running = self.running.drain(..);
        if let Some(connections) = running.next() {
            // A panic has been printed.
            let _ = connections.join();
        }
        self.workers.queue.close();
        running.for_each(|worker| drop(worker.join()));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        self.wait();
    }
}

type Listener = std::net::TcpListener;

/// Returns the work of the thread for connections.
fn serving(
    app: Arc<App>,
    listener: Listener,
    grpc: Option<Listener>,
    stop: watch::Receiver<bool>,
) -> Result<impl FnOnce() + Send + 'static> {
    let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let adopt = |listener: Listener| {
        let _inside = runtime.enter();
        tokio::net::TcpListener::from_std(listener).map_err(failed)
    };
    let listener = adopt(listener)?;
    let grpc = grpc.map(adopt).transpose()?;
    Ok(move || {
        runtime.block_on(async move {
            #[cfg(feature = "grpc")]
            if let Some(grpc) = grpc {
                let calls = crate::grpc::serve(Arc::clone(&app), grpc, stop.clone());
                tokio::join!(http::serve(app, listener, stop), calls);
                return;
            }
            #[cfg(not(feature = "grpc"))]
            drop(grpc);
            http::serve(app, listener, stop).await;
        });
    })
}

fn grpc_listener(args: &ServeArgs, token: Option<&Token>) -> Result<Option<Listener>> {
    let Some(address) = &args.grpc else { return Ok(None) };
    if !cfg!(feature = "grpc") {
        return Err(Error::unsupported("fleet was built without gRPC")
            .got(format!("--grpc {address}"))
            .help("build it with the feature `grpc` (cargo build -p fleet-cli --features grpc)"));
    }
    listen(address, token, "--grpc").map(Some)
}

fn address(listener: &Listener) -> Result<SocketAddr> {
    listener.local_addr().map_err(failed)
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_string()).spawn(work).map_err(failed)
}

fn failed(error: std::io::Error) -> Error {
    Error::unavailable(format!("cannot start the server: {error}"))
}
