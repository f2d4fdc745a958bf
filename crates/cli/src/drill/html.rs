//! Reports as people read them: one HTML page, its plots inline, nothing fetched from anywhere.
//!
//! Owns: the page, its styles and the plots. Never: computes what it shows.
//! Invariant: all text that comes from outside is escaped.

use super::report::Report;
use std::fmt::Write;

const WIDTH: f64 = 920.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 52.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 52.0;
const BOTTOM: f64 = 28.0;
/// Distance below which two marks would cover each other, and get different rows.
const MARK_APART: f64 = 18.0;

const STYLE: &str = "\
body{font:15px/1.5 system-ui,sans-serif;color:#1f2933;background:#fff;max-width:960px;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.5rem;margin:0 0 .3rem}h2{font-size:1.1rem;margin:2rem 0 .2rem}p{margin:.3rem 0}\
table{border-collapse:collapse;margin:1rem 0}th,td{padding:.3rem .8rem;text-align:right;border-bottom:1px solid #e4e7eb}\
th{font-weight:600;color:#52606d}th:first-child,td:first-child,td.t,th.t{text-align:left}\
.good{color:#1b7f4b}.bad{color:#c0262d;font-weight:600}.dim{color:#7b8794}\
svg{width:100%;height:auto;display:block}ol{columns:3;font-size:13px;margin:.2rem 0 0;padding-left:1.6rem;color:#3e4c59}\
figure{margin:.6rem 0 1.4rem}";

/// A page around `body`.
pub fn page(title: &str, body: &str) -> String {
    let title = escape(title);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title>\
         <style>{STYLE}</style></head>\n<body>\n{body}</body></html>\n"
    )
}

/// The page of one drill.
pub fn drill_page(report: &Report) -> String {
    let setup = &report.setup;
    let title = format!("Drill: {} under {}, mode {}", setup.app, setup.fault, setup.mode);
    let verdict = &report.verdict;
    let rows = [
        ("Unavailable", format!("{:.3} s", report.unavailable_s)),
        ("Failed over", yes_no(report.failed_over)),
        ("Commits acknowledged", verdict.commits_acked.to_string()),
        ("Commits lost", verdict.commits_lost.to_string()),
        ("Commits twice", verdict.commits_duplicate.to_string()),
        ("Commits never asked for", verdict.commits_phantom.to_string()),
        (
            "Outcome unknown to the client",
            format!("{} (held: {})", verdict.commits_unknown, verdict.commits_unknown_held),
        ),
        ("All sums agree", yes_no(verdict.balances_consistent)),
        (
            "Checker",
            format!("{}: {}", verdict.checker, if verdict.checker_clean { "clean" } else { &verdict.checker_words }),
        ),
        ("Log to redo at the fault", crate::out::human_bytes(setup.backlog_bytes)),
        ("Clients", setup.clients.to_string()),
    ];
    let mut body = format!("<h1>{}</h1>\n", escape(&title));
    let (class, word) = if report.is_clean() { ("good", "nothing was lost") } else { ("bad", "NOT CLEAN") };
    let _ = writeln!(body, "<p class=\"{class}\">{word}</p>");
    body.push_str(&figure(report));
    body.push_str("<table>");
    for (name, value) in rows {
        let _ = write!(body, "<tr><td>{}</td><td class=\"t\">{}</td></tr>", escape(name), escape(&value));
    }
    body.push_str("</table>\n");
    page(&title, &body)
}

/// The plot of a report with the legend of its marks.
pub fn figure(report: &Report) -> String {
    let mut html = format!("<figure>{}<ol>", plot(report));
    for mark in &report.timeline {
        let event = escape(&mark.event.replace('_', " "));
        let _ = write!(html, "<li>{event} <span class=\"dim\">{:+.3} s</span></li>", mark.at_s);
    }
    html.push_str("</ol></figure>\n");
    html
}

/// Maps seconds and commits to the picture.
struct Scale {
    from_s: f64,
    to_s: f64,
    commits_max: f64,
}

impl Scale {
    fn of(report: &Report) -> Scale {
        let series = &report.series;
        let from_s = series.from_s;
        let to_s = (from_s + series.bin_s * series.commits.len() as f64).max(from_s + series.bin_s);
        let commits_max = f64::from(series.commits.iter().copied().max().unwrap_or(0)).max(1.0);
        Scale { from_s, to_s, commits_max }
    }

    fn x(&self, at_s: f64) -> f64 {
        let share = (at_s - self.from_s) / (self.to_s - self.from_s);
        LEFT + share.clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, commits: f64) -> f64 {
        HEIGHT - BOTTOM - commits / self.commits_max * (HEIGHT - TOP - BOTTOM)
    }
}

fn plot(report: &Report) -> String {
    let scale = Scale::of(report);
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"commits over time\">");
    outage(&mut svg, report, &scale);
    axes(&mut svg, &scale);
    area(&mut svg, report, &scale);
    marks(&mut svg, report, &scale);
    svg.push_str("</svg>");
    svg
}

