//! Everything that the benchmark says: results to who called it, and remarks to standard error. Neither panics when
//! nobody takes it.

use crate::error::BenchError;
use std::io::{self, Write};

/// Where the results go.
pub(crate) struct Output<'a>(pub(crate) &'a mut dyn Write);

impl Output<'_> {
    /// Writes whole lines, seen at once.
    pub(crate) fn print(&mut self, text: &str) -> Result<(), BenchError> {
        self.0.write_all(text.as_bytes()).and_then(|()| self.0.flush()).map_err(BenchError::Print)
    }
}

/// Tells people how it goes. A measurement goes on if nobody listens.
pub(crate) fn tell(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Adds to a `String`, which cannot fail.
macro_rules! add {
    ($text:expr, $($format:tt)*) => {
        std::fmt::Write::write_fmt(&mut $text, format_args!($($format)*)).expect("a string takes everything")
    };
}

/// Adds a line to a `String`.
macro_rules! say {
    ($text:expr, $($format:tt)*) => {{
        crate::output::add!($text, $($format)*);
        $text.push('\n');
    }};
}

pub(crate) use {add, say};
