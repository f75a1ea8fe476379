//! What is true of a fleet at rest, and how it ends.

use std::net::SocketAddr;

use super::{Fleet, page, view};
use crate::page::Page;
use crate::wait::until;
use crate::{client, panics};

impl Fleet {
    /// The first router's metrics.
    pub async fn router_page(&self) -> Page {
        page(self.address()).await
    }

    /// A sidecar's metrics.
    pub async fn sidecar_page(&self, name: &str) -> Page {
        page(self.sidecar_address(name)).await
    }

    /// Waits until an engine holds nothing for decode, and its sidecar has no ticket left. None of them was stranded.
    pub async fn gave_back(&self, name: &str) {
        until(&format!("{name} to have its KV back"), || async {
            let page = self.sidecar_page(name).await;
            self.emulated(name).holds() == 0 && page.sum("baton_sidecar_tickets", &[]) == 0
        })
        .await;
        assert_eq!(self.stranded(name).await, 0);
    }

    /// A sidecar's count of handoffs that nobody wanted and that its engine held until their leases ended.
    pub async fn stranded(&self, name: &str) -> i64 {
        self.sidecar_page(name)
            .await
            .sum("baton_sidecar_tickets_stranded_total", &[])
    }

    /// What must be true whenever nobody wants anything: nothing is in flight anywhere, nothing is reserved, no ticket is
    /// open, and no engine works.
    pub async fn quiet(&self) {
        for router in self.routers.iter().filter(|router| router.daemon.is_some()) {
            until("the router's gauges to return to 0", || async {
                page(router.address)
                    .await
                    .sum("baton_router_in_flight", &[])
                    == 0
            })
            .await;
            until("the router's reservations to be given back", || async {
                let view = view(router.address).await;
                view["workers"].as_array().is_some_and(|workers| {
                    workers.iter().all(|worker| {
                        worker["reserved"]["requests"] == 0
                            && worker["reserved"]["prompt_tokens"] == 0
                    })
                })
            })
            .await;
        }
        for sidecar in self
            .sidecars
            .iter()
            .filter(|sidecar| sidecar.daemon.is_some())
        {
            until(
                &format!("the gauges of {} to return to 0", sidecar.name),
                || async {
                    let page = page(sidecar.address).await;
                    let open = ["running", "claimed"]
                        .map(|state| page.sum("baton_sidecar_tickets", &[("state", state)]));
                    page.sum("baton_sidecar_in_flight", &[]) == 0
                        && page.sum("baton_sidecar_queued", &[]) == 0
                        && open == [0, 0]
                },
            )
            .await;
            until(
                &format!("the engine of {} to be idle", sidecar.name),
                || async { sidecar.engine.working_on() == 0 },
            )
            .await;
        }
    }

    /// Ends the fleet and judges it: everything came to rest, every process lived and stops in order, no engine was given
    /// what ends it, nothing panicked.
    pub async fn finish(mut self) {
        self.quiet().await;
        let alive: Vec<SocketAddr> = self
            .routers
            .iter()
            .filter(|router| router.daemon.is_some())
            .map(|router| router.address)
            .chain(
                self.sidecars
                    .iter()
                    .filter(|sidecar| sidecar.daemon.is_some())
                    .map(|sidecar| sidecar.address),
            )
            .collect();
        for address in alive {
            let live = client::call(address, "GET", "/livez", &[], "").await;
            assert_eq!(live.status, 200, "{address} lives");
        }
        for sidecar in &self.sidecars {
            let died_of: Vec<String> = sidecar
                .engine
                .died_of()
                .into_iter()
                .filter(|of| of != "its script")
                .collect();
            assert!(
                died_of.is_empty(),
                "the engine of {} was killed: {died_of:?}",
                sidecar.name
            );
            assert!(
                !sidecar.engine.listener_was_killed(),
                "the side channel of {} was killed",
                sidecar.name
            );
        }
        for sidecar in &mut self.sidecars {
            if let Some(daemon) = sidecar.daemon.take() {
                let ended = daemon.stop().await;
                assert!(ended.is_ok(), "{} ended with {ended:?}", sidecar.name);
            }
        }
        for router in &mut self.routers {
            if let Some(daemon) = router.daemon.take() {
                let ended = daemon.stop().await;
                assert!(ended.is_ok(), "a router ended with {ended:?}");
            }
        }
        for sidecar in &self.sidecars {
            sidecar.engine.kill().await;
        }
        let panics = panics::seen();
        assert!(panics.is_empty(), "something panicked: {panics:?}");
    }
}
