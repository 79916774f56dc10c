//! Output for people and for programs from the same values, and progress on a terminal.

use crate::error::Failure;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value};
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

/// How to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Text,
    Json,
}

impl Form {
    pub(crate) fn json_if(json: bool) -> Form {
        if json { Form::Json } else { Form::Text }
    }
}

/// Prints a line. Unlike `println!` it does not panic when nobody takes it.
pub(crate) fn line(text: &str) -> Result<(), Failure> {
    writeln!(io::stdout(), "{text}").map_err(Failure::io("cannot print"))
}

/// Tells people something beside the output, in one line. Nothing sensible can be done if it does not reach them.
pub(crate) fn tell(text: &str) {
    let _ = writeln!(io::stderr(), "{}", printable(text));
}

/// Prints one object: as JSON, or one field per line.
pub(crate) fn object(form: Form, value: &Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match form {
        Form::Json => writeln!(out, "{}", serde_json::to_string_pretty(value)?),
        Form::Text => fields(&mut out, value, 0),
    }
}

fn fields(out: &mut impl Write, value: &Value, indent: usize) -> io::Result<()> {
    let Value::Object(map) = value else { return writeln!(out, "{:indent$}{}", "", plain(value)) };
    let width = map.keys().map(|key| key.len()).max().unwrap_or(0);
    for (key, value) in map {
        let name = key.replace('_', " ");
        match value {
            Value::Object(_) => {
                writeln!(out, "{:indent$}{name}:", "")?;
                fields(out, value, indent + 2)?;
            }
            Value::Array(list) => {
                writeln!(out, "{:indent$}{name}:{}", "", if list.is_empty() { " none" } else { "" })?;
                for part in list {
                    list_line(out, part, indent + 2)?;
                }
            }
            _ => writeln!(out, "{:indent$}{name:width$}  {}", "", plain(value))?,
        }
    }
    Ok(())
}

/// One member of a list on one line.
fn list_line(out: &mut impl Write, value: &Value, indent: usize) -> io::Result<()> {
    let text = match value {
        Value::Object(map) => {
            let parts: Vec<_> =
                map.iter().map(|(k, v)| format!("{} {}", k.replace('_', " "), plain(v))).collect();
            parts.join(", ")
        }
        _ => plain(value),
    };
    writeln!(out, "{:indent$}{text}", "")
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => printable(text),
        Value::Null => "-".to_owned(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        other => other.to_string(),
    }
}

/// Names and labels are whoever's made the volume: what a terminal would obey is shown escaped.
pub(crate) fn printable(text: &str) -> String {
    let shown = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(shown).collect()
}

/// A table that is printed row by row, so that it may be longer than memory.
pub(crate) struct Table {
    form: Form,
    columns: &'static [(&'static str, usize)],
    rows: u64,
    out: io::BufWriter<io::Stdout>,
}

impl Table {
    /// Columns: key and width of each; a negative width does not exist, numbers are right-aligned.
    pub(crate) fn new(form: Form, columns: &'static [(&'static str, usize)]) -> io::Result<Table> {
        let mut out = io::BufWriter::new(io::stdout());
        match form {
            Form::Json => write!(out, "[")?,
            Form::Text => {
                let titles: Vec<_> = columns
                    .iter()
                    .map(|(name, width)| format!("{:width$}", name.replace('_', " ")))
                    .collect();
                writeln!(out, "{}", titles.join(" ").trim_end())?;
            }
        }
        Ok(Table { form, columns, rows: 0, out })
    }

    /// Prints a row given as an object with the columns' keys; keys without a column appear in JSON only.
    pub(crate) fn row(&mut self, row: &Map<String, Value>) -> io::Result<()> {
        let separator = if self.rows == 0 { "\n" } else { ",\n" };
        self.rows += 1;
        if self.form == Form::Json {
            return write!(self.out, "{separator}  {}", serde_json::to_string(row)?);
        }
        let mut text = String::new();
        for (name, width) in self.columns {
            let value = row.get(*name).unwrap_or(&Value::Null);
            let part = plain(value);
            text += &match value {
                Value::Number(_) => format!("{part:>width$} "),
                _ => format!("{part:width$} "),
            };
        }
        writeln!(self.out, "{}", text.trim_end())
    }

    pub(crate) fn finish(mut self) -> io::Result<()> {
        if self.form == Form::Json {
            writeln!(self.out, "{}]", if self.rows == 0 { "" } else { "\n" })?;
        }
        self.out.flush()
    }
}

/// A progress bar over bytes; none where nobody looks.
pub(crate) fn progress(what: &'static str, quiet: bool) -> ProgressBar {
    styled(what, quiet, "{msg} {bar:30} {percent:>3} %  {binary_bytes_per_sec}, {eta} left")
}

/// Bytes of so many, of which little may come; none where nobody looks.
pub(crate) fn bytes_of(what: &'static str, quiet: bool) -> ProgressBar {
    let template =
        "{spinner} {msg} {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta} left";
    styled(what, quiet, template)
}

/// A count of anything, whose message tells what of; none where nobody looks. What its end is, [`count_of`] says.
pub(crate) fn counted(what: &'static str, quiet: bool) -> ProgressBar {
    styled(what, quiet, COUNTED)
}

/// From here on the count is of these things, of so many; 0: nobody knows.
pub(crate) fn count_of(bar: &ProgressBar, what: &'static str, total: u64) {
    bar.set_message(what);
    bar.set_style(style(if total == 0 { COUNTED } else { COUNTED_OF }));
    bar.reset();
    bar.set_length(total);
}

const COUNTED: &str = "{spinner} {msg} {human_pos}, {per_sec}";
const COUNTED_OF: &str = "{spinner} {msg} {human_pos} of {human_len}, {per_sec}, {eta} left";

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the template is well-formed")
}

fn styled(what: &'static str, quiet: bool, template: &str) -> ProgressBar {
    if quiet || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(0).with_message(what).with_style(style(template));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_a_terminal_would_obey_is_escaped() {
        assert_eq!(plain(&json!("naïve \u{1b}[31m\n")), "naïve \\u{1b}[31m\\n");
    }

    #[test]
    fn object_is_printed_one_field_per_line() {
        let mut out = Vec::new();
        let value = json!({"size": 4, "label": "x", "parts": [{"a": 1, "b": "c"}], "none": []});
        fields(&mut out, &value, 0).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "size   4\nlabel  x\nparts:\n  a 1, b c\nnone: none\n");
    }
}
