//! How the command ends: the public list of exit codes, and the one line that names cause and fix.
//!
//! Owns: the numbers and the mapping of errors to them. Never: changes the meaning of a number.
//! Invariant: 0 is yes, 1 an honest no, 2 misuse; every error maps to exactly one code.

use segue_node::client::ClientError;
use segue_types::api::ApiErrorKind;
use std::fmt;

/// Exit codes of `segue`. Part of its interface: numbers are added, never changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum ExitCode {
    /// Done, or the answer is yes.
    Yes = 0,
    /// The command worked and the answer is no: collapse found the primary observed, a check found damage,
    /// a drill lost something.
    No = 1,
    /// The command line, a configuration file or a value in them is wrong. Fix it.
    Misuse = 2,
    /// No such volume, pool or superposition. Check the name.
    NotFound = 3,
    /// The name is taken. Choose another.
    Exists = 4,
    /// Somebody else holds it; the message says who and since when. Wait, or break the lease.
    Busy = 5,
    /// Wrong or missing token, certificate or lease.
    Denied = 6,
    /// The state does not allow it now.
    Conflict = 7,
    /// The right to write was taken away. Do not retry with the same lease.
    Fenced = 8,
    /// No space left in the pool. Delete or discard something.
    NoSpace = 9,
    /// A drive or file failed.
    Io = 10,
    /// No node answers on the admin socket. Start it.
    Unreachable = 11,
    /// Not done within the time limit; it may still happen. Look before trying again.
    TimedOut = 12,
    /// This machine lacks something that the command needs; the message names it.
    Unsupported = 13,
    /// A fault of segue itself. Please report it.
    Internal = 14,
}

/// The same list, for `--help`.
pub const HELP: &str = "Exit codes: 0 yes, 1 honest no, 2 misuse, 3 not found, 4 exists, 5 busy, 6 denied, 7 conflict, \
8 fenced, 9 no space, 10 drive or file failed, 11 no node answers, 12 timed out, 13 unsupported here, 14 internal";

impl ExitCode {
    /// All codes, by number.
    const ALL: [ExitCode; 15] = [
        ExitCode::Yes,
        ExitCode::No,
        ExitCode::Misuse,
        ExitCode::NotFound,
        ExitCode::Exists,
        ExitCode::Busy,
        ExitCode::Denied,
        ExitCode::Conflict,
        ExitCode::Fenced,
        ExitCode::NoSpace,
        ExitCode::Io,
        ExitCode::Unreachable,
        ExitCode::TimedOut,
        ExitCode::Unsupported,
        ExitCode::Internal,
    ];

    /// The code of a number, as another `segue` ended with it.
    pub fn from_number(number: u8) -> Option<ExitCode> {
        ExitCode::ALL.get(number as usize).copied()
    }
}

impl From<ExitCode> for std::process::ExitCode {
    fn from(code: ExitCode) -> Self {
        (code as u8).into()
    }
}

/// An error that knows its exit code: wrap with [`fail`] where the default mapping would be wrong.
#[derive(Debug)]
pub struct Failure {
    code: ExitCode,
    message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// An error with an exit code of its own. The message names cause and fix in one line.
pub fn fail(code: ExitCode, message: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(Failure { code, message: message.into() })
}

/// The exit code an error maps to.
pub fn code_of(error: &anyhow::Error) -> ExitCode {
    for cause in error.chain() {
        if let Some(failure) = cause.downcast_ref::<Failure>() {
            return failure.code;
        }
        if let Some(client) = cause.downcast_ref::<ClientError>() {
            return code_of_client(client);
        }
        if let Some(io) = cause.downcast_ref::<std::io::Error>() {
            return if io.kind() == std::io::ErrorKind::BrokenPipe { ExitCode::Yes } else { ExitCode::Io };
        }
    }
    ExitCode::Internal
}

fn code_of_client(error: &ClientError) -> ExitCode {
    match error {
        ClientError::Connect { .. } => ExitCode::Unreachable,
        ClientError::Broken(_) | ClientError::TimedOut(_) => ExitCode::TimedOut,
        ClientError::Answer { .. } => ExitCode::Internal,
        ClientError::Api(api) => match api.kind {
            ApiErrorKind::Invalid => ExitCode::Misuse,
            ApiErrorKind::NotFound => ExitCode::NotFound,
            ApiErrorKind::Exists => ExitCode::Exists,
            ApiErrorKind::Busy => ExitCode::Busy,
            ApiErrorKind::Denied => ExitCode::Denied,
            ApiErrorKind::Conflict => ExitCode::Conflict,
            ApiErrorKind::Fenced => ExitCode::Fenced,
            ApiErrorKind::NoSpace => ExitCode::NoSpace,
            ApiErrorKind::Io => ExitCode::Io,
            ApiErrorKind::Internal => ExitCode::Internal,
        },
    }
}

/// Says the error on stderr (with `--json` as an object, `segue.error.v1`) and gives its exit code.
pub fn report(error: &anyhow::Error, json: bool) -> ExitCode {
    let code = code_of(error);
    if code == ExitCode::Yes {
        return code;
    }
    let message = error.chain().map(ToString::to_string).collect::<Vec<_>>().join(": ");
    if json {
        let object = serde_json::json!({
            "schema": "segue.error.v1", "exit_code": code as u8, "kind": format!("{code:?}"), "message": message,
        });
        eprintln!("{object}");
    } else {
        eprintln!("segue: {message}");
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip_and_the_help_lists_them() {
        for (number, code) in ExitCode::ALL.into_iter().enumerate() {
            assert_eq!(code as usize, number);
            assert!(HELP.contains(&format!(" {number} ")), "{number}");
        }
        assert_eq!(ExitCode::from_number(15), None);
    }
}
