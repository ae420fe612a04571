//! Signals: SIGTERM and SIGINT stop the server, SIGHUP reloads the model.

use fleet_base::Result;
use std::sync::mpsc::Sender;
use tokio::sync::watch;

/// Passes signals on from now on.
#[cfg(unix)]
pub fn forward(stop: watch::Sender<bool>, reload: Sender<()>) -> Result<()> {
    use fleet_base::Error;
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let failed =
        |error: std::io::Error| Error::unavailable(format!("cannot handle signals: {error}"));
    let mut signals =
        signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGTERM]).map_err(failed)?;
    let forward = move || {
        for signal in signals.forever() {
            match signal {
                // A server that has ended needs no signals.
                SIGHUP => drop(reload.send(())),
                _ => drop(stop.send(true)),
            }
        }
    };
    std::thread::Builder::new().name("fleet-signals".into()).spawn(forward).map_err(failed)?;
    Ok(())
}

/// There are no such signals: the system ends the process.
#[cfg(not(unix))]
pub fn forward(_: watch::Sender<bool>, _: Sender<()>) -> Result<()> {
    Ok(())
}
