//! What one prompt and one model may cost.

/// Bounds of work and memory. Nothing a client sends can cost more.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of a request's body, and of a text, that are looked at.
    pub most_bytes: usize,
    /// Bytes of one text that are encoded anew, beside what is remembered: a megabyte takes a thread a second or so.
    pub most_fresh_bytes: usize,
    /// Bytes of `tokenizer.json` that are read.
    pub most_file_bytes: usize,
    /// Bytes of the memory of encoded pieces, about.
    pub cache_bytes: u64,
    /// What a chat template may spend: about one a step, and one for 64 bytes of text.
    pub template_fuel: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            most_bytes: 4 << 20,
            most_fresh_bytes: 1 << 20,
            most_file_bytes: 128 << 20,
            cache_bytes: 64 << 20,
            template_fuel: 4_000_000,
        }
    }
}
