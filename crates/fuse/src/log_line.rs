//! How a line of the log looks: `time=... level=info module=... message="..." key=value ...`.
//!
//! A value stands in quotes where it would not end at the next space otherwise. One event is one line: what would end
//! it is escaped, and so is what a terminal would obey, because names in it are whoever's chose them.

use std::fmt::{self, Debug, Write};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Formats events as keys and values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeysAndValues {
    /// The system log has its own.
    pub(crate) with_time: bool,
}

impl<S, N> FormatEvent<S, N> for KeysAndValues
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        if self.with_time {
            writer.write_str("time=")?;
            SystemTime.format_time(&mut writer)?;
            writer.write_char(' ')?;
        }
        let metadata = event.metadata();
        let level = metadata.level().as_str().to_ascii_lowercase();
        write!(writer, "level={level} module={}", metadata.target())?;
        // The message comes first, wherever the event has it.
        let mut fields = Fields { message: String::new(), others: String::new() };
        event.record(&mut fields);
        if !fields.message.is_empty() {
            write!(writer, " message={}", Value(&fields.message))?;
        }
        writeln!(writer, "{}", fields.others)
    }
}

struct Fields {
    message: String,
    others: String,
}

impl Fields {
    fn add(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => value.clone_into(&mut self.message),
            // Writing to a string does not fail.
            name => drop(write!(self.others, " {name}={}", Value(value))),
        }
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add(field, &format!("{value:?}"));
    }
}

/// A value as it stands behind its key.
pub(crate) struct Value<'a>(pub(crate) &'a str);

impl fmt::Display for Value<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_plain = |c: char| !c.is_whitespace() && !c.is_control() && !matches!(c, '"' | '=' | '\\');
        if !self.0.is_empty() && self.0.chars().all(is_plain) {
            return formatter.write_str(self.0);
        }
        formatter.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(formatter, "\\{c}")?,
                c if c.is_control() => write!(formatter, "{}", c.escape_default())?,
                c => formatter.write_char(c)?,
            }
        }
        formatter.write_char('"')
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no panic").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(with_time: bool, events: impl FnOnce()) -> String {
        let kept = Kept::default();
        let writer = kept.clone();
        let subscriber = tracing_subscriber::fmt()
            .event_format(KeysAndValues { with_time })
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, events);
        let bytes = kept.0.lock().expect("no panic").clone();
        String::from_utf8(bytes).expect("text")
    }

    #[test]
    fn an_event_is_one_line_of_keys_and_values() {
        let text = logged(false, || {
            let error = io::Error::other("it \"broke\"\nhere");
            tracing::warn!(%error, pid = 7, path = "/a", empty = "", "files are\u{1b}[31m set aside");
            tracing::info!(count = 1);
        });
        let expected = format!(
            "level=warn module={0} message=\"files are\\u{{1b}}[31m set aside\" error=\"it \\\"broke\\\"\\nhere\" pid=7 \
             path=/a empty=\"\"\nlevel=info module={0} count=1\n",
            module_path!()
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn time_comes_first_where_nobody_else_tells_it() {
        let text = logged(true, || tracing::error!("x"));
        let (time, rest) = text.split_once(' ').expect("two words");
        assert!(time.starts_with("time=2") && time.ends_with('Z') && time.contains('T'), "{time}");
        assert!(rest.starts_with("level=error module="), "{rest}");
    }
}
