//! Whatever a wire type holds survives the wire, and no altered ticket passes for a genuine one.

#![allow(
    clippy::unwrap_used,
    reason = "clippy sees no test in the functions beside the tests"
)]

use std::fmt::Debug;

use baton_proto::call::{
    Claim, DecodeCall, EngineAnswer, GenerateCall, Outcome, PrefillCall, PrefillFrame,
    PrefillUsage, Release,
};
use baton_proto::compat::Compatibility;
use baton_proto::digest::RequestDigest;
use baton_proto::event::{Blocks, KvEvent, ViewState};
use baton_proto::frame::{Envelope, FrameReader, encode, from_bytes, to_bytes};
use baton_proto::hash::SequenceHash;
use baton_proto::load::{KvIn, LoadReport, Measured, Origin, Stall, Transport};
use baton_proto::route::{PASS_THROUGH, Route};
use baton_proto::ticket::{Draft, Ticket, TransferMetadata};
use baton_proto::token::FleetToken;
use baton_proto::watch::{Hello, Registered, Registration, SidecarState, ViewDigest, WatchFrame};
use baton_proto::worker::{EngineKind, Role, Tier, TierBlocks, WorkerInfo};
use baton_proto::{Epoch, Error, ErrorKind, Retry, Source, Stage};
use bytes::Bytes;
use proptest::collection::{btree_map, vec};
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::select;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A strategy, under a short name: this file is full of them.
trait Any<T>: Strategy<Value = T> {}
impl<T, S: Strategy<Value = T>> Any<T> for S {}

fn id<T: std::str::FromStr<Err: Debug> + Debug>() -> impl Any<T> {
    "[A-Za-z0-9._-]{1,64}".prop_map(|text| text.parse().unwrap())
}

fn text() -> impl Any<String> {
    ".{0,20}"
}

fn bytes() -> impl Any<Bytes> {
    // Lengths on both sides of the borders between MessagePack's forms.
    let any_bytes = |length| vec(any::<u8>(), length);
    prop_oneof![8 => any_bytes(0..40), 4 => any_bytes(250..260), 1 => any_bytes(65_530..65_540)]
        .prop_map(Into::into)
}

fn tier() -> impl Any<Tier> {
    select(
        &[
            Tier::Device,
            Tier::Host,
            Tier::Disk,
            Tier::External,
            Tier::Unknown,
        ][..],
    )
}

fn tier_blocks() -> impl Any<TierBlocks> {
    (tier(), any::<u64>()).prop_map(|(tier, blocks)| TierBlocks { tier, blocks })
}

fn blocks() -> impl Any<Blocks> {
    vec(any::<u64>().prop_map(SequenceHash), 0..50).prop_map(Blocks)
}

fn event() -> impl Any<KvEvent> {
    prop_oneof![
        (blocks(), tier()).prop_map(|(blocks, tier)| KvEvent::Stored { blocks, tier }),
        (blocks(), tier()).prop_map(|(blocks, tier)| KvEvent::Removed { blocks, tier }),
        of(tier()).prop_map(|tier| KvEvent::Cleared { tier }),
        select(
            &[
                KvEvent::Uncertain,
                KvEvent::Certain,
                KvEvent::Broken,
                KvEvent::Whole,
                KvEvent::Unknown
            ][..]
        ),
    ]
}

fn compatibility() -> impl Any<Compatibility> {
    (text(), btree_map(text(), text(), 0..4), any::<u32>()).prop_map(
        |(handoff, facts, block_size)| Compatibility {
            handoff,
            facts,
            block_size,
        },
    )
}

fn worker_info() -> impl Any<WorkerInfo> {
    let engine = select(
        &[
            EngineKind::Vllm,
            EngineKind::Sglang,
            EngineKind::Trtllm,
            EngineKind::Unknown,
        ][..],
    );
    let role = select(
        &[
            Role::Prefill,
            Role::Decode,
            Role::Any,
            Role::Local,
            Role::Observed,
            Role::Unknown,
        ][..],
    );
    let identity = (
        engine,
        text(),
        role,
        vec(text(), 0..3),
        of(text()),
        vec(text(), 0..3),
    );
    let number = || of(any::<u32>());
    let size = (
        any::<u32>(),
        number(),
        vec(tier_blocks(), 0..4),
        of(any::<u64>()),
        number(),
        number(),
        number(),
    );
    let rest = (
        of(text()),
        of(text()),
        btree_map(text(), text(), 0..4),
        of(compatibility()),
        any::<bool>(),
    );
    (identity, size, rest).prop_map(|(identity, size, rest)| {
        let (engine, engine_version, role, models, model_digest, lora_adapters) = identity;
        let (
            ranks,
            block_size,
            capacity,
            kv_bytes_per_token,
            max_sequences,
            max_batched_tokens,
            context_length,
        ) = size;
        let (tokenizer_digest, chat_template_digest, topology, compatibility, legs_only) = rest;
        WorkerInfo {
            engine,
            engine_version,
            role,
            legs_only,
            models,
            model_digest,
            lora_adapters,
            ranks,
            block_size,
            capacity,
            kv_bytes_per_token,
            max_sequences,
            max_batched_tokens,
            context_length,
            tokenizer_digest,
            chat_template_digest,
            topology,
            compatibility,
        }
    })
}

