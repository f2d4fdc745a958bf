//! `segue top`: volumes, cores and drives of a node, live in the terminal or once as text or JSON.
//!
//! Owns: the terminal and the keys. Never: draws by itself (see `view`), or changes anything at the node.
//! Invariant: the terminal is given back as it was, however the command ends.

mod rates;
mod view;

use crate::Global;
use crate::exit::{ExitCode, fail};
use anyhow::{Context, Result};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use rates::Rates;
use segue_node::client::AdminClient;
use std::io::IsTerminal;
use std::time::{Duration, Instant};
use view::View;

/// Arguments of `segue top`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Print what happened within one interval and end.
    #[arg(long)]
    once: bool,
    /// Time between two looks, for example 500ms.
    #[arg(long, default_value = "1s", value_parser = segue_types::parse_duration_ns)]
    interval: u64,
}

/// Runs `segue top`.
///
/// # Errors
/// Those of the admin API; exit code 13 without `--once` where there is no terminal.
pub fn run(args: Args, global: &Global) -> Result<ExitCode> {
    let interval = Duration::from_nanos(args.interval.clamp(50_000_000, 60_000_000_000));
    let client = global.client();
    if args.once || global.json {
        let rates = within(&client, interval)?;
        global.print("top", &rates, || view::text(&rates));
        return Ok(ExitCode::Yes);
    }
    if !std::io::stdout().is_terminal() {
        return Err(fail(ExitCode::Unsupported, "there is no terminal to draw on; use --once or --json"));
    }
    // What is asked before the terminal changes, fails with a readable error.
    let first = within(&client, Duration::from_millis(50))?;
    let mut terminal = ratatui::try_init().context("take the terminal")?;
    let ended = live(&mut terminal, &client, interval, first);
    ratatui::restore();
    ended.map(|()| ExitCode::Yes)
}

/// Rates within one interval from now.
fn within(client: &AdminClient, interval: Duration) -> Result<Rates> {
    let before = client.top()?;
    std::thread::sleep(interval);
    Ok(Rates::between(&before, &client.top()?))
}

fn live(
    terminal: &mut ratatui::DefaultTerminal,
    client: &AdminClient,
    interval: Duration,
    mut rates: Rates,
) -> Result<()> {
    let mut view = View::default();
    let mut before = client.top()?;
    let mut next = Instant::now() + interval;
    loop {
        terminal.draw(|frame| view.draw(frame, &rates)).context("draw")?;
        if event::poll(next.saturating_duration_since(Instant::now())).context("wait for a key")? {
            if !take(&mut view, &event::read().context("read a key")?) {
                return Ok(());
            }
            continue;
        }
        next = Instant::now() + interval;
        let now = client.top()?;
        if !view.paused {
            rates = Rates::between(&before, &now);
        }
        before = now;
    }
}

/// What a key does. False: the command ends.
fn take(view: &mut View, event: &Event) -> bool {
    let Event::Key(key) = event else { return true };
    if key.kind != KeyEventKind::Press {
        return true;
    }
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => return false,
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
        KeyCode::Char('s') | KeyCode::Right => view.sort = view.sort.next(),
        KeyCode::Left => view.sort = view.sort.previous(),
        KeyCode::Char('r') => view.reversed = !view.reversed,
        KeyCode::Char('p') | KeyCode::Char(' ') => view.paused = !view.paused,
        _ => {}
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::crossterm::event::KeyEvent;
    use view::Sort;

    fn press(view: &mut View, code: KeyCode, modifiers: KeyModifiers) -> bool {
        take(view, &Event::Key(KeyEvent::new(code, modifiers)))
    }

    #[test]
    fn keys_sort_pause_and_end() {
        let mut view = View::default();
        assert!(press(&mut view, KeyCode::Char('s'), KeyModifiers::NONE));
        assert!(view.sort != Sort::default() && !view.reversed && !view.paused);
        assert!(press(&mut view, KeyCode::Left, KeyModifiers::NONE) && view.sort == Sort::default());
        assert!(press(&mut view, KeyCode::Char('r'), KeyModifiers::NONE) && view.reversed);
        assert!(press(&mut view, KeyCode::Char('p'), KeyModifiers::NONE) && view.paused);
        assert!(press(&mut view, KeyCode::Char('c'), KeyModifiers::NONE), "a letter, not the signal");
        assert!(!press(&mut view, KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(!press(&mut view, KeyCode::Char('q'), KeyModifiers::NONE));
        assert!(!press(&mut view, KeyCode::Esc, KeyModifiers::NONE));
    }
}
