//! A message's content: one string, or parts.

use crate::files::ContentFormat;
use crate::json::{Json, Object};
use crate::unknown::Unknown;

/// Members of content parts other than text that the engine's types know.
const PART_MEMBERS: [&str; 16] = [
    "audio_embeds",
    "audio_url",
    "closed",
    "data",
    "file",
    "image_embeds",
    "image_pil",
    "image_url",
    "input_audio",
    "name",
    "prompt_cache_breakpoint",
    "refusal",
    "thinking",
    "uuid",
    "video_embeds",
    "video_url",
];
/// A client's line about itself that the engine drops from system messages, since it changes with every request.
const BILLING_HEADER: &str = "x-anthropic-billing-header";

/// One part of a message's content.
struct Part {
    text: String,
    /// Members of a part that the engine's types do not know: they reach templates that take parts.
    more: Object,
}

/// How a template is given contents.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape<'a> {
    pub(crate) format: ContentFormat,
    /// What comes between parts that become one string.
    pub(crate) separator: &'a str,
}

/// The content as a template is given it.
pub(super) fn content(
    content: Option<&Json>,
    role: &str,
    shape: Shape<'_>,
) -> Result<Json, Unknown> {
    let mut parts = match content {
        None => Vec::new(),
        Some(Json::Null) if role == "assistant" => Vec::new(),
        Some(Json::Str(text)) => vec![Part {
            text: text.clone(),
            more: Object::new(),
        }],
        Some(Json::List(parts)) => parts.iter().map(part).collect::<Result<_, _>>()?,
        Some(other) => return Err(Unknown::Refused(format!("content as {}", other.kind()))),
    };
    if role == "system" {
        parts = parts
            .into_iter()
            .filter_map(without_billing_header)
            .collect();
    }
    Ok(match shape.format {
        // Few templates know parts in what a tool says.
        ContentFormat::OpenAi if role != "tool" => {
            Json::List(parts.into_iter().map(shown_part).collect())
        }
        _ => Json::Str(
            parts
                .into_iter()
                .map(|part| part.text)
                .collect::<Vec<_>>()
                .join(shape.separator),
        ),
    })
}

fn without_billing_header(part: Part) -> Option<Part> {
    if !part.text.starts_with(BILLING_HEADER) {
        return Some(part);
    }
    let (_, rest) = part.text.split_once('\n')?;
    (!rest.is_empty()).then(|| Part {
        text: rest.to_owned(),
        more: part.more,
    })
}

fn shown_part(part: Part) -> Json {
    let mut shown = Object::from_iter([
        ("type".to_owned(), "text".into()),
        ("text".to_owned(), Json::Str(part.text)),
    ]);
    shown.extend(part.more);
    Json::Object(shown)
}

fn part(part: &Json) -> Result<Part, Unknown> {
    let members = match part {
        Json::Str(text) => {
            let (text, more) = (text.clone(), Object::new());
            return Ok(Part { text, more });
        }
        Json::Object(members) => members,
        other => {
            return Err(Unknown::Unsupported(format!(
                "a content part as {}",
                other.kind()
            )));
        }
    };
    let kind = members
        .get("type")
        .and_then(Json::as_str)
        .unwrap_or_default();
    if kind != "text" {
        return Err(not_text(kind));
    }
    let mut more = members.clone();
    more.retain(|name, _| !matches!(name.as_str(), "type" | "text"));
    if let Some(name) = more
        .keys()
        .find(|name| PART_MEMBERS.contains(&name.as_str()))
    {
        return Err(Unknown::Unsupported(format!("a text part with {name}")));
    }
    let text = members
        .get("text")
        .and_then(Json::as_str)
        .map(str::to_owned);
    let text = text.ok_or_else(|| Unknown::Unsupported("a text part without text".into()))?;
    Ok(Part { text, more })
}

fn not_text(kind: &str) -> Unknown {
    match kind {
        "input_text" | "output_text" | "refusal" | "thinking" | "tool_reference" => {
            Unknown::Unsupported(format!("a content part of type {kind:?}"))
        }
        _ => Unknown::Multimodal(kind.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_put_other_things_between_parts() {
        let parts = r#"[{"type": "text", "text": "Two"}, {"type": "text", "text": "parts."}]"#;
        let parts: Json = serde_json::from_str(parts).unwrap();
        for (separator, joined) in [("\n", "Two\nparts."), (" ", "Two parts.")] {
            let shape = Shape {
                format: ContentFormat::String,
                separator,
            };
            let shown = content(Some(&parts), "user", shape);
            assert!(matches!(shown, Ok(Json::Str(text)) if text == joined));
        }
    }
}
