//! Hands altered, foreign, replayed and mismatched tickets to a real decode worker and checks that its sidecar refuses
//! every one before the engine sees it. Unaltered, each of these handoffs works; passed on, several of them end a vLLM
//! engine (0.32.0: too few block ids, a missing request id, a bare `do_remote_prefill`).

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use baton_daemon::fresh::hex_id;
use baton_daemon::http::{Client, ClientLimits, Parts, empty, error_of, read_limited};
use baton_proto::call::{DecodeCall, PrefillCall, PrefillFrame, path};
use baton_proto::frame::{Envelope, FrameReader};
use baton_proto::route::Route;
use baton_proto::ticket::{Ticket, TransferMetadata};
use baton_proto::token::FleetToken;
use baton_proto::{Error, ErrorKind, Retry};
use bytes::Bytes;
use clap::Parser;
use http::header::AUTHORIZATION;
use http::{Method, Request};
use serde_json::{Value, json};

/// Checks that a decode worker refuses every ticket that is not exactly right.
#[derive(Debug, Parser)]
struct Args {
    /// Base URL of the prefill worker's sidecar.
    #[arg(long)]
    prefill: String,
    /// Base URL of the decode worker's sidecar.
    #[arg(long)]
    decode: String,
    /// Model that both serve.
    #[arg(long)]
    model: String,
    /// The fleet's secret.
    #[arg(long, env = "BATON_TOKEN", hide_env_values = true)]
    token: String,
}

