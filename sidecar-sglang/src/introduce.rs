//! Attaching: what the engine says of itself, in terms that every engine shares.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, PoisonError};

use baton_proto::compat::Compatibility;
use baton_proto::model::{ModelFiles, Prompting};
use baton_proto::worker::{Role, WorkerInfo};
use baton_proto::{Error, Incarnation};
use baton_sidecar_core::engine::Attached;
use baton_sidecar_core::metrics_page::MetricsPage;
use baton_sidecar_core::model_files::{PromptConfig, PromptFiles};

use crate::engine::{Seen, SglangEngine};
use crate::refusal;
use crate::server_info::ServerInfo;
use crate::worker_info::info;

/// What comes between the parts of a content that becomes one string (0.5.23, `process_content_for_template_format`).
const PART_SEPARATOR: &str = " ";

/// What does not change while an engine lives, and is asked for once.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fixed {
    /// What decides its prompts' tokens, and the digest of that.
    files: Option<PromptFiles>,
    /// Digest of how it tokenises.
    tokenisation: Option<String>,
    /// KV bytes per token.
    bytes_per_token: Option<u64>,
}

impl Fixed {
    pub(crate) fn files(&self) -> Option<Arc<ModelFiles>> {
        self.files.as_ref().map(PromptFiles::files)
    }
}

impl SglangEngine {
    /// Looks at the engine and refuses one that cannot work.
    pub(crate) async fn introduce(&self) -> Result<Attached, Error> {
        self.http.ready().await?;
        let server = self.http.server_info().await?;
        let models = self.http.models().await?;
        let role = refusal::role(&server)?;
        let incarnation = server.incarnation()?;
        self.spelling.lives(&incarnation);
        let mut info = info(&server, &models, role);
        let fixed = self.fixed(&incarnation, &server, &info).await;
        fixed.complete(&mut info, &server, role);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(Seen {
            incarnation: incarnation.clone(),
            server,
            fixed,
        }));
        Ok(Attached { incarnation, info })
    }

    async fn fixed(
        &self,
        incarnation: &Incarnation,
        server: &ServerInfo,
        info: &WorkerInfo,
    ) -> Fixed {
        if let Some(seen) = self.last().filter(|seen| seen.incarnation == *incarnation) {
            return seen.fixed.clone();
        }
        for warning in refusal::warnings(server) {
            tracing::warn!("{warning}");
        }
        let tokenisation = match info.models.first() {
            Some(model) => self.http.tokenisation(model).await,
            None => None,
        };
        let page = self.http.metrics(server).await;
        let prompts = prompts(server, self.config.model_dir.as_deref());
        Fixed {
            files: PromptFiles::find(prompts, Some(server.model_path.clone())).await,
            tokenisation,
            bytes_per_token: page.and_then(|page| bytes_per_token(&page, server)),
        }
    }
}

impl Fixed {
    fn complete(&self, info: &mut WorkerInfo, server: &ServerInfo, role: Role) {
        info.kv_bytes_per_token = self.bytes_per_token;
        if let Some(files) = &self.files {
            files.tell(info);
        }
        if role != Role::Local {
            info.compatibility = Some(self.compatibility(server, info.block_size.unwrap_or(0)));
        }
    }

    /// What another engine must share. A decode engine finds out for itself whether it can use what a prefill engine has
    /// (0.5.23), but only once both have a request, and then that request is lost.
    fn compatibility(&self, server: &ServerInfo, block_size: u32) -> Compatibility {
        let number = |number: Option<u32>| number.unwrap_or(1).to_string();
        let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "none".to_owned());
        let facts = [
            ("version", server.version.clone()),
            ("model", name_of(&server.model_path)),
            ("weight_version", text(&server.weight_version)),
            ("dtype", text(&server.dtype)),
            ("kv_cache_dtype", text(&server.kv_cache_dtype)),
            ("quantization", text(&server.quantization)),
            ("speculative_algorithm", text(&server.speculative_algorithm)),
            ("page_size", server.page_size.to_string()),
            ("tp_size", number(server.tp_size)),
            ("attn_cp_size", number(server.attn_cp_size)),
            ("dcp_size", number(server.dcp_size)),
            ("tokenisation", text(&self.tokenisation)),
        ];
        let facts: BTreeMap<String, String> =
            facts.map(|(name, value)| (name.to_owned(), value)).into();
        let backend = text(&server.disaggregation_transfer_backend);
        Compatibility {
            handoff: format!("sglang-{backend}"),
            facts,
            block_size,
        }
    }
}

/// The model without the folder that it is in, which differs from host to host.
fn name_of(model_path: &str) -> String {
    let path = model_path.trim_end_matches('/');
    path.rsplit('/').next().unwrap_or(path).to_owned()
}

/// How it makes prompts; or why that is not known.
fn prompts(server: &ServerInfo, directory: Option<&Path>) -> Result<PromptConfig, String> {
    let template = server.chat_template.clone();
    let is_file = |template: &String| {
        let extension = Path::new(template).extension();
        extension.is_some_and(|extension| extension == "jinja")
    };
    if template.as_ref().is_some_and(|template| !is_file(template)) {
        return Err("the engine uses a chat template of its own".to_owned());
    }
    if server.hf_chat_template_name.is_some() {
        return Err("the engine uses one of several chat templates".to_owned());
    }
    let other = |mode: &str| !matches!(mode, "auto" | "hf");
    let arguments = server.default_chat_template_kwargs.as_ref();
    let arguments = arguments.filter(|arguments| !arguments.is_null());
    Ok(PromptConfig {
        directory: directory.map(Path::to_owned),
        tokenizer: server.tokenizer_path.clone(),
        template,
        other_tokenizer: server.tokenizer_mode.as_deref().is_some_and(other)
            || server.skip_tokenizer_init == Some(true),
        prompting: Prompting {
            content_format: None,
            default_template_arguments: arguments.map(ToString::to_string),
            exclude_tools_when_not_chosen: false,
            part_separator: Some(PART_SEPARATOR.to_owned()),
        },
    })
}

/// KV bytes per token, from the size of all: the pool has one page more than it says (0.5.23). Of one that is spread over
/// devices it is not known what each of them has.
fn bytes_per_token(page: &str, server: &ServerInfo) -> Option<u64> {
    if server.tp_size.unwrap_or(1) != 1 || server.pp_size.unwrap_or(1) != 1 {
        return None;
    }
    let page = MetricsPage::parse(page);
    // A worker of several data-parallel ranks tells of each.
    let ranks = f64::from(server.dp_size.unwrap_or(1).max(1));
    let gibibytes = page.sum("sglang:kv_cache_memory_usage_gb")? / ranks;
    let tokens = server
        .max_total_num_tokens?
        .checked_add(server.page_size.into())?;
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "bytes of a token"
    )]
    let bytes = (gibibytes * (1u64 << 30) as f64 / tokens as f64)
        .max(0.0)
        .round() as u64;
    (bytes > 0).then_some(bytes)
}

#[cfg(test)]
mod tests;
