//! The demo's page: the table, and a plot of every round.
//!
//! Owns: the page's text. Never: computes.
//! Invariant: the page shows every round, good or bad.

use super::summary::Summary;
use crate::drill::html::{self, escape};
use crate::drill::report::Report;
use crate::out::human_bytes;
use std::fmt::Write;

const INTRO: &str = "<p>A PostgreSQL server runs on a volume under a TPC-B load. Twice it is struck, in each of three modes: \
<b>panic</b> kills it with its kernel, <b>heal</b> stalls it for a while. <b>reds</b> waits for a timeout, fences, and then \
recovers. <b>speculative</b> starts recovering on a second version of the volume at the first suspicion and keeps whichever \
version is seen first. <b>oracle</b> is told what will happen and does what is best.</p>";

/// The page.
pub fn page(summary: &Summary, reports: &[Report]) -> String {
    let title = "Segue: three ways of failing over";
    let mut body = format!("<h1>{title}</h1>\n{INTRO}\n");
    let _ = writeln!(
        body,
        "<p class=\"dim\">A rehearsed recovery took {:.1} s. Timeout of reds: {:.1} s. A stall heals after {:.1} s. The whole \
         demo took {:.0} s.</p>",
        summary.recovery_rehearsed_s, summary.reds_timeout_s, summary.heal_after_s, summary.elapsed_s
    );
    for broken in &summary.broken {
        let _ = writeln!(body, "<p class=\"bad\">Not as promised: {}</p>", escape(broken));
    }
    body.push_str(&table(summary));
    for report in reports {
        let setup = &report.setup;
        let _ =
            writeln!(body, "<h2>{}, {}: {:.2} s</h2>", escape(&setup.mode), escape(&setup.fault), report.unavailable_s);
        body.push_str(&html::figure(report));
    }
    html::page(title, &body)
}

fn table(summary: &Summary) -> String {
    let mut text = String::from(
        "<table><tr><th>Mode</th><th class=\"t\">Fault</th><th>Unavailable</th><th>Commits acknowledged</th><th>Lost</th>\
         <th>Needless failovers</th><th>Log to redo</th><th>Recovery</th></tr>\n",
    );
    for round in &summary.rounds {
        let needless = u8::from(round.needless_failover);
        let bad = |is_bad: bool| if is_bad { " class=\"bad\"" } else { "" };
        let recovery = round.recovery_s.map_or("-".into(), |s| format!("{s:.2} s"));
        let _ = writeln!(
            text,
            "<tr><td>{}</td><td class=\"t\">{}</td><td>{:.2} s</td><td>{}</td><td{}>{}</td><td{}>{needless}</td><td>{}</td>\
             <td>{recovery}</td></tr>",
            escape(&round.mode),
            escape(&round.fault),
            round.unavailable_s,
            round.commits_acked,
            bad(!round.clean),
            round.commits_lost,
            bad(needless > 0),
            human_bytes(round.backlog_bytes),
        );
    }
    text.push_str("</table>\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::Settings;
    use std::time::Duration;

    #[test]
    fn golden_page_shows_rounds_and_broken_promises() {
        let reports = [crate::drill::report::tests::sample()];
        let settings = Settings { recovery_s: 5.0, backlog_bytes: 1 << 28, timeout_s: 1.5, heal_after_s: 3.2 };
        let summary = Summary::of(settings, &reports, Duration::from_secs(200));
        let html = page(&summary, &reports);
        assert!(html.contains("<h2>speculative, panic: 2.00 s</h2>"));
        assert!(html.contains("Not as promised: heal: a round is missing"));
        assert_eq!(html.matches("<svg").count(), 1);
    }
}