/// An altered handoff: its name, and what is done to the ticket and the body.
type Alteration = (&'static str, fn(&Probe, &mut Ticket, &mut Bytes));

const ALTERATIONS: &[Alteration] = &[
    ("too few block ids", |_, ticket, _| {
        edit(ticket, |params| params["remote_block_ids"] = json!([[1]]))
    }),
    ("no block ids", |_, ticket, _| {
        edit(ticket, |params| params["remote_block_ids"] = json!([]))
    }),
    ("block ids out of range", |_, ticket, _| {
        edit(ticket, |params| {
            params["remote_block_ids"] = json!([[900_001, 900_002]])
        })
    }),
    ("no request id", |_, ticket, _| {
        edit(ticket, |params| {
            params
                .as_object_mut()
                .map(|params| params.remove("remote_request_id"));
        });
    }),
    ("unknown request id", |_, ticket, _| {
        edit(ticket, |params| {
            params["remote_request_id"] = json!("cmpl-nobody")
        })
    }),
    ("another engine", |_, ticket, _| {
        edit(ticket, |params| {
            params["remote_engine_id"] = json!("someone-else")
        })
    }),
    ("a dead port", |_, ticket, _| {
        edit(ticket, |params| params["remote_port"] = json!(1))
    }),
    ("only do_remote_prefill", |_, ticket, _| {
        edit(ticket, |params| {
            *params = json!({"do_remote_prefill": true})
        })
    }),
    ("metadata that are not JSON", |_, ticket, _| {
        ticket.metadata = TransferMetadata::new(&b"{"[..])
    }),
    ("another worker", |_, ticket, _| {
        ticket.decode = "somebody".parse().expect("a valid id")
    }),
    ("another life of the engine", |_, ticket, _| {
        ticket.incarnation = "another".parse().expect("a valid id")
    }),
    ("a longer lease", |_, ticket, _| ticket.lease_ms *= 10),
    ("an expired lease", |_, ticket, _| {
        ticket.lease_remaining_ms = 0
    }),
    ("sealed by a foreign fleet", |_, ticket, _| {
        let foreign = FleetToken::new("somebody-elses-secret").expect("long enough");
        *ticket = ticket.draft().seal(&foreign, ticket.lease_remaining_ms);
    }),
    ("a longer prompt", |probe, _, body| {
        *body = probe.body(&format!("{PROMPT} {}", "and more ".repeat(60)))
    }),
    ("another prompt of the same length", |probe, _, body| {
        *body = probe.body(&PROMPT.chars().rev().collect::<String>())
    }),
];

const PROMPT: &str = "prefill and decode engines exchange key value cache blocks, and every handoff is used exactly once";

struct Probe {
    args: Args,
    token: FleetToken,
    client: Client,
    decode_id: String,
}

#[tokio::main]
async fn main() -> ExitCode {
    match probe().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn probe() -> Result<()> {
    let args = Args::parse();
    let token = FleetToken::new(&args.token)?;
    let client = Client::new(ClientLimits {
        connect: Duration::from_secs(2),
        idle: Duration::from_secs(10),
    });
    let mut probe = Probe {
        args,
        token,
        client,
        decode_id: String::new(),
    };
    probe.decode_id = probe.worker_id().await?;
    for (name, alter) in ALTERATIONS {
        let (mut ticket, mut body) = probe.handoff().await?;
        alter(&probe, &mut ticket, &mut body);
        let refusal = probe.decode(ticket, body).await?;
        check(name, refusal)?;
    }
    let (ticket, body) = probe.handoff().await?;
    if let Some(error) = probe.decode(ticket.clone(), body.clone()).await? {
        bail!("an untouched ticket was refused: {error}");
    }
    println!("an untouched ticket: served");
    let replayed = probe
        .decode(ticket, body)
        .await?
        .context("a ticket was used twice")?;
    ensure!(
        replayed.kind == ErrorKind::TicketRefused,
        "a replay was refused as {}: {replayed}",
        replayed.kind
    );
    println!("the same ticket again: refused, {replayed}");
    Ok(())
}

fn check(name: &str, refusal: Option<Error>) -> Result<()> {
    let error = refusal.with_context(|| format!("{name}: the ticket was used"))?;
    let refused = matches!(
        error.kind,
        ErrorKind::TicketRefused | ErrorKind::LeaseExpired
    );
    ensure!(
        refused && error.retry == Retry::Safe,
        "{name}: not refused before the engine saw it, but {}: {error}",
        error.kind
    );
    println!("{name}: refused, {error}");
    Ok(())
}

fn edit(ticket: &mut Ticket, change: impl FnOnce(&mut Value)) {
    let mut params: Value =
        serde_json::from_slice(ticket.metadata.as_bytes()).expect("an engine's own JSON");
    change(&mut params);
    ticket.metadata = TransferMetadata::new(params.to_string());
}

impl Probe {
    fn body(&self, prompt: &str) -> Bytes {
        json!({"model": self.args.model, "prompt": prompt, "max_tokens": 4, "temperature": 0})
            .to_string()
            .into()
    }

    async fn worker_id(&self) -> Result<String> {
        let request = Request::get(format!("{}/readyz", self.args.decode)).body(empty())?;
        let response = self.client.send(request, Duration::from_secs(5)).await?;
        let body = read_limited(response.into_body(), 1 << 16, Duration::from_secs(5)).await?;
        let ready: Value = serde_json::from_slice(&body)?;
        Ok(ready["worker"]
            .as_str()
            .context("the decode sidecar does not say who it is")?
            .to_owned())
    }

    /// A genuine handoff for the decode worker, and the request it is for.
    async fn handoff(&self) -> Result<(Ticket, Bytes)> {
        let body = self.body(PROMPT);
        let call = PrefillCall {
            request: hex_id().parse()?,
            ticket: hex_id().parse()?,
            decode: self.decode_id.parse()?,
            decode_at: Some(self.args.decode.clone()),
            router: None,
            route: Route::Completions,
            deadline_ms: 60_000,
            uncached_tokens: None,
        };
        let parts = Envelope {
            head: call,
            body: body.clone(),
        }
        .encode();
        let response = self
            .send(&self.args.prefill, path::PREFILL, Parts::body(parts))
            .await?;
        let bytes = read_limited(response.into_body(), 1 << 24, Duration::from_mins(1)).await?;
        let mut frames = FrameReader::default();
        frames.push(&bytes);
        while let Some(frame) = frames.next()? {
            match frame {
                PrefillFrame::Ready { ticket } => return Ok((*ticket, body)),
                PrefillFrame::Failed { error, .. } => bail!("the prefill failed: {error}"),
                _ => {}
            }
        }
        bail!(
            "the prefill ended without a ticket: {}",
            String::from_utf8_lossy(&bytes)
        )
    }

    /// Asks for a decode; the sidecar's refusal, or nothing if the engine answered.
    async fn decode(&self, ticket: Ticket, body: Bytes) -> Result<Option<Error>> {
        let call = DecodeCall {
            request: hex_id().parse()?,
            ticket,
            prefill_at: None,
            route: Route::Completions,
            deadline_ms: 60_000,
        };
        let response = self
            .send(
                &self.args.decode,
                path::DECODE,
                Parts::body(Envelope { head: call, body }.encode()),
            )
            .await?;
        let (head, body) = response.into_parts();
        let body = read_limited(body, 1 << 24, Duration::from_mins(1)).await?;
        let status = head.status;
        let refusal = error_of(&http::Response::from_parts(head, ()), &body);
        ensure!(
            refusal.is_some() || status == 200,
            "the engine was asked and answered {status}: {body:?}"
        );
        Ok(refusal)
    }

    async fn send(
        &self,
        base: &str,
        path: &str,
        body: baton_daemon::http::Body,
    ) -> Result<http::Response<hyper::body::Incoming>> {
        let mut request = Request::new(body);
        *request.method_mut() = Method::POST;
        *request.uri_mut() = format!("{base}{path}").parse()?;
        request
            .headers_mut()
            .insert(AUTHORIZATION, self.token.bearer().parse()?);
        Ok(self.client.send(request, Duration::from_mins(1)).await?)
    }
}
