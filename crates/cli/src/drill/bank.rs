//! The bank that the load works on: TPC-B's tables, plus a ledger of ids that the clients made up.
//!
//! Owns: the tables, the text of one transaction, and the questions that verify them. Never: connects.
//! Invariant: in every committed state the sums over accounts, tellers, branches, history and ledger are equal.

use super::db::{DbError, Kind, Session};
use std::time::Duration;

/// Accounts per branch (TPC-B has 100,000).
pub const ACCOUNTS_PER_BRANCH: u64 = 100_000;
/// Tellers per branch.
pub const TELLERS_PER_BRANCH: u64 = 10;
/// Longest that creating or reading whole tables may take.
const LONG: Duration = Duration::from_secs(120);

/// Numbers drawn for one client: splitmix64, so that a seed replays a client's choices.
pub struct Draw(pub u64);

impl Draw {
    /// A number below `bound`, which is at least 1.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// The statements of one transaction, all but its COMMIT.
pub fn transaction(draw: &mut Draw, branches: u64, run: u64, id: u64) -> String {
    let account = draw.below(branches * ACCOUNTS_PER_BRANCH) + 1;
    let teller = draw.below(branches * TELLERS_PER_BRANCH) + 1;
    let branch = (teller - 1) / TELLERS_PER_BRANCH + 1;
    let delta = draw.below(10_000) as i64 - 5_000;
    format!(
        "BEGIN;\
         UPDATE drill_accounts SET balance = balance + ({delta}) WHERE id = {account};\
         SELECT balance FROM drill_accounts WHERE id = {account};\
         INSERT INTO drill_history (teller, branch, account, delta) VALUES ({teller}, {branch}, {account}, {delta});\
         INSERT INTO drill_ledger (run, id, delta) VALUES ({run}, {id}, {delta});\
         UPDATE drill_tellers SET balance = balance + ({delta}) WHERE id = {teller};\
         UPDATE drill_branches SET balance = balance + ({delta}) WHERE id = {branch}"
    )
}

/// Makes and fills the tables, unless they are there with `branches` branches.
///
/// # Errors
/// Those of the database.
pub async fn create(session: &mut Session, kind: Kind, branches: u64) -> Result<(), DbError> {
    if let Ok(rows) = session.rows("SELECT count(*) FROM drill_branches", LONG).await
        && number(&rows, 0) == Some(branches as i64)
    {
        return Ok(());
    }
    for sql in creation(kind, branches) {
        session.batch(&sql, LONG).await?;
    }
    Ok(())
}

fn creation(kind: Kind, branches: u64) -> Vec<String> {
    let mut statements =
        vec!["DROP TABLE IF EXISTS drill_accounts, drill_tellers, drill_branches, drill_history, drill_ledger".into()];
    let balance = "balance bigint NOT NULL";
    for (table, rows, pad) in [
        ("drill_branches", branches, 88),
        ("drill_tellers", branches * TELLERS_PER_BRANCH, 84),
        ("drill_accounts", branches * ACCOUNTS_PER_BRANCH, 84),
    ] {
        let key = if kind == Kind::Maria { "int PRIMARY KEY" } else { "int" };
        statements.push(format!("CREATE TABLE {table} (id {key} NOT NULL, {balance}, filler char({pad}))"));
        let source = match kind {
            Kind::Postgres => format!("SELECT i, 0, ' ' FROM generate_series(1, {rows}) AS i"),
            Kind::Maria => format!("SELECT seq, 0, ' ' FROM seq_1_to_{rows}"),
        };
        statements.push(format!("INSERT INTO {table} {source}"));
        if kind == Kind::Postgres {
            statements.push(format!("ALTER TABLE {table} ADD PRIMARY KEY (id)"));
        }
    }
    statements
        .push("CREATE TABLE drill_history (teller int, branch int, account int, delta int, filler char(22))".into());
    // No unique index: a duplicate must show instead of being refused.
    statements.push("CREATE TABLE drill_ledger (run bigint NOT NULL, id bigint NOT NULL, delta int NOT NULL)".into());
    statements
}

/// The ids of a run that the database holds, as often as it holds them.
///
/// # Errors
/// Those of the database.
pub async fn ledger_ids(session: &mut Session, run: u64) -> Result<Vec<u64>, DbError> {
    let rows = session.rows(&format!("SELECT id FROM drill_ledger WHERE run = {run}"), LONG).await?;
    Ok((0..rows.len()).filter_map(|i| rows[i].first()?.as_ref()?.parse().ok()).collect())
}

/// The sums over accounts, tellers, branches, history and ledger: equal when the database is consistent.
///
/// # Errors
/// Those of the database.
pub async fn sums(session: &mut Session) -> Result<[i64; 5], DbError> {
    let mut sums = [0i64; 5];
    let sources = [
        ("drill_accounts", "balance"),
        ("drill_tellers", "balance"),
        ("drill_branches", "balance"),
        ("drill_history", "delta"),
        ("drill_ledger", "delta"),
    ];
    for (sum, (table, column)) in sums.iter_mut().zip(sources) {
        let rows = session.rows(&format!("SELECT coalesce(sum({column}), 0) FROM {table}"), LONG).await?;
        *sum = number(&rows, 0).unwrap_or(i64::MIN);
    }
    Ok(sums)
}

/// Makes the database write back what is dirty, so that recovery from now on begins here.
///
/// # Errors
/// Those of the database.
pub async fn checkpoint(session: &mut Session, kind: Kind) -> Result<(), DbError> {
    let sql = match kind {
        Kind::Postgres => "CHECKPOINT",
        Kind::Maria => "SET GLOBAL innodb_log_checkpoint_now = ON",
    };
    match session.batch(sql, LONG).await {
        // Only debugging builds of MariaDB have it; its log's distance is reported as it is.
        Err(DbError::Refused { .. }) if kind == Kind::Maria => Ok(()),
        other => other,
    }
}

/// Bytes of log since the point from which a recovery would have to redo.
///
/// # Errors
/// Those of the database.
pub async fn backlog_bytes(session: &mut Session, kind: Kind) -> Result<u64, DbError> {
    let (sql, column) = match kind {
        Kind::Postgres => ("SELECT (pg_current_wal_insert_lsn() - redo_lsn)::bigint FROM pg_control_checkpoint()", 0),
        Kind::Maria => ("SHOW GLOBAL STATUS LIKE 'Innodb_checkpoint_age'", 1),
    };
    let rows = session.rows(sql, LONG).await?;
    Ok(number(&rows, column).unwrap_or(0).max(0) as u64)
}

fn number(rows: &super::db::Rows, column: usize) -> Option<i64> {
    let text = rows.first()?.get(column)?.as_ref()?;
    text.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_transactions_replay_from_their_seed() {
        let text = || transaction(&mut Draw(7), 2, 3, 99);
        assert_eq!(text(), text());
        assert!(text().starts_with("BEGIN;UPDATE drill_accounts"));
        assert!(text().contains("VALUES (3, 99, "));
    }
}
