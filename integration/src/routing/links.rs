//! KV on its way: each worker has one card, and whatever moves at the same time shares it, at both ends.
//!
//! A transfer runs at the smaller of its two fair shares. That is not max-min fairness (what a transfer leaves unused at
//! its other end nobody takes), but it is simple, and errs for all policies in the same way.

/// A transfer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Transfer {
    /// Of which request.
    pub request: u32,
    /// Who sends.
    pub from: usize,
    /// Who receives.
    pub to: usize,
    /// All of it.
    pub bytes: u64,
    /// When it was asked for, in nanoseconds.
    pub asked: u64,
}

/// All cards and what they carry. Times are nanoseconds.
#[derive(Debug)]
pub struct Links {
    /// Bytes per nanosecond of each card, each way.
    cards: Vec<f64>,
    moving: Vec<Moving>,
    outgoing: Vec<u32>,
    incoming: Vec<u32>,
    now: u64,
}

#[derive(Debug)]
struct Moving {
    transfer: Transfer,
    /// Bytes.
    left: f64,
    /// Bytes per nanosecond.
    rate: f64,
}

impl Links {
    /// Cards of so many bytes per second.
    pub fn new(bytes_per_second: &[f64]) -> Self {
        Self {
            cards: bytes_per_second.iter().map(|rate| rate / 1e9).collect(),
            moving: Vec::new(),
            outgoing: vec![0; bytes_per_second.len()],
            incoming: vec![0; bytes_per_second.len()],
            now: 0,
        }
    }

    /// Bytes begin to move.
    pub fn begin(&mut self, now: u64, transfer: Transfer) {
        self.pass(now);
        self.outgoing[transfer.from] += 1;
        self.incoming[transfer.to] += 1;
        #[expect(clippy::cast_precision_loss, reason = "gigabytes are exact enough")]
        let left = transfer.bytes as f64;
        self.moving.push(Moving {
            transfer,
            left,
            rate: 0.0,
        });
        self.share();
    }

    /// Takes out what has arrived by now.
    pub fn take_arrived(&mut self, now: u64) -> Vec<Transfer> {
        self.pass(now);
        let arrived: Vec<Transfer> = self
            .moving
            .extract_if(.., |moving| moving.nanoseconds_left() == 0)
            .map(|moving| moving.transfer)
            .collect();
        for transfer in &arrived {
            self.outgoing[transfer.from] -= 1;
            self.incoming[transfer.to] -= 1;
        }
        if !arrived.is_empty() {
            self.share();
        }
        arrived
    }

    /// When the next transfer arrives, if none begins before.
    pub fn next_arrival(&self) -> Option<u64> {
        let left = self.moving.iter().map(Moving::nanoseconds_left).min()?;
        Some(self.now + left)
    }

    fn pass(&mut self, now: u64) {
        #[expect(clippy::cast_precision_loss, reason = "a difference of times is small")]
        let passed = now.saturating_sub(self.now) as f64;
        for moving in &mut self.moving {
            moving.left -= moving.rate * passed;
        }
        self.now = now;
    }

    fn share(&mut self) {
        for moving in &mut self.moving {
            let Transfer { from, to, .. } = moving.transfer;
            let sent = self.cards[from] / f64::from(self.outgoing[from]);
            let received = self.cards[to] / f64::from(self.incoming[to]);
            moving.rate = sent.min(received);
        }
    }
}

impl Moving {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "seconds in nanoseconds"
    )]
    fn nanoseconds_left(&self) -> u64 {
        // What is below a nanosecond's worth has arrived.
        (self.left / self.rate - 1e-3).ceil().max(0.0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transfer(request: u32, from: usize, to: usize, bytes: u64) -> Transfer {
        Transfer {
            request,
            from,
            to,
            bytes,
            asked: 0,
        }
    }

    /// Requests and when they arrived, in milliseconds.
    fn arrivals(links: &mut Links) -> Vec<(u32, u64)> {
        let mut arrived = Vec::new();
        while let Some(next) = links.next_arrival() {
            let those = links.take_arrived(next);
            arrived.extend(those.iter().map(|of| (of.request, next / 1_000_000)));
        }
        arrived
    }

    #[test]
    fn alone_a_transfer_has_the_slower_card() {
        let mut links = Links::new(&[1e9, 5e8]);
        links.begin(0, transfer(1, 0, 1, 100_000_000));
        assert_eq!(arrivals(&mut links), [(1, 200)]);
    }

    #[test]
    fn two_share_a_card_at_either_end_and_the_rest_is_fast() {
        let mut links = Links::new(&[1e9, 1e9, 1e9]);
        links.begin(0, transfer(1, 0, 2, 100_000_000));
        links.begin(0, transfer(2, 1, 2, 50_000_000));
        // Both at half speed until the second is there after 100 ms; then the first has 50 MB left.
        assert_eq!(arrivals(&mut links), [(2, 100), (1, 150)]);
        let mut links = Links::new(&[1e9, 1e9, 1e9]);
        links.begin(0, transfer(1, 0, 1, 100_000_000));
        links.begin(50_000_000, transfer(2, 0, 2, 100_000_000));
        assert_eq!(arrivals(&mut links), [(1, 150), (2, 200)]);
    }

    #[test]
    fn both_directions_of_a_card_are_separate() {
        let mut links = Links::new(&[1e9, 1e9]);
        links.begin(0, transfer(1, 0, 1, 100_000_000));
        links.begin(0, transfer(2, 1, 0, 100_000_000));
        assert_eq!(arrivals(&mut links), [(1, 100), (2, 100)]);
    }
}
