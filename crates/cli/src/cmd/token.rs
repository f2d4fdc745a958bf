//! `segue token`: access tokens; made and revoked by the node, narrowed and shown without it.
//!
//! Owns: arguments and output of the noun. Never: keeps a token anywhere; it is printed once.
//! Invariant: narrowing and showing never talk to a node.

use crate::Global;
use crate::exit::{ExitCode, fail};
use crate::out::{fields, human_bytes};
use segue_types::api::TokenLimits;
use segue_types::{Token, parse_duration_ns, parse_size};
use serde::Serialize;
use std::time::{SystemTime, UNIX_EPOCH};

/// Arguments of `segue token`.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand, Debug)]
enum Verb {
    /// Make a token for a volume. From the first one on the volume demands a token of every client.
    New {
        /// The volume.
        volume: String,
        #[command(flatten)]
        limits: Limits,
    },
    /// Make a narrower token of a token, here and now: nobody is asked.
    Narrow {
        /// The token, or - to read it from stdin.
        token: String,
        #[command(flatten)]
        limits: Limits,
    },
    /// Show what a token claims to allow. Whether it is good, only the node can tell.
    Show {
        /// The token, or - to read it from stdin.
        token: String,
    },
    /// Make every token given out so far for a volume worthless, at once; sessions opened with one are cut.
    Revoke {
        /// The volume.
        volume: String,
        /// Also drop the plain secret of `volume create --token-file`, and cut every session.
        #[arg(long)]
        plain: bool,
    },
    /// Let clients in without a token again; sessions opened with one are cut.
    Disable {
        /// The volume.
        volume: String,
    },
}

/// What a token is narrowed to.
#[derive(clap::Args, Debug)]
struct Limits {
    /// No changes.
    #[arg(long)]
    read_only: bool,
    /// Worthless after this time from now, for example 90min or 24h.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration_ns)]
    expires: Option<u64>,
    /// Only these bytes: START..END with units, for example 0B..1GiB.
    #[arg(long, value_name = "START..END", value_parser = parse_range)]
    range: Option<(u64, u64)>,
    /// Only clients of these addresses, for example 10.1.0.0/16; given twice, both must hold.
    #[arg(long = "source", value_name = "CIDR")]
    sources: Vec<String>,
    /// At most so many sessions at once, of this token and all narrowed from it.
    #[arg(long, value_name = "COUNT")]
    sessions: Option<u32>,
}

fn parse_range(text: &str) -> Result<(u64, u64), String> {
    let bad = || "a range is START..END with units, for example 1GiB..2GiB".to_owned();
    let (from, to) = text.split_once("..").ok_or_else(bad)?;
    let (from, to) = (parse_size(from).map_err(|_| bad())?, parse_size(to).map_err(|_| bad())?);
    if from < to { Ok((from, to)) } else { Err("the range is empty: START must be below END".into()) }
}

fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl Limits {
    fn wire(&self) -> TokenLimits {
        TokenLimits {
            read_only: self.read_only,
            // A part of a second counts as a whole one: never worthless before its time.
            expires_unix_s: self.expires.map(|ns| now_unix_s() + ns.div_ceil(1_000_000_000)),
            range: self.range,
            sources: self.sources.clone(),
            sessions_max: self.sessions,
        }
    }
}

#[derive(Serialize)]
struct Shown {
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    export: Option<String>,
    volume: String,
    generation: u64,
    read_only: bool,
    expires_unix_s: Option<u64>,
    range: Option<(u64, u64)>,
    sources: Vec<String>,
    sessions_max: Option<u32>,
}

impl Shown {
    fn of(token: &Token, whole: bool) -> Shown {
        let claims = token.claims();
        let text = whole.then(|| token.to_string());
        Shown {
            export: text.as_ref().map(|text| format!("{}?token={text}", token.volume)),
            token: text,
            volume: token.volume.clone(),
            generation: token.generation,
            read_only: claims.read_only,
            expires_unix_s: claims.expires_unix_s,
            range: (claims.range != (0, u64::MAX)).then_some(claims.range),
            sources: claims.sources.iter().map(ToString::to_string).collect(),
            sessions_max: claims.sessions.iter().map(|(_, n)| *n).min(),
        }
    }

    fn text(&self) -> String {
        let expires = match self.expires_unix_s {
            None => "never".into(),
            Some(at) if at <= now_unix_s() => format!("over since {} s", now_unix_s() - at),
            Some(at) => format!("in {} s ({at} s of Unix time)", at - now_unix_s()),
        };
        let range = match self.range {
            None => "all".into(),
            Some((from, to)) if from >= to => "nothing".into(),
            Some((from, to)) => format!("{}..{} ({from}..{to})", human_bytes(from), human_bytes(to)),
        };
        fields(&[
            ("volume", self.volume.clone()),
            ("generation", self.generation.to_string()),
            ("rights", if self.read_only { "read" } else { "read and write" }.into()),
            ("expires", expires),
            ("bytes", range),
            ("clients", if self.sources.is_empty() { "all".into() } else { self.sources.join(" and ") }),
            ("sessions", self.sessions_max.map_or("any number".into(), |n| format!("at most {n}"))),
        ])
    }
}

/// Runs `segue token`.
///
/// # Errors
/// Those of the admin API, and exit code 2 for what is not a token or cannot be narrowed so.
pub fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    match args.verb {
        Verb::New { volume, limits } => {
            let grant = global.client().new_token(&volume, &limits.wire())?;
            print_token(global, &parse(&grant.token)?);
        }
        Verb::Narrow { token, limits } => {
            let caveats = segue_types::caveats_of(&limits.wire()).map_err(misuse)?;
            if caveats.is_empty() {
                return Err(fail(ExitCode::Misuse, "narrow to what? see `segue token narrow --help`"));
            }
            let narrowed = caveats.into_iter().try_fold(read(&token)?, Token::narrow).map_err(misuse)?;
            print_token(global, &narrowed);
        }
        Verb::Show { token } => {
            let shown = Shown::of(&read(&token)?, false);
            global.print("token", &shown, || shown.text());
        }
        Verb::Revoke { volume, plain } => {
            global.client().revoke_tokens(&volume, plain)?;
            global.done(&format!("revoked every token of {volume}; make new ones with `segue token new`"));
        }
        Verb::Disable { volume } => {
            global.client().disable_tokens(&volume)?;
            global.done(&format!("{volume} demands no token any more"));
        }
    }
    Ok(ExitCode::Yes)
}

/// The token alone on stdout, so that it can be piped on.
fn print_token(global: &Global, token: &Token) {
    global.print("token", &Shown::of(token, true), || format!("{token}\n"));
}

fn misuse(error: segue_types::TokenError) -> anyhow::Error {
    fail(ExitCode::Misuse, error.to_string())
}

fn parse(text: &str) -> anyhow::Result<Token> {
    Token::parse(text).map_err(misuse)
}

fn read(argument: &str) -> anyhow::Result<Token> {
    if argument != "-" {
        return parse(argument);
    }
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    parse(line.trim())
}
