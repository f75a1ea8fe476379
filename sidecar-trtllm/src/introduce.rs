//! Attaching: what the engine says of itself, and what was said of it, in terms that every engine shares.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use baton_proto::Error;
use baton_proto::compat::Compatibility;
use baton_proto::model::ModelFiles;
use baton_proto::worker::{EngineKind, Role, WorkerInfo};
use baton_sidecar_core::engine::Attached;
use baton_sidecar_core::model_files::{PromptConfig, PromptFiles};

use crate::attach::EngineConfig;
use crate::engine::{Seen, TrtllmEngine};
use crate::http::Model;
use crate::refusal;
use crate::server_info::ServerInfo;

/// What does not change while an engine lives, and is asked for once.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fixed {
    /// What decides its prompts' tokens, and the digest of that.
    files: Option<PromptFiles>,
    /// Digest of how it tokenises.
    tokenisation: Option<String>,
}

impl Fixed {
    pub(crate) fn files(&self) -> Option<Arc<ModelFiles>> {
        self.files.as_ref().map(PromptFiles::files)
    }
}

impl TrtllmEngine {
    /// Looks at the engine and refuses one that cannot work.
    pub(crate) async fn introduce(&self) -> Result<Attached, Error> {
        self.reach().await?;
        let version = self.http.version().await?;
        let server = self.http.server_info().await?;
        let models = self.http.models().await?;
        refusal::check(&self.config, &server)?;
        let incarnation = self.lives.attach().await?;
        let before = self.last().filter(|seen| seen.incarnation == incarnation);
        let fixed = match before {
            Some(seen) => seen.fixed.clone(),
            None => self.fixed(&version, &server, &models).await,
        };
        let mut info = info(&self.config, &version, &server, &models);
        info.ranks = info.ranks.max(self.ranks_heard());
        fixed.complete(&mut info);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(Seen {
            incarnation: incarnation.clone(),
            server,
            fixed,
        }));
        Ok(Attached { incarnation, info })
    }

    async fn fixed(&self, version: &str, server: &ServerInfo, models: &[Model]) -> Fixed {
        tracing::info!(version, era = server.era().name(), "TensorRT-LLM answers");
        for warning in refusal::warnings(&self.config, version, server) {
            tracing::warn!("{warning}");
        }
        let tokenisation = match models.first() {
            Some(model) => self.http.tokenisation(&model.id).await,
            None => None,
        };
        let prompts = PromptConfig {
            directory: self.config.model_dir.clone(),
            ..PromptConfig::default()
        };
        Fixed {
            files: PromptFiles::find(Ok(prompts), None).await,
            tokenisation,
        }
    }
}

/// What the engine is, without what its files tell.
fn info(config: &EngineConfig, version: &str, server: &ServerInfo, models: &[Model]) -> WorkerInfo {
    let block_size = server.tokens_per_block.or(config.tokens_per_block);
    let model = models.first().map(|model| model.id.clone());
    WorkerInfo {
        engine_version: version.to_owned(),
        models: models.iter().map(|model| model.id.clone()).collect(),
        ranks: config.ranks,
        block_size,
        max_sequences: server.max_batch_size.or(config.max_sequences),
        max_batched_tokens: config.max_batched_tokens,
        context_length: config.context_length,
        compatibility: (config.role != Role::Local)
            .then(|| compatibility(config, version, model, block_size.unwrap_or(0))),
        ..WorkerInfo::unknown(EngineKind::Trtllm, config.role)
    }
}

/// What another engine must share, as far as either tells: transfer metadata are for a peer of the same version
/// (`extra="forbid"`), and what else differs is found out by the engines, if at all.
fn compatibility(
    config: &EngineConfig,
    version: &str,
    model: Option<String>,
    block_size: u32,
) -> Compatibility {
    let handoff = if config.generation_first {
        "trtllm-generation-first"
    } else {
        "trtllm-context-first"
    };
    let facts = [
        ("version", version.to_owned()),
        ("model", model.unwrap_or_else(|| "none".to_owned())),
        ("tokens_per_block", block_size.to_string()),
    ];
    let facts: BTreeMap<String, String> =
        facts.map(|(name, value)| (name.to_owned(), value)).into();
    Compatibility {
        handoff: handoff.to_owned(),
        facts,
        block_size,
    }
}

impl Fixed {
    fn complete(&self, info: &mut WorkerInfo) {
        if let Some(files) = &self.files {
            files.tell(info);
        }
        if let (Some(compatibility), Some(tokenisation)) =
            (&mut info.compatibility, &self.tokenisation)
        {
            let fact = ("tokenisation".to_owned(), tokenisation.clone());
            compatibility.facts.extend([fact]);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::attach::tests::beside;

    fn small(endpoint: &str) -> String {
        let recorded = include_str!("../../integration/recordings/trtllm/small_endpoints.json");
        let recorded: Value = serde_json::from_str(recorded).unwrap();
        recorded[endpoint].to_string()
    }

    #[test]
    fn what_it_says_and_what_was_said_of_it_make_a_worker() {
        let flags = ["--role", "prefill", "--kv-transfer-timeout-ms", "60000"];
        let models: Value = serde_json::from_str(&small("GET /v1/models")).unwrap();
        let models: Vec<Model> = serde_json::from_value(models["data"].clone()).unwrap();
        let server = serde_json::from_str(&small("GET /server_info (main)")).unwrap();
        let mut info = info(&beside(&flags), "1.3.0", &server, &models);
        let fixed = Fixed {
            tokenisation: Some("abc".to_owned()),
            files: None,
        };
        fixed.complete(&mut info);
        assert_eq!(
            (info.engine, info.role),
            (EngineKind::Trtllm, Role::Prefill)
        );
        assert_eq!(info.models, ["TinyLlama-1.1B-Chat-v1.0"]);
        assert_eq!((info.block_size, info.max_sequences), (Some(32), Some(64)));
        let compatibility = info.compatibility.unwrap();
        assert_eq!(compatibility.facts["tokenisation"], "abc");
        assert_eq!(compatibility.facts["version"], "1.3.0");
        assert!(!info.legs_only, "any engine serves whole requests");
    }

    #[test]
    fn an_engine_that_hands_nothing_over_fits_nobody() {
        let info = info(&beside(&[]), "1.2.1", &ServerInfo::default(), &[]);
        assert_eq!((info.role, info.compatibility), (Role::Local, None));
    }
}
