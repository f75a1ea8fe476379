//! An engine's tokenizer files: where they are, and what the engine's flags make of them.
//!
//! Nothing here guesses: an engine that was started with a tokenizer of its own kind has no files to give, and the router
//! then does not know the tokens of texts.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use baton_proto::model::{ModelFiles, Prompting};
use baton_proto::worker::WorkerInfo;
use bytes::Bytes;

/// Largest file that is read. The largest tokenizers of today have 35 MB.
const MOST_BYTES: u64 = 128 << 20;

/// How an engine makes prompts, as far as flags tell.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PromptConfig {
    /// Directory with its files.
    pub directory: Option<PathBuf>,
    /// Its tokenizer, a directory or a name, if it is not the model's.
    pub tokenizer: Option<String>,
    /// Its `--chat-template`: a file, or the template itself.
    pub template: Option<String>,
    /// It makes tokens by other means than `tokenizer.json`.
    pub other_tokenizer: bool,
    /// What else changes a chat.
    pub prompting: Prompting,
}

/// The files that decide the tokens of an engine's prompts, and the digest of all of them.
#[derive(Debug, Clone)]
pub struct PromptFiles {
    files: Arc<ModelFiles>,
    digest: String,
}

impl PromptFiles {
    /// Reads them, on a thread that may wait. Without them routers know no tokens of texts, and that is said.
    pub async fn find(config: Result<PromptConfig, String>, root: Option<String>) -> Option<Self> {
        let read = move || {
            let files = config?.read(root.as_deref())?;
            let digest = files.digest();
            Ok(Self { files, digest })
        };
        let read: Result<Self, String> = tokio::task::spawn_blocking(read)
            .await
            .unwrap_or_else(|died| Err(died.to_string()));
        read.inspect_err(|why| tracing::warn!(%why, "routers cannot know the tokens of texts"))
            .ok()
    }

    /// The files.
    pub fn files(&self) -> Arc<ModelFiles> {
        Arc::clone(&self.files)
    }

    /// Says by their digests what they are.
    pub fn tell(&self, info: &mut WorkerInfo) {
        info.tokenizer_digest = Some(self.digest.clone());
        let template = self.files.chat_template.as_ref();
        let digest =
            |template: &String| blake3::hash(template.as_bytes()).to_hex()[..32].to_owned();
        info.chat_template_digest = template.map(digest);
    }
}

impl PromptConfig {
    /// The files of an engine that says its model is at `root`, or why there are none.
    pub fn read(&self, root: Option<&str>) -> Result<Arc<ModelFiles>, String> {
        if self.other_tokenizer {
            return Err("the engine was started with another kind of tokenizer".to_owned());
        }
        let directory = self.find(root)?;
        let file = |name: &str| read(&directory.join(name));
        let tokenizer = file("tokenizer.json")?;
        let tokenizer =
            tokenizer.ok_or_else(|| format!("{} has no tokenizer.json", directory.display()))?;
        let chat_template = match &self.template {
            Some(template) => Some(given_template(template)?),
            None => file("chat_template.jinja")?.map(text).transpose()?,
        };
        Ok(Arc::new(ModelFiles {
            tokenizer,
            tokenizer_config: file("tokenizer_config.json")?,
            special_tokens_map: file("special_tokens_map.json")?,
            config: file("config.json")?,
            chat_template,
            prompting: self.prompting.clone(),
        }))
    }

    fn find(&self, root: Option<&str>) -> Result<PathBuf, String> {
        if let Some(directory) = &self.directory {
            return Ok(directory.clone());
        }
        let named = self.tokenizer.as_deref().or(root);
        let named = named.ok_or("the engine does not say where its model is; give --model-dir")?;
        if Path::new(named).is_dir() {
            return Ok(PathBuf::from(named));
        }
        in_hub_cache(named).ok_or_else(|| {
            format!("{named} is neither a directory nor in the Hugging Face cache here; give --model-dir")
        })
    }
}

