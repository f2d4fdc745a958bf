//! What `segue top` shows: one screen of tables, or the same as text.
//!
//! Owns: columns, order and colours. Never: asks the node or reads keys.
//! Invariant: the screen and the text show the same numbers in the same order.

use super::rates::{CoreRates, Rates, VolumeRates};
use crate::out::{Table, human_bytes};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{self, Block, Row};
use segue_types::api::TopPool;

/// What volumes are sorted by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Sort {
    #[default]
    Iops,
    Bytes,
    Latency,
    Queued,
    Name,
}

impl Sort {
    const ALL: [Sort; 5] = [Sort::Iops, Sort::Bytes, Sort::Latency, Sort::Queued, Sort::Name];

    fn step(self, by: usize) -> Sort {
        let at = Sort::ALL.iter().position(|s| *s == self).expect("all are listed");
        Sort::ALL[(at + by) % Sort::ALL.len()]
    }

    pub fn next(self) -> Sort {
        self.step(1)
    }

    pub fn previous(self) -> Sort {
        self.step(Sort::ALL.len() - 1)
    }

    fn label(self) -> &'static str {
        match self {
            Sort::Iops => "IOPS",
            Sort::Bytes => "bytes",
            Sort::Latency => "p99",
            Sort::Queued => "queue",
            Sort::Name => "name",
        }
    }
}

/// How the screen is wanted.
#[derive(Default)]
pub struct View {
    pub sort: Sort,
    pub reversed: bool,
    pub paused: bool,
}

const VOLUMES: [&str; 9] =
    ["VOLUME", "POOL", "IOPS>", "MiB/s>", "p50 us>", "p99 us>", "QUEUE>", "WAITED>", "WAITS FOR"];
const CORES: [&str; 9] =
    ["CORE", "BUSY>", "IOPS>", "MiB/s>", "p50 us>", "p99 us>", "IN FLIGHT>", "CLIENTS>", "CPU us/IO>"];
const DRIVES: [&str; 8] = ["DRIVE", "CORE>", "POLICY", "LOAD>", "QUEUE>", "p95 us>", "FREE>", "NOTE"];

fn us(value: Option<f64>) -> String {
    value.map_or("-".into(), |us| format!("{us:.0}"))
}

fn mib(bytes_per_s: f64) -> String {
    format!("{:.1}", bytes_per_s / f64::from(1 << 20))
}

fn volume_row(v: &VolumeRates) -> Vec<String> {
    vec![
        v.volume.clone(),
        v.pool.clone(),
        format!("{:.0}", v.iops),
        mib(v.bytes_per_s),
        us(v.latency_us_p50),
        us(v.latency_us_p99),
        v.queued.to_string(),
        format!("{:.0}%", v.waited_percent),
        if v.reason == "none" { "-".into() } else { v.reason.clone() },
    ]
}

fn core_row(c: &CoreRates) -> Vec<String> {
    vec![
        c.core.to_string(),
        c.busy_percent.map_or("-".into(), |p| format!("{p:.0}%")),
        format!("{:.0}", c.iops),
        mib(c.bytes_per_s),
        us(c.latency_us_p50),
        us(c.latency_us_p99),
        c.in_flight.to_string(),
        c.connections.to_string(),
        c.cpu_us_per_request.map_or("-".into(), |us| format!("{us:.1}")),
    ]
}

fn drive_row(p: &TopPool) -> Vec<String> {
    vec![
        p.pool.clone(),
        p.core.to_string(),
        p.policy.clone(),
        format!("{}/{}", p.outstanding, p.window),
        p.queued.to_string(),
        us((p.drive_p95_ns > 0).then_some(p.drive_p95_ns as f64 / 1e3)),
        human_bytes(p.free_bytes),
        note(p),
    ]
}

