//! A sidecar's life: start, serve, drain, end.

use std::sync::Arc;
use std::time::Duration;

use baton_daemon::Exit;
use baton_daemon::http::{Client, ClientLimits, Limits, bind, serve};
use baton_daemon::metrics::Registry;
use baton_proto::watch::SidecarState;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::args::CoreArgs;
use crate::core::Core;
use crate::engine::Engine;
use crate::launch::{Launch, Launched};
use crate::metrics::Metrics;
use crate::server::Surface;
use crate::{giveback, membership, watchdog};

/// Longest that the engine may take to be told which legs are over.
const FAREWELLS: Duration = Duration::from_secs(4);

/// Runs a sidecar until it is asked to stop or its engine ends.
pub async fn run<E: Engine>(
    engine: E,
    args: CoreArgs,
    launch: Option<Launch>,
    stop: CancellationToken,
) -> Result<(), Exit> {
    args.check()?;
    let token = args.common.fleet_token()?;
    let metrics = Metrics::default();
    let mut registry = Registry::default();
    metrics.register(&mut registry);
    let core = Core::new(engine, args, token, metrics)?;
    let listener = bind(core.args.listen).await?;
    let mut launched = launch.map(|launch| launch.start()).transpose()?;
    let boots = launched.is_some();

    let closed = CancellationToken::new();
    let tasks = TaskTracker::new();
    let surface = Arc::new(Surface {
        core: Arc::clone(&core),
        registry,
    });
    let limits = Limits {
        drain: Duration::from_secs(5),
        ..Limits::default()
    };
    tasks.spawn(serve(listener, limits, surface, closed.clone()));
    tasks.spawn(watchdog::run(Arc::clone(&core)));
    tasks.spawn(giveback::run(Arc::clone(&core)));
    tasks.spawn(giveback::keep(Arc::clone(&core)));
    let client = Client::new(ClientLimits {
        connect: Duration::from_secs(2),
        idle: Duration::from_secs(30),
    });
    for router in core.args.router.clone() {
        tasks.spawn(membership::keep(Arc::clone(&core), router, client.clone()));
    }
    tracing::info!(worker = %core.worker, listen = %core.args.listen, "sidecar started");

    let outcome = tokio::select! {
        () = stop.cancelled() => { drain(&core).await; Ok(()) }
        exit = ended(launched.as_mut()) => Err(exit),
        () = never_booted(&core, boots) => {
            Err(Exit::failure(format!("the engine did not start within {} s", core.args.boot_s)))
        }
    };
    core.closing.cancel();
    closed.cancel();
    tasks.close();
    if tokio::time::timeout(Duration::from_secs(10), tasks.wait())
        .await
        .is_err()
    {
        tracing::warn!("some tasks did not end in time");
    }
    core.farewells.close();
    if tokio::time::timeout(FAREWELLS, core.farewells.wait())
        .await
        .is_err()
    {
        tracing::warn!("the engine could not be told in time which legs are over");
    }
    if let Some(launched) = launched {
        launched.stop().await;
    }
    outcome
}

/// No new work; work in flight finishes; held KV is served until nobody may want it any more.
async fn drain<E: Engine>(core: &Core<E>) {
    core.drain();
    let mut changes = core.subscribe();
    let drained = changes.wait_for(|published| published.state == SidecarState::Drained);
    if tokio::time::timeout(core.args.drain(), drained)
        .await
        .is_err()
    {
        tracing::warn!(
            in_flight = core.in_flight.count(),
            "the time to drain ran out"
        );
    }
}

async fn ended(launched: Option<&mut Launched>) -> Exit {
    match launched {
        Some(launched) => launched.ended().await,
        None => std::future::pending().await,
    }
}

/// Resolves when a launched engine has not come up in time.
async fn never_booted<E: Engine>(core: &Core<E>, launched: bool) {
    let mut changes = core.subscribe();
    let up = changes.wait_for(|published| published.state != SidecarState::Starting);
    let booted = tokio::time::timeout(Duration::from_secs(core.args.boot_s), up)
        .await
        .is_ok();
    if booted || !launched {
        std::future::pending::<()>().await;
    }
}
