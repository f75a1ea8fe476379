//! The task that answers replay requests on a ROUTER socket.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio_util::sync::CancellationToken;
use zeromq::{RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

use super::endpoint::Way;
use super::{Desk, Frames};

/// Answers until `stop`, then frees the port.
pub(super) async fn run(way: Way, desk: Arc<Desk>, stop: CancellationToken) {
    let mut socket = RouterSocket::new();
    if let Way::Bound { listener, .. } = way {
        socket
            .bind_listener(listener)
            .await
            .expect("a bound listener can be adopted");
    }
    stop.run_until_cancelled(answer(&mut socket, &desk)).await;
    socket.close().await;
}

async fn answer(socket: &mut RouterSocket, desk: &Desk) {
    while let Ok(request) = socket.recv().await {
        let request = request.into_vec();
        // The peer's identity, which this side of the socket puts first, and two frames of the peer's own. The real one
        // does not look at the first of them either.
        let [identity, _, from] = &request[..] else {
            desk.ignored.fetch_add(1, Ordering::Relaxed);
            continue;
        };
        desk.replays.fetch_add(1, Ordering::Relaxed);
        let fault = *desk.replay_fault.lock().unwrap();
        let answers = desk.line.lock().unwrap().replay(big_endian(from), fault);
        for answer in answers {
            let frames: Frames = std::iter::once(identity.clone()).chain(answer).collect();
            let message = ZmqMessage::try_from(frames).expect("an answer has frames");
            if socket.send(message).await.is_err() {
                // The peer is gone.
                break;
            }
        }
    }
}

/// As many bytes as there are; a number beyond all others is beyond the buffer, too.
fn big_endian(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0u64, |number, byte| {
        number
            .checked_mul(256)
            .map_or(u64::MAX, |number| number.saturating_add(u64::from(*byte)))
    })
}
