//! One vLLM engine: what the sidecar core needs of it, put together from its side channel, its HTTP server and its dialect.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use baton_daemon::Exit;
use baton_proto::load::{LoadReport, Measured, Origin};
use baton_proto::model::ModelFiles;
use baton_proto::request::ClientRequest;
use baton_proto::route::Route;
use baton_proto::ticket::{Ticket, TransferMetadata};
use baton_proto::worker::{Role, Tier, TierBlocks};
use baton_proto::{Error, ErrorKind, Incarnation, RequestId, Retry, Source, Stage};
use baton_sidecar_core::engine::{
    Attached, Engine, EngineLoad, Following, Foreseen, Leg, Moved, Offer, Prefilled, Returned,
    Verdict,
};
use baton_sidecar_core::folder::PrivateFolder;
use baton_sidecar_core::model_files::PromptFiles;
use baton_sidecar_core::questions::bearer;
use baton_sidecar_core::refusal::unusable;
use baton_sidecar_core::view::Feed;
use baton_transfer::{Agent, Kind};
use http::HeaderValue;

use crate::attach::{EngineConfig, TransferConfig};
use crate::dialect;
use crate::follow;
use crate::follow::source::{EventSource, EventsConfig, sources_told};
use crate::handshake::{Handshake, TpRank};
use crate::http::{EngineHttp, Model};
use crate::metrics_page::MetricsPage;
use crate::model_files::PromptConfig;
use crate::names::Names;
use crate::notifier::Notifier;
use crate::side_channel::SideChannel;
use crate::transfer_params::{HeldAs, Notification};
use crate::worker_info::info;

/// Version whose wire facts this sidecar was verified with.
const VERIFIED: &str = "0.32.";

/// Share of a lease that is counted on: the engine's began before its answer arrived, and a heartbeat's interval (a
/// sixth) is no time to be late.
const CAUTION: f64 = 5.0 / 6.0;

/// Share of a lease for which a heartbeat extends it, from its arrival on (0.32.0).
const EXTENSION: f64 = 2.0 / 3.0;

/// How long a decode engine keeps the NIXL agent of an engine_id (0.32.0, `engine_ttl`), with room.
const AGENT_KEPT: Duration = Duration::from_secs(2 * 3600);

/// One vLLM engine.
#[derive(Debug)]
pub struct VllmEngine {
    base_url: String,
    authorization: Option<HeaderValue>,
    http: EngineHttp,
    transfer: Option<Transfer>,
    /// What the engine was given as `--kv-events-config`, if that is known.
    events: Option<EventsConfig>,
    _events_folder: Option<PrivateFolder>,
    prompts: PromptConfig,
    max_sequences: Option<u32>,
    last: Mutex<Option<Arc<Seen>>>,
    met: Mutex<Met>,
    names: Names,
}

#[derive(Debug)]
struct Transfer {
    config: TransferConfig,
    side_channel: SideChannel,
    notifier: Notifier,
}

/// What was last seen of the engine.
#[derive(Debug)]
struct Seen {
    handshake: Option<Arc<Handshake>>,
    blocks: Option<u64>,
    /// Where the KV events of its ranks are to be had.
    events: BTreeMap<u32, EventsConfig>,
    /// Of which life.
    incarnation: Incarnation,
    /// What decides its prompts' tokens, and the digest of that.
    files: Option<PromptFiles>,
}

/// Prefill engines that this engine, in its present life, has handshaked with.
#[derive(Debug, Default)]
struct Met {
    life: Option<Incarnation>,
    engines: HashMap<String, (Incarnation, Instant)>,
}

impl VllmEngine {
    /// An engine that was not looked at yet.
    pub fn new(config: EngineConfig) -> Result<Self, Exit> {
        let authorization = config.api_key.as_deref().map(bearer).transpose()?;
        let transfer = config.transfer.map(|config| {
            SideChannel::start(&config.side_channel).map(|side_channel| Transfer {
                notifier: Notifier::new(config.nixl.clone()),
                config,
                side_channel,
            })
        });
        Ok(Self {
            http: EngineHttp::new(&config.base_url, authorization.clone()),
            base_url: config.base_url,
            authorization,
            transfer: transfer.transpose()?,
            events: config.events,
            _events_folder: config.events_folder.map(PrivateFolder::make).transpose()?,
            prompts: config.prompts,
            max_sequences: config.max_sequences,
            last: Mutex::default(),
            met: Mutex::default(),
            names: Names::default(),
        })
    }

