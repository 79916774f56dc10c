//! Hours, days, weeks and months of UTC, and how a moment is written.

use syncline_format::schedule::Schedule;

const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;

/// What a class of snapshots counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Period {
    Hour,
    Day,
    /// From Monday on.
    Week,
    Month,
}

impl Period {
    /// The classes that a schedule uses, shortest first, and how many snapshots stay of each.
    pub(crate) fn used(schedule: &Schedule) -> impl Iterator<Item = (Period, usize)> {
        let classes = [
            (Period::Hour, schedule.hourly),
            (Period::Day, schedule.daily),
            (Period::Week, schedule.weekly),
            (Period::Month, schedule.monthly),
        ];
        classes.into_iter().filter(|(_, kept)| *kept > 0).map(|(period, kept)| (period, usize::from(kept)))
    }

    /// The number of the period in which a moment lies, in seconds since 1970.
    pub(crate) fn number(self, seconds: i64) -> i64 {
        let day = seconds.div_euclid(DAY);
        match self {
            Period::Hour => seconds.div_euclid(HOUR),
            Period::Day => day,
            // 1970 began on a Thursday.
            Period::Week => (day + 3).div_euclid(7),
            Period::Month => {
                let (year, month, _) = date(day);
                year * 12 + i64::from(month) - 1
            }
        }
    }
}

/// Year, month (1 to 12) and day (1 to 31) of a day since 1970, by the Gregorian calendar. Eras of 400 years begin on
/// the first of March, so that the day that a year may lack is its last.
fn date(day: i64) -> (i64, u8, u8) {
    const DAYS_OF_ERA: i64 = 146_097;
    let shifted = day + 719_468;
    let (era, of_era) = (shifted.div_euclid(DAYS_OF_ERA), shifted.rem_euclid(DAYS_OF_ERA));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    // Months from March on have 31, 30, 31, 30, 31 days, and so on: 153 in five.
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next_year) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + next_year, month as u8, day as u8)
}

/// The moment as RFC 3339 writes it, to the second.
pub(crate) fn moment(seconds: i64) -> String {
    let (year, month, day) = date(seconds.div_euclid(DAY));
    let of_day = seconds.rem_euclid(DAY);
    let (hour, minute, second) = (of_day / HOUR, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_799, "2000-02-29T23:59:59Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_709_164_800, "2024-02-29T00:00:00Z"),
            (1_795_485_600, "2026-11-24T02:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(moment(seconds), text);
        }
    }

    #[test]
    fn periods_begin_where_people_begin_them() {
        let of = |period: Period, seconds| period.number(seconds);
        // A Monday.
        let monday = 1_795_392_000;
        assert_eq!(moment(monday), "2026-11-23T00:00:00Z");
        for (period, begin) in [(Period::Hour, monday), (Period::Day, monday), (Period::Week, monday)] {
            assert_eq!(of(period, begin), of(period, begin - 1) + 1, "{period:?}");
            assert_eq!(of(period, begin), of(period, begin + HOUR - 1), "{period:?}");
        }
        assert_eq!(of(Period::Week, monday), of(Period::Week, monday + 7 * DAY - 1));
        let december = 1_796_083_200;
        assert_eq!(moment(december), "2026-12-01T00:00:00Z");
        assert_eq!(of(Period::Month, december), of(Period::Month, december - 1) + 1);
        assert_eq!(of(Period::Month, december) + 1, of(Period::Month, december + 31 * DAY));
        assert_eq!(of(Period::Month, december), of(Period::Month, december + 31 * DAY - 1));
    }
}