fn measured<T: Debug + Clone>(value: impl Any<T>) -> impl Any<Option<Measured<T>>> {
    let origin = select(
        &[
            Origin::EngineMetric,
            Origin::EngineStream,
            Origin::InFlightTable,
            Origin::Unknown,
        ][..],
    );
    of((value, origin).prop_map(|(value, from)| Measured { value, from }))
}

fn kv_in() -> impl Any<KvIn> {
    let transports = [
        Transport::Memory,
        Transport::Tcp,
        Transport::Rdma,
        Transport::Unknown,
    ];
    let transport = of(select(transports.to_vec()));
    (any::<f64>(), transport).prop_map(|(bytes_per_s, transport)| KvIn {
        bytes_per_s,
        transport,
    })
}

fn stall() -> impl Any<Stall> {
    (any::<u32>(), any::<u32>(), any::<u64>(), any::<u64>()).prop_map(
        |(times, legs, silent_ms, bound_ms)| Stall {
            times,
            legs,
            silent_ms,
            bound_ms,
        },
    )
}

fn load_report() -> impl Any<LoadReport> {
    let rate = || prop_oneof![any::<f64>(), Just(f64::INFINITY), Just(-0.0)];
    let count = || measured(any::<u32>());
    let counts = (count(), count(), count(), count());
    let rest = (
        measured(any::<u64>()),
        measured(vec(tier_blocks(), 0..5)),
        measured(rate()),
        measured(rate()),
        measured(kv_in()),
        measured(stall()),
    );
    (any::<u64>(), any::<bool>(), counts, rest).prop_map(|(seq, quarantined, counts, rest)| {
        let (running, waiting, handoffs_held, handoffs_pulling) = counts;
        let (queued_prefill_tokens, free, prefill_tokens_per_s, decode_tokens_per_s, kv_in, stall) =
            rest;
        LoadReport {
            seq,
            running,
            waiting,
            queued_prefill_tokens,
            free,
            handoffs_held,
            handoffs_pulling,
            prefill_tokens_per_s,
            decode_tokens_per_s,
            quarantined,
            kv_in,
            stall,
        }
    })
}

fn view_digest() -> impl Any<ViewDigest> {
    (any::<u32>(), tier(), any::<u64>(), any::<u64>()).prop_map(|(rank, tier, digest, blocks)| {
        ViewDigest {
            rank,
            tier,
            digest,
            blocks,
        }
    })
}

fn hello() -> impl Any<Hello> {
    (
        any::<u32>(),
        id(),
        of(id()),
        any::<u64>(),
        of(worker_info()),
    )
        .prop_map(|(protocol, worker, incarnation, epoch, info)| Hello {
            protocol,
            worker,
            incarnation,
            epoch: Epoch(epoch),
            info: info.map(Box::new),
        })
}

fn view_state() -> impl Any<ViewState> {
    any::<(bool, bool)>().prop_map(|(uncertain, broken)| ViewState { uncertain, broken })
}

fn watch_frame() -> impl Any<WatchFrame> {
    use SidecarState as State;
    let states = [
        State::Starting,
        State::Ready,
        State::EngineDown,
        State::Draining,
        State::ServingKv,
        State::Drained,
        State::Unknown,
    ];
    prop_oneof![
        hello().prop_map(WatchFrame::Hello),
        (any::<(u64, u32, bool)>(), view_state(), tier(), blocks()).prop_map(
            |((seq, rank, last), state, tier, blocks)| {
                WatchFrame::Snapshot {
                    seq,
                    rank,
                    state,
                    tier,
                    blocks,
                    last,
                }
            }
        ),
        (any::<u64>(), any::<u32>(), event()).prop_map(|(seq, rank, event)| WatchFrame::Event {
            seq,
            rank,
            event
        }),
        select(states.to_vec()).prop_map(|state| WatchFrame::State { state }),
        load_report().prop_map(WatchFrame::Load),
        (any::<u64>(), vec(view_digest(), 0..20))
            .prop_map(|(seq, digests)| WatchFrame::Heartbeat { seq, digests }),
        Just(WatchFrame::Unknown),
    ]
}

