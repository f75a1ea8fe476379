//! The task that owns the PUB socket.

use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use zeromq::{PubSocket, Socket, SocketEvent, SocketOptions, SocketSend, ZmqMessage};

use super::Frames;
use super::endpoint::Way;

/// Longest time for one try to connect, the subscriber's half of the greeting included.
const CONNECT: Duration = Duration::from_secs(1);

/// Between two tries: libzmq's `reconnect_ivl`.
const RETRY: Duration = Duration::from_millis(100);

/// Sends what is published until `stop`, then frees the port.
pub(super) async fn run(
    way: Way,
    queue: mpsc::Receiver<Frames>,
    held: watch::Receiver<bool>,
    stop: CancellationToken,
) {
    let mut options = SocketOptions::default();
    options.connect_timeout(CONNECT);
    let mut socket = PubSocket::with_options(options);
    let peer = match way {
        Way::Connects { endpoint } => Some(endpoint),
        Way::Bound { listener, .. } => {
            socket
                .bind_listener(listener)
                .await
                .expect("a bound listener can be adopted");
            None
        }
    };
    stop.run_until_cancelled(send(&mut socket, peer.as_deref(), queue, held))
        .await;
    socket.close().await;
}

async fn send(
    socket: &mut PubSocket,
    peer: Option<&str>,
    mut queue: mpsc::Receiver<Frames>,
    mut held: watch::Receiver<bool>,
) {
    let mut events = socket.monitor();
    let mut connected = false;
    let mut retry = tokio::time::interval(RETRY);
    retry.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let holds = *held.borrow_and_update();
        // In this order: a hold that was raised before a batch was published must be seen before it.
        tokio::select! {
            biased;
            changed = held.changed() => if changed.is_err() { return },
            event = events.next() => if matches!(event, Some(SocketEvent::Disconnected(_))) {
                connected = false;
            },
            // A PUB socket without a subscriber loses what it is given, so nothing is lost by sending to nobody meanwhile.
            _ = retry.tick(), if peer.is_some() && !connected => if let Some(peer) = peer {
                connected = socket.connect(peer).await.is_ok();
            },
            message = queue.recv(), if !holds => match message {
                Some(frames) => transmit(socket, frames).await,
                None => return,
            },
        }
    }
}

async fn transmit(socket: &mut PubSocket, frames: Frames) {
    let Ok(message) = ZmqMessage::try_from(frames) else {
        return;
    };
    // Fails never for PUB: it loses instead.
    let _ = socket.send(message).await;
}