/// What a person should know of a pool: what recovers, and what is wrong.
fn note(p: &TopPool) -> String {
    let counted = |n: u64, what: &str| (n > 0).then(|| format!("{n} {what}"));
    let notes = [
        p.poisoned.then(|| "REFUSES CHANGES".to_owned()),
        counted(p.integrity_errors, "bad blocks"),
        counted(p.racing, "racing"),
        counted(p.cleaning, "cleaning up"),
        counted(p.locked, "locked"),
    ];
    let notes: Vec<String> = notes.into_iter().flatten().collect();
    if notes.is_empty() { "-".into() } else { notes.join(", ") }
}

fn sorted(rates: &Rates, sort: Sort, reversed: bool) -> Vec<&VolumeRates> {
    let mut volumes: Vec<&VolumeRates> = rates.volumes.iter().collect();
    let p99 = |v: &VolumeRates| v.latency_us_p99.unwrap_or(0.0);
    volumes.sort_by(|a, b| {
        let order = match sort {
            Sort::Iops => b.iops.total_cmp(&a.iops),
            Sort::Bytes => b.bytes_per_s.total_cmp(&a.bytes_per_s),
            Sort::Latency => p99(b).total_cmp(&p99(a)),
            Sort::Queued => b.queued.cmp(&a.queued),
            Sort::Name => a.volume.cmp(&b.volume),
        };
        let order = order.then_with(|| a.volume.cmp(&b.volume));
        if reversed { order.reverse() } else { order }
    });
    volumes
}

/// Everything as text.
pub fn text(rates: &Rates) -> String {
    let table = |heads: &[&str], rows: Vec<Vec<String>>| {
        let mut table = Table::new(heads);
        rows.into_iter().for_each(|row| table.row(row));
        table.render()
    };
    let volumes = sorted(rates, Sort::default(), false);
    format!(
        "within {:.1} s\n\n{}\n{}\n{}",
        rates.interval_s,
        table(&VOLUMES, volumes.into_iter().map(volume_row).collect()),
        table(&CORES, rates.cores.iter().map(core_row).collect()),
        table(&DRIVES, rates.pools.iter().map(drive_row).collect()),
    )
}

impl View {
    /// Draws one screen.
    pub fn draw(&self, frame: &mut Frame<'_>, rates: &Rates) {
        let room = |rows: usize| Constraint::Length(rows as u16 + 3);
        let areas = Layout::vertical([
            Constraint::Length(1),
            Constraint::Min(4),
            room(rates.cores.len()),
            room(rates.pools.len()),
            Constraint::Length(1),
        ])
        .split(frame.area());
        let state = if self.paused { "PAUSED" } else { "live" };
        let order = if self.reversed { "up" } else { "down" };
        let head = format!(
            "segue top: {state}, up {:.0} s, {} volumes by {} ({order})",
            rates.uptime_s,
            rates.volumes.len(),
            self.sort.label()
        );
        frame.render_widget(Line::styled(head, Style::new().add_modifier(Modifier::BOLD)), areas[0]);
        let volumes = sorted(rates, self.sort, self.reversed);
        let waits = volumes.iter().map(|v| v.reason != "none").collect();
        table(frame, areas[1], "volumes", &VOLUMES, volumes.into_iter().map(volume_row).collect(), waits);
        let busy = rates.cores.iter().map(|c| c.busy_percent.is_some_and(|p| p > 90.0)).collect();
        table(frame, areas[2], "cores", &CORES, rates.cores.iter().map(core_row).collect(), busy);
        let noted = rates.pools.iter().map(|p| p.poisoned || p.integrity_errors > 0).collect();
        table(frame, areas[3], "drives", &DRIVES, rates.pools.iter().map(drive_row).collect(), noted);
        let keys = "q quit   s sort   r reverse   p pause";
        frame.render_widget(Line::styled(keys, Style::new().add_modifier(Modifier::DIM)), areas[4]);
    }
}

