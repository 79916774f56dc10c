//! The results as one page of HTML: plots, a table for each workload, and what they were measured on. Needs no script
//! and nothing from elsewhere.

use crate::ablation::{TITLES, comparisons};
use crate::operations;
use crate::plot::{Axis, Bar, Line, bars, escape, lines, wide_bars};
use crate::record::Record;
use crate::report::{COLUMNS, Group, LEGEND, groups, shown, systems, transports};
use crate::table::targets;
use crate::waiting;
use crate::workload::{Headline, Workload};
use std::fmt::Write;

/// Colours that keep apart on both backgrounds; systems take them in their order.
const STYLE: &str = "
:root { color-scheme: light dark; --ground: #fff; --text: #1c2024; --dim: #667; --grid: #d8dbe0;
  --c0: #0b62c4; --c1: #0f8a6d; --c2: #b4500b; --c3: #7a3fb5; --c4: #b3245e; --c5: #6b6f14; --c6: #44576b; }
@media (prefers-color-scheme: dark) { :root { --ground: #14171a; --text: #e4e7ea; --dim: #9aa3ad; --grid: #343a41;
  --c0: #6cb0ff; --c1: #4fd1ae; --c2: #ffab66; --c3: #c79bff; --c4: #ff85b1; --c5: #cfd35a; --c6: #a3b8cc; } }
body { background: var(--ground); color: var(--text); font: 15px/1.5 system-ui, sans-serif; max-width: 72rem;
  margin: 2rem auto; padding: 0 1rem; }
svg { width: 100%; height: auto; max-width: 720px; } svg text { fill: var(--text); font-size: 12px; }
.span { stroke: var(--text); stroke-width: 1.5; } .grid { stroke: var(--grid); }
a { color: var(--c0); } .scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: 13px; }
th, td { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid var(--grid); white-space: nowrap; }
th { white-space: normal; vertical-align: bottom; } th:first-child, td:first-child, td[colspan] { text-align: left; } .missed { color: var(--c4); } .dim { color: var(--dim); }
";
const COLOURS: usize = 7;

/// The whole page.
pub(crate) fn page(record: &Record, workloads: &[Workload]) -> String {
    let groups = groups(record, workloads);
    let systems = systems(&groups);
    let mut html = String::from(
        "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'><meta name='viewport' content='width=device-width'>\n",
    );
    put(
        &mut html,
        format_args!(
            "<title>Syncline: what a sync costs</title>\n<style>{STYLE}{}</style></head><body>",
            colours()
        ),
    );
    put(&mut html, format_args!("<h1>What a sync costs</h1>\n{}", about(record)));
    put(
        &mut html,
        format_args!(
            "<p class='dim'>{} Thin lines in the plots: from the least to the most of the rounds.</p>",
            escape(LEGEND)
        ),
    );
    html.push_str(&contents(&groups));
    html.push_str(&aims(&groups));
    let mut rest = groups.as_slice();
    while let Some(first) = rest.first() {
        let family = first.workload.family();
        let many = rest.iter().take_while(|group| group.workload.family() == family).count();
        let (here, after) = rest.split_at(many);
        section(&mut html, here, &systems);
        rest = after;
    }
    html.push_str(&mechanisms(record, workloads));
    html.push_str(&waiting(record, workloads));
    html + "</body></html>\n"
}

/// What the systems are, and links to the sections.
fn contents(groups: &[Group<'_>]) -> String {
    let mut families: Vec<&str> = groups.iter().map(|group| group.workload.family()).collect();
    families.dedup();
    let mut html = String::from(
        "<p class='dim'>engine: Syncline in the measuring process; syncline: the same mounted, over io_uring where the kernel has \
         it; syncline-dev: mounted over /dev/fuse; ext4, xfs, btrfs: the kernel's, on the same device, each freshly made for each run.</p>\n<p>",
    );
    for family in ["aims"].into_iter().chain(families).chain(["mechanisms"]) {
        put(&mut html, format_args!("<a href='#{family}'>{family}</a>"));
    }
    html + "</p>\n"
}

/// What is aimed at, and what was reached.
fn aims(groups: &[Group<'_>]) -> String {
    let rows = targets::rows(groups);
    if rows.is_empty() {
        return String::new();
    }
    let mut html = String::from(
        "<h2 id='aims'>aims</h2>\n<p>The mount against the best of the kernel's file systems, and the engine in process against \
         the floor or the same; more than 1x is better than the peer, whatever the figure.</p>\n<div class='scroll'><table><tr>",
    );
    targets::HEADS.iter().for_each(|head| put(&mut html, format_args!("<th>{}</th>", escape(head))));
    html.push_str("</tr>\n");
    for cells in rows {
        html.push_str("<tr>");
        for cell in cells {
            let class = if cell.ends_with("missed") { " class='missed'" } else { "" };
            put(&mut html, format_args!("<td{class}>{}</td>", escape(&cell)));
        }
        html.push_str("</tr>\n");
    }
    html + "</table></div>\n"
}

/// The engine without one mechanism, beside the engine as it is.
fn mechanisms(record: &Record, workloads: &[Workload]) -> String {
    let comparisons = comparisons(record, workloads);
    if comparisons.is_empty() {
        return "<h2 id='mechanisms'>mechanisms</h2><p>Not measured; <code>syncline bench --ablation</code> does.</p>".to_owned();
    }
    let mut html = String::from(
        "<h2 id='mechanisms'>mechanisms</h2>\n<p>The engine with one mechanism replaced by what was done before it (before), and as \
         it is (after); ratio: how many times better.</p>\n",
    );
    let bars_drawn: Vec<(String, f64)> = comparisons
        .iter()
        .map(|one| (format!("{}, {}", one.mechanism.name, one.workload.name), one.ratio))
        .collect();
    let drawn: Vec<Bar<'_>> = bars_drawn
        .iter()
        .map(|(label, ratio)| Bar { label, class: 0, value: *ratio, least: *ratio, most: *ratio })
        .collect();
    html.push_str(&wide_bars("ratio of each mechanism", &drawn));
    html.push_str("<div class='scroll'><table><tr><th>instead</th>");
    for title in TITLES {
        put(&mut html, format_args!("<th>{title}</th>"));
    }
    html.push_str("</tr>\n");
    for one in &comparisons {
        put(&mut html, format_args!("<tr><td>{}</td>", escape(one.mechanism.about)));
        for cell in one.cells() {
            put(&mut html, format_args!("<td>{}</td>", escape(&cell)));
        }
        html.push_str("</tr>\n");
    }
    html + "</table></div>\n"
}

/// What one of them costs SQLite.
fn waiting(record: &Record, workloads: &[Workload]) -> String {
    let rows = waiting::rows(record, workloads);
    if rows.is_empty() {
        return String::new();
    }
    let mut html = format!(
        "<h3>{}</h3>\n<p>{}</p>\n<div class='scroll'><table><tr>",
        escape(waiting::TITLE),
        escape(waiting::ABOUT)
    );
    waiting::HEADS.iter().for_each(|head| put(&mut html, format_args!("<th>{}</th>", escape(head))));
    html.push_str("</tr>\n");
    for cells in rows {
        html.push_str("<tr>");
        cells.iter().for_each(|cell| put(&mut html, format_args!("<td>{}</td>", escape(cell))));
        html.push_str("</tr>\n");
    }
    html + "</table></div>\n"
}

/// One family of workloads, or one alone.
fn section(html: &mut String, family: &[Group<'_>], systems: &[&str]) {
    let Some(first) = family.first() else { return };
    put(
        html,
        format_args!(
            "<h2 id='{0}'>{0}</h2>\n<p>{1}</p>",
            first.workload.family(),
            escape(first.workload.about)
        ),
    );
    if family.len() > 1 {
        html.push_str(&scaling(family, systems));
    } else {
        html.push_str(&compared(first, systems));
    }
    for group in family {
        html.push_str(&over_time(group, systems, "p99_ms", "p99 of each second in milliseconds"));
        html.push_str(&over_time(
            group,
            systems,
            "read_p99_ms",
            "p99 of the reads of each second in milliseconds",
        ));
        html.push_str(&table(group));
        html.push_str(&operations_table(group));
    }
}

fn unit(headline: Headline) -> &'static str {
    match headline {
        Headline::PacingRatio => {
            "p99 of small fsyncs beside a large writer, times their p99 alone; less is better"
        }
        Headline::P50 => "p50 in microseconds, less is better",
        Headline::OperationsPerSecond => "operations per second, more is better",
        Headline::MegabytesPerSecond => "MB per second, more is better",
    }
}

fn class(systems: &[&str], system: &str) -> usize {
    systems.iter().position(|known| *known == system).unwrap_or(0) % COLOURS
}

fn compared(group: &Group<'_>, systems: &[&str]) -> String {
    let figure = group.workload.headline.figure();
    let drawn: Vec<Bar<'_>> = group
        .systems
        .iter()
        .filter_map(|system| {
            let values = group.values(system, figure);
            Some(Bar {
                label: system,
                class: class(systems, system),
                value: group.median(system, figure)?,
                least: values.iter().copied().fold(f64::INFINITY, f64::min),
                most: values.iter().copied().fold(0.0, f64::max),
            })
        })
        .collect();
    if drawn.is_empty() {
        return String::new();
    }
    let unit = unit(group.workload.headline);
    format!("<p class='dim'>{unit}</p>\n{}", bars(&format!("{}, {unit}", group.workload.name), &drawn))
}

fn scaling(family: &[Group<'_>], systems: &[&str]) -> String {
    let Some(first) = family.first() else { return String::new() };
    let headline = first.workload.headline;
    let widths: Vec<f64> =
        family.iter().filter_map(|group| group.workload.width).map(|width| width as f64).collect();
    let drawn: Vec<Line<'_>> = systems
        .iter()
        .map(|system| {
            let point = |group: &Group<'_>| {
                Some((group.workload.width? as f64, group.median(system, headline.figure())?))
            };
            let points = family.iter().filter_map(point).collect();
            Line { label: system, class: class(systems, system), points }
        })
        .filter(|line| !line.points.is_empty())
        .collect();
    if drawn.is_empty() {
        return String::new();
    }
    let unit = unit(headline);
    let title = format!("{}, {unit}", first.workload.family());
    format!("<p class='dim'>{unit}</p>\n{}", lines(&title, &Axis::Values(&widths), &drawn))
}

fn over_time(group: &Group<'_>, systems: &[&str], series: &str, what: &str) -> String {
    let drawn: Vec<Line<'_>> = group
        .systems
        .iter()
        .filter_map(|system| {
            let values = group.series(system, series)?;
            let points = values.iter().enumerate().map(|(second, &value)| (second as f64, value)).collect();
            Some(Line { label: system, class: class(systems, system), points })
        })
        .collect();
    let seconds = drawn.iter().map(|line| line.points.len()).max().unwrap_or(0);
    if seconds < 2 {
        return String::new();
    }
    let title = format!("{}, {what}", group.workload.name);
    let axis = Axis::Upto((seconds - 1) as f64, "s");
    format!("<p class='dim'>{what}</p>\n{}", lines(&title, &axis, &drawn))
}

/// dbench's own table; empty for others.
fn operations_table(group: &Group<'_>) -> String {
    let rows = operations::rows(group, &group.systems);
    if rows.is_empty() {
        return String::new();
    }
    let mut html = format!(
        "<p class='dim'>{}</p><div class='scroll'><table><tr><th>{}</th>",
        operations::ABOUT,
        group.workload.name
    );
    group.systems.iter().for_each(|system| put(&mut html, format_args!("<th>{}</th>", escape(system))));
    html.push_str("</tr>\n");
    for (operation, cells) in rows {
        put(&mut html, format_args!("<tr><td>{}</td>", escape(&operation)));
        cells.iter().for_each(|cell| put(&mut html, format_args!("<td>{cell}</td>")));
        html.push_str("</tr>\n");
    }
    html + "</table></div>\n"
}

/// All columns that have a value.
fn table(group: &Group<'_>) -> String {
    let has = |figure: &str| group.systems.iter().any(|system| group.median(system, figure).is_some());
    let columns: Vec<(&str, &str, usize)> =
        COLUMNS.iter().filter(|(figure, ..)| has(figure)).copied().collect();
    let mut html = format!("<div class='scroll'><table><tr><th>{}</th>", group.workload.name);
    for (_, title, _) in &columns {
        put(&mut html, format_args!("<th>{}</th>", escape(title)));
    }
    html.push_str("</tr>\n");
    for system in &group.systems {
        put(&mut html, format_args!("<tr><td>{}</td>", escape(system)));
        match group.skipped(system) {
            Some(why) => put(
                &mut html,
                format_args!(
                    "<td class='dim' colspan='{}'>skipped: {}</td>",
                    columns.len().max(1),
                    escape(why)
                ),
            ),
            None => {
                for (figure, _, places) in &columns {
                    put(&mut html, format_args!("<td>{}</td>", shown(group.median(system, figure), *places)));
                }
            }
        }
        html.push_str("</tr>\n");
    }
    html + "</table></div>\n"
}

fn about(record: &Record) -> String {
    let text = |name: &str| match &record.about[name] {
        serde_json::Value::String(text) => escape(text),
        serde_json::Value::Null => "not known".to_owned(),
        other => escape(&other.to_string()),
    };
    let rounds = record.rows.iter().map(|row| row.round + 1).max().unwrap_or(0);
    format!(
        "<p>Syncline {} (commit {}), Linux {}, {} CPUs ({}), memory {}, load {} when it began. Rounds: {rounds}. Settings: {}. {}</p>",
        text("version"),
        text("commit"),
        text("kernel"),
        text("cpus"),
        text("processor"),
        text("memory"),
        text("load"),
        settings(record),
        escape(&transports(record)),
    )
}

fn settings(record: &Record) -> String {
    let named = record.about["settings"].as_object().into_iter().flatten();
    let named = named.filter(|(_, value)| !value.is_null());
    let named: Vec<String> =
        named.map(|(name, value)| format!("{} {value}", name.replace('_', " "))).collect();
    escape(&named.join(", "))
}

fn colours() -> String {
    let mut style = String::new();
    for class in 0..COLOURS {
        put(
            &mut style,
            format_args!(
                ".fill{class} {{ fill: var(--c{class}); }} .line{class} {{ stroke: var(--c{class}); stroke-width: 2; fill: none; }}"
            ),
        );
    }
    style
}

/// Writing to a string cannot fail.
fn put(html: &mut String, text: std::fmt::Arguments<'_>) {
    let _ = writeln!(html, "{text}");
}