/// The snapshot of a model that the hub's cache has, by its main branch.
fn in_hub_cache(name: &str) -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let home = || variable("HOME").map(|home| home.join(".cache/huggingface"));
    let hub = variable("HF_HUB_CACHE").or_else(|| {
        let home = variable("HF_HOME").or_else(home)?;
        Some(home.join("hub"))
    })?;
    in_hub(&hub, name)
}

fn in_hub(hub: &Path, name: &str) -> Option<PathBuf> {
    if name.contains("..") || name.starts_with('/') {
        return None;
    }
    let model = hub.join(format!("models--{}", name.replace('/', "--")));
    let commit = std::fs::read_to_string(model.join("refs/main")).ok()?;
    let snapshot = model.join("snapshots").join(commit.trim());
    snapshot.is_dir().then_some(snapshot)
}

/// A file; nothing if there is none.
fn read(path: &Path) -> Result<Option<Bytes>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let size = match std::fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    if size > MOST_BYTES {
        return Err(format!("{} has {size} bytes", path.display()));
    }
    let bytes = std::fs::read(path).map_err(failed)?;
    Ok(Some(bytes.into()))
}

/// A template is given as a file, or as itself: what has a brace and is no file is a template.
fn given_template(given: &str) -> Result<String, String> {
    match read(Path::new(given)) {
        Ok(Some(bytes)) => text(bytes),
        Ok(None) | Err(_) if given.contains(['{', '}', '\n']) => Ok(given.to_owned()),
        Ok(None) => Err(format!("the chat template {given} is not there")),
        Err(error) => Err(error),
    }
}

fn text(bytes: Bytes) -> Result<String, String> {
    String::from_utf8(bytes.into()).map_err(|_| "the chat template is no UTF-8".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (name, content) in files {
            std::fs::write(directory.path().join(name), content).unwrap();
        }
        directory
    }

    #[test]
    fn files_are_found_where_the_engine_says_its_model_is() {
        let model = directory(&[
            ("tokenizer.json", "{\"a\":1}"),
            ("config.json", "{}"),
            ("chat_template.jinja", "{{ messages }}"),
        ]);
        let root = model.path().to_str();
        let files = PromptConfig::default().read(root).unwrap();
        assert_eq!(&files.tokenizer[..], b"{\"a\":1}");
        assert_eq!(files.config.as_deref(), Some(&b"{}"[..]));
        assert_eq!(files.tokenizer_config, None);
        assert_eq!(files.chat_template.as_deref(), Some("{{ messages }}"));
        let given = PromptConfig {
            template: Some("{% for x in y %}".to_owned()),
            ..PromptConfig::default()
        };
        let files = given.read(root).unwrap();
        assert_eq!(files.chat_template.as_deref(), Some("{% for x in y %}"));
    }

    #[test]
    fn what_is_not_there_is_said_in_one_sentence() {
        let empty = directory(&[]);
        let other = PromptConfig {
            other_tokenizer: true,
            ..PromptConfig::default()
        };
        let lost = PromptConfig {
            template: Some("/no/such.jinja".to_owned()),
            directory: Some(directory(&[("tokenizer.json", "{}")]).keep()),
            ..PromptConfig::default()
        };
        let plain = PromptConfig::default();
        for (config, root, part) in [
            (&plain, None, "--model-dir"),
            (&plain, Some("no/such-model"), "--model-dir"),
            (&plain, empty.path().to_str(), "no tokenizer.json"),
            (&other, empty.path().to_str(), "another kind"),
            (&lost, None, "such.jinja is not there"),
        ] {
            let error = config.read(root).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_name_is_looked_up_in_the_hub_cache() {
        let hub = tempfile::tempdir().unwrap();
        let model = hub.path().join("models--org--tiny");
        std::fs::create_dir_all(model.join("refs")).unwrap();
        std::fs::create_dir_all(model.join("snapshots/abc")).unwrap();
        std::fs::write(model.join("refs/main"), "abc\n").unwrap();
        let found = in_hub(hub.path(), "org/tiny").unwrap();
        assert!(found.ends_with("snapshots/abc"));
        assert_eq!(in_hub(hub.path(), "org/other"), None);
        assert_eq!(in_hub(hub.path(), "../../etc"), None);
    }
}
