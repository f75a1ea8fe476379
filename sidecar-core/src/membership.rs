//! Membership: the sidecar dials its routers, says who it is, keeps saying it, and says goodbye.

use std::sync::Arc;
use std::time::Duration;

use baton_daemon::http::{Client, error_of, full, small_body};
use baton_proto::call::path::REGISTER;
use baton_proto::watch::{Registered, Registration, SidecarState};
use baton_proto::{Error, ErrorKind, PROTOCOL_VERSION, Source, Stage, frame};
use http::header::AUTHORIZATION;
use http::{Method, Request};
use rand::Rng;

use crate::core::Core;
use crate::engine::Engine;

/// Longest time for a router to answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// Shortest and longest wait between two attempts that fail. A router that begins anew is blind until all have found it.
const BACK_OFF: (f64, f64) = (0.1, 0.6);

/// Keeps the sidecar registered with one router until it closes or has drained.
pub async fn keep<E: Engine>(core: Arc<Core<E>>, router: String, client: Client) {
    let mut failures = 0u32;
    let mut member = Member {
        core,
        router,
        client,
        registered: false,
    };
    loop {
        let pause = match member.say(false).await {
            Ok(lease) => {
                failures = 0;
                member.set_registered(true);
                (lease / 3).max(Duration::from_millis(200))
            }
            Err(error) => {
                if failures == 0 || error.kind == ErrorKind::Conflict {
                    tracing::warn!(router = member.router, %error, "not registered with a router");
                }
                failures += 1;
                member.set_registered(false);
                back_off(failures)
            }
        };
        tokio::select! {
            () = member.core.closing.cancelled() => break,
            () = drained(&member.core) => break,
            // A router that stops watching has ended, or has forgotten this sidecar.
            () = member.core.unwatched.notified(), if member.registered => {
                tokio::time::sleep(back_off(1)).await;
            }
            () = tokio::time::sleep(pause) => {}
        }
    }
    member.set_registered(false);
    if let Err(error) = member.say(true).await {
        tracing::info!(router = member.router, %error, "could not say goodbye to a router");
    }
}

/// Waits until nothing is left that a router could want.
async fn drained<E: Engine>(core: &Core<E>) {
    let mut changes = core.subscribe();
    if changes
        .wait_for(|published| published.state == SidecarState::Drained)
        .await
        .is_err()
    {
        // The sender lives in the core that we hold.
        std::future::pending::<()>().await;
    }
}

fn back_off(failures: u32) -> Duration {
    let (shortest, longest) = BACK_OFF;
    let bound = (shortest * 2f64.powi(i32::try_from(failures.min(10)).unwrap_or(10))).min(longest);
    Duration::from_secs_f64(rand::rng().random_range(shortest..=bound))
}

struct Member<E> {
    core: Arc<Core<E>>,
    router: String,
    client: Client,
    registered: bool,
}

impl<E: Engine> Member<E> {
    fn set_registered(&mut self, registered: bool) {
        if registered != std::mem::replace(&mut self.registered, registered) {
            self.core
                .metrics
                .routers
                .inc_by(if registered { 1 } else { -1 });
            if registered {
                tracing::info!(router = self.router, "registered with a router");
            }
        }
    }

    /// Registers, or says goodbye; the lease that the router gives.
    async fn say(&self, leave: bool) -> Result<Duration, Error> {
        let registration = Registration {
            protocol: PROTOCOL_VERSION,
            worker: self.core.worker.clone(),
            epoch: self.core.epoch,
            address: self.core.args.address(),
            leave,
        };
        let protocol = |message: String| {
            Error::new(ErrorKind::Protocol, Source::Router, Stage::Fleet, message)
        };
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("{}{REGISTER}", self.router.trim_end_matches('/')))
            .header(AUTHORIZATION, self.core.token.bearer())
            .body(full(frame::to_bytes(&registration)))
            .map_err(|error| protocol(error.to_string()))?;
        let sent = self.client.send(request, PATIENCE).await;
        let (head, body) = sent
            .map_err(|error| error.into_error(Source::Router, Stage::Fleet))?
            .into_parts();
        let body = small_body(body).await;
        if !head.status.is_success() {
            let status = head.status;
            let error = error_of(&http::Response::from_parts(head, ()), &body);
            return Err(error.unwrap_or_else(|| protocol(format!("the router answered {status}"))));
        }
        let registered: Registered =
            frame::from_bytes(&body).map_err(|bad| protocol(bad.to_string()))?;
        Ok(Duration::from_millis(registered.lease_ms))
    }
}
