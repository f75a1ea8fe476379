//! Sockets of libzmq that no peer can hurt.

use std::time::Duration;

use zmq::Socket;

/// Largest message that is read, in bytes. One batch has the tokens of one scheduler step, some kilobytes.
const MAX_MESSAGE: i64 = 64 << 20;

/// Longest time to connect, and again to shake hands.
const CONNECT: Duration = Duration::from_secs(6);

/// Silence on a connection in seconds before the kernel probes it, between probes, and how many may fail.
const KEEPALIVE: (i32, i32, i32) = (5, 2, 3);

/// What a peer may do to a socket at most.
pub fn bound(socket: &Socket) -> Result<(), zmq::Error> {
    let milliseconds = |time: Duration| i32::try_from(time.as_millis()).unwrap_or(i32::MAX);
    socket.set_ipv6(true)?;
    socket.set_linger(0)?;
    socket.set_maxmsgsize(MAX_MESSAGE)?;
    socket.set_reconnect_ivl(100)?;
    socket.set_reconnect_ivl_max(1000)?;
    socket.set_connect_timeout(milliseconds(CONNECT))?;
    socket.set_handshake_ivl(milliseconds(CONNECT))?;
    let (idle, between, probes) = KEEPALIVE;
    socket.set_tcp_keepalive(1)?;
    socket.set_tcp_keepalive_idle(idle)?;
    socket.set_tcp_keepalive_intvl(between)?;
    socket.set_tcp_keepalive_cnt(probes)
}

/// A whole message, if there is one.
pub fn receive(socket: &Socket) -> Result<Option<Vec<Vec<u8>>>, zmq::Error> {
    match socket.recv_multipart(zmq::DONTWAIT) {
        Ok(frames) => Ok(Some(frames)),
        Err(zmq::Error::EAGAIN) => Ok(None),
        Err(error) => Err(error),
    }
}
