//! Tests of the wire layer, one module per subject.

mod abort;
mod calls;
mod membership;
mod mesh;
mod processes;
mod proxy;
mod sim;
mod store;
mod tls;
mod unauthenticated;
