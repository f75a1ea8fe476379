//! One TensorRT-LLM engine: what the sidecar core needs of it, put together from its HTTP server and its dialect.

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use baton_daemon::Exit;
use baton_proto::model::ModelFiles;
use baton_proto::request::ClientRequest;
use baton_proto::route::Route;
use baton_proto::ticket::{Ticket, TransferMetadata};
use baton_proto::{Error, ErrorKind, Incarnation, RequestId};
use baton_sidecar_core::engine::{
    Attached, Engine, EngineLoad, Following, Foreseen, Leg, Offer, Prefilled, Returned, Verdict,
};
use baton_sidecar_core::folder::PrivateFolder;
use baton_sidecar_core::view::Feed;
use baton_transfer::Agent;
use http::{HeaderName, HeaderValue};

use crate::attach::EngineConfig;
use crate::causes;
use crate::dialect;
use crate::follow::{Ended, Leftover};
use crate::http::EngineHttp;
use crate::ids;
use crate::introduce::Fixed;
use crate::lives::Lives;
use crate::load::LoadSample;
use crate::refusal::unusable;
use crate::server_info::ServerInfo;

/// Longest that a handoff of an engine that holds KV for ever is offered.
const UNBOUNDED: Duration = Duration::from_secs(60);

/// How much of the time that the engine holds KV can be counted on: its clock begins before its answer is here.
const COUNTED_ON: f64 = 0.9;

/// Longest that the two legs of a handoff that begins with decode may take to find each other.
const MEETING: Duration = Duration::from_secs(100);

/// One TensorRT-LLM engine.
#[derive(Debug)]
pub struct TrtllmEngine {
    pub(crate) http: EngineHttp,
    pub(crate) config: EngineConfig,
    pub(crate) lives: Arc<Lives>,
    pub(crate) last: Mutex<Option<Arc<Seen>>>,
    /// What a follower of an earlier life has polled and could not use.
    pub(crate) leftover: Leftover,
    /// Requests that have come to their end: there are KV events.
    pub(crate) ended: Arc<Ended>,
    /// As many ranks as its KV events are of.
    pub(crate) ranks: Arc<AtomicU32>,
    /// How busy its present life was last.
    pub(crate) sample: Arc<Mutex<LoadSample>>,
    _options_folder: Option<PrivateFolder>,
}

/// What was last seen of the engine.
#[derive(Debug)]
pub(crate) struct Seen {
    /// Of which life.
    pub(crate) incarnation: Incarnation,
    /// What it said of itself.
    pub(crate) server: ServerInfo,
    /// What else is known of this life.
    pub(crate) fixed: Fixed,
}

impl TrtllmEngine {
    /// An engine that was not looked at yet.
    pub fn new(config: EngineConfig) -> Result<Self, Exit> {
        let made = config.options.as_ref();
        let folder = made
            .map(|made| PrivateFolder::make(made.folder.clone()))
            .transpose()?;
        if let Some(made) = made {
            made.write()?;
        }
        Ok(Self {
            http: EngineHttp::new(&config.base_url),
            lives: Arc::default(),
            last: Mutex::default(),
            leftover: Leftover::default(),
            ended: Arc::default(),
            ranks: Arc::default(),
            sample: Arc::default(),
            _options_folder: folder,
            config,
        })
    }

    pub(crate) fn last(&self) -> Option<Arc<Seen>> {
        self.last
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Whether it answers. Where nobody listens, whoever does so next may be another start of it.
    pub(crate) async fn reach(&self) -> Result<(), Error> {
        let answered = self.http.health().await;
        answered.inspect_err(|error| {
            if error.kind == ErrorKind::Unreachable {
                self.lives.unreachable();
            }
        })
    }

    /// How long KV that nobody fetches can be counted on.
    fn lease(&self) -> Duration {
        let held = self.config.lease.unwrap_or(UNBOUNDED);
        held.mul_f64(COUNTED_ON)
    }
}

impl Engine for TrtllmEngine {
    fn base_url(&self) -> &str {
        &self.config.base_url
    }

    fn authorization(&self) -> Option<&HeaderValue> {
        None
    }

    fn vouch(&self, body: &str) -> Option<(HeaderName, HeaderValue)> {
        self.config.auth_key.as_ref()?.vouch(body)
    }

