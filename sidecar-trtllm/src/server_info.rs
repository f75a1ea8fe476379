//! `GET /server_info`: what the engine says of itself, which is little.

use serde::Deserialize;
use serde_json::value::RawValue;

/// The fields that are read.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ServerInfo {
    /// What a handoff of its Python transceiver has in it; nothing of a C++ one.
    disaggregated_params: Option<Endpoint>,
    /// Most sequences in a batch (after 1.2).
    pub max_batch_size: Option<u32>,
    /// How it names blocks (after 1.2).
    pub kv_cache_hash_algo: Option<String>,
    /// Tokens of a KV block (after 1.2).
    pub tokens_per_block: Option<u32>,
}

/// Where a decode engine finds a prefill engine that has a Python transceiver.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Endpoint {
    ctx_dp_rank: Option<Box<RawValue>>,
    ctx_info_endpoint: Option<OneOrMany>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    Many(Vec<String>),
    One(String),
}

/// Where a decode engine finds a prefill engine before it has computed anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContextEndpoint {
    /// Address, in the engine's own words.
    pub address: String,
    /// Its rank, as JSON.
    pub rank: String,
}

/// Which generation of the engine this is, told by what it says and not by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Era {
    /// 1.2: it says nothing of blocks, and answers polls for KV events late.
    V1_2,
    /// After that.
    Main,
}

impl Era {
    /// As it is called in logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::V1_2 => "1.2",
            Self::Main => "main",
        }
    }
}

impl ServerInfo {
    /// Which generation.
    pub fn era(&self) -> Era {
        let says_more = self.tokens_per_block.is_some()
            || self.max_batch_size.is_some()
            || self.kv_cache_hash_algo.is_some();
        if says_more { Era::Main } else { Era::V1_2 }
    }

    /// Where it is found before it has computed anything; the first of several endpoints goes, as with the engine's own
    /// orchestrator.
    pub fn endpoint(&self) -> Option<ContextEndpoint> {
        let told = self.disaggregated_params.as_ref()?;
        let address = match told.ctx_info_endpoint.as_ref()? {
            OneOrMany::Many(several) => several.first()?.clone(),
            OneOrMany::One(one) => one.clone(),
        };
        let rank = told.ctx_dp_rank.as_ref();
        let rank = rank.map_or_else(|| "null".to_owned(), |raw| raw.get().to_owned());
        (!address.is_empty()).then_some(ContextEndpoint { address, rank })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn endpoints() -> Value {
        let recorded = include_str!("../../integration/recordings/trtllm/small_endpoints.json");
        serde_json::from_str(recorded).unwrap()
    }

    fn read(value: &Value) -> ServerInfo {
        serde_json::from_str(&value.to_string()).unwrap()
    }

    #[test]
    fn both_eras_are_known_by_what_they_say() {
        let recorded = endpoints();
        let old = read(&recorded["GET /server_info (C++ transceiver)"]);
        assert_eq!((old.era(), old.endpoint()), (Era::V1_2, None));
        let new = read(&recorded["GET /server_info (main)"]);
        assert_eq!((new.era(), new.tokens_per_block), (Era::Main, Some(32)));
        let endpoint = new.endpoint().unwrap();
        assert_eq!(
            (endpoint.address.as_str(), endpoint.rank.as_str()),
            ("tcp://10.0.0.1:5000", "0")
        );
    }

    #[test]
    fn an_endpoint_is_a_list_or_a_text_and_neither_is_guessed() {
        for (told, address) in [
            (r#"{"ctx_info_endpoint":"tcp://a:1"}"#, Some("tcp://a:1")),
            (r#"{"ctx_info_endpoint":[]}"#, None),
            (r#"{"ctx_info_endpoint":null,"ctx_dp_rank":0}"#, None),
            (r#"{"ctx_info_endpoint":""}"#, None),
        ] {
            let info: ServerInfo =
                serde_json::from_str(&format!("{{\"disaggregated_params\":{told}}}")).unwrap();
            let found = info.endpoint().map(|endpoint| endpoint.address);
            assert_eq!(found.as_deref(), address, "{told}");
        }
    }
}
