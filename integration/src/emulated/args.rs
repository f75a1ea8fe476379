//! What command lines of emulated engines have in common: `--emulate-…`.

use std::path::PathBuf;

use anyhow::{Result, bail};
use baton_transfer::{Fabric, Library};
use clap::ValueEnum;

use super::model::ROW_BYTES;
use super::reach::LAYERS;
use super::speed::Speed;

/// What an emulated engine is beside its wire.
#[expect(clippy::struct_field_names, reason = "the flags' own names")]
#[derive(Debug, Clone, clap::Args)]
pub struct EmulateArgs {
    /// How long steps take.
    #[arg(long, value_enum, default_value_t = SpeedName::Fast)]
    emulate_speed: SpeedName,

    /// How much a step's time varies, as a part of it [default: as the speed has it].
    #[arg(long, value_name = "PART")]
    pub(super) emulate_jitter: Option<f64>,

    /// Bytes of KV that a token leaves.
    #[arg(long, value_name = "BYTES", default_value_t = ROW_BYTES)]
    pub(super) emulate_kv_bytes_per_token: usize,

    /// Move KV over NIXL: its library, or a folder that has it, such as the Python environment of a real engine [default:
    /// over loopback TCP, with engines that do so, too].
    #[arg(long, env = "BATON_NIXL_LIB", value_name = "PATH")]
    pub(super) emulate_nixl_lib: Option<PathBuf>,

    /// Bytes per second at which KV leaves this engine, all transfers together [default: as fast as the machine].
    #[arg(long, value_name = "BYTES/S")]
    pub(super) emulate_kv_bandwidth: Option<f64>,

    /// Of jitter and unseeded sampling.
    #[arg(long, default_value_t = 0)]
    pub(super) emulate_seed: u64,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum SpeedName {
    /// No time at all: for figures of what stands before the engine.
    Instant,
    /// As the recorded 2-layer model on one CPU core.
    Tiny,
    /// Of the order of an 8-billion-parameter model on one current GPU.
    Fast,
}

impl EmulateArgs {
    /// Refuses what cannot work with blocks of so many tokens, which this flag says.
    pub(super) fn check(&self, page: u32, flag: &str) -> Result<()> {
        if self.emulate_kv_bytes_per_token < 8 {
            bail!("--emulate-kv-bytes-per-token must be at least 8");
        }
        let block_bytes = self.emulate_kv_bytes_per_token * page as usize;
        if !block_bytes.is_multiple_of(LAYERS) {
            bail!("--emulate-kv-bytes-per-token times {flag} must divide into {LAYERS} layers");
        }
        if self.emulate_nixl_lib.is_some() && self.emulate_kv_bandwidth.is_some() {
            bail!(
                "--emulate-kv-bandwidth does not slow NIXL down; leave it or --emulate-nixl-lib away"
            );
        }
        Ok(())
    }

    /// Over what KV moves.
    pub(super) fn fabric(&self) -> Result<Fabric> {
        let Some(path) = &self.emulate_nixl_lib else {
            return Ok(Fabric::loopback());
        };
        let library = Library::find(Some(path), &[])?;
        Ok(Fabric::nixl(&library)?)
    }

    /// How long steps take.
    pub(super) fn speed(&self) -> Speed {
        let speed = match self.emulate_speed {
            SpeedName::Instant => Speed::INSTANT,
            SpeedName::Tiny => Speed::TINY,
            SpeedName::Fast => Speed::FAST,
        };
        Speed {
            jitter: self.emulate_jitter.unwrap_or(speed.jitter),
            ..speed
        }
    }
}
