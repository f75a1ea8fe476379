//! In which order an engine's messages come, told by their sequence numbers.

/// What a message says about its place in its rank's stream.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stamp {
    /// Sequence number: 0 for the first message of an engine's life, then one more each.
    pub seq: u64,
    /// The engine's wall clock in seconds when it made the message; not a number if it could not be read.
    pub time: f64,
}

/// How a message follows the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// The first one ever seen of this rank.
    First,
    /// The next one.
    Next,
    /// Messages before it are missing.
    Gap {
        /// How many.
        missing: u64,
    },
    /// It is not newer than the last one.
    Older,
    /// Its number is not higher but its time is: a new life of the engine.
    Restart,
}

impl Arrival {
    /// Whether the message may be applied.
    pub fn is_news(self) -> bool {
        self != Self::Older
    }
}

/// The last message of a rank.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Order {
    seq: Option<u64>,
    /// Time of the last message that had one.
    time: Option<f64>,
}

impl Order {
    /// Numbers alone cannot tell a message that comes again from the first ones of a new life. The engine's clock can,
    /// if it did not go back at the restart. A new life whose first number is *higher* looks like a gap; only whoever
    /// sees the connection end knows better.
    pub(super) fn judge(self, stamp: Stamp) -> Arrival {
        let Some(last) = self.seq else {
            return Arrival::First;
        };
        if stamp.seq > last {
            return match stamp.seq - last - 1 {
                0 => Arrival::Next,
                missing => Arrival::Gap { missing },
            };
        }
        let later = stamp.time.is_finite() && self.time.is_some_and(|time| stamp.time > time);
        if later {
            Arrival::Restart
        } else {
            Arrival::Older
        }
    }

    pub(super) fn advance(&mut self, stamp: Stamp) {
        self.seq = Some(stamp.seq);
        if stamp.time.is_finite() {
            self.time = Some(stamp.time);
        }
    }

    pub(super) fn last(self) -> Option<u64> {
        self.seq
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(seq: u64, time: f64) -> Stamp {
        Stamp { seq, time }
    }

    fn after(stamps: &[Stamp]) -> Order {
        let mut order = Order::default();
        for stamp in stamps {
            order.advance(*stamp);
        }
        order
    }

    #[test]
    fn each_arrival() {
        assert_eq!(Order::default().judge(stamp(7, 1.0)), Arrival::First);
        let order = after(&[stamp(7, 10.0)]);
        assert_eq!(order.judge(stamp(8, 10.0)), Arrival::Next);
        assert_eq!(order.judge(stamp(8, 9.0)), Arrival::Next);
        assert_eq!(order.judge(stamp(9, 11.0)), Arrival::Gap { missing: 1 });
        assert_eq!(
            order.judge(stamp(u64::MAX, 11.0)),
            Arrival::Gap {
                missing: u64::MAX - 8
            }
        );
        assert_eq!(order.judge(stamp(7, 10.0)), Arrival::Older);
        assert_eq!(order.judge(stamp(3, 9.0)), Arrival::Older);
        assert_eq!(order.judge(stamp(0, 10.5)), Arrival::Restart);
        assert_eq!(order.judge(stamp(7, 10.5)), Arrival::Restart);
    }

    #[test]
    fn a_message_without_a_time_is_never_a_restart_and_hides_none() {
        let order = after(&[stamp(6, 10.0), stamp(7, f64::INFINITY), stamp(8, f64::NAN)]);
        assert_eq!(order.judge(stamp(0, f64::INFINITY)), Arrival::Older);
        assert_eq!(order.last(), Some(8));
        assert_eq!(order.judge(stamp(8, f64::NAN)), Arrival::Older);
        assert_eq!(order.judge(stamp(0, 11.0)), Arrival::Restart);
        assert_eq!(order.judge(stamp(7, 10.0)), Arrival::Older);
    }

    #[test]
    fn the_highest_number_has_nothing_after_it() {
        let order = after(&[stamp(u64::MAX, 1.0)]);
        assert_eq!(order.judge(stamp(u64::MAX, 1.0)), Arrival::Older);
    }
}
