//! `syncline top`: mounts watched on a terminal.
//!
//! [`History`] is what is known of a mount, [`screen`] draws it, and this file waits: for keys, and for the time of the
//! next look. `--once` draws the same screen into memory and prints it.

mod history;
mod screen;

use crate::arguments::TopArguments;
use crate::error::Failure;
use crate::output;
use history::History;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::{DefaultTerminal, Terminal};
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Columns and rows of what `--once` prints.
const ONCE_SIZE: (u16, u16) = (100, 30);

/// What a key asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    End,
    Next,
    Previous,
    Nothing,
}

pub(crate) fn run(arguments: &TopArguments) -> Result<ExitCode, Failure> {
    let mut mounts: Vec<History> = arguments.directories.iter().map(|path| History::new(path)).collect();
    // What is no mount now is a mistake of the command line; one that ends later is shown as ended.
    mounts.iter_mut().try_for_each(History::look)?;
    let interval = arguments.interval.0;
    if arguments.once {
        std::thread::sleep(interval);
        mounts.iter_mut().for_each(History::look_on);
        return once(&mounts);
    }
    if !std::io::stdout().is_terminal() {
        return Err(Failure::NoTerminal);
    }
    let mut terminal = ratatui::try_init().map_err(Failure::io("cannot draw on the terminal"))?;
    let watched = watch(&mut terminal, &mut mounts, interval);
    ratatui::restore();
    watched.map_err(Failure::io("cannot draw on the terminal"))?;
    Ok(ExitCode::SUCCESS)
}

fn watch(terminal: &mut DefaultTerminal, mounts: &mut [History], interval: Duration) -> std::io::Result<()> {
    let mut selected = 0;
    let mut next = Instant::now() + interval;
    loop {
        terminal.draw(|frame| screen::draw(frame, mounts, selected))?;
        let left = next.saturating_duration_since(Instant::now());
        if event::poll(left)? {
            let wish = match event::read()? {
                Event::Key(key) if key.kind == KeyEventKind::Press => wish_of(key),
                _ => Wish::Nothing,
            };
            match wish {
                Wish::End => return Ok(()),
                Wish::Next => selected = (selected + 1) % mounts.len(),
                Wish::Previous => selected = (selected + mounts.len() - 1) % mounts.len(),
                Wish::Nothing => {}
            }
        } else {
            mounts.iter_mut().for_each(History::look_on);
            next = Instant::now() + interval;
        }
    }
}

fn wish_of(key: KeyEvent) -> Wish {
    match key.code {
        KeyCode::Char('q' | 'Q') | KeyCode::Esc => Wish::End,
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Wish::End,
        KeyCode::Tab | KeyCode::Down | KeyCode::Right => Wish::Next,
        KeyCode::BackTab | KeyCode::Up | KeyCode::Left => Wish::Previous,
        _ => Wish::Nothing,
    }
}

fn once(mounts: &[History]) -> Result<ExitCode, Failure> {
    for selected in 0..mounts.len() {
        let shown = drawn(mounts, selected, ONCE_SIZE);
        for line in lines(&shown) {
            output::line(&line)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A screen in memory.
fn drawn(mounts: &[History], selected: usize, (columns, rows): (u16, u16)) -> Buffer {
    let Ok(mut terminal) = Terminal::new(TestBackend::new(columns, rows));
    let Ok(frame) = terminal.draw(|frame| screen::draw(frame, mounts, selected));
    frame.buffer.clone()
}

/// The text of a screen, without what is empty at the end of lines and at its own end.
fn lines(shown: &Buffer) -> Vec<String> {
    let width = usize::from(shown.area.width).max(1);
    let rows = shown.content.chunks(width);
    let text = |row: &[ratatui::buffer::Cell]| row.iter().map(|cell| cell.symbol()).collect::<String>();
    let mut lines: Vec<String> = rows.map(|row| text(row).trim_end().to_owned()).collect();
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    lines
}

#[cfg(test)]
mod tests;
