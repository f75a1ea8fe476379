//! What vLLM's flags say of how it makes prompts.

use baton_proto::model::Prompting;
pub use baton_sidecar_core::model_files::PromptConfig;

use crate::args::VllmArgs;

/// Of a command that launches an engine; what our own flags say goes before.
pub fn of_command(
    args: &VllmArgs,
    flag: impl Fn(&str) -> Option<String>,
    is_set: impl Fn(&str) -> bool,
) -> PromptConfig {
    let mode = flag("tokenizer-mode").unwrap_or_else(|| "auto".to_owned());
    let format = flag("chat-template-content-format").filter(|format| format != "auto");
    PromptConfig {
        directory: args.model_dir.clone(),
        tokenizer: flag("tokenizer"),
        template: args.chat_template.clone().or_else(|| flag("chat-template")),
        other_tokenizer: !matches!(mode.as_str(), "auto" | "hf") || is_set("skip-tokenizer-init"),
        prompting: Prompting {
            content_format: format,
            default_template_arguments: flag("default-chat-template-kwargs"),
            exclude_tools_when_not_chosen: is_set("exclude-tools-when-tool-choice-none"),
            part_separator: None,
        },
    }
}