/// A table whose marked rows stand out.
fn table(
    frame: &mut Frame<'_>,
    area: ratatui::layout::Rect,
    title: &str,
    heads: &[&str],
    rows: Vec<Vec<String>>,
    marked: Vec<bool>,
) {
    let right: Vec<bool> = heads.iter().map(|h| h.ends_with('>')).collect();
    let heads: Vec<String> = heads.iter().map(|h| h.trim_end_matches('>').to_owned()).collect();
    let width = |c: usize| rows.iter().map(|r| r[c].len()).chain([heads[c].len()]).max().unwrap_or(0);
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    let cells = |row: &[String]| -> Vec<String> {
        let set = |c: usize| {
            let w = widths[c];
            if right[c] { format!("{:>w$}", row[c]) } else { row[c].clone() }
        };
        (0..row.len()).map(set).collect()
    };
    let style = |mark: &bool| if *mark { Style::new().fg(Color::Yellow) } else { Style::new() };
    let body: Vec<Row<'_>> = rows.iter().zip(&marked).map(|(r, m)| Row::new(cells(r)).style(style(m))).collect();
    let head = Row::new(cells(&heads)).style(Style::new().add_modifier(Modifier::REVERSED));
    let columns = widths.iter().map(|w| Constraint::Length(*w as u16));
    let block = Block::bordered().title(title.to_owned());
    frame.render_widget(widgets::Table::new(body, columns).header(head).column_spacing(2).block(block), area);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::rates::tests::look;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn screen(view: &View, rates: &Rates, size: (u16, u16)) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).expect("a screen in memory");
        terminal.draw(|frame| view.draw(frame, rates)).expect("drawn");
        let buffer = terminal.backend().buffer().clone();
        let line = |y| (0..size.0).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..size.1).map(line).collect()
    }

    fn at(lines: &[String], word: &str) -> usize {
        lines.iter().position(|l| l.contains(word)).unwrap_or_else(|| panic!("no {word} in {lines:#?}"))
    }

    #[test]
    fn golden_cli_the_screen_shows_volumes_cores_drives_and_why_they_wait() {
        let rates = Rates::between(&look(1), &look(2));
        let lines = screen(&View::default(), &rates, (100, 24));
        assert!(lines[0].starts_with("segue top: live, up 4 s, 2 volumes by IOPS (down)"), "{}", lines[0]);
        let busy = &lines[at(&lines, "busy")];
        for part in ["400", "1.6", "limit_iops", "25%"] {
            assert!(busy.contains(part), "{part} in {busy}");
        }
        assert!(lines[at(&lines, "50%")].contains("1000.0"), "processor time per request");
        assert!(lines[at(&lines, "mclock")].contains("1 racing, 1 cleaning up"));
        assert!(lines[23].starts_with("q quit"));
        // In a small terminal it is cut, and nothing breaks.
        for size in [(1, 1), (20, 5), (300, 100)] {
            screen(&View::default(), &rates, size);
        }
    }

    #[test]
    fn volumes_are_sorted_as_asked() {
        let rates = Rates::between(&look(1), &look(2));
        let above = |view: &View| {
            let lines = screen(view, &rates, (100, 24));
            at(&lines, "busy") < at(&lines, "calm")
        };
        assert!(above(&View::default()));
        assert!(!above(&View { reversed: true, ..View::default() }));
        assert!(!above(&View { sort: Sort::Name, reversed: true, ..View::default() }));
        let all: Vec<Sort> = (0..5).scan(Sort::default(), |s, _| Some(std::mem::replace(s, s.next()))).collect();
        assert_eq!(all, Sort::ALL);
    }

    #[test]
    fn golden_cli_once_prints_the_same_rows() {
        let text = text(&Rates::between(&look(1), &look(2)));
        assert!(text.starts_with("within 2.0 s\n"));
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        assert!(at(&lines, "busy") < at(&lines, "calm") && at(&lines, "calm") < at(&lines, "CORE"));
    }
}