    /// Where the KV events of each rank are to be had: the engine says so itself, or they are counted up from what it was
    /// given.
    async fn event_sources(&self, ranks: u32) -> BTreeMap<u32, EventsConfig> {
        let told = self.http.event_sources().await.unwrap_or_default();
        let told = sources_told(told);
        match &self.events {
            Some(given) if told.is_empty() && given.tells() => {
                (0..ranks).map(|rank| (rank, given.of_rank(rank))).collect()
            }
            _ => told,
        }
    }

    /// The files that decide the tokens of its prompts. They are read once in its life.
    async fn files_of(&self, incarnation: &Incarnation, models: &[Model]) -> Option<PromptFiles> {
        if let Some(seen) = self.last().filter(|seen| seen.incarnation == *incarnation) {
            return seen.files.clone();
        }
        let base = models.iter().find(|model| model.parent.is_none());
        let root = base.and_then(|model| model.root.clone());
        PromptFiles::find(Ok(self.prompts.clone()), root).await
    }

    fn last(&self) -> Option<Arc<Seen>> {
        self.last
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// A decode engine that meets a restarted prefill engine under its old engine_id fails every transfer from it, for it
    /// keeps the dead NIXL agent. Such a handoff is refused before the engine sees it.
    fn meet(&self, ticket: &Ticket) -> Result<(), Error> {
        let Some(engine_id) = dialect::remote_engine_id(ticket) else {
            return Err(incompatible(
                "the ticket's transfer metadata name no engine",
            ));
        };
        let life = self.last().and_then(|seen| {
            let handshake = seen.handshake.as_ref()?;
            Some(handshake.incarnation.clone())
        });
        let mut met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
        if met.life != life {
            *met = Met {
                life,
                engines: HashMap::new(),
            };
        }
        met.engines
            .retain(|_, (_, since)| since.elapsed() < AGENT_KEPT);
        match met.engines.get(&engine_id) {
            Some((known, _)) if *known != ticket.incarnation => Err(incompatible(&format!(
                "the prefill engine restarted under its old engine_id {engine_id}, which this decode engine cannot follow; \
                 restart it with a fresh engine_id"
            ))),
            _ => {
                met.engines
                    .insert(engine_id, (ticket.incarnation.clone(), Instant::now()));
                Ok(())
            }
        }
    }

    fn transfer(&self) -> Result<&Transfer, Error> {
        let transfer = self.transfer.as_ref();
        transfer.ok_or_else(|| incompatible("this engine holds no KV for others"))
    }

    /// Sends a message to each of the engine's tensor-parallel ranks.
    async fn tell(&self, tp_size: u32, message: Notification) -> Result<(), Error> {
        let transfer = self.transfer()?;
        let ranks = TpRank::all(tp_size)
            .ok_or_else(|| unusable(&format!("it says it has {tp_size} ranks")))?;
        let mut handshakes = Vec::new();
        for rank in ranks {
            handshakes.push(transfer.side_channel.handshake_of(rank).await?);
        }
        transfer.notifier.tell(handshakes, message).await
    }

    /// Gets ready to tell a new life of the engine what becomes of KV that it holds for others.
    fn prepare(&self, role: Role, handshake: Option<&Arc<Handshake>>) {
        let (Some(transfer), Some(handshake)) = (&self.transfer, handshake) else {
            return;
        };
        let known = self.last().and_then(|seen| seen.handshake.clone());
        let met = known.is_some_and(|known| known.incarnation == handshake.incarnation);
        if role.prefills() && !met {
            transfer.notifier.prepare(vec![Arc::clone(handshake)]);
        }
    }

    async fn shake_hands(&self, page: &MetricsPage<'_>) -> Result<Option<Arc<Handshake>>, Error> {
        let Some(transfer) = &self.transfer else {
            return Ok(None);
        };
        let handshake = transfer.side_channel.handshake().await?;
        if let Some(expected) = transfer
            .config
            .engine_id
            .as_ref()
            .filter(|id| **id != handshake.engine_id)
        {
            let found = &handshake.engine_id;
            return Err(unusable(&format!(
                "the side channel is of engine_id {found}, not of {expected}"
            )));
        }
        if !page.has_family("vllm:nixl_") {
            return Err(unusable(
                "the engine has no NIXL connector, yet a kv_transfer_config was given",
            ));
        }
        let told = page
            .label("vllm:cache_config_info", "block_size")
            .and_then(|size| size.parse::<u32>().ok());
        match told {
            Some(told) if told != handshake.geometry.block_size => Err(unusable(&format!(
                "the engine's metrics say block size {told}, its handshake {}: the side channel is of another engine",
                handshake.geometry.block_size
            ))),
            _ => Ok(Some(handshake)),
        }
    }
}

/// The host in a base URL.
fn host_of(base_url: &str) -> String {
    let uri: Option<http::Uri> = base_url.parse().ok();
    uri.and_then(|uri| uri.host().map(str::to_owned))
        .unwrap_or_else(|| "127.0.0.1".to_owned())
}

fn incompatible(why: &str) -> Error {
    Error::new(ErrorKind::Incompatible, Source::Engine, Stage::Decode, why).retry(Retry::Safe)
}

/// Which life of an engine without a connector: its process's start.
fn start_of(page: &MetricsPage<'_>) -> Result<Incarnation, Error> {
    let start = page
        .sum("process_start_time_seconds")
        .map(|start| format!("start-{start}"));
    start
        .and_then(|start| start.parse().ok())
        .ok_or_else(|| unusable("the engine's metrics do not say when it started"))
}

/// What the engine's NIXL connector has moved.
fn moved(page: &MetricsPage<'_>) -> Option<Moved> {
    let count = |name: &str| page.sum(name).map(whole_number);
    Some(Moved {
        bytes: count("vllm:nixl_bytes_transferred_sum")?,
        seconds: page.sum("vllm:nixl_xfer_time_seconds_sum")?,
        transfers: count("vllm:nixl_xfer_time_seconds_count")?,
        failed: count("vllm:nixl_num_failed_transfers_total").unwrap_or(0),
        expired: count("vllm:nixl_num_kv_expired_reqs_total").unwrap_or(0),
    })
}

fn whole_number(value: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "counts and usage shares, clamped at 0"
    )]
    let number = value.max(0.0) as u64;
    number
}

