//! One SGLang engine: what the sidecar core needs of it, put together from its HTTP server and its dialect.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use baton_daemon::Exit;
use baton_proto::model::ModelFiles;
use baton_proto::request::ClientRequest;
use baton_proto::route::Route;
use baton_proto::ticket::{Ticket, TransferMetadata};
use baton_proto::{Error, Incarnation, RequestId};
use baton_sidecar_core::engine::{
    Attached, Engine, EngineLoad, Following, Foreseen, Leg, Offer, Prefilled, Returned, Verdict,
};
use baton_sidecar_core::folder::PrivateFolder;
use baton_sidecar_core::questions::bearer;
use baton_sidecar_core::view::Feed;
use baton_transfer::Agent;
use http::HeaderValue;

use crate::attach::EngineConfig;
use crate::dialect::{self, Bootstrap};
use crate::http::EngineHttp;
use crate::introduce::Fixed;
use crate::load::LoadStream;
use crate::refusal::unusable;
use crate::rooms::Rooms;
use crate::server_info::ServerInfo;
use crate::spelling::Spelling;

/// How long the two legs of a handoff may take to find each other and be done. The engines themselves give up after 300 s
/// unless told otherwise (0.5.23), and hold everything until then.
const LEASE: Duration = Duration::from_secs(100);

/// Length of the ids under which requests come: as long as all are equally long, none is the beginning of another.
const RID_LENGTH: usize = 32;

/// One SGLang engine.
#[derive(Debug)]
pub struct SglangEngine {
    base_url: String,
    authorization: Option<HeaderValue>,
    pub(crate) http: EngineHttp,
    pub(crate) config: EngineConfig,
    rooms: Rooms,
    /// Where decode engines find it.
    pub(crate) spelling: Spelling,
    pub(crate) last: Mutex<Option<Arc<Seen>>>,
    /// Where its present life publishes its load.
    pub(crate) load: Mutex<Weak<LoadStream>>,
    _events_folder: Option<PrivateFolder>,
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

impl SglangEngine {
    /// An engine that was not looked at yet.
    pub fn new(config: EngineConfig) -> Result<Self, Exit> {
        let authorization = config.api_key.as_deref().map(bearer).transpose()?;
        Ok(Self {
            http: EngineHttp::new(&config.base_url, authorization.clone()),
            base_url: config.base_url.clone(),
            authorization,
            rooms: Rooms::new(),
            spelling: Spelling::of(config.bootstrap_host.clone()),
            last: Mutex::default(),
            load: Mutex::default(),
            _events_folder: config
                .events_folder
                .clone()
                .map(PrivateFolder::make)
                .transpose()?,
            config,
        })
    }

    pub(crate) fn last(&self) -> Option<Arc<Seen>> {
        self.last
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Engine for SglangEngine {
    fn base_url(&self) -> &str {
        &self.base_url
    }

    fn authorization(&self) -> Option<&HeaderValue> {
        self.authorization.as_ref()
    }

    async fn attach(&self) -> Result<Attached, Error> {
        self.introduce().await
    }

    async fn alive(&self) -> Result<(), Error> {
        self.http.ready().await?;
        self.spelling.heard();
        Ok(())
    }

    async fn incarnation(&self) -> Result<Incarnation, Error> {
        let server = self.http.server_info().await?;
        self.spelling.heard();
        server.incarnation()
    }

    fn follow(&self, feed: &Feed) -> Option<Following> {
        self.listen(feed)
    }

    async fn agent(&self) -> Result<Agent, Error> {
        Err(unusable("links of SGLang engines are not measured"))
    }

    async fn reset_cache(&self) -> Result<(), Error> {
        self.http.flush_cache().await
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
        let seen = self.last()?;
        let port = seen.server.disaggregation_bootstrap_port?;
        let bootstrap = Bootstrap {
            host: self.spelling.host(),
            port,
            room: self.rooms.next(),
        };
        Some(Offer {
            metadata: bootstrap.metadata(),
            lease: LEASE,
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
        dialect::read_prefill(answer)
    }

    /// SGLang has no such request (0.5.23).
    fn reports_reused(&self) -> bool {
        false
    }

    /// A room is used once, and a prefill engine's next life has never heard of it.
    fn may_fetch_foreign_kv(&self) -> bool {
        false
    }

    /// A leg holds its KV itself: nothing outlives it.
    fn unread(&self, _: &RequestId, _: Route) -> Option<Foreseen> {
        None
    }

    /// SGLang looks every four seconds whether a connection is still there, and drops all requests whose ids begin like the one
    /// that is named (0.5.23).
    async fn abort(&self, request: &RequestId) -> Result<(), Error> {
        let rid = request.as_str();
        if rid.len() != RID_LENGTH {
            let why = "an id of an unusual length may be the beginning of others: the request ends with its connection";
            return Err(unusable(why));
        }
        self.http.abort(rid).await
    }

    /// Nothing is held beyond a leg's end, and a leg of this sidecar's last life has ended with its connection.
    async fn give_back(&self, _: &TransferMetadata) -> Result<Returned, Error> {
        Ok(Returned::Told)
    }

    async fn keep(&self, _: &[TransferMetadata]) -> Result<Duration, Error> {
        Err(unusable(
            "an SGLang engine holds nothing beyond a prefill's end",
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

    fn judge_event(&self, data: &[u8]) -> Verdict {
        dialect::judge_event(data)
    }

    fn judge_answer(&self, body: &[u8]) -> Result<(), String> {
        dialect::judge_answer(body)
    }

    fn is_answer_to(&self, json: &[u8], request: &RequestId) -> bool {
        dialect::is_answer_to(json, request)
    }

    fn names_answers(&self, request: &ClientRequest) -> bool {
        dialect::names_answers(request)
    }
}
