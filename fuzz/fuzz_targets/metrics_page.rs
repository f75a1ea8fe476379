//! vLLM's metrics page: whatever it says, reading it never fails, and sums are of what is there.

#![no_main]

use baton_sidecar_vllm::metrics_page::MetricsPage;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let page = MetricsPage::parse(text);
    let name = text.split(['{', ' ', '\n']).next().unwrap_or_default();
    assert_eq!(page.sum(name).is_some() && !page.has_family(name), false);
    let _ = page.label(name, "engine");
    let _ = page.distinct(name, "engine");
});
