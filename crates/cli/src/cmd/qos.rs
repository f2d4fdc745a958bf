//! `segue volume qos` and `segue pool qos`: who gets how much of a drive.
//!
//! Owns: arguments and output of both. Never: judges settings; the node does.
//! Invariant: what is not named on the command line stays as it is.

use crate::Global;
use crate::exit::ExitCode;
use crate::out::{Table, fields, human_bytes};
use segue_types::qos::{DriveProfile, PoolQos, SetPoolQos, SharePolicy, VolumeQos};
use segue_types::{Share, parse_duration_ns, parse_size};

/// Arguments of `segue volume qos`.
#[derive(clap::Args, Debug)]
pub struct VolumeArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand, Debug)]
enum Verb {
    /// Change a volume's share of its drive: durable, and in force at once. Exit code 7 when the drive cannot promise it.
    Set(SetVolume),
    /// Show a volume's share of its drive, and why its requests wait.
    Show {
        /// The volume.
        name: String,
    },
}

#[derive(clap::Args, Debug)]
struct SetVolume {
    /// The volume.
    name: String,
    /// Begin from the defaults: nothing reserved, weight 100, no limits.
    #[arg(long)]
    reset: bool,
    /// 4 KiB reads per second that it gets whatever its neighbours do; 0 for none.
    #[arg(long, value_name = "N")]
    reserve_iops: Option<u64>,
    /// Its part of what nobody reserved, against the weights of the others: 1 to 10000.
    #[arg(long, value_name = "N")]
    weight: Option<u32>,
    /// Most requests per second, as the client issues them; 0 for no limit.
    #[arg(long, value_name = "N")]
    limit_iops: Option<u64>,
    /// Most bytes per second, with unit, for example 100MiB; 0 for no limit.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    limit_bytes: Option<u64>,
    /// How long it may go above its limits after a pause, milliseconds: at most 60000.
    #[arg(long, value_name = "MS")]
    burst_ms: Option<u32>,
    /// p95 of latency that it asks for, with unit, for example 500us; 0us for none.
    #[arg(long, value_name = "TIME", value_parser = parse_us)]
    latency_target: Option<u32>,
}

/// Arguments of `segue pool qos`.
#[derive(clap::Args, Debug)]
pub struct PoolArgs {
    /// The pool.
    name: String,
    /// Share the drive by this policy until the node's next start; its configuration says what lasts.
    #[arg(long, value_enum)]
    policy: Option<Policy>,
    /// 4 KiB reads per second that the drive sustains.
    #[arg(long, value_name = "N")]
    capacity_iops: Option<u64>,
    /// p95 of a 4 KiB read at which the drive is kept, with unit; 0us for none.
    #[arg(long, value_name = "TIME", value_parser = parse_us)]
    latency_target: Option<u32>,
    /// 4 KiB reads in flight at the knee of the drive's latency curve; 0 for not known.
    #[arg(long, value_name = "N")]
    knee_depth: Option<u32>,
    /// Cost of a 4 KiB write in hundredths of a read; 0 for not known.
    #[arg(long, value_name = "N")]
    write_cost_percent: Option<u32>,
}

/// A policy on the command line.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum Policy {
    Fifo,
    Strict,
    Drr,
    Slo,
    Mclock,
}

impl From<Policy> for SharePolicy {
    fn from(policy: Policy) -> SharePolicy {
        match policy {
            Policy::Fifo => SharePolicy::Fifo,
            Policy::Strict => SharePolicy::Strict,
            Policy::Drr => SharePolicy::Drr,
            Policy::Slo => SharePolicy::Slo,
            Policy::Mclock => SharePolicy::Mclock,
        }
    }
}

fn parse_us(text: &str) -> Result<u32, String> {
    let ns = parse_duration_ns(text).map_err(|_| "a time is a number and a unit (us, ms, s), for example 500us")?;
    u32::try_from(ns / 1000).map_err(|_| "the time is too long".to_owned())
}

