//! One value of every wire type and of every variant, under the name of its golden vector.
//!
//! Whoever adds a type adds it here; a variant without a sample does not compile.

use std::fmt::Debug;

use baton_proto::call::{
    Claim, DecodeCall, EngineAnswer, GenerateCall, Outcome, PrefillCall, PrefillFrame,
    PrefillUsage, Release, Revoked,
};
use baton_proto::compat::Compatibility;
use baton_proto::digest::RequestDigest;
use baton_proto::event::{Blocks, KvEvent, ViewState};
use baton_proto::frame::{self, BadFrame, Envelope, FrameReader};
use baton_proto::hash::SequenceHash;
use baton_proto::link::{LinkMeasured, LinkOffer, MeasureLink};
use baton_proto::load::{KvIn, LoadReport, Measured, Origin, Stall, Transport};
use baton_proto::route::{PASS_THROUGH, Route};
use baton_proto::ticket::{Draft, Ticket, TransferMetadata};
use baton_proto::token::FleetToken;
use baton_proto::watch::{Hello, Registered, Registration, SidecarState, ViewDigest, WatchFrame};
use baton_proto::worker::{EngineKind, Role, Tier, TierBlocks, WorkerInfo};
use baton_proto::{Epoch, Error, ErrorKind, Retry, Source, Stage};
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// What decoding some bytes as a sample's type gave.
pub(crate) struct Understood {
    /// Whether it equals the sample.
    pub(crate) same: bool,
    /// Its own encoding.
    pub(crate) bytes: Vec<u8>,
    /// How it looks to a person.
    pub(crate) shown: String,
}

type Decode = Box<dyn Fn(&[u8]) -> Result<Understood, BadFrame>>;

/// A value of a wire type.
pub(crate) struct Sample {
    /// Name of the type or variant, and of its vector.
    pub(crate) name: &'static str,
    /// Its encoding.
    pub(crate) bytes: Vec<u8>,
    /// Whether the encoding is one MessagePack value and nothing else.
    pub(crate) bare: bool,
    decode: Decode,
}

impl Sample {
    /// Decodes other bytes as the sample's type.
    pub(crate) fn decode(&self, bytes: &[u8]) -> Result<Understood, BadFrame> {
        (self.decode)(bytes)
    }
}

/// A sample that is encoded and decoded by functions of its own.
fn coded<T: PartialEq + Debug + 'static>(
    name: &'static str,
    value: T,
    encode: fn(&T) -> Vec<u8>,
    decode: fn(&[u8]) -> Result<T, BadFrame>,
) -> Sample {
    let bytes = encode(&value);
    let understand = move |bytes: &[u8]| {
        let got = decode(bytes)?;
        Ok(Understood {
            same: got == value,
            bytes: encode(&got),
            shown: format!("{got:?}"),
        })
    };
    Sample {
        name,
        bytes,
        bare: false,
        decode: Box::new(understand),
    }
}

