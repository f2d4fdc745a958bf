//! After a drill: is everything there that was promised, once, and is the database sound?
//!
//! Owns: the comparison of the ledger with the database, and the run of the database's own checker. Never: repairs.
//! Invariant: a check that could not be run counts as failed, never as passed.

use super::bank;
use super::db::{DbError, Kind, Session, Target};
use super::ledger::Contents;
use serde::Serialize;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Verdict {
    /// Commits that the clients were told of.
    pub commits_acked: u64,
    /// Commits asked for and never answered; the database may hold them or not.
    pub commits_unknown: u64,
    /// Those of them that the database holds.
    pub commits_unknown_held: u64,
    /// Acknowledged commits that the database does not hold. Must be 0.
    pub commits_lost: u64,
    /// Ids that the database holds more than once. Must be 0.
    pub commits_duplicate: u64,
    /// Ids that the database holds though no client asked to commit them. Must be 0.
    pub commits_phantom: u64,
    /// Whether all sums agree. Must be true.
    pub balances_consistent: bool,
    /// The database's own checker: `pg_amcheck`, or CHECK TABLE.
    pub checker: String,
    /// Whether it found nothing. Must be true.
    pub checker_clean: bool,
    /// What it said, when it did find something.
    pub checker_words: String,
}

impl Verdict {
    /// True when nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.commits_lost == 0
            && self.commits_duplicate == 0
            && self.commits_phantom == 0
            && self.balances_consistent
            && self.checker_clean
    }
}

/// Compares the ledger with the database behind `target` and runs the database's checker.
///
/// # Errors
/// Those of the database: without an answer there is no verdict.
pub async fn verify(target: &Target, run: u64, contents: &Contents) -> Result<Verdict, DbError> {
    let mut session = Session::connect(target, CONNECT_LIMIT).await?;
    let held = bank::ledger_ids(&mut session, run).await?;
    let sums = bank::sums(&mut session).await?;
    let mut verdict = compare(contents, held);
    verdict.balances_consistent = sums.iter().all(|&s| s == sums[0]);
    let (checker, words) = match target.kind {
        Kind::Postgres => ("pg_amcheck", amcheck(target).await),
        Kind::Maria => ("CHECK TABLE", check_tables(&mut session).await?),
    };
    verdict.checker = checker.into();
    verdict.checker_clean = words.is_none();
    verdict.checker_words = words.unwrap_or_default();
    Ok(verdict)
}

fn compare(contents: &Contents, mut held: Vec<u64>) -> Verdict {
    held.sort_unstable();
    let rows = held.len();
    held.dedup();
    let mut acked: Vec<u64> = contents.acked.iter().map(|c| c.id).collect();
    acked.sort_unstable();
    let mut unknown: Vec<u64> = contents.unknown.iter().map(|c| c.id).collect();
    unknown.sort_unstable();
    let in_held = |id: &&u64| held.binary_search(id).is_ok();
    let asked = |id: &u64| acked.binary_search(id).is_ok() || unknown.binary_search(id).is_ok();
    let acked_held = acked.iter().filter(in_held).count();
    Verdict {
        commits_acked: acked.len() as u64,
        commits_unknown: unknown.len() as u64,
        commits_unknown_held: unknown.iter().filter(in_held).count() as u64,
        commits_lost: (acked.len() - acked_held) as u64,
        commits_duplicate: (rows - held.len()) as u64,
        commits_phantom: held.iter().filter(|id| !asked(id)).count() as u64,
        balances_consistent: false,
        checker: String::new(),
        checker_clean: false,
        checker_words: String::new(),
    }
}

/// Runs pg_amcheck over the whole database; `None` when it found nothing.
async fn amcheck(target: &Target) -> Option<String> {
    let Some(program) = pg_program("pg_amcheck") else {
        return Some("pg_amcheck is not installed; it comes with the package of the server".into());
    };
    let mut command = Command::new(program);
    command.args(["--install-missing", "--no-password", "--jobs=2", "--heapallindexed"]);
    command.arg("--host").arg(&target.host).arg("--port").arg(target.port.to_string());
    command.arg("--username").arg(&target.user).arg("--database").arg(&target.database);
    command.env("PGPASSWORD", &target.password);
    let output = tokio::task::spawn_blocking(move || command.output()).await;
    match output {
        Ok(Ok(output)) if output.status.success() => None,
        Ok(Ok(output)) => Some(format!(
            "{}: {}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )),
        Ok(Err(error)) => Some(format!("pg_amcheck did not start: {error}")),
        Err(error) => Some(format!("pg_amcheck was not waited for: {error}")),
    }
}

/// A program of PostgreSQL: on the path, or in the newest version's own directory as Debian has it.
pub fn pg_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if let Some(found) = std::env::split_paths(&path).map(|dir| dir.join(name)).find(|p| p.is_file()) {
        return Some(found);
    }
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let mut found: Vec<(u32, PathBuf)> = versions
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let version = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin").join(name)))
        })
        .filter(|(_, path)| path.is_file())
        .collect();
    found.sort();
    found.pop().map(|(_, path)| path)
}

async fn check_tables(session: &mut Session) -> Result<Option<String>, DbError> {
    let tables = "drill_accounts, drill_tellers, drill_branches, drill_history, drill_ledger";
    let rows = session.rows(&format!("CHECK TABLE {tables} EXTENDED"), Duration::from_secs(120)).await?;
    let text = |row: &[Option<String>]| row.iter().flatten().cloned().collect::<Vec<_>>().join(" ");
    let clean = |row: &[Option<String>]| matches!(row.last(), Some(Some(word)) if word == "OK");
    let complaints: Vec<String> = rows.iter().filter(|row| !clean(row)).map(|row| text(row)).collect();
    Ok((rows.is_empty() || !complaints.is_empty()).then(|| complaints.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drill::ledger::Commit;

    #[test]
    fn golden_lost_duplicate_and_phantom_are_told_apart() {
        let commits = |ids: &[u64]| ids.iter().map(|&id| Commit { id, at_ns: id }).collect();
        let contents = Contents { acked: commits(&[1, 2, 3, 4]), unknown: commits(&[5, 6]) };
        let verdict = compare(&contents, vec![9, 5, 3, 2, 1, 2]);
        assert_eq!((verdict.commits_acked, verdict.commits_unknown), (4, 2));
        assert_eq!(verdict.commits_lost, 1, "4 is missing");
        assert_eq!(verdict.commits_duplicate, 1, "2 is there twice");
        assert_eq!(verdict.commits_phantom, 1, "nobody asked for 9");
        assert_eq!(verdict.commits_unknown_held, 1, "5 was committed after all");
        assert!(!verdict.is_clean());
    }
}
