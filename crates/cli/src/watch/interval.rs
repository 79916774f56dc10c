//! How often it is looked: a number of seconds from the command line.

use std::str::FromStr;
use std::time::Duration;

/// A pause between two looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Interval(pub(crate) Duration);

impl FromStr for Interval {
    type Err = String;

    fn from_str(text: &str) -> Result<Interval, String> {
        let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
        let seconds = seconds.ok_or("give a number of seconds from 0.1 to 3600")?;
        Ok(Interval(Duration::from_secs_f64(seconds)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_may_be_parts_and_nothing_else_is_an_interval() {
        let read = |text: &str| text.parse().map(|Interval(interval)| interval.as_millis()).ok();
        assert_eq!([read("1"), read("0.5"), read("3600")], [Some(1000), Some(500), Some(3_600_000)]);
        for text in ["", "0", "-1", "1s", "NaN", "inf", "3601"] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
