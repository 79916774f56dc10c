//! How the screen looks: the mounts if there are several, then one of them, from what syncs do down to who asks.

use super::history::{Caller, History};
use crate::output::printable;
use crate::size::{Size, duration, grouped};
use crate::watch::Between;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Block, Paragraph, Row, Sparkline, Table};

/// Draws everything.
pub(crate) fn draw(frame: &mut Frame<'_>, mounts: &[History], selected: usize) {
    let Some(mount) = mounts.get(selected) else { return };
    let list_rows = if mounts.len() > 1 { mounts.len() as u16 + 3 } else { 0 };
    let [title, list, syncs, cost, callers] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(list_rows),
        Constraint::Length(6),
        Constraint::Length(6),
        Constraint::Min(3),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(title_of(mount)).bold(), title);
    if mounts.len() > 1 {
        draw_mounts(frame, list, mounts, selected);
    }
    let [rate, latency] = halves(syncs);
    draw_rate(frame, rate, mount);
    draw_latency(frame, latency, mount);
    let [per_sync, journal, memory] = thirds(cost);
    draw_lines(frame, per_sync, "for each sync", cost_of(mount));
    draw_lines(frame, journal, "journal", journal_of(mount));
    draw_lines(frame, memory, "memory", memory_of(mount));
    draw_callers(frame, callers, &mount.callers());
}

fn halves(area: Rect) -> [Rect; 2] {
    Layout::horizontal([Constraint::Fill(1); 2]).areas(area)
}

fn thirds(area: Rect) -> [Rect; 3] {
    Layout::horizontal([Constraint::Fill(1); 3]).areas(area)
}

fn title_of(mount: &History) -> String {
    let directory = printable(&mount.directory.display().to_string());
    if let Some(lost) = &mount.lost {
        return format!("syncline top  {directory}  ended: {}", printable(lost));
    }
    let told = |key: &str| {
        let value = mount.last().and_then(|sample| sample.figures[key].as_str());
        value
            .filter(|value| !value.is_empty())
            .map(|value| format!("  {}", printable(value)))
            .unwrap_or_default()
    };
    let failure = told("failure");
    let failure = if failure.is_empty() { failure } else { format!("  STOPPED:{failure}") };
    format!("syncline top  {directory}{}{}{failure}  (q ends)", told("label"), told("transport"))
}

fn draw_mounts(frame: &mut Frame<'_>, area: Rect, mounts: &[History], selected: usize) {
    let row = |(index, mount): (usize, &History)| {
        let (rate, latency) = mount.points.back().copied().unwrap_or_default();
        let style = if index == selected { Style::new().reversed() } else { Style::new() };
        let mark = if index == selected { ">" } else { " " };
        let directory = format!("{mark} {}", printable(&mount.directory.display().to_string()));
        let figures = match &mount.lost {
            Some(_) => ["ended".to_owned(), String::new()],
            None => [grouped(rate), duration(latency as f64)],
        };
        let [rate, latency] = figures;
        Row::new([directory, rate, latency]).style(style)
    };
    let widths = [Constraint::Fill(1), Constraint::Length(12), Constraint::Length(12)];
    let table = Table::new(mounts.iter().enumerate().map(row), widths)
        .header(Row::new(["  mount", "syncs/s", "p99"]).bold())
        .block(Block::bordered().title("mounts (tab)"));
    frame.render_widget(table, area);
}

fn draw_rate(frame: &mut Frame<'_>, area: Rect, mount: &History) {
    let now = mount.points.back().map_or(0, |(rate, _)| *rate);
    let total = mount.last().map_or(0.0, |sample| sample.number("/fsync_us/count"));
    let text = vec![
        Line::from(format!("{} /s", grouped(now))).bold(),
        Line::from(format!("{} since the mount", grouped(total as u64))),
    ];
    draw_curve(frame, area, "syncs", text, mount.points.iter().map(|(rate, _)| *rate));
}

fn draw_latency(frame: &mut Frame<'_>, area: Rect, mount: &History) {
    let between = mount.between();
    let at = |share| between.and_then(|between| between.quantile("fsync_us", share));
    let at = |share| at(share).map_or_else(nothing, duration);
    let text = vec![
        Line::from(format!("p50 {}  p90 {}  p99 {}", at(0.5), at(0.9), at(0.99))).bold(),
        Line::from(format!("p99.9 {}  longest since the mount {}", at(0.999), longest(mount))),
    ];
    draw_curve(frame, area, "latency, curve of p99", text, mount.points.iter().map(|(_, latency)| *latency));
}

