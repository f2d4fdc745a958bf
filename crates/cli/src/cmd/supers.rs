//! `segue super`, `segue collapse`, `segue abort`: two versions of a volume, and which one stays.
//!
//! Owns: arguments and output of the three. Never: decides who won.
//! Invariant: collapse exits 0 only when the child is the volume, and 1 when the primary was observed.

use crate::Global;
use crate::exit::ExitCode;
use crate::out::Table;
use segue_types::api::CollapseOutcome;

/// `segue super`.
pub mod begin {
    use super::*;

    /// Arguments of `segue super`.
    #[derive(clap::Args, Debug)]
    pub struct Args {
        /// The volumes; a group superposes and collapses as one.
        #[arg(required = true)]
        volumes: Vec<String>,
        /// Who will hold the children's leases.
        #[arg(long, default_value_t = crate::cmd::lease::default_holder())]
        holder: String,
    }

    /// Runs `segue super`: prints the id and an export name per child to attach with.
    ///
    /// # Errors
    /// Those of the admin API; a volume that is in superposition already is a conflict.
    pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
        let grant = global.client().superpose(&args.volumes, &args.holder)?;
        global.print("super", &grant, || {
            let mut table = Table::new(&["VOLUME", "EPOCH>", "CHILD EXPORT"]);
            for child in &grant.children {
                table.row(vec![child.volume.clone(), child.epoch.to_string(), child.export.clone()]);
            }
            format!("super {}\n{}", grant.super_id, table.render())
        });
        Ok(ExitCode::Yes)
    }
}

/// Names a superposition on the command line.
#[derive(clap::Args, Debug)]
struct Which {
    /// Any volume of the group.
    volume: String,
    /// The id that `segue super` printed.
    #[arg(long = "super", value_name = "ID")]
    super_id: u64,
}

/// `segue collapse`.
pub mod collapse {
    use super::*;

    /// Arguments of `segue collapse`.
    #[derive(clap::Args, Debug)]
    pub struct Args {
        #[command(flatten)]
        which: Which,
    }

    /// Runs `segue collapse`. Safe to ask again: the answer stays the same.
    ///
    /// # Errors
    /// Those of the admin API.
    pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
        let reply = global.client().collapse(&args.which.volume, args.which.super_id)?;
        let promoted = reply.outcome == CollapseOutcome::Promoted;
        global.print("collapse", &reply, || match promoted {
            true => "promoted: the child is the volume now, and the old primary is fenced for ever\n".into(),
            false => "primary observed: the primary stays; end the superposition with `segue abort`\n".into(),
        });
        Ok(if promoted { ExitCode::Yes } else { ExitCode::No })
    }
}

/// `segue abort`.
pub mod abort {
    use super::*;

    /// Arguments of `segue abort`.
    #[derive(clap::Args, Debug)]
    pub struct Args {
        #[command(flatten)]
        which: Which,
    }

    /// Runs `segue abort`. Safe to ask again.
    ///
    /// # Errors
    /// Those of the admin API.
    pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
        global.client().abort(&args.which.volume, args.which.super_id)?;
        global.done(&format!("aborted: {} is its primary again, and the child is dropped", args.which.volume));
        Ok(ExitCode::Yes)
    }
}
