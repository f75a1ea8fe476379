//! One seed for all that is chosen by chance, so that what failed once fails again.

use std::sync::Once;

use rand::SeedableRng;
use rand::rngs::StdRng;

/// The variable that replaces the seed.
pub const VARIABLE: &str = "BATON_HOSTILE_SEED";

/// The seed of an ordinary run.
const ORDINARY: u64 = 20_260_117;

/// The seed of this run. It is printed once, so that a failed test shows it.
pub fn seed() -> u64 {
    static TOLD: Once = Once::new();
    let given = std::env::var(VARIABLE).ok();
    let seed = given.map_or(ORDINARY, |text| {
        let number = text.parse();
        number.unwrap_or_else(|_| panic!("{VARIABLE} must be a whole number, not {text:?}"))
    });
    TOLD.call_once(|| say(&format!("{VARIABLE}={seed}")));
    seed
}

#[expect(clippy::print_stderr, reason = "a harness talks to whoever runs it")]
fn say(line: &str) {
    eprintln!("{line}");
}

/// Chance for one generator: what it draws does not depend on what others drew.
pub fn chance(generator: &str) -> StdRng {
    let name = spread(generator);
    StdRng::seed_from_u64(seed() ^ name)
}

/// FNV-1a.
fn spread(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
