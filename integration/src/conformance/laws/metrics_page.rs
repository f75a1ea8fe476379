//! Laws of a page of metrics.

use super::super::metrics::Page;
use super::Broken;

const BY_SOURCE: &str = "vllm:prompt_tokens_by_source_total";
const CACHED_BY_SOURCE: &str = "vllm:prompt_tokens_cached_by_source_total";

/// Everything that is wrong with a page.
pub fn broken(page: &Page) -> Vec<Broken> {
    let mut broken = Vec::new();
    let total = page.sum("vllm:prompt_tokens_total", &[]);
    let by_source = page.sum(BY_SOURCE, &[]);
    if total.to_bits() != by_source.to_bits() {
        let what = format!("{by_source} of {total}");
        broken.push(("prompt tokens by source sum up to all of them", what));
    }
    let computed = page.sum(BY_SOURCE, &[("source", "local_compute")]);
    let cached = page.sum("vllm:prompt_tokens_cached_total", &[]);
    if (computed + cached).to_bits() != total.to_bits() {
        let what = format!("{computed} computed, {cached} cached, {total} in all");
        broken.push(("a prompt token is computed or cached", what));
    }
    let hits = page.sum("vllm:prefix_cache_hits_total", &[]);
    let device = page.sum(CACHED_BY_SOURCE, &[("source", "device")]);
    let local = page.sum(BY_SOURCE, &[("source", "local_cache_hit")]);
    if hits < local || device < local {
        let what = format!("{local} tokens, {hits} hits, {device} from the device");
        broken.push(("tokens that came from the prefix cache were hits", what));
    }
    broken
}
