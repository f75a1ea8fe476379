//! The two ways to attach: what is known of an engine from flags and options, its own or ours, before it has said a word.

mod options;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use baton_daemon::Exit;
use baton_proto::worker::Role;
use baton_sidecar_core::command::{EngineCommand, Way, base_url};
use baton_sidecar_core::folder::PrivateFolder;
use baton_sidecar_core::launch::Launch;

use crate::args::TrtllmArgs;
use crate::auth::AuthKey;
use options::{EngineOptions, OptionsFile};

/// The engine's port if none is given (`trtllm-serve`).
const DEFAULT_PORT: &str = "8000";

/// Flags of the engine's that name a file of options.
const OPTIONS: [&str; 2] = ["extra-llm-api-options", "config"];

/// What must be known of an engine to attach to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineConfig {
    /// Base URL of its HTTP server.
    pub base_url: String,
    /// Which legs it serves.
    pub role: Role,
    /// How long it holds KV that nobody fetches, if not for ever.
    pub lease: Option<Duration>,
    /// Tokens of a block, as far as it was said.
    pub tokens_per_block: Option<u32>,
    /// KV events that it keeps until they are polled.
    pub event_buffer: Option<u64>,
    /// Ranks of attention data parallelism.
    pub ranks: u32,
    /// Most sequences in a batch.
    pub max_sequences: Option<u32>,
    /// Most tokens in a batch.
    pub max_batched_tokens: Option<u32>,
    /// Longest sequence.
    pub context_length: Option<u32>,
    /// Decode begins while prefill computes.
    pub generation_first: bool,
    /// Blocks count as plain whatever they are called.
    pub trust_block_names: bool,
    /// The engines' key.
    pub auth_key: Option<AuthKey>,
    /// Directory with its tokenizer's files.
    pub model_dir: Option<PathBuf>,
    /// A file of options to be made for it.
    pub options: Option<MadeOptions>,
}

/// A file of options, to be made in a folder of its own: there may be keys in it.
#[derive(Clone, PartialEq, Eq)]
pub struct MadeOptions {
    /// The folder.
    pub folder: PathBuf,
    content: String,
}

impl std::fmt::Debug for MadeOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MadeOptions")
            .field("folder", &self.folder)
            .finish_non_exhaustive()
    }
}

impl MadeOptions {
    fn new(content: String) -> Self {
        Self {
            folder: PrivateFolder::place(),
            content,
        }
    }

    fn file(&self) -> PathBuf {
        self.folder.join("options.yaml")
    }

    /// Writes the file into the folder, which is there.
    pub fn write(&self) -> Result<(), Exit> {
        std::fs::write(self.file(), &self.content).map_err(|error| {
            Exit::failure(format!("the engine's options cannot be written: {error}"))
        })
    }
}

/// Reads the flags: how to reach the engine, and how to launch it if it is to be launched.
pub fn plan(args: &TrtllmArgs) -> Result<(EngineConfig, Option<Launch>), Exit> {
    match Way::of(args.engine.as_ref(), &args.command)? {
        Way::Beside(url) => Ok((config(args, url, &EngineOptions::default())?, None)),
        Way::Launching(command) => {
            launching(args, command).map(|(config, launch)| (config, Some(launch)))
        }
    }
}

fn config(args: &TrtllmArgs, url: &str, options: &EngineOptions) -> Result<EngineConfig, Exit> {
    let cache = &options.kv_cache_config;
    let parallel = options.enable_attention_dp == Some(true);
    let ranks = options.tensor_parallel_size.filter(|_| parallel);
    Ok(EngineConfig {
        base_url: base_url(url, DEFAULT_PORT)?,
        role: args.role,
        lease: lease(args, options)?,
        tokens_per_block: args.tokens_per_block.or(cache.tokens_per_block),
        event_buffer: args.event_buffer_max_size.or(cache.event_buffer_max_size),
        ranks: args.attention_dp_ranks.or(ranks).unwrap_or(1).max(1),
        max_sequences: options.max_batch_size,
        max_batched_tokens: options.max_num_tokens,
        context_length: options.max_seq_len,
        generation_first: args.generation_first,
        trust_block_names: args.trust_block_names,
        auth_key: auth_key(args, options)?,
        model_dir: args.model_dir.clone(),
        options: None,
    })
}