/// Runs `segue volume qos`.
///
/// # Errors
/// Those of the admin API; the exit code tells which.
pub fn volume(args: &VolumeArgs, global: &Global) -> anyhow::Result<ExitCode> {
    let client = global.client();
    let now = match &args.verb {
        Verb::Show { name } => client.volume_qos(name)?,
        Verb::Set(set) => {
            let mut share = if set.reset { Share::default() } else { client.volume_qos(&set.name)?.share };
            share.reserve_iops = set.reserve_iops.unwrap_or(share.reserve_iops);
            share.weight = set.weight.unwrap_or(share.weight);
            share.limit_iops = set.limit_iops.unwrap_or(share.limit_iops);
            share.limit_bytes_per_s = set.limit_bytes.unwrap_or(share.limit_bytes_per_s);
            share.burst_ms = set.burst_ms.unwrap_or(share.burst_ms);
            share.latency_target_us = set.latency_target.unwrap_or(share.latency_target_us);
            client.set_volume_qos(&set.name, &share)?
        }
    };
    global.print("volume.qos", &now, || volume_text(&now));
    Ok(ExitCode::Yes)
}

/// Runs `segue pool qos`.
///
/// # Errors
/// Those of the admin API; the exit code tells which.
pub fn pool(args: &PoolArgs, global: &Global) -> anyhow::Result<ExitCode> {
    let client = global.client();
    let before = client.pool_qos(&args.name)?;
    let profile = DriveProfile {
        capacity_iops: args.capacity_iops.unwrap_or(before.profile.capacity_iops),
        latency_target_us: args.latency_target.unwrap_or(before.profile.latency_target_us),
        knee_depth: args.knee_depth.unwrap_or(before.profile.knee_depth),
        write_cost_percent: args.write_cost_percent.unwrap_or(before.profile.write_cost_percent),
    };
    let set = SetPoolQos {
        policy: args.policy.map(SharePolicy::from),
        profile: (profile != before.profile).then_some(profile),
    };
    let now = if set == SetPoolQos::default() { before } else { client.set_pool_qos(&args.name, &set)? };
    global.print("pool.qos", &now, || pool_text(&now));
    Ok(ExitCode::Yes)
}

fn or_none(value: u64, text: String) -> String {
    if value == 0 { "none".to_owned() } else { text }
}

fn volume_text(now: &VolumeQos) -> String {
    let share = &now.share;
    let waited: Vec<String> = now.waited_us.iter().map(|(why, us)| format!("{why} {} ms", us / 1000)).collect();
    fields(&[
        ("volume", now.volume.clone()),
        ("pool", now.pool.clone()),
        ("reserved", or_none(share.reserve_iops, format!("{} reads/s", share.reserve_iops))),
        ("weight", share.weight.to_string()),
        ("limit", or_none(share.limit_iops, format!("{} requests/s", share.limit_iops))),
        ("byte limit", or_none(share.limit_bytes_per_s, format!("{}/s", human_bytes(share.limit_bytes_per_s)))),
        ("burst", format!("{} ms", share.burst_ms)),
        ("latency target", or_none(share.latency_target_us.into(), format!("{} us", share.latency_target_us))),
        ("attached", if now.attached { "yes" } else { "no" }.to_owned()),
        ("requests", now.ops.to_string()),
        ("waiting", now.queued.to_string()),
        ("throttled by", now.throttled_by.clone()),
        ("waited for", if waited.is_empty() { "nothing".to_owned() } else { waited.join(", ") }),
    ])
}

fn pool_text(now: &PoolQos) -> String {
    let p = &now.profile;
    let mut text = fields(&[
        ("pool", now.pool.clone()),
        ("policy", format!("{:?}", now.policy).to_lowercase()),
        ("capacity", or_none(p.capacity_iops, format!("{} reads/s", p.capacity_iops))),
        ("latency target", or_none(p.latency_target_us.into(), format!("{} us", p.latency_target_us))),
        ("knee", or_none(p.knee_depth.into(), format!("{} reads in flight", p.knee_depth))),
        ("write cost", or_none(p.write_cost_percent.into(), format!("{} % of a read", p.write_cost_percent))),
        ("window", format!("{} of {} reads", now.outstanding_reads, now.window_reads)),
        ("p95", format!("{} us", now.p95_us)),
        ("waiting", now.queued.to_string()),
    ]);
    let mut table = Table::new(&["VOLUME", "RESERVED>", "WEIGHT>", "LIMIT>", "REQUESTS>", "WAITING>", "THROTTLED BY"]);
    for v in &now.volumes {
        table.row(vec![
            v.volume.clone(),
            v.share.reserve_iops.to_string(),
            v.share.weight.to_string(),
            v.share.limit_iops.to_string(),
            v.ops.to_string(),
            v.queued.to_string(),
            v.throttled_by.clone(),
        ]);
    }
    if !now.volumes.is_empty() {
        text.push('\n');
        text.push_str(&table.render());
    }
    text
}
