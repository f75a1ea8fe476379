//! Requests that nobody waits for any more are dropped in the engine. A closed connection says so, and where an engine looks
//! at that too seldom, it is told.

use std::sync::Arc;
use std::time::Duration;

use baton_proto::RequestId;

use crate::core::Core;
use crate::engine::Engine;

/// Longest that the engine may take to be told.
const TELL_TIME: Duration = Duration::from_millis(1500);

/// When it is told once more: the first time it may not have read the request yet.
const AGAIN: Duration = Duration::from_secs(1);

/// A request that the engine may be working on. Dropping it before the whole answer was there has the engine drop it, too.
pub(crate) struct Unanswered<E: Engine>(Option<(Arc<Core<E>>, RequestId)>);

impl<E: Engine> Unanswered<E> {
    /// The engine is about to be asked.
    pub(crate) fn new(core: &Arc<Core<E>>, request: &RequestId) -> Self {
        Self(Some((Arc::clone(core), request.clone())))
    }

    /// The engine is done with it.
    pub(crate) fn answered(&mut self) {
        self.0 = None;
    }
}

impl<E: Engine> Drop for Unanswered<E> {
    fn drop(&mut self) {
        let Some((core, request)) = self.0.take() else {
            return;
        };
        // Without a runtime the process is ending, and its connections with it.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let farewells = core.farewells.clone();
            let farewell = async move {
                abort(&core, &request).await;
                tokio::time::sleep(AGAIN).await;
                abort(&core, &request).await;
            };
            farewells.spawn_on(farewell, &runtime);
        }
    }
}

/// Has the engine drop a request. That it did shows in the request's own end.
pub(crate) async fn abort<E: Engine>(core: &Core<E>, request: &RequestId) {
    let told = tokio::time::timeout(TELL_TIME, core.engine.abort(request)).await;
    match told {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::info!(%request, %error, "the engine could not be told to drop a request")
        }
        Err(_) => {
            tracing::info!(%request, "the engine could not be told in time to drop a request")
        }
    }
}
