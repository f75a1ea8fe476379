//! A LoRA adapter for the tiny model, made on the spot: random weights of rank 8 for queries and values.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Map, Value, json};

const RANK: usize = 8;

/// The model's own shape.
const LAYERS: usize = 2;
const HIDDEN: usize = 128;
const PROJECTIONS: [(&str, usize); 2] = [("q_proj", 128), ("v_proj", 64)];

/// Writes the adapter into a folder, as PEFT does.
pub fn make(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("could not make {}", folder.display()))?;
    let config = json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "model",
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "bias": "none",
        "target_modules": PROJECTIONS.map(|(name, _)| name),
    });
    fs::write(folder.join("adapter_config.json"), config.to_string())?;
    fs::write(folder.join("adapter_model.safetensors"), weights())?;
    Ok(())
}

/// In the safetensors format: the header's length, the header, the numbers.
fn weights() -> Vec<u8> {
    let mut random = StdRng::seed_from_u64(7);
    let mut header = Map::new();
    let mut data: Vec<u8> = Vec::new();
    for layer in 0..LAYERS {
        for (projection, output) in PROJECTIONS {
            for (side, shape) in [("A", [RANK, HIDDEN]), ("B", [output, RANK])] {
                let name = format!(
                    "base_model.model.model.layers.{layer}.self_attn.{projection}.lora_{side}.weight"
                );
                let start = data.len();
                for _ in 0..shape[0] * shape[1] {
                    data.extend(random.random_range(-0.5_f32..0.5).to_le_bytes());
                }
                let offsets = [start, data.len()];
                header.insert(
                    name,
                    json!({"dtype": "F32", "shape": shape, "data_offsets": offsets}),
                );
            }
        }
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.into_bytes());
    file.extend(data);
    file
}
