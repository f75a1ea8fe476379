//! A router's life: start, serve, end.

use std::sync::Arc;
use std::time::Duration;

use baton_daemon::Exit;
use baton_daemon::http::{Limits, bind, serve};
use baton_daemon::metrics::Registry;
use tokio_util::sync::CancellationToken;

use crate::args::RouterArgs;
use crate::fleet::links;
use crate::front::Front;
use crate::metrics::Metrics;
use crate::state::Router;

/// Runs a router until it is asked to stop.
pub async fn run(args: RouterArgs, stop: CancellationToken) -> Result<(), Exit> {
    let token = args.common.fleet_token()?;
    let metrics = Metrics::default();
    let mut registry = Registry::default();
    metrics.register(&mut registry);
    let listener = bind(args.listen).await?;
    let limits = Limits {
        head: args.client_timeout(),
        stall: args.client_timeout(),
        drain: Duration::from_secs(args.drain_s),
        ..Limits::default()
    };
    tracing::info!(listen = %args.listen, force = ?args.force, "router started");
    let router = Router::new(args, token, metrics);
    let sweeper = tokio::spawn(sweep(Arc::clone(&router)));
    let measuring = router.args.measure_links;
    let links = measuring.then(|| {
        tokio::spawn(links::measure(
            Arc::clone(&router.fleet),
            router.calls.clone(),
        ))
    });
    let closed = CancellationToken::new();
    let lingering = linger(Arc::clone(&router), stop, closed.clone());
    let serving = serve(
        listener,
        limits,
        Arc::new(Front { router, registry }),
        closed,
    );
    tokio::join!(lingering, serving);
    sweeper.abort();
    if let Some(links) = links {
        links.abort();
    }
    Ok(())
}

/// A router that is asked to stop first says so, and lets requests in until whoever sends them has heard it.
async fn linger(router: Arc<Router>, stop: CancellationToken, closed: CancellationToken) {
    stop.cancelled().await;
    router.draining.cancel();
    tokio::time::sleep(router.args.linger()).await;
    closed.cancel();
}

async fn sweep(router: Arc<Router>) {
    let mut ticks = tokio::time::interval(Duration::from_millis(500));
    loop {
        ticks.tick().await;
        router.fleet.sweep();
    }
}
