//! Sends a workload: every conversation starts when it is due, whatever became of the ones before.

use std::sync::Arc;
use std::time::Duration;

use baton_daemon::http::{Client, ClientLimits};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::answer::{Answer, ask};
use super::plan::{Explained, explain};
use super::workload::{Conversation, Kind, Workload};

/// Where requests go.
#[derive(Debug, Clone)]
pub struct Target {
    /// Base URL of the router.
    pub router: String,
    /// The model's name.
    pub model: String,
    /// A cache salt: engines share no cached block between salts, and say the same under each.
    pub salt: Option<&'static str>,
}

/// What became of a request.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// What it is like.
    pub kind: Kind,
    /// Its conversation, and its turn there.
    pub at: (usize, usize),
    /// How the router meant to serve it, asked just before.
    pub explained: Option<Explained>,
    /// The answer, or what was wrong.
    pub answer: Result<Answer, String>,
}

/// How far a load is.
#[derive(Debug, Clone, Copy, Default)]
pub struct Progress {
    /// Requests that ended.
    pub done: usize,
    /// Those of them that failed.
    pub failed: usize,
}

/// Sends all of it and tells how far it is; outcomes in the order of conversations and turns.
pub async fn run(
    workload: &Arc<Workload>,
    target: &Target,
    progress: watch::Sender<Progress>,
) -> Vec<Outcome> {
    let client = Client::new(ClientLimits {
        connect: Duration::from_secs(2),
        idle: Duration::from_secs(10),
    });
    let started = Instant::now();
    let (ended, mut outcomes) = mpsc::channel(64);
    let mut conversations = JoinSet::new();
    for number in 0..workload.conversations.len() {
        let talk = Talk {
            workload: Arc::clone(workload),
            number,
            target: target.clone(),
            client: client.clone(),
        };
        conversations.spawn(talk.run(started, ended.clone()));
    }
    drop(ended);
    let mut all: Vec<Outcome> = Vec::with_capacity(workload.requests());
    while let Some(outcome) = outcomes.recv().await {
        let failed = usize::from(outcome.answer.is_err());
        all.push(outcome);
        progress.send_modify(|progress| {
            progress.done += 1;
            progress.failed += failed;
        });
    }
    all.sort_by_key(|outcome| outcome.at);
    all
}

/// One conversation on its way.
struct Talk {
    workload: Arc<Workload>,
    number: usize,
    target: Target,
    client: Client,
}

impl Talk {
    /// A failed turn ends the conversation: there is nothing to go on from.
    async fn run(self, started: Instant, outcomes: mpsc::Sender<Outcome>) {
        let conversation = &self.workload.conversations[self.number];
        tokio::time::sleep_until(started + conversation.starts).await;
        let mut messages = Vec::new();
        let system = conversation.system.as_deref();
        messages.extend(system.map(|text| message("system", text)));
        for number in 0..conversation.turns.len() {
            let outcome = self.turn(conversation, number, &mut messages).await;
            let failed = outcome.answer.is_err();
            if outcomes.send(outcome).await.is_err() || failed {
                return;
            }
            tokio::time::sleep(conversation.turns[number].think).await;
        }
    }

    async fn turn(
        &self,
        conversation: &Conversation,
        number: usize,
        messages: &mut Vec<Value>,
    ) -> Outcome {
        let turn = &conversation.turns[number];
        messages.push(message("user", &turn.message));
        let mut body = json!({
            "model": self.target.model,
            "messages": messages,
            "max_tokens": turn.max_tokens,
            "temperature": 0,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        if let Some(salt) = self.target.salt {
            body["cache_salt"] = salt.into();
        }
        let body = body.to_string();
        // The dry run is only for the report; a request without one is none the worse.
        let explained = explain(&self.client, &self.target.router, body.clone()).await;
        let answer = ask(&self.client, &self.target.router, body).await;
        if let Ok(answer) = &answer {
            messages.push(message("assistant", &answer.text));
        }
        Outcome {
            kind: conversation.kind,
            at: (self.number, number),
            explained: explained.ok(),
            answer,
        }
    }
}

fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}
