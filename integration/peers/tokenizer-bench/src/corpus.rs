//! Texts: what people write, what programs write, and what tells tokenizers apart.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use crate::subjects::Subject;

const PIECES: [&str; 44] = [
    "Hello",
    " world",
    "the quick brown fox ",
    "it's ",
    "WE'LL ",
    "don\u{2019}t ",
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\r\n",
    "\t",
    "12345",
    " 3.14",
    "1,000",
    "Z\u{fc}rich ",
    "na\u{ef}ve",
    "e\u{301}",
    "A\u{30a}",
    "\u{212b}",
    "\u{fb01}",
    "\u{1e9e}",
    "\u{130}",
    "\u{4f60}\u{597d}",
    "\u{3002}",
    "\u{3053}\u{3093}",
    "\u{d55c}\u{ae00}",
    "\u{928}\u{92e}\u{938}\u{94d}",
    "\u{e2a}\u{e27}",
    "\u{645}\u{631}",
    "\u{5e9}\u{5dc}",
    "\u{1f600}",
    "\u{1f468}\u{200d}\u{1f469}",
    "\u{0}",
    "\u{7f}",
    "\u{85}",
    "\u{a0}",
    "\u{200b}",
    "\u{2028}",
    "\u{2581}",
    "fn f(x) {",
    "};",
    "https://a.b/c?d=e&f",
];

/// Texts to compare.
pub struct Corpus {
    pub texts: Vec<String>,
}

impl Corpus {
    pub fn new(reference: &Subject, count: usize) -> Corpus {
        let added = reference.added();
        let mut rng = StdRng::seed_from_u64(7);
        let mut texts: Vec<String> = PIECES.iter().map(|&piece| piece.to_owned()).collect();
        texts.extend(
            added
                .iter()
                .flat_map(|token| [token.clone(), format!(" {token} x{token}")]),
        );
        for run in ["a", " ", "=", "0", "\u{4f60}", "\n", "ab "] {
            texts.extend([7, 64, 1_000].map(|times| run.repeat(times)));
        }
        texts.extend((0..count).map(|_| text(&mut rng, &added)));
        Corpus { texts }
    }
}

fn text(rng: &mut StdRng, added: &[String]) -> String {
    let pieces = rng.random_range(1..14);
    (0..pieces)
        .map(|_| match rng.random_range(0..12) {
            0 => added.choose(rng).cloned().unwrap_or_default(),
            1 => char::from_u32(rng.random_range(0..0x3_0000))
                .unwrap_or('\u{fffd}')
                .to_string(),
            _ => (*PIECES.choose(rng).unwrap_or(&"")).to_owned(),
        })
        .collect()
}

/// English-like prose of about so many bytes, other for every seed.
pub fn prose(bytes: usize, seed: u64) -> String {
    const WORDS: [&str; 40] = [
        "the",
        "a",
        "router",
        "prefill",
        "worker",
        "decodes",
        "tokens",
        "quickly",
        "and",
        "then",
        "which",
        "holds",
        "blocks",
        "of",
        "memory",
        "between",
        "engines",
        "however",
        "latency",
        "because",
        "measured",
        "under",
        "load",
        "request",
        "answer",
        "with",
        "some",
        "thousands",
        "whenever",
        "it",
        "arrives",
        "from",
        "another",
        "place",
        "considering",
        "unlikely",
        "events",
        "Zurich",
        "2026",
        "function",
    ];
    let mut rng = StdRng::seed_from_u64(seed);
    let mut out = String::new();
    while out.len() < bytes {
        out.push_str(WORDS.choose(&mut rng).unwrap_or(&""));
        let number = rng.random_range(0..1000);
        out.push_str(&match rng.random_range(0..14) {
            0 => ". ".to_owned(),
            1 => ",\n".to_owned(),
            2 => format!(" {number} "),
            3 => format!("{} ", number % 7),
            _ => " ".to_owned(),
        });
    }
    out
}
