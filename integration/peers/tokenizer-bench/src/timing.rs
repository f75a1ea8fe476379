//! Time of one thread: fresh text, and a chat that grows.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use baton_tokens::{Chat, Limits, Model, ModelFiles};
use bytes::Bytes;

use crate::corpus::prose;
use crate::subjects::{peers, reference};

const ROUNDS: u64 = 15;

/// Prints medians and the ratio to the reference.
pub fn report(json: &[u8]) -> Result<()> {
    let reference = reference(json)?;
    let mut subjects = vec![("tokenizers", reference)];
    subjects.extend(
        peers(json)
            .into_iter()
            .filter_map(|(name, subject)| Some((name, subject.ok()?))),
    );
    for bytes in [3_500, 50_000] {
        let mut first = None;
        for (name, subject) in &subjects {
            // A first one, so that caches inside a tokenizer are warm; every text is another.
            let _ = subject.encode(&prose(bytes, 0));
            let took = median(
                (1..=ROUNDS)
                    .map(|seed| timed(&prose(bytes, seed), |text| drop(subject.encode(text))))
                    .collect(),
            );
            let base = *first.get_or_insert(took);
            println!(
                "    fresh {bytes:>6} bytes  {name:<12} {:>9.0} us  x{:.2}",
                micros(took),
                base.as_secs_f64() / took.as_secs_f64()
            );
        }
    }
    growing(json)?;
    chat(json)?;
    largest(json)
}

/// A chat of 50 KB to which 1 KB is added: through Baton's memory, and encoded whole by the reference.
fn growing(json: &[u8]) -> Result<()> {
    let whole = reference(json)?;
    let Some(separator) = whole.separator() else {
        return Ok(());
    };
    let files = ModelFiles {
        tokenizer: Bytes::copy_from_slice(json),
        ..ModelFiles::default()
    };
    let model = Model::load(&files, Limits::default()).map_err(|error| anyhow!("{error}"))?;
    let mut text: String = (0..50)
        .map(|turn| format!("{separator}{}", prose(1_000, 1_000 + turn)))
        .collect();
    model.completion(&text, false)?;
    let (mut remembered, mut fresh) = (Vec::new(), Vec::new());
    for turn in 0..ROUNDS {
        text.push_str(&format!("{separator}{}", prose(1_000, 2_000 + turn)));
        remembered.push(timed(&text, |text| drop(model.completion(text, false))));
        fresh.push(timed(&text, |text| drop(whole.encode(text))));
        anyhow::ensure!(
            model.completion(&text, false)? == whole.encode(&text)?,
            "a remembered chat differs"
        );
    }
    let (remembered, fresh) = (median(remembered), median(fresh));
    let ratio = fresh.as_secs_f64() / remembered.as_secs_f64();
    println!(
        "    50 KB grown by 1 KB  baton {:.0} us, whole {:.0} us  x{ratio:.1} (cut: {})",
        micros(remembered),
        micros(fresh),
        model.shown().cuts_texts
    );
    Ok(())
}

/// A ChatML chat of 50 KB to which a turn of 1 KB is added: from the request's body to tokens, and to the template's text.
fn chat(json: &[u8]) -> Result<()> {
    const CHATML: &str = include_str!("../../../../tokens/vectors/templates/chatml.jinja");
    let files = ModelFiles {
        tokenizer: Bytes::copy_from_slice(json),
        chat_template: Some(CHATML.to_owned()),
        ..ModelFiles::default()
    };
    let model = Model::load(&files, Limits::default()).map_err(|error| anyhow!("{error}"))?;
    let message = |turn: u64| serde_json::json!({"role": if turn % 2 == 0 { "user" } else { "assistant" }, "content": prose(1_000, turn)});
    let mut messages: Vec<_> = (0..50).map(message).collect();
    let (mut tokens, mut texts) = (Vec::new(), Vec::new());
    for turn in 0..=ROUNDS {
        messages.push(message(50 + turn));
        let body = serde_json::json!({"messages": messages}).to_string();
        let chat = Chat::from(body.as_bytes());
        tokens.push(timed(&body, |_| drop(model.chat(&chat))));
        texts.push(timed(&body, |_| drop(model.chat_text(&chat))));
    }
    // The first one has everything to encode.
    let first = micros(tokens.remove(0));
    println!(
        "    ChatML body of 50 KB grown by 1 KB  {:.0} us, of which to the text {:.0} us; the first time {first:.0} us",
        micros(median(tokens)),
        micros(median(texts)),
    );
    Ok(())
}

/// The most that one text can cost: prose, and a single word.
fn largest(json: &[u8]) -> Result<()> {
    let files = ModelFiles {
        tokenizer: Bytes::copy_from_slice(json),
        ..ModelFiles::default()
    };
    let limits = Limits {
        most_fresh_bytes: usize::MAX,
        ..Limits::default()
    };
    let model = Model::load(&files, limits).map_err(|error| anyhow!("{error}"))?;
    let most = Limits::default().most_bytes;
    let mut long = prose(most, 3);
    long.truncate(most);
    let long = timed(&long, |text| drop(model.completion(text, true)));
    let word = timed(&"a".repeat(most), |text| drop(model.completion(text, true)));
    println!(
        "    the largest text ({most} bytes)  prose {:.2} s, one word {:.2} s",
        long.as_secs_f64(),
        word.as_secs_f64()
    );
    Ok(())
}

fn timed(text: &str, encode: impl FnOnce(&str)) -> Duration {
    let begun = Instant::now();
    encode(text);
    begun.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
