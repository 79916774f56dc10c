//! Plots as inline SVG: bars with the span of the rounds, and lines. Colours come from the page's style.

use std::fmt::Write;

const WIDTH: f64 = 720.0;
const LEFT: f64 = 130.0;
const RIGHT: f64 = 90.0;
const BAR: f64 = 22.0;

/// One bar.
pub(crate) struct Bar<'a> {
    pub(crate) label: &'a str,
    /// Class of its colour.
    pub(crate) class: usize,
    pub(crate) value: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

/// One line through points.
pub(crate) struct Line<'a> {
    pub(crate) label: &'a str,
    pub(crate) class: usize,
    pub(crate) points: Vec<(f64, f64)>,
}

/// What stands below a line plot's axis, and at which places.
pub(crate) enum Axis<'a> {
    /// Every value has its place, at equal distances.
    Values(&'a [f64]),
    /// From nothing to this, in the unit.
    Upto(f64, &'a str),
}

/// Text that may stand in HTML.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A value with as many digits as matter.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Horizontal bars; a thin line shows from the least to the most of the rounds.
pub(crate) fn bars(title: &str, bars: &[Bar<'_>]) -> String {
    drawn(title, bars, LEFT)
}

/// The same with room for long labels.
pub(crate) fn wide_bars(title: &str, bars: &[Bar<'_>]) -> String {
    drawn(title, bars, 2.0 * LEFT)
}

fn drawn(title: &str, bars: &[Bar<'_>], left: f64) -> String {
    let height = bars.len() as f64 * (BAR + 6.0) + 6.0;
    let top = bars.iter().map(|bar| bar.most).fold(f64::MIN_POSITIVE, f64::max);
    let x = |value: f64| left + value / top * (WIDTH - left - RIGHT);
    let mut svg = open(title, height);
    for (index, bar) in bars.iter().enumerate() {
        let y = 6.0 + index as f64 * (BAR + 6.0);
        let middle = y + BAR / 2.0;
        let (label, value) = (escape(bar.label), short(bar.value));
        put(
            &mut svg,
            format_args!(
                "<text x='{:.0}' y='{:.1}' text-anchor='end'>{label}</text>",
                left - 8.0,
                middle + 4.0
            ),
        );
        put(
            &mut svg,
            format_args!(
                "<rect class='fill{}' x='{left}' y='{y:.1}' width='{:.1}' height='{BAR}' rx='2'/>",
                bar.class,
                (x(bar.value) - left).max(1.0)
            ),
        );
        put(
            &mut svg,
            format_args!(
                "<line class='span' x1='{:.1}' x2='{:.1}' y1='{middle:.1}' y2='{middle:.1}'/>",
                x(bar.least),
                x(bar.most)
            ),
        );
        put(
            &mut svg,
            format_args!("<text x='{:.1}' y='{:.1}'>{value}</text>", x(bar.most) + 6.0, middle + 4.0),
        );
    }
    svg + "</svg>\n"
}

/// Lines over an axis, with a legend beside them.
pub(crate) fn lines(title: &str, axis: &Axis<'_>, lines: &[Line<'_>]) -> String {
    let (height, bottom) = (260.0, 230.0);
    let top =
        lines.iter().flat_map(|line| &line.points).map(|point| point.1).fold(f64::MIN_POSITIVE, f64::max);
    let place = |value: f64| match axis {
        Axis::Values(values) => {
            let index = values.iter().position(|&known| known == value).unwrap_or(0);
            index as f64 / (values.len().max(2) - 1) as f64
        }
        Axis::Upto(end, _) => value / end.max(1.0),
    };
    let x = |value: f64| 70.0 + place(value) * (WIDTH - 70.0 - 140.0);
    let y = |value: f64| bottom - value / top * (bottom - 14.0);
    let mut svg = open(title, height);
    for part in 0..=4 {
        let value = top * f64::from(part) / 4.0;
        let at = y(value);
        put(
            &mut svg,
            format_args!("<line class='grid' x1='70' x2='{:.0}' y1='{at:.1}' y2='{at:.1}'/>", WIDTH - 140.0),
        );
        put(
            &mut svg,
            format_args!("<text x='62' y='{:.1}' text-anchor='end'>{}</text>", at + 4.0, short(value)),
        );
    }
    let marks: Vec<(f64, String)> = match axis {
        Axis::Values(values) => values.iter().map(|&value| (value, format!("{value}"))).collect(),
        Axis::Upto(end, unit) => (0..=4)
            .map(|part| end * f64::from(part) / 4.0)
            .map(|at| (at, format!("{} {unit}", short(at))))
            .collect(),
    };
    for (value, text) in marks {
        put(
            &mut svg,
            format_args!(
                "<text x='{:.1}' y='{:.0}' text-anchor='middle'>{text}</text>",
                x(value),
                bottom + 18.0
            ),
        );
    }
    for (index, line) in lines.iter().enumerate() {
        let points: Vec<String> =
            line.points.iter().map(|&(px, py)| format!("{:.1},{:.1}", x(px), y(py))).collect();
        put(&mut svg, format_args!("<polyline class='line{}' points='{}'/>", line.class, points.join(" ")));
        let at = 20.0 + index as f64 * 18.0;
        let legend = WIDTH - 128.0;
        put(
            &mut svg,
            format_args!(
                "<rect class='fill{}' x='{legend}' y='{:.1}' width='10' height='10'/>",
                line.class,
                at - 9.0
            ),
        );
        put(&mut svg, format_args!("<text x='{}' y='{at:.1}'>{}</text>", legend + 16.0, escape(line.label)));
    }
    svg + "</svg>\n"
}

fn open(title: &str, height: f64) -> String {
    let title = escape(title);
    format!("<svg viewBox='0 0 {WIDTH} {height}' role='img' aria-label=\"{title}\"><title>{title}</title>\n")
}

/// Writing to a string cannot fail.
fn put(svg: &mut String, text: std::fmt::Arguments<'_>) {
    let _ = writeln!(svg, "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_bar_ends_before_its_value_and_labels_are_escaped() {
        let bar = |label, value| Bar { label, class: 0, value, least: value, most: value };
        let svg = bars("a<b", &[bar("dir:/a&b", 50.0), bar("x", 100.0)]);
        assert!(svg.contains("aria-label=\"a&lt;b\"") && svg.contains("dir:/a&amp;b"), "{svg}");
        assert!(svg.contains("width='250.0'") && svg.contains("width='500.0'"), "{svg}");
    }

    #[test]
    fn widths_stand_at_equal_distances() {
        let line = Line { label: "x", class: 1, points: vec![(1.0, 1.0), (4.0, 2.0), (64.0, 4.0)] };
        let svg = lines("t", &Axis::Values(&[1.0, 4.0, 64.0]), &[line]);
        assert!(svg.contains("points='70.0,176.0 325.0,122.0 580.0,14.0'"), "{svg}");
    }
}
