//! The NIXL side channel: a ZMQ ROUTER on a thread, which one wrong frame ends for good, as it does the real one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use serde::Serialize;
use serde_bytes::Bytes;

use super::{Config, Life};

/// The one request that the listener survives (vLLM 0.32.0, ranks 0 and 0).
const REQUEST: &[u8] = b"\x93\xc4\x0cget_meta_msg\x00\x00";

/// What the side channel says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SideChannel {
    /// The handshake.
    #[default]
    Normal,
    /// Bytes that are no MessagePack.
    Garbage,
    /// MessagePack of another shape.
    OtherShape,
    /// Nothing.
    Mute,
}

#[derive(Serialize)]
struct Payload<'a> {
    compatibility_hash: &'a str,
    agent_metadata_bytes: &'a Bytes,
}

#[expect(clippy::struct_field_names, reason = "the wire's own names")]
#[derive(Serialize)]
struct AgentMetadata<'a> {
    engine_id: &'a str,
    agent_metadata: &'a Bytes,
    kv_caches_base_addr: [u64; 2],
    device_id: u32,
    num_blocks: u64,
    block_lens: [u64; 2],
    block_strides: [u64; 2],
    kv_cache_layout: &'a str,
    block_size: u32,
    ssm_sizes: [u64; 2],
    attn_backend_name: &'a str,
    physical_blocks_per_logical_kv_block: u32,
    region_num_blocks: [u64; 2],
    region_group_ids: [u32; 2],
    region_names: [&'a str; 2],
    region_mem_types: [&'a str; 2],
    dcp_size: u32,
    pcp_size: u32,
    ple_block_len: Option<u64>,
    region_members: [u8; 0],
    packed_member_layouts: std::collections::BTreeMap<String, u8>,
}

/// First frame of the reply, shaped as in the recorded handshake.
pub fn handshake(config: &Config, life: &Life) -> Vec<u8> {
    let mut blob = b"nixlSerDes|Agent".to_vec();
    blob.extend_from_slice(&(life.agent.len() as u64).to_le_bytes());
    blob.extend_from_slice(life.agent.as_bytes());
    blob.extend_from_slice(b"|Conns\x08\0\0\0\0\0\0\0");
    let length = 256 * u64::from(config.block_size);
    let blocks = super::BLOCKS as u64;
    let metadata = AgentMetadata {
        engine_id: &life.engine_id,
        agent_metadata: Bytes::new(&blob),
        kv_caches_base_addr: [139_908_426_514_496, 139_908_428_611_648],
        device_id: 0,
        num_blocks: blocks,
        block_lens: [length; 2],
        block_strides: [length; 2],
        kv_cache_layout: config.layout,
        block_size: config.block_size,
        ssm_sizes: [0; 2],
        attn_backend_name: "CPU_ATTN",
        physical_blocks_per_logical_kv_block: 1,
        region_num_blocks: [blocks; 2],
        region_group_ids: [0; 2],
        region_names: [
            "model.layers.0.self_attn.attn",
            "model.layers.1.self_attn.attn",
        ],
        region_mem_types: ["DRAM"; 2],
        dcp_size: 1,
        pcp_size: 1,
        ple_block_len: None,
        region_members: [],
        packed_member_layouts: std::collections::BTreeMap::new(),
    };
    let metadata = rmp_serde::to_vec_named(&metadata).unwrap();
    let payload = Payload {
        compatibility_hash: config.compatibility_hash,
        agent_metadata_bytes: Bytes::new(&metadata),
    };
    rmp_serde::to_vec_named(&payload).unwrap()
}

/// A listening side channel. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Listener {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Listens on a port, unless the last life still has it; `says` is looked at for each request, `killed` is set by a request that ends the real listener.
    pub(super) fn start(
        port: u16,
        handshake: Vec<u8>,
        says: Arc<std::sync::Mutex<SideChannel>>,
        killed: Arc<AtomicBool>,
    ) -> Option<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = Arc::clone(&stop);
        let context = zmq::Context::new();
        let socket = context.socket(zmq::ROUTER).unwrap();
        socket.set_linger(0).unwrap();
        socket.set_rcvtimeo(20).unwrap();
        socket.bind(&format!("tcp://127.0.0.1:{port}")).ok()?;
        let thread = std::thread::spawn(move || {
            while !stopping.load(Ordering::Relaxed) {
                let Ok(frames) = socket.recv_multipart(0) else {
                    continue;
                };
                // ROUTER puts the peer's identity first, REQ an empty frame behind it.
                let [identity, empty, request] = &frames[..] else {
                    killed.store(true, Ordering::Relaxed);
                    return;
                };
                if !empty.is_empty() || request != REQUEST {
                    killed.store(true, Ordering::Relaxed);
                    return;
                }
                let payload: &[u8] = match *says.lock().unwrap() {
                    SideChannel::Normal => &handshake,
                    SideChannel::Garbage => b"\xc1\xff\x00 no handshake",
                    SideChannel::OtherShape => b"\x81\xa1a\x01",
                    SideChannel::Mute => continue,
                };
                // msgpack f64 of a monotonic clock.
                let clock = b"\xcb\x40\xa5\xf7\x35\x76\xed\x47\x41";
                let reply: [&[u8]; 4] = [identity, b"", payload, clock];
                let _ = socket.send_multipart(reply, zmq::DONTWAIT);
            }
        });
        Some(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // The thread looks at the flag every 20 ms; its port is free when it has ended.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
