//! What stands between two peers and does what networks do: swallow, stall, cut, and lead elsewhere.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What may wait in a socket on its way, so that a stall is felt behind it soon.
const SOCKET_BUFFER: u32 = 64 << 10;

/// What is done with bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// They are passed on.
    Through,
    /// They are taken, and go nowhere, and a connection's end is not told either. Whoever connects meanwhile is accepted, and hears nothing for as long as the
    /// connection lasts.
    Swallowed,
    /// They are not even taken, until others are given. Nothing is lost: whoever connects meanwhile reaches the other side then.
    Stalled,
}

#[derive(Debug, Clone, Copy)]
struct Orders {
    upstream: SocketAddr,
    way: Way,
    cuts: u64,
}

/// A TCP proxy.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    orders: watch::Sender<Orders>,
    accepted: Arc<AtomicU64>,
    accepting: JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Proxy {
    /// One that leads here.
    pub async fn to(upstream: SocketAddr, way: Way) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let orders = watch::Sender::new(Orders {
            upstream,
            way,
            cuts: 0,
        });
        let accepted = Arc::<AtomicU64>::default();
        let address = listener.local_addr().unwrap();
        let accepting = accept(listener, orders.subscribe(), Arc::clone(&accepted));
        Self {
            address,
            orders,
            accepted,
            accepting: tokio::spawn(accepting),
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The same as ZMQ writes it.
    pub fn endpoint(&self) -> String {
        format!("tcp://{}", self.address)
    }

    /// Connections that were ever made to it.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// From now on, for connections that are there as for new ones.
    pub fn set(&self, way: Way) {
        self.orders.send_modify(|orders| orders.way = way);
    }

    /// New connections lead elsewhere.
    pub fn lead_to(&self, upstream: SocketAddr) {
        self.orders.send_modify(|orders| orders.upstream = upstream);
    }

    /// Resets all connections.
    pub fn cut(&self) {
        self.orders.send_modify(|orders| orders.cuts += 1);
    }
}

async fn accept(listener: TcpListener, orders: watch::Receiver<Orders>, accepted: Arc<AtomicU64>) {
    while let Ok((client, _)) = listener.accept().await {
        accepted.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(carry(client, orders.clone()));
    }
}

/// One connection.
async fn carry(mut client: TcpStream, mut orders: watch::Receiver<Orders>) {
    let asked = *orders.borrow_and_update();
    let moves = |now: &Orders| now.way != Way::Stalled || now.cuts != asked.cuts;
    let Ok(begun) = orders.wait_for(moves).await.map(|now| *now) else {
        return;
    };
    if begun.cuts != asked.cuts {
        let _ = client.set_zero_linger();
        return;
    }
    let mut server = None;
    if begun.way == Way::Through {
        server = connect(begun.upstream).await;
        if server.is_none() {
            return;
        }
    }
    for stream in [Some(&client), server.as_ref()].into_iter().flatten() {
        let _ = stream.set_nodelay(true);
    }
    let obeyed = orders.clone();
    let passing = async {
        match &mut server {
            Some(server) => pass(&mut client, server, obeyed).await,
            None => swallow(&mut client).await,
        }
    };
    let cut = tokio::select! {
        () = passing => false,
        cut = orders.wait_for(|now| now.cuts != begun.cuts) => cut.is_ok(),
    };
    if cut {
        for stream in [Some(&client), server.as_ref()].into_iter().flatten() {
            let _ = stream.set_zero_linger();
        }
    }
}

async fn connect(upstream: SocketAddr) -> Option<TcpStream> {
    let socket = TcpSocket::new_v4().ok()?;
    socket.set_recv_buffer_size(SOCKET_BUFFER).ok()?;
    socket.connect(upstream).await.ok()
}

async fn swallow(client: &mut TcpStream) {
    let mut buffer = [0; 4096];
    while client.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
}

async fn pass(client: &mut TcpStream, server: &mut TcpStream, orders: watch::Receiver<Orders>) {
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    // One direction's end is the connection's.
    tokio::select! {
        () = pump(&mut from_client, &mut to_server, orders.clone()) => {}
        () = pump(&mut from_server, &mut to_client, orders) => {}
    }
}

async fn pump(
    from: &mut (impl AsyncReadExt + Unpin),
    to: &mut (impl AsyncWriteExt + Unpin),
    mut orders: watch::Receiver<Orders>,
) {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let way = orders.borrow_and_update().way;
        let read = tokio::select! {
            changed = orders.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
            read = from.read(&mut buffer), if way != Way::Stalled => read,
        };
        let passed = match read {
            Ok(0) | Err(_) if way == Way::Swallowed => std::future::pending().await,
            Ok(0) | Err(_) => return,
            Ok(_) if way == Way::Swallowed => Ok(()),
            Ok(read) => to.write_all(&buffer[..read]).await,
        };
        if passed.is_err() {
            return;
        }
    }
}
