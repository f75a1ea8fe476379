//! A process with one agent that moves memory, told over standard input what to do. For tests, which kill and stop it.
//!
//! The fabric is NIXL if `BATON_NIXL_LIB` is set, else loopback TCP.

fn main() -> anyhow::Result<()> {
    baton_integration::transfer_peer::run()
}