    async fn attach(&self) -> Result<Attached, Error> {
        self.introduce().await
    }

    async fn alive(&self) -> Result<(), Error> {
        self.reach().await?;
        self.lives.check()
    }

    async fn incarnation(&self) -> Result<Incarnation, Error> {
        self.reach().await?;
        self.lives.attached()
    }

    fn follow(&self, feed: &Feed) -> Option<Following> {
        Some(self.listen(feed))
    }

    async fn agent(&self) -> Result<Agent, Error> {
        Err(unusable("links of TensorRT-LLM engines are not measured"))
    }

    async fn reset_cache(&self) -> Result<(), Error> {
        Err(unusable("TensorRT-LLM has no way to forget its KV cache"))
    }

    fn model_files(&self) -> Option<Arc<ModelFiles>> {
        self.last()?.fixed.files()
    }

    async fn tokenize(&self, request: &str) -> Result<Vec<u32>, Error> {
        self.http.tokens(request.to_owned()).await
    }

    async fn load(&self) -> Result<EngineLoad, Error> {
        self.busy().await
    }

    fn offer(&self) -> Option<Offer> {
        if !self.config.generation_first {
            return None;
        }
        let endpoint = self.last()?.server.endpoint()?;
        Some(Offer {
            metadata: dialect::offer(ids::fresh(), &endpoint),
            lease: MEETING.min(self.lease()),
        })
    }

    fn prefill_body(
        &self,
        request: &ClientRequest,
        offered: Option<&TransferMetadata>,
        leg: Leg<'_>,
    ) -> String {
        dialect::prefill_body(request, offered, leg)
    }

    fn read_prefill(&self, answer: &[u8]) -> Result<Prefilled, Error> {
        self.ended.note();
        if self.config.generation_first {
            return dialect::read_offered(answer);
        }
        dialect::read_prefill(answer, self.lease())
    }

    /// The engine tells of everything once, and of nothing again.
    fn reports_reused(&self) -> bool {
        false
    }

    /// A prefill engine frees KV that nobody fetched in time without a word, and is known to have done so while it was being
    /// fetched (pull request 14565). Where decode is asked first, the leg is over before that could be confirmed.
    fn may_fetch_foreign_kv(&self) -> bool {
        !self.config.generation_first
    }

    /// What it holds has no name that could be told before its answer, and no way to be given back either.
    fn unread(&self, _: &RequestId, _: Route) -> Option<Foreseen> {
        None
    }

    /// It looks every second whether a connection is still there, and has no other way to be told.
    async fn abort(&self, _: &RequestId) -> Result<(), Error> {
        Ok(())
    }

    async fn give_back(&self, _: &TransferMetadata) -> Result<Returned, Error> {
        Ok(Returned::AtItsLease)
    }

    fn extends_leases(&self) -> bool {
        false
    }

    async fn keep(&self, _: &[TransferMetadata]) -> Result<Duration, Error> {
        Err(unusable(
            "TensorRT-LLM holds nothing for longer than it would",
        ))
    }

    fn decode_body(
        &self,
        request: &ClientRequest,
        ticket: &Ticket,
        leg: Leg<'_>,
    ) -> Result<String, Error> {
        dialect::decode_body(request, ticket, leg)
    }

    fn local_body(&self, request: &ClientRequest, leg: Leg<'_>) -> String {
        dialect::local_body(request, leg)
    }

    fn is_judgement(&self, status: u16, body: &[u8]) -> bool {
        baton_sidecar_core::relay::leg::is_judgement(status) && causes::is_about_the_request(body)
    }

    fn judge_event(&self, data: &[u8]) -> Verdict {
        let verdict = dialect::judge_event(data);
        if verdict == Verdict::Done {
            self.ended.note();
        }
        verdict
    }

    fn judge_answer(&self, body: &[u8]) -> Result<(), String> {
        self.ended.note();
        dialect::judge_answer(body)
    }

    fn is_answer_to(&self, json: &[u8], request: &RequestId) -> bool {
        dialect::is_answer_to(json, request)
    }

    /// It names its answers by random ids, and in 1.2 each event of a stream by another one.
    fn names_answers(&self, _: &ClientRequest) -> bool {
        false
    }
}