fn sample<T>(name: &'static str, value: T) -> Sample
where
    T: Serialize + DeserializeOwned + PartialEq + Debug + 'static,
{
    Sample {
        bare: true,
        ..coded(name, value, frame::to_bytes, frame::from_bytes)
    }
}

/// All variants of an enum of words, in one list.
macro_rules! words {
    ($name:literal, $enum:ident: $($variant:ident)+) => {{
        let _exhaustive = |value: $enum| match value { $($enum::$variant => ()),+ };
        sample($name, vec![$($enum::$variant),+])
    }};
}

/// A sample of each variant of an enum with content.
macro_rules! variants {
    ($enum:ident: $($variant:ident $name:literal $(+ $more:literal)* = $values:expr;)+) => {{
        let _exhaustive = |value: $enum| match value { $($enum::$variant { .. } => ()),+ };
        let mut samples: Vec<Sample> = Vec::new();
        $(
            let names: &[&'static str] = &[$name $(, $more)*];
            let values: Vec<$enum> = $values.into();
            assert_eq!(names.len(), values.len(), "one name a value: {}", $name);
            samples.extend(names.iter().zip(values).map(|(name, value)| sample(name, value)));
        )+
        samples
    }};
}

/// Every sample.
pub(crate) fn samples() -> Vec<Sample> {
    [
        words(),
        plain(),
        fuller(),
        events(),
        watch(),
        prefill(),
        framed(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn words() -> Vec<Sample> {
    let and_unknown = |name, mut known: Vec<ErrorKind>| {
        known.push(ErrorKind::Unknown);
        sample(name, known)
    };
    let mut routes = vec![Route::ChatCompletions, Route::Completions];
    routes.extend(PASS_THROUGH.iter().map(|path| Route::PassThrough(path)));
    vec![
        words!("engine_kinds", EngineKind: Vllm Sglang Trtllm Unknown),
        words!("roles", Role: Prefill Decode Any Local Observed Unknown),
        words!("tiers", Tier: Device Host Disk External Unknown),
        words!("origins", Origin: EngineMetric EngineStream InFlightTable Unknown),
        words!("sidecar_states", SidecarState: Starting Ready EngineDown Draining ServingKv Drained Unknown),
        words!("outcomes", Outcome: Length Ended Unknown),
        words!("transports", Transport: Memory Tcp Rdma Unknown),
        words!("revoked", Revoked: Unseen Answered Cut Unknown),
        words!("sources", Source: Client Router Sidecar Engine Unknown),
        words!("stages", Stage: Request Plan Prefill Handoff Decode Generate Fleet Unknown),
        words!("retries", Retry: Safe AfterCancel No Unknown),
        and_unknown("error_kinds", ErrorKind::ALL.to_vec()),
        sample("routes", routes),
    ]
}

/// Calls with all that they may say, and what links are measured with.
fn fuller() -> Vec<Sample> {
    vec![
        sample(
            "claim_full",
            Claim {
                decode: "decode-1".parse().unwrap(),
                decode_at: Some("http://10.0.0.3:9100".to_owned()),
            },
        ),
        sample(
            "decode_call_full",
            DecodeCall {
                prefill_at: Some("http://10.0.0.1:9100".to_owned()),
                ..decode_call()
            },
        ),
        sample(
            "link_measured",
            LinkMeasured {
                bytes: 16 << 20,
                seconds: 0.0015,
                small_bytes: 4096,
                small_seconds: 0.000_003,
                transport: Transport::Memory,
            },
        ),
        sample(
            "link_offer",
            LinkOffer {
                agent: Bytes::from_static(b"nixlSerDes|Agent"),
                address: 0x7f00_0000_1000,
                bytes: 16 << 20,
            },
        ),
        sample(
            "measure_link",
            MeasureLink {
                from: "http://10.0.0.1:9100".to_owned(),
            },
        ),
        sample(
            "prefill_call_full",
            PrefillCall {
                decode_at: Some("http://10.0.0.2:9100".to_owned()),
                router: Some("router-1".parse().unwrap()),
                uncached_tokens: Some(512),
                ..prefill_call()
            },
        ),
        sample(
            "release_ticket",
            Release::Ticket {
                ticket: Box::new(ticket()),
                decode_at: Some("http://10.0.0.2:9100".to_owned()),
            },
        ),
        sample(
            "release_leg",
            Release::Leg {
                request: "0123456789abcdef0123456789abcdef".parse().unwrap(),
                route: Route::Completions,
                epoch: Epoch(1_796_000_000_000_000_000),
            },
        ),
    ]
}

fn plain() -> Vec<Sample> {
    vec![
        sample("blocks", blocks()),
        sample(
            "claim",
            Claim {
                decode: "decode-1".parse().unwrap(),
                decode_at: None,
            },
        ),
        sample("compatibility", compatibility()),
        sample("decode_call", decode_call()),
        sample("engine_answer", engine_answer()),
        sample(
            "engine_answer_bare",
            EngineAnswer {
                status: 500,
                content_type: None,
                body: Bytes::new(),
            },
        ),
        sample("error", error()),
        sample("generate_call", generate_call()),
        sample("load_report", load_report()),
        sample("load_report_bare", LoadReport::default()),
        sample("prefill_call", prefill_call()),
        sample(
            "prefill_usage",
            PrefillUsage {
                prompt_tokens: 150,
                cached_tokens: Some(128),
            },
        ),
        sample(
            "prefill_usage_bare",
            PrefillUsage {
                prompt_tokens: 150,
                cached_tokens: None,
            },
        ),
        sample("registered", Registered { lease_ms: 10_000 }),
        sample("registration", registration()),
        sample(
            "registration_leave",
            Registration {
                leave: true,
                ..registration()
            },
        ),
        sample(
            "request_digest",
            RequestDigest::of("/v1/completions", b"{}"),
        ),
        sample("ticket", ticket()),
        sample("ticket_offered", ticket_offered()),
        sample(
            "tier_blocks",
            TierBlocks {
                tier: Tier::Host,
                blocks: 70_000,
            },
        ),
        sample("transfer_metadata", TransferMetadata::new(METADATA)),
        sample("view_digest", view_digest()),
        sample("worker_info", worker_info()),
        sample("worker_info_bare", worker_info_bare()),
        sample("worker_info_legs", worker_info_legs()),
    ]
}

fn events() -> Vec<Sample> {
    variants!(KvEvent:
        Stored "event_stored" = [KvEvent::Stored { blocks: blocks(), tier: Tier::Device }];
        Removed "event_removed" = [KvEvent::Removed { blocks: blocks(), tier: Tier::Disk }];
        Cleared "event_cleared" + "event_cleared_all" =
            [KvEvent::Cleared { tier: Some(Tier::External) }, KvEvent::Cleared { tier: None }];
        Uncertain "event_uncertain" = [KvEvent::Uncertain];
        Certain "event_certain" = [KvEvent::Certain];
        Broken "event_broken" = [KvEvent::Broken];
        Whole "event_whole" = [KvEvent::Whole];
        Unknown "event_unknown" = [KvEvent::Unknown];
    )
}

fn watch() -> Vec<Sample> {
    let state = ViewState {
        uncertain: true,
        broken: false,
    };
    let event = KvEvent::Stored {
        blocks: blocks(),
        tier: Tier::Device,
    };
    let digests = vec![
        view_digest(),
        ViewDigest {
            rank: 1,
            digest: 0,
            blocks: 0,
            ..view_digest()
        },
    ];
    variants!(WatchFrame:
        Hello "watch_hello" + "watch_hello_bare" = [
            WatchFrame::Hello(hello()),
            WatchFrame::Hello(Hello { incarnation: None, info: None, ..hello() }),
        ];
        Snapshot "watch_snapshot" =
            [WatchFrame::Snapshot { seq: 7, rank: 1, state, tier: Tier::Host, blocks: blocks(), last: true }];
        Event "watch_event" = [WatchFrame::Event { seq: 70_000, rank: 0, event }];
        State "watch_state" = [WatchFrame::State { state: SidecarState::ServingKv }];
        Load "watch_load" = [WatchFrame::Load(load_report())];
        Heartbeat "watch_heartbeat" = [WatchFrame::Heartbeat { seq: u64::MAX, digests }];
        Unknown "watch_unknown" = [WatchFrame::Unknown];
    )
}

fn prefill() -> Vec<Sample> {
    let id = || "t-1".parse().unwrap();
    let usage = PrefillUsage {
        prompt_tokens: 150,
        cached_tokens: Some(128),
    };
    variants!(PrefillFrame:
        Admitted "prefill_admitted" + "prefill_admitted_ticket" = [
            PrefillFrame::Admitted { id: id(), ticket: None },
            PrefillFrame::Admitted { id: id(), ticket: Some(Box::new(ticket())) },
        ];
        Ready "prefill_ready" = [PrefillFrame::Ready { ticket: Box::new(ticket()) }];
        Done "prefill_done" = [PrefillFrame::Done { usage, outcome: Outcome::Length }];
        Failed "prefill_failed" + "prefill_failed_answer" = [
            PrefillFrame::Failed { error: error(), answer: None },
            PrefillFrame::Failed { error: error(), answer: Some(engine_answer()) },
        ];
        Unknown "prefill_unknown" = [PrefillFrame::Unknown];
    )
}

/// What is more than one MessagePack value: a frame with its length, and the envelopes of the three calls.
fn framed() -> Vec<Sample> {
    fn envelope<Head>(name: &'static str, head: Head) -> Sample
    where
        Head: Serialize + DeserializeOwned + PartialEq + Debug + 'static,
    {
        let body = Bytes::from_static(b"{\"prompt\" : \"a\"}");
        let decode = |bytes: &[u8]| Envelope::decode(Bytes::copy_from_slice(bytes));
        coded(
            name,
            Envelope { head, body },
            |envelope| envelope.encode().concat(),
            decode,
        )
    }
    let one_frame = |bytes: &[u8]| {
        let mut reader = FrameReader::default();
        reader.push(bytes);
        let frame: Option<WatchFrame> = reader.next()?;
        reader.finish()?;
        frame.ok_or(BadFrame::Truncated)
    };
    let state = WatchFrame::State {
        state: SidecarState::Ready,
    };
    vec![
        coded(
            "frame",
            state,
            |frame| frame::encode(frame).to_vec(),
            one_frame,
        ),
        envelope("envelope_prefill", prefill_call()),
        envelope("envelope_decode", decode_call()),
        envelope("envelope_generate", generate_call()),
    ]
}

/// Transfer metadata as an engine writes it; the spacing is part of it.
const METADATA: &[u8] =
    br#"{"do_remote_prefill": true, "remote_block_ids": [[1, 2]], "remote_port": 5600}"#;

/// The secret of the fleet in which the sample ticket was sealed.
pub(crate) fn token() -> FleetToken {
    FleetToken::new("0123456789abcdef").unwrap()
}

/// The ticket that other samples carry.
pub(crate) fn ticket() -> Ticket {
    Draft {
        id: "t-1".parse().unwrap(),
        prefill: "prefill-0".parse().unwrap(),
        incarnation: "agent-1".parse().unwrap(),
        decode: "decode-0".parse().unwrap(),
        request_digest: RequestDigest::of("/v1/completions", b"{}"),
        prompt_tokens: Some(150),
        bytes: Some(81_920),
        lease_ms: 30_000,
        metadata: TransferMetadata::new(METADATA),
    }
    .seal(&token(), 29_000)
}

fn blocks() -> Blocks {
    Blocks(
        [0, 1, 0x0123_4567_89ab_cdef, u64::MAX]
            .map(SequenceHash)
            .into(),
    )
}

fn compatibility() -> Compatibility {
    let facts = [("layout", "HND"), ("compatibility_hash", "b6f1")];
    Compatibility {
        handoff: "vllm/nixl-pull".to_owned(),
        facts: facts
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        block_size: 16,
    }
}

fn prefill_call() -> PrefillCall {
    PrefillCall {
        request: "r-1".parse().unwrap(),
        ticket: "t-1".parse().unwrap(),
        decode: "decode-0".parse().unwrap(),
        decode_at: None,
        router: None,
        route: Route::ChatCompletions,
        deadline_ms: 60_000,
        uncached_tokens: None,
    }
}

fn decode_call() -> DecodeCall {
    DecodeCall {
        request: "r-2".parse().unwrap(),
        ticket: ticket(),
        prefill_at: None,
        route: Route::Completions,
        deadline_ms: 59_000,
    }
}

fn generate_call() -> GenerateCall {
    let route = Route::PassThrough("/v1/embeddings");
    GenerateCall {
        request: "r-3".parse().unwrap(),
        route,
        deadline_ms: 1,
        uncached_tokens: None,
    }
}

fn engine_answer() -> EngineAnswer {
    EngineAnswer {
        status: 400,
        content_type: Some("application/json".to_owned()),
        body: Bytes::from_static(b"{\"error\":{\"message\":\"too long\"}}"),
    }
}

fn error() -> Error {
    Error::new(
        ErrorKind::EngineFailed,
        Source::Engine,
        Stage::Prefill,
        "the engine closed the connection",
    )
    .retry(Retry::AfterCancel)
}

fn registration() -> Registration {
    Registration {
        protocol: baton_proto::PROTOCOL_VERSION,
        worker: "prefill-0".parse().unwrap(),
        epoch: Epoch(1_700_000_000_000_000_000),
        address: "http://127.0.0.1:7000".to_owned(),
        leave: false,
    }
}

fn view_digest() -> ViewDigest {
    ViewDigest {
        rank: 0,
        tier: Tier::Device,
        digest: 0xfedc_ba98_7654_3210,
        blocks: 4,
    }
}

fn load_report() -> LoadReport {
    fn by<T>(from: Origin) -> impl Fn(T) -> Option<Measured<T>> {
        move |value| Some(Measured { value, from })
    }
    let free = vec![
        TierBlocks {
            tier: Tier::Device,
            blocks: 1000,
        },
        TierBlocks {
            tier: Tier::Host,
            blocks: 0,
        },
    ];
    LoadReport {
        seq: 3,
        running: by(Origin::EngineMetric)(2),
        waiting: by(Origin::EngineMetric)(0),
        queued_prefill_tokens: by(Origin::InFlightTable)(4096),
        free: by(Origin::EngineStream)(free),
        handoffs_held: by(Origin::InFlightTable)(1),
        handoffs_pulling: by(Origin::Unknown)(0),
        prefill_tokens_per_s: by(Origin::InFlightTable)(12_345.5),
        decode_tokens_per_s: by(Origin::EngineMetric)(50.0),
        quarantined: true,
        kv_in: by(Origin::EngineMetric)(KvIn {
            bytes_per_s: 12.5e9,
            transport: Some(Transport::Rdma),
        }),
        stall: by(Origin::InFlightTable)(Stall {
            times: 2,
            legs: 3,
            silent_ms: 20_000,
            bound_ms: 15_000,
        }),
    }
}

fn hello() -> Hello {
    Hello {
        protocol: baton_proto::PROTOCOL_VERSION,
        worker: "prefill-0".parse().unwrap(),
        incarnation: Some("agent-1".parse().unwrap()),
        epoch: Epoch(1_700_000_000_000_000_000),
        info: Some(Box::new(worker_info())),
    }
}

fn worker_info() -> WorkerInfo {
    WorkerInfo {
        engine: EngineKind::Vllm,
        engine_version: "0.32.0".to_owned(),
        role: Role::Prefill,
        legs_only: false,
        models: vec!["tiny".to_owned(), "tiny-alias".to_owned()],
        model_digest: Some("m-1".to_owned()),
        lora_adapters: vec!["ada".to_owned()],
        ranks: 2,
        block_size: Some(16),
        capacity: vec![TierBlocks {
            tier: Tier::Device,
            blocks: 70_000,
        }],
        kv_bytes_per_token: Some(131_072),
        max_sequences: Some(256),
        max_batched_tokens: Some(8192),
        context_length: Some(131_072),
        tokenizer_digest: Some("t-1".to_owned()),
        chat_template_digest: Some("c-1".to_owned()),
        topology: [("zone".to_owned(), "a".to_owned())].into(),
        compatibility: Some(compatibility()),
    }
}

fn worker_info_bare() -> WorkerInfo {
    WorkerInfo::unknown(EngineKind::Sglang, Role::Local)
}

fn worker_info_legs() -> WorkerInfo {
    WorkerInfo {
        legs_only: true,
        ..WorkerInfo::unknown(EngineKind::Sglang, Role::Prefill)
    }
}

/// A ticket that exists before its prefill.
fn ticket_offered() -> Ticket {
    Draft {
        prompt_tokens: None,
        bytes: None,
        ..ticket().draft()
    }
    .seal(&token(), 29_000)
}
