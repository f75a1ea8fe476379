//! The date in a template: given by the caller, never read here.

use minijinja::value::Object;
use minijinja::{Error, ErrorKind, State};

use super::NOW;
use crate::python::unlike_python;

/// A moment on the engine's wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Seconds since 1970-01-01 00:00 UTC.
    pub unix_seconds: i64,
    /// How far the engine's local time is ahead of UTC, in seconds.
    pub utc_offset_seconds: i32,
}

impl Object for Now {}

const NO_CLOCK: &str = "no clock was given";
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];

/// The function of that name that the engine's library gives to templates.
pub(super) fn strftime_now(state: &State, format: &str) -> Result<String, Error> {
    let now = state
        .lookup(NOW)
        .and_then(|now| now.downcast_object_ref::<Now>().copied());
    match now {
        Some(now) => strftime(now, format),
        None => Err(Error::new(ErrorKind::InvalidOperation, NO_CLOCK)),
    }
}

/// Whether a rendering failed for want of a clock.
pub(super) fn is_missing(error: &Error) -> bool {
    error.detail() == Some(NO_CLOCK)
}

fn strftime(now: Now, format: &str) -> Result<String, Error> {
    let local = Local::of(now);
    let mut out = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        let letter = characters.next().unwrap_or(' ');
        let field = local.field(letter);
        out.push_str(
            &field.ok_or_else(|| unlike_python(&format!("a date format with %{letter}")))?,
        );
    }
    Ok(out)
}

/// A moment by the calendar and the clock.
struct Local {
    year: i64,
    month: usize,
    day: i64,
    weekday: usize,
    hour: i64,
    minute: i64,
    second: i64,
}

impl Local {
    fn of(now: Now) -> Local {
        let local = now.unix_seconds + i64::from(now.utc_offset_seconds);
        let (days, seconds) = (local.div_euclid(86_400), local.rem_euclid(86_400));
        let (year, month, day) = civil(days);
        let weekday = usize::try_from((days + 3).rem_euclid(7)).unwrap_or_default();
        Local {
            year,
            month,
            day,
            weekday,
            hour: seconds / 3600,
            minute: seconds / 60 % 60,
            second: seconds % 60,
        }
    }

    /// What stands for a letter of a format, in English.
    fn field(&self, letter: char) -> Option<String> {
        let Local {
            year,
            month,
            day,
            hour,
            minute,
            second,
            ..
        } = self;
        let (month_name, day_name) = (MONTHS[month - 1], DAYS[self.weekday]);
        Some(match letter {
            'Y' => format!("{year}"),
            'y' => format!("{:02}", year.rem_euclid(100)),
            'm' => format!("{month:02}"),
            'd' => format!("{day:02}"),
            'B' => month_name.to_owned(),
            'b' => month_name[..3].to_owned(),
            'A' => day_name.to_owned(),
            'a' => day_name[..3].to_owned(),
            'H' => format!("{hour:02}"),
            'I' => format!("{:02}", (hour + 11) % 12 + 1),
            'p' => if *hour < 12 { "AM" } else { "PM" }.to_owned(),
            'M' => format!("{minute:02}"),
            'S' => format!("{second:02}"),
            'F' => format!("{year}-{month:02}-{day:02}"),
            'T' => format!("{hour:02}:{minute:02}:{second:02}"),
            '%' => "%".to_owned(),
            _ => return None,
        })
    }
}

/// Year, month (from 1) and day of a number of days since 1970-01-01. Years are counted from March, so that the day that
/// comes and goes is the last one of its year.
fn civil(days: i64) -> (i64, usize, i64) {
    let from_era = days + 719_468;
    let (era, day_of_era) = (from_era.div_euclid(146_097), from_era.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, usize::try_from(month).unwrap_or(1), day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let cases = [
            (0, "1970-01-01 Thursday"),
            (951_782_400, "2000-02-29 Tuesday"),
            (1_709_251_199, "2024-02-29 Thursday"),
            (1_735_689_599, "2024-12-31 Tuesday"),
            (4_107_542_399, "2100-02-28 Sunday"),
        ];
        for (unix_seconds, date) in cases {
            assert_eq!(
                strftime(
                    Now {
                        unix_seconds,
                        utc_offset_seconds: 0
                    },
                    "%F %A"
                )
                .unwrap(),
                date
            );
        }
        let evening = Now {
            unix_seconds: 1_735_689_599,
            utc_offset_seconds: 3600,
        };
        assert_eq!(
            strftime(evening, "%d %b %Y %I:%M %p").unwrap(),
            "01 Jan 2025 12:59 AM"
        );
    }
}
