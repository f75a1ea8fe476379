//! Exit codes (being written).
fn main() {}