/// The time without service, shaded.
fn outage(svg: &mut String, report: &Report, scale: &Scale) {
    let from_s = report.at_s("last_commit").unwrap_or(0.0);
    let (x, end) = (scale.x(from_s), scale.x(from_s + report.unavailable_s));
    let (y, height) = (TOP, HEIGHT - TOP - BOTTOM);
    let _ = write!(
        svg,
        "<rect x=\"{x:.1}\" y=\"{y}\" width=\"{:.1}\" height=\"{height}\" fill=\"#fdecea\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"13\" fill=\"#c0262d\">{:.2} s</text>",
        (end - x).max(1.0),
        (x + end) / 2.0,
        y + height / 2.0,
        report.unavailable_s
    );
}

fn axes(svg: &mut String, scale: &Scale) {
    let base = scale.y(0.0);
    for commits in [0.0, scale.commits_max / 2.0, scale.commits_max] {
        let y = scale.y(commits);
        let _ = write!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#e4e7eb\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" font-size=\"11\" fill=\"#7b8794\">{commits:.0}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            y + 4.0
        );
    }
    let step = tick_step(scale.to_s - scale.from_s);
    let mut tick = (scale.from_s / step).ceil() * step;
    while tick <= scale.to_s {
        let x = scale.x(tick);
        let _ = write!(
            svg,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{base:.1}\" y2=\"{:.1}\" stroke=\"#9aa5b1\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"11\" fill=\"#7b8794\">{tick:.0} s</text>",
            base + 4.0,
            base + 17.0
        );
        tick += step;
    }
    let _ = write!(
        svg,
        "<text x=\"{LEFT}\" y=\"12\" font-size=\"11\" fill=\"#7b8794\">acknowledged commits per 100 ms</text>"
    );
}

fn tick_step(span_s: f64) -> f64 {
    for step in [1.0, 2.0, 5.0, 10.0, 20.0, 50.0] {
        if span_s / step <= 16.0 {
            return step;
        }
    }
    (span_s / 1000.0).ceil() * 100.0
}

fn area(svg: &mut String, report: &Report, scale: &Scale) {
    let series = &report.series;
    let mut path = format!("M{:.1} {:.1}", scale.x(scale.from_s), scale.y(0.0));
    for (i, &commits) in series.commits.iter().enumerate() {
        let from_s = series.from_s + series.bin_s * i as f64;
        let y = scale.y(f64::from(commits));
        let _ = write!(path, "L{:.1} {y:.1}L{:.1} {y:.1}", scale.x(from_s), scale.x(from_s + series.bin_s));
    }
    let _ = write!(path, "L{:.1} {:.1}Z", scale.x(scale.to_s), scale.y(0.0));
    let _ = write!(svg, "<path d=\"{path}\" fill=\"#bcdcf5\" stroke=\"#2b7ec1\" stroke-width=\"1\"/>");
}

/// Numbered marks over the plot; the legend below it says what they are.
fn marks(svg: &mut String, report: &Report, scale: &Scale) {
    let mut rows = [f64::NEG_INFINITY; 2];
    for (i, mark) in report.timeline.iter().enumerate() {
        let x = scale.x(mark.at_s);
        let row = usize::from(x - rows[0] < MARK_APART && rows[1] <= rows[0]);
        // Where both rows are taken the mark moves aside a little; its line stays where it belongs.
        let label = x.max(rows[row] + MARK_APART).min(WIDTH - RIGHT);
        rows[row] = label;
        let y = 42.0 - 18.0 * row as f64;
        let color = if mark.event == "fault" { "#c0262d" } else { "#52606d" };
        let _ = write!(
            svg,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{:.1}\" stroke=\"{color}\" stroke-dasharray=\"3 3\"/>\
             <circle cx=\"{label:.1}\" cy=\"{y}\" r=\"8\" fill=\"{color}\"/>\
             <text x=\"{label:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"10\" fill=\"#fff\">{}</text>",
            HEIGHT - BOTTOM,
            y + 3.5,
            i + 1
        );
    }
}

fn yes_no(yes: bool) -> String {
    if yes { "yes" } else { "no" }.to_owned()
}

/// Text made safe for HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_page_is_whole_and_fetches_nothing() {
        let mut report = crate::drill::report::tests::sample();
        report.setup.app = "<bank>".into();
        let html = drill_page(&report);
        assert!(html.contains("&lt;bank&gt;") && !html.contains("<bank>"));
        assert!(html.contains("2.00 s") && html.contains("nothing was lost"));
        for outside in ["http:", "https:", "src=", "url(", "<script"] {
            assert!(!html.contains(outside), "{outside}");
        }
        assert_eq!(html.matches("<svg").count(), html.matches("</svg>").count());
    }
}