fn longest(mount: &History) -> String {
    mount.last().map_or_else(nothing, |sample| duration(sample.number("/fsync_us/max")))
}

/// Text, and below it as many of the newest points as fit.
fn draw_curve(
    frame: &mut Frame<'_>,
    area: Rect,
    title: &str,
    text: Vec<Line<'_>>,
    points: impl DoubleEndedIterator<Item = u64> + ExactSizeIterator,
) {
    let block = Block::bordered().title(title);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let [words, curve] = Layout::vertical([Constraint::Length(2), Constraint::Min(0)]).areas(inner);
    frame.render_widget(Paragraph::new(text), words);
    let skipped = points.len().saturating_sub(usize::from(curve.width));
    frame.render_widget(Sparkline::default().data(points.skip(skipped)), curve);
}

fn draw_lines(frame: &mut Frame<'_>, area: Rect, title: &str, lines: Vec<(&'static str, String)>) {
    let block = Block::bordered().title(title);
    let width = usize::from(block.inner(area).width);
    let line = |(name, value): (&str, String)| {
        // The value stands at the right edge, the name gives way.
        let room = width.saturating_sub(value.chars().count() + 1);
        let name: String = name.chars().take(room).collect();
        Line::from(format!("{name:room$} {value}"))
    };
    let text: Vec<Line<'_>> = lines.into_iter().map(line).collect();
    frame.render_widget(Paragraph::new(text).block(block), area);
}

fn nothing() -> String {
    "-".to_owned()
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(nothing, |share| format!("{:.1} %", 100.0 * share))
}

fn ratio(number: Option<f64>) -> String {
    number.map_or_else(nothing, |number| format!("{number:.2}"))
}

fn size(bytes: f64) -> String {
    Size(bytes as u64).to_string()
}

fn cost_of(mount: &History) -> Vec<(&'static str, String)> {
    let for_each =
        |part: &str, whole: &str| ratio(mount.between().and_then(|between| between.for_each(part, whole)));
    let written = mount.between().map_or(0.0, |between| between.per_second("/device/written_bytes"));
    vec![
        ("writes", for_each("/device/writes", "/fsync_us/count")),
        ("flushes", for_each("/device/flushes", "/fsync_us/count")),
        ("batches in a group", for_each("/store/grouped_batches", "/store/groups")),
        ("written", format!("{}/s", size(written))),
    ]
}

fn journal_of(mount: &History) -> Vec<(&'static str, String)> {
    let Some(sample) = mount.last() else { return Vec::new() };
    let share = |used: &str, of: &str| {
        let of = sample.number(of);
        percent((of > 0.0).then(|| sample.number(used) / of))
    };
    let since = mount.between().map_or(0.0, |between| between.growth("/store/checkpoints"));
    vec![
        ("journal in use", share("/store/journal_bytes", "/store/journal_bytes_max")),
        ("dirty nodes", share("/store/dirty_node_bytes", "/store/dirty_node_bytes_max")),
        ("checkpoints", format!("{} (+{since:.0})", grouped(sample.number("/store/checkpoints") as u64))),
        ("last checkpoint", duration(sample.number("/checkpoint_us/last"))),
    ]
}

fn memory_of(mount: &History) -> Vec<(&'static str, String)> {
    let Some(sample) = mount.last() else { return Vec::new() };
    let hits = |hits: &str, misses: &str| {
        percent(mount.between().and_then(|between: Between<'_>| between.hit_share(hits, misses)))
    };
    let (used, bound) = (sample.number("/page_cache/bytes"), sample.number("/memory_bytes_max"));
    vec![
        ("pages", size(used)),
        ("bound", size(bound)),
        ("pages found", hits("/page_cache/hits", "/page_cache/misses")),
        ("nodes found", hits("/store/node_cache_hits", "/store/node_cache_misses")),
    ]
}

fn draw_callers(frame: &mut Frame<'_>, area: Rect, callers: &[Caller]) {
    let row = |caller: &Caller| {
        let pid = caller.pid.map_or_else(nothing, |pid| pid.to_string());
        let mean = duration(caller.waited / caller.syncs);
        let syncs = grouped(caller.syncs as u64);
        Row::new([pid, printable(&caller.name), syncs, mean, duration(caller.waited)])
    };
    let widths = [
        Constraint::Length(10),
        Constraint::Fill(1),
        Constraint::Length(12),
        Constraint::Length(12),
        Constraint::Length(12),
    ];
    let table = Table::new(callers.iter().map(row), widths)
        .header(Row::new(["pid", "program", "syncs", "mean", "waited"]).bold())
        .block(Block::bordered().title("who syncs, who waits longest first"));
    frame.render_widget(table, area);
}
