//! `segue node scopes`: what recovers together, as declared and as observed.
//!
//! Owns: the output. Never: interprets the scopes.
//! Invariant: every declared scope has a line, and every observed part of it one below.

use crate::Global;
use crate::out::Table;
use segue_types::api::RecoveryScope;

/// Prints the scopes.
///
/// # Errors
/// Those of the admin API.
pub fn run(global: &Global) -> anyhow::Result<()> {
    let scopes = global.client().scopes()?;
    global.print("scopes", &serde_json::json!({ "scopes": scopes }), || text(&scopes));
    Ok(())
}

fn text(scopes: &[RecoveryScope]) -> String {
    let mut table = Table::new(&["CORE>", "KIND", "SCOPE", "WITHIN", "LOCKS>", "TASKS>", "SEEN>", "CROSSES"]);
    for s in scopes {
        let crosses = s.crossed_last.as_ref().map_or(String::new(), |with| format!("{} with {with}", s.crossings));
        table.row(vec![
            s.core.to_string(),
            s.kind.clone(),
            s.name.clone(),
            s.outer.clone().unwrap_or_default(),
            s.observed.iter().map(|o| o.locks).sum::<u64>().to_string(),
            s.tasks.to_string(),
            s.observed.iter().map(|o| o.tasks_seen).sum::<u64>().to_string(),
            if s.coarse { format!("counts as one; {crosses}") } else { crosses },
        ]);
        for o in &s.observed {
            table.row(vec![
                String::new(),
                "  observed".to_owned(),
                format!("from {}", o.lock_first),
                String::new(),
                o.locks.to_string(),
                o.tasks.to_string(),
                o.tasks_seen.to_string(),
                String::new(),
            ]);
        }
    }
    table.render()
}
