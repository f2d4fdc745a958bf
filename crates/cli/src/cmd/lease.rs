//! `segue lease`: who may write a volume.
//!
//! Owns: arguments and output of the noun. Never: keeps a lease id anywhere; it is printed once.
//! Invariant: a broken lease is reported as broken only after the node made it durable.

use crate::Global;
use crate::exit::ExitCode;
use crate::out::fields;
use segue_types::api::LeaseGrant;

/// Arguments of `segue lease`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand, Debug)]
enum Verb {
    /// Take a durable lease: it survives disconnects and restarts of the node. Prints its id once; keep it secret.
    Acquire {
        /// The volume.
        volume: String,
        /// Who asks; others read it when they are refused.
        #[arg(long, default_value_t = default_holder())]
        holder: String,
    },
    /// Give a durable lease back.
    Release {
        /// The volume.
        volume: String,
        /// The lease id, 32 hexadecimal digits.
        lease: String,
    },
    /// Take the lease away from whoever holds it. Their requests are refused from then on.
    Break {
        /// The volume.
        volume: String,
    },
    /// Show who holds the lease. Exit code 1 when nobody does.
    Show {
        /// The volume.
        volume: String,
    },
}

/// "USER@HOST", as the holder of leases taken by hand.
pub fn default_holder() -> String {
    let user = std::env::var("USER").unwrap_or_else(|_| nix::unistd::getuid().to_string());
    let host = nix::unistd::gethostname().map(|h| h.to_string_lossy().into_owned()).unwrap_or_default();
    format!("{user}@{host}")
}

/// Runs `segue lease`.
///
/// # Errors
/// Those of the admin API; a lease that somebody else holds is exit code 5, with who and since when.
pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let client = global.client();
    match args.verb {
        Verb::Acquire { volume, holder } => print_grant(global, &client.acquire_lease(&volume, &holder)?),
        Verb::Release { volume, lease } => {
            client.release_lease(&volume, &lease)?;
            global.done(&format!("released the lease of {volume}"));
        }
        Verb::Break { volume } => {
            client.break_lease(&volume)?;
            global.done(&format!("broke the lease of {volume}; its holder's requests are refused from now on"));
        }
        Verb::Show { volume } => {
            let info = client.volume(&volume)?;
            let value = serde_json::json!({ "volume": volume, "epoch": info.epoch, "lease": info.lease });
            global.print("lease", &value, || fields(&[("lease", super::volume::lease(&info))]));
            return Ok(if info.lease.is_some() { ExitCode::Yes } else { ExitCode::No });
        }
    }
    Ok(ExitCode::Yes)
}

fn print_grant(global: &Global, grant: &LeaseGrant) {
    global.print("lease_grant", grant, || {
        fields(&[
            ("volume", grant.volume.clone()),
            ("lease", grant.lease.clone()),
            ("export", grant.export.clone()),
            ("epoch", grant.epoch.to_string()),
        ])
    });
}
