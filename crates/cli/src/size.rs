//! Sizes as people write them: `64M`, `1T`, `4096`. Powers of 1024, as everywhere in storage tools.

use std::fmt;
use std::num::IntErrorKind;
use syncline_format::BLOCK_BYTES;

/// A number of bytes from the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size(pub(crate) u64);

impl Size {
    /// Whole blocks in it, rounded down.
    pub(crate) fn blocks(self) -> u64 {
        self.0 / BLOCK_BYTES as u64
    }

    pub(crate) fn of_blocks(blocks: u64) -> Size {
        Size(blocks.saturating_mul(BLOCK_BYTES as u64))
    }
}

impl std::str::FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let wrong = || format!("\"{text}\" is no size; write a number of bytes, or one with K, M, G, T or P");
        let too_large = || format!("\"{text}\" is more than any file or device can have");
        let lower = text.trim().to_ascii_lowercase();
        let digits = lower.trim_end_matches("ib").trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let shift = match lower[digits.len()..].trim_end_matches("ib") {
            "" => 0,
            "k" => 10,
            "m" => 20,
            "g" => 30,
            "t" => 40,
            "p" => 50,
            _ => return Err(wrong()),
        };
        let number = digits.parse::<u64>().map_err(|error| match error.kind() {
            IntErrorKind::PosOverflow => too_large(),
            _ => wrong(),
        })?;
        number.checked_mul(1 << shift).map(Size).ok_or_else(too_large)
    }
}

impl fmt::Display for Size {
    /// The largest unit in which at least one is left; where it is not exact one decimal, rounded down, so that there
    /// is never less than what is said. With `{:#}`, for what stands beside a limit: bytes where the unit would not
    /// be exact.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"];
        let step = (0..units.len()).rev().find(|step| self.0 >= 1 << (10 * step)).unwrap_or(0);
        let unit = 1u64 << (10 * step);
        let (whole, rest) = (self.0 / unit, u128::from(self.0 % unit));
        let tenths = rest * 10 / u128::from(unit);
        match rest {
            0 => write!(f, "{whole} {}", units[step]),
            _ if f.alternate() && tenths * u128::from(unit) != rest * 10 => {
                write!(f, "{} bytes", grouped(self.0))
            }
            _ => write!(f, "{whole}.{tenths} {}", units[step]),
        }
    }
}

/// Microseconds as people read them, in the largest unit in which at least one is left.
pub(crate) fn duration(microseconds: f64) -> String {
    match microseconds {
        us if us < 0.95 => format!("{:.0} ns", us * 1e3),
        us if us < 9.95 => format!("{us:.1} us"),
        us if us < 999.5 => format!("{us:.0} us"),
        us if us < 99_950.0 => format!("{:.2} ms", us / 1e3),
        us if us < 999_500.0 => format!("{:.0} ms", us / 1e3),
        us if us < 600e6 => format!("{:.2} s", us / 1e6),
        us => format!("{} s", grouped((us / 1e6).round() as u64)),
    }
}

/// A number as people read it: 1,234,567.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let first = (digits.len() + 2) % 3 + 1;
    let (head, rest) = digits.split_at(first);
    let mut text = head.to_owned();
    for three in rest.as_bytes().chunks(3) {
        text.push(',');
        text.extend(three.iter().map(|&digit| char::from(digit)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units_and_three_digits_or_fewer() {
        let told = [0.0, 0.5, 1.0, 12.3, 999.4, 999.6, 1234.5, 123_456.0, 1.5e6, 7200e6].map(duration);
        let expected = [
            "0 ns", "500 ns", "1.0 us", "12 us", "999 us", "1.00 ms", "1.23 ms", "123 ms", "1.50 s",
            "7,200 s",
        ];
        assert_eq!(told, expected.map(str::to_owned));
    }

    #[test]
    fn sizes_are_read_with_and_without_units() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("256K", 256 << 10),
            ("64m", 64 << 20),
            ("1GiB", 1 << 30),
            ("2T", 2 << 40),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in ["", "M", "12X", "-1", "1.5G", "99999999999T", "12KK"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
        for text in ["99999999999T", "99999999999999999999"] {
            assert!(text.parse::<Size>().is_err_and(|why| why.contains("more than any")), "{text}");
        }
    }

    #[test]
    fn sizes_are_printed_in_the_largest_unit() {
        assert_eq!(Size(4 << 20).to_string(), "4 MiB");
        assert_eq!(Size(1536 << 20).to_string(), "1.5 GiB");
        assert_eq!(Size(12).to_string(), "12 bytes");
        assert_eq!(Size((4 << 20) - 1024).to_string(), "3.9 MiB", "never more than there is");
        assert_eq!(Size(141_646_092).to_string(), "135.0 MiB", "a decimal of 0 is one, too");
        assert_eq!(Size((1 << 30) + 1).to_string(), "1.0 GiB");
        assert_eq!(Size(u64::MAX).to_string(), "16383.9 PiB");
    }

    #[test]
    fn sizes_beside_a_limit_are_exact() {
        let exact = |bytes| format!("{:#}", Size(bytes));
        assert_eq!(exact((4 << 20) + 1), "4,194,305 bytes", "no \"4.0 MiB\" beside a limit of 4 MiB");
        assert_eq!(exact((4 << 20) - 1), "4,194,303 bytes", "nor \"3.9 MiB\"");
        assert_eq!(exact(4 << 20), "4 MiB");
        assert_eq!(exact(1536 << 20), "1.5 GiB", "exact with its decimal");
    }

    #[test]
    fn numbers_are_grouped_by_thousands() {
        for (number, text) in
            [(0, "0"), (999, "999"), (1000, "1,000"), (12_345, "12,345"), (1_234_567, "1,234,567")]
        {
            assert_eq!(grouped(number), text);
        }
    }
}
