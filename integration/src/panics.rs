//! Panics inside Baton: a task that panics ends quietly, so they are collected and looked at when a test ends.

use std::sync::{Mutex, Once, PoisonError};

static SEEN: Mutex<Vec<String>> = Mutex::new(Vec::new());
static HOOK: Once = Once::new();

/// Starts collecting. Panics of this crate and its tests are their verdicts and are not collected.
pub fn watch() {
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let place = panic.location().map_or("", |location| location.file());
            if !place.contains("integration/") && !place.contains("tests/") {
                let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
                seen.push(panic.to_string());
            }
            usual(panic);
        }));
    });
}

/// What was collected so far, in the whole process.
pub fn seen() -> Vec<String> {
    SEEN.lock().unwrap_or_else(PoisonError::into_inner).clone()
}