impl Engine for VllmEngine {
    fn base_url(&self) -> &str {
        &self.base_url
    }

    fn authorization(&self) -> Option<&HeaderValue> {
        self.authorization.as_ref()
    }

    async fn attach(&self) -> Result<Attached, Error> {
        self.http.health().await?;
        let version = self.http.version().await?;
        let models = self.http.models().await?;
        let page = self.http.metrics().await?;
        let page = MetricsPage::parse(&page);
        let ranks = page.distinct("vllm:num_requests_running", "engine").max(1);
        if ranks > 1 && self.transfer.is_some() {
            return Err(unusable(
                "the engine has several data-parallel ranks and a transfer connector, which is not supported yet",
            ));
        }
        let handshake = self.shake_hands(&page).await?;
        let role = self
            .transfer
            .as_ref()
            .map_or(Role::Local, |transfer| transfer.config.role);
        let mut info = info(version, &models, role, handshake.as_deref(), &page);
        if !info.engine_version.starts_with(VERIFIED) && self.last().is_none() {
            tracing::warn!(
                version = info.engine_version,
                "this sidecar was verified with vLLM {VERIFIED}x only"
            );
        }
        let incarnation = match &handshake {
            Some(handshake) => {
                let tokenisation = match info.models.first() {
                    Some(model) => self.http.tokenisation(model).await,
                    None => None,
                };
                info.compatibility = Some(handshake.compatibility(tokenisation));
                handshake.incarnation.clone()
            }
            None => start_of(&page)?,
        };
        self.prepare(role, handshake.as_ref());
        info.ranks = u32::try_from(ranks).unwrap_or(u32::MAX);
        info.max_sequences = self.max_sequences;
        let blocks = info.capacity.first().map(|tier| tier.blocks);
        let events = self.event_sources(info.ranks).await;
        let files = self.files_of(&incarnation, &models).await;
        if let Some(files) = &files {
            files.tell(&mut info);
        }
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(Seen {
            handshake,
            blocks,
            events,
            incarnation: incarnation.clone(),
            files,
        }));
        Ok(Attached { incarnation, info })
    }

    async fn alive(&self) -> Result<(), Error> {
        self.http.health().await
    }

    async fn incarnation(&self) -> Result<Incarnation, Error> {
        let handshake = self.transfer()?.side_channel.handshake().await?;
        Ok(handshake.incarnation.clone())
    }

    fn follow(&self, feed: &Feed) -> Option<Following> {
        let seen = self.last()?;
        let source = |(rank, config): (&u32, &EventsConfig)| EventSource {
            rank: *rank,
            config: config.clone(),
            host: host_of(&self.base_url),
            asked: self.events.as_ref().map(|given| given.endpoint.clone()),
        };
        follow::start(seen.events.iter().map(source).collect(), feed)
    }

    fn reports_reused(&self) -> bool {
        true
    }

    fn may_fetch_foreign_kv(&self) -> bool {
        true
    }

    /// vLLM drops a request within a step of its connection's end (0.32.0).
    async fn abort(&self, _: &RequestId) -> Result<(), Error> {
        Ok(())
    }

    async fn give_back(&self, held: &TransferMetadata) -> Result<Returned, Error> {
        let held = HeldAs::parse(held.as_bytes()).map_err(|bad| unusable(&bad))?;
        self.tell(held.tp_size, Notification::fetched(&held))
            .await?;
        Ok(Returned::Told)
    }

    async fn keep(&self, held: &[TransferMetadata]) -> Result<Duration, Error> {
        let read = held.iter().map(|held| HeldAs::parse(held.as_bytes()));
        let held: Vec<HeldAs> = read
            .collect::<Result<_, _>>()
            .map_err(|bad| unusable(&bad))?;
        let ranks = held.iter().map(|held| held.tp_size).max().unwrap_or(1);
        self.tell(ranks, Notification::wanted(&held)).await?;
        let lease = self.transfer().map(|transfer| transfer.config.lease)?;
        Ok(lease.mul_f64(CAUTION * EXTENSION))
    }

    async fn agent(&self) -> Result<Agent, Error> {
        let handshake = self.last().and_then(|seen| seen.handshake.clone());
        let handshake = handshake.ok_or_else(|| incompatible("the engine has no connector"))?;
        match handshake.agent.kind() {
            Kind::Nixl => self.transfer()?.notifier.agent(Kind::Nixl).await,
            Kind::Loopback => Err(unusable(
                "an emulated engine's link is not its host's: it is not measured",
            )),
        }
    }

    async fn reset_cache(&self) -> Result<(), Error> {
        self.http.reset_prefix_cache().await
    }

    fn model_files(&self) -> Option<Arc<ModelFiles>> {
        let seen = self.last()?;
        seen.files.as_ref().map(PromptFiles::files)
    }

    async fn tokenize(&self, request: &str) -> Result<Vec<u32>, Error> {
        self.http.tokens(request.to_owned()).await
    }

    async fn load(&self) -> Result<EngineLoad, Error> {
        let page = self.http.metrics().await?;
        let page = MetricsPage::parse(&page);
        let count = |name: &str| {
            let value = u32::try_from(whole_number(page.sum(name)?)).ok()?;
            Some(Measured {
                value,
                from: Origin::EngineMetric,
            })
        };
        let blocks = self.last().and_then(|seen| seen.blocks);
        let free = page
            .sum("vllm:kv_cache_usage_perc")
            .zip(blocks)
            .map(|(used, blocks)| {
                #[expect(
                    clippy::cast_precision_loss,
                    reason = "block counts are far below 2^52"
                )]
                let free = whole_number((1.0 - used) * blocks as f64);
                Measured {
                    value: vec![TierBlocks {
                        tier: Tier::Device,
                        blocks: free,
                    }],
                    from: Origin::EngineMetric,
                }
            });
        let computed = page.sum("vllm:prompt_tokens_total");
        let generated = page.sum("vllm:generation_tokens_total");
        let work = computed.zip(generated);
        Ok(EngineLoad {
            report: LoadReport {
                running: count("vllm:num_requests_running"),
                waiting: count("vllm:num_requests_waiting"),
                free,
                ..LoadReport::default()
            },
            work: work.map(|(computed, generated)| whole_number(computed + generated)),
            moved: moved(&page),
        })
    }

    fn offer(&self) -> Option<Offer> {
        None
    }

    fn prefill_body(
        &self,
        request: &ClientRequest,
        _: Option<&TransferMetadata>,
        leg: Leg<'_>,
    ) -> String {
        dialect::prefill_body(request, leg)
    }

    fn read_prefill(&self, answer: &[u8]) -> Result<Prefilled, Error> {
        let seen = self.last();
        let handshake = seen.as_ref().and_then(|seen| seen.handshake.as_ref());
        let (Some(transfer), Some(handshake)) = (&self.transfer, handshake) else {
            return Err(unusable("the engine has no connector to hand over with"));
        };
        let lease = transfer.config.lease.mul_f64(CAUTION);
        let read = dialect::read_prefill(answer, &handshake.geometry, &handshake.engine_id, lease)?;
        if let Some(kv) = read.held() {
            self.names.learn(&kv.metadata);
        }
        Ok(read)
    }

    fn unread(&self, request: &RequestId, route: Route) -> Option<Foreseen> {
        let lease = self.transfer.as_ref()?.config.lease;
        self.names.foresee(request, route, lease)
    }

    fn decode_body(
        &self,
        request: &ClientRequest,
        ticket: &Ticket,
        leg: Leg<'_>,
    ) -> Result<String, Error> {
        let body = dialect::decode_body(request, ticket, leg)?;
        self.meet(ticket)?;
        Ok(body)
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
}
