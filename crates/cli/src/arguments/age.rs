//! How old something gets, and how much is kept free: words of the command line.

use crate::size::Size;
use std::str::FromStr;
use std::time::Duration;
use syncline::KeepFree;

/// A length of time: `90s`, `30m`, `12h`, `7d`, `4w`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Age(pub(crate) Duration);

impl FromStr for Age {
    type Err = String;

    fn from_str(text: &str) -> Result<Age, String> {
        let wrong = || "write a number and s, m, h, d or w behind it, such as 12h".to_owned();
        let unit = text.chars().next_back().ok_or_else(wrong)?;
        let seconds = match unit {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 86_400,
            'w' => 7 * 86_400,
            _ => return Err(wrong()),
        };
        let digits = &text[..text.len() - 1];
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let number =
            digits.parse::<u32>().ok().filter(|number| is_number && *number > 0).ok_or_else(wrong)?;
        Ok(Age(Duration::from_secs(u64::from(number) * seconds)))
    }
}

/// How much of a volume is to be free: `10%`, `20G`, `0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Space(pub(crate) KeepFree);

impl FromStr for Space {
    type Err = String;

    fn from_str(text: &str) -> Result<Space, String> {
        let kept = match text.strip_suffix('%') {
            Some(percent) => {
                let percent = percent.parse::<u8>().ok().filter(|percent| *percent <= 90);
                KeepFree::Percent(percent.ok_or("write 0 to 90 percent, or a size")?)
            }
            None => KeepFree::Bytes(text.parse::<Size>()?.0),
        };
        Ok(Space(match kept {
            KeepFree::Percent(0) | KeepFree::Bytes(0) => KeepFree::Nothing,
            kept => kept,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_numbers_with_a_unit() {
        let read = |text: &str| text.parse().ok().map(|Age(age)| age.as_secs());
        let told = ["90s", "30m", "12h", "7d", "4w"].map(read);
        assert_eq!(told, [Some(90), Some(1800), Some(43_200), Some(604_800), Some(2_419_200)]);
        for text in ["", "h", "12", "0h", "-1h", "+1h", "1.5h", "12H", "1y", "99999999999w", "1ä"] {
            assert_eq!(read(text), None, "{text:?}");
        }
    }

    #[test]
    fn space_is_a_share_or_a_size() {
        let read = |text: &str| text.parse().ok().map(|Space(space)| space);
        assert_eq!(read("10%"), Some(KeepFree::Percent(10)));
        assert_eq!(read("20G"), Some(KeepFree::Bytes(20 << 30)));
        assert_eq!([read("0"), read("0%")], [Some(KeepFree::Nothing); 2]);
        for text in ["", "%", "91%", "-1%", "much", "1.5%"] {
            assert_eq!(read(text), None, "{text:?}");
        }
    }
}
