//! The storage daemon: wires machines to the runtime, and speaks the admin API.
//!
//! Owns: the node's configuration, process life, admin HTTP API, and its client. Never: decides about volumes.
//! Invariant: what the admin API answered with success is durable in the pool.

pub mod admin;
pub mod client;
pub mod config;
mod cores;
pub mod daemon;
pub mod events;
pub mod keys;
pub mod log;
pub mod metrics;
pub mod moves;

mod notify;
pub mod port;
mod qos;
mod sockets;
pub mod tls;