/// How long the engine holds KV that nobody fetches. It never says, and without a bound KV of a handoff that ends otherwise is
/// held for ever, for nothing gives it back.
fn lease(args: &TrtllmArgs, options: &EngineOptions) -> Result<Option<Duration>, Exit> {
    if args.role == Role::Local {
        return Ok(None);
    }
    let transceiver = options.cache_transceiver_config.as_ref();
    let said = transceiver.and_then(|transceiver| transceiver.kv_transfer_timeout_ms);
    match args.kv_transfer_timeout_ms.or(said) {
        Some(0) | None if args.allow_unbounded_transfer => Ok(None),
        Some(0) | None => Err(Exit::usage(
            "nothing says how long the engine holds KV that nobody fetches: set its \
             cache_transceiver_config.kv_transfer_timeout_ms and say so with --kv-transfer-timeout-ms (or \
             --allow-unbounded-transfer)",
        )),
        Some(millis) => Ok(Some(Duration::from_millis(millis))),
    }
}

fn auth_key(args: &TrtllmArgs, options: &EngineOptions) -> Result<Option<AuthKey>, Exit> {
    let of_file = |path: &Path| {
        std::fs::read_to_string(path).map_err(|error| {
            let path = path.display();
            Exit::usage(format!(
                "--internal-request-auth-key-file {path} cannot be read: {error}"
            ))
        })
    };
    let file = args.internal_request_auth_key_file.as_deref();
    let read = file.map(of_file).transpose()?;
    let given = args.internal_request_auth_key.as_ref().or(read.as_ref());
    let key = given.or(options.internal_request_auth_key.as_ref());
    Ok(key.and_then(|key| AuthKey::new(key)))
}

fn launching(
    args: &TrtllmArgs,
    mut command: EngineCommand,
) -> Result<(EngineConfig, Launch), Exit> {
    let flag = OPTIONS
        .into_iter()
        .find(|name| command.flag(name).is_some());
    let file = flag.and_then(|name| command.flag(name));
    let mut file = file.map_or_else(
        || Ok(OptionsFile::default()),
        |file| OptionsFile::open(file.as_ref()),
    )?;
    let made = file.complete().map(MadeOptions::new);
    let mut read = file.read;
    overrule(&mut read, &command)?;
    if args.role != Role::Local && read.cache_transceiver_config.is_none() {
        return Err(Exit::usage(
            "the engine's options have no cache_transceiver_config, so it hands no KV over: add one, or say --role local",
        ));
    }
    let mut config = config(args, &command.base_url(DEFAULT_PORT), &read)?;
    if config.model_dir.is_none() {
        config.model_dir = model_of(&command);
    }
    if let Some(made) = &made {
        let path = made.file();
        command.set(flag.unwrap_or(OPTIONS[0]), &path.to_string_lossy());
    }
    config.options = made;
    let launch = Launch {
        command: command.into_inner(),
        environment: BTreeMap::new(),
    };
    Ok((config, launch))
}

/// What the command says goes before what the file says.
fn overrule(options: &mut EngineOptions, command: &EngineCommand) -> Result<(), Exit> {
    let number = |name: &str| {
        let given = command.flag(name);
        given
            .map(|text| {
                let wrong = || Exit::usage(format!("the engine's --{name} {text} is no number"));
                text.parse::<u32>().map_err(|_| wrong())
            })
            .transpose()
    };
    for (name, option) in [
        ("tp-size", &mut options.tensor_parallel_size),
        ("max-batch-size", &mut options.max_batch_size),
        ("max-num-tokens", &mut options.max_num_tokens),
        ("max-seq-len", &mut options.max_seq_len),
    ] {
        *option = number(name)?.or(*option);
    }
    Ok(())
}

/// The model that the command names, if that is a directory here: its one argument that is one.
fn model_of(command: &EngineCommand) -> Option<PathBuf> {
    let arguments = command.canonical().skip(1);
    let mut folders =
        arguments.filter(|argument| Path::new(argument).join("config.json").is_file());
    folders.next().map(PathBuf::from)
}