fn registration() -> impl Any<Registration> {
    (any::<u32>(), id(), any::<u64>(), text(), any::<bool>()).prop_map(
        |(protocol, worker, epoch, address, leave)| Registration {
            protocol,
            worker,
            epoch: Epoch(epoch),
            address,
            leave,
        },
    )
}

fn route() -> impl Any<Route> {
    let named = [Route::ChatCompletions, Route::Completions].into_iter();
    select(
        named
            .chain(PASS_THROUGH.iter().map(|path| Route::PassThrough(path)))
            .collect::<Vec<_>>(),
    )
}

fn token() -> FleetToken {
    FleetToken::new("0123456789abcdef").unwrap()
}

fn ticket() -> impl Any<Ticket> {
    let names = (id(), id(), id(), id());
    let request =
        (text(), vec(any::<u8>(), 0..40)).prop_map(|(path, body)| RequestDigest::of(&path, &body));
    let metadata = vec(any::<u8>(), 0..300).prop_map(TransferMetadata::new);
    (
        names,
        request,
        any::<Option<u32>>(),
        any::<Option<u64>>(),
        any::<u64>(),
        any::<u64>(),
        metadata,
    )
        .prop_map(
            |(
                (id, prefill, incarnation, decode),
                request_digest,
                prompt_tokens,
                bytes,
                lease_ms,
                left,
                metadata,
            )| {
                let draft = Draft {
                    id,
                    prefill,
                    incarnation,
                    decode,
                    request_digest,
                    prompt_tokens,
                    bytes,
                    lease_ms,
                    metadata,
                };
                draft.seal(&token(), left.min(lease_ms))
            },
        )
}

fn prefill_call() -> impl Any<PrefillCall> {
    let ids = (id(), id(), id(), of(id()));
    let rest = (of(text()), route(), any::<u64>(), any::<Option<u64>>());
    (ids, rest).prop_map(
        |((request, ticket, decode, router), (decode_at, route, deadline_ms, uncached_tokens))| {
            PrefillCall {
                request,
                ticket,
                decode,
                decode_at,
                router,
                route,
                deadline_ms,
                uncached_tokens,
            }
        },
    )
}

fn decode_call() -> impl Any<DecodeCall> {
    (id(), ticket(), of(text()), route(), any::<u64>()).prop_map(
        |(request, ticket, prefill_at, route, deadline_ms)| DecodeCall {
            request,
            ticket,
            prefill_at,
            route,
            deadline_ms,
        },
    )
}

fn generate_call() -> impl Any<GenerateCall> {
    (id(), route(), any::<u64>()).prop_map(|(request, route, deadline_ms)| GenerateCall {
        request,
        route,
        deadline_ms,
        uncached_tokens: None,
    })
}

fn error() -> impl Any<Error> {
    fn and<T: Copy + Debug + 'static>(known: &[T], unknown: T) -> impl Any<T> {
        select([known, &[unknown]].concat())
    }
    let kind = and(ErrorKind::ALL, ErrorKind::Unknown);
    let place = (
        and(Source::ALL, Source::Unknown),
        and(Stage::ALL, Stage::Unknown),
    );
    (kind, place, and(Retry::ALL, Retry::Unknown), text()).prop_map(
        |(kind, (source, stage), retry, message)| {
            Error::new(kind, source, stage, message).retry(retry)
        },
    )
}

fn engine_answer() -> impl Any<EngineAnswer> {
    (any::<u16>(), of(text()), bytes()).prop_map(|(status, content_type, body)| EngineAnswer {
        status,
        content_type,
        body,
    })
}

fn prefill_frame() -> impl Any<PrefillFrame> {
    let usage =
        (any::<u32>(), of(any::<u32>())).prop_map(|(prompt_tokens, cached_tokens)| PrefillUsage {
            prompt_tokens,
            cached_tokens,
        });
    let outcome = select(&[Outcome::Length, Outcome::Ended, Outcome::Unknown][..]);
    prop_oneof![
        (id(), of(ticket().prop_map(Box::new)))
            .prop_map(|(id, ticket)| PrefillFrame::Admitted { id, ticket }),
        ticket()
            .prop_map(Box::new)
            .prop_map(|ticket| PrefillFrame::Ready { ticket }),
        (usage, outcome).prop_map(|(usage, outcome)| PrefillFrame::Done { usage, outcome }),
        (error(), of(engine_answer()))
            .prop_map(|(error, answer)| PrefillFrame::Failed { error, answer }),
        Just(PrefillFrame::Unknown),
    ]
}

fn survives<T: Serialize + DeserializeOwned + PartialEq + Debug>(
    value: &T,
) -> Result<(), TestCaseError> {
    let bytes = to_bytes(value);
    let got: T = from_bytes(&bytes).unwrap();
    prop_assert_eq!(&got, value);
    prop_assert_eq!(to_bytes(&got), bytes);
    Ok(())
}

fn envelope_survives<Head>(head: Head, body: Bytes) -> Result<(), TestCaseError>
where
    Head: Serialize + DeserializeOwned + PartialEq + Debug,
{
    let envelope = Envelope { head, body };
    prop_assert_eq!(
        &Envelope::decode(envelope.encode().concat().into()).unwrap(),
        &envelope
    );
    Ok(())
}

proptest! {
    #[test]
    fn watch_frames(frame in watch_frame()) {
        survives(&frame)?;
    }

    #[test]
    fn prefill_frames(frame in prefill_frame()) {
        survives(&frame)?;
    }

    #[test]
    fn tickets(ticket in ticket()) {
        survives(&ticket)?;
        prop_assert!(from_bytes::<Ticket>(&to_bytes(&ticket)).unwrap().is_genuine(&token()));
    }

    #[test]
    fn calls(prefill in prefill_call(), decode in decode_call(), generate in generate_call(), body in bytes()) {
        envelope_survives(prefill, body.clone())?;
        envelope_survives(decode, body.clone())?;
        envelope_survives(generate, body)?;
    }

    #[test]
    fn releases(ticket in ticket(), decode_at in of(text())) {
        survives(&Release::Ticket { ticket: Box::new(ticket), decode_at })?;
    }

    #[test]
    fn membership(registration in registration(), lease_ms: u64, decode in id(), decode_at in of(text())) {
        survives(&registration)?;
        survives(&Registered { lease_ms })?;
        survives(&Claim { decode, decode_at })?;
    }

    #[test]
    fn errors(error in error()) {
        survives(&error)?;
        let read_back = Error::from_wire(&error.header(), error.openai_body().as_bytes());
        let cautious = if error.retry == Retry::Unknown { Retry::AfterCancel } else { error.retry };
        prop_assert_eq!(read_back, error.retry(cautious));
    }

    #[test]
    fn streams_of_frames(frames in vec(watch_frame(), 0..6), cuts in vec(1usize..200, 1..20)) {
        let wire: Vec<u8> = frames.iter().flat_map(|frame| encode(frame).to_vec()).collect();
        let mut reader = FrameReader::default();
        let mut got: Vec<WatchFrame> = Vec::new();
        let mut rest = &wire[..];
        for cut in cuts.iter().cycle() {
            let (chunk, tail) = rest.split_at((*cut).min(rest.len()));
            reader.push(chunk);
            while let Some(frame) = reader.next().unwrap() {
                got.push(frame);
            }
            let complete: usize = frames.iter().take(got.len()).map(|frame| encode(frame).len()).sum();
            let between_frames = complete == wire.len() - tail.len();
            prop_assert_eq!(reader.finish().is_ok(), between_frames);
            rest = tail;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(got, frames);
    }
}

proptest! {
    // Each case tries every bit of a ticket, some thousands.
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn no_flipped_bit_of_a_ticket_goes_unnoticed(ticket in ticket()) {
        let wire = to_bytes(&ticket);
        for bit in 0..wire.len() * 8 {
            let mut flipped = wire.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let Ok(read) = from_bytes::<Ticket>(&flipped) else { continue };
            if read.is_genuine(&token()) {
                // Only the age of a ticket is not sealed, and it can be no more than the lease.
                let same_age = Ticket { lease_remaining_ms: ticket.lease_remaining_ms, ..read };
                prop_assert_eq!(to_bytes(&same_age), wire.clone(), "bit {}", bit);
            }
        }
    }
}
