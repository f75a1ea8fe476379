//! Against the recordings: each frame decoded, rebuilt from the types, and written again.

use super::*;
use crate::emulated::vllm::recorded::{RECORDINGS, batch, payloads};

#[test]
fn every_recorded_frame_is_written_again_byte_for_byte() {
    let mut frames = 0;
    for (name, recording, hash_form) in RECORDINGS {
        for (at, payload) in payloads(recording).into_iter().enumerate() {
            let again = batch(&payload).encode(Form::Maps, hash_form);
            assert_eq!(again, payload, "frame {at} of {name}");
            frames += 1;
        }
    }
    assert_eq!(frames, 121);
}

#[test]
fn sha256_cbor_hashes_are_computed_as_vllm_does() {
    let mut hashes = 0;
    for payload in payloads(RECORDINGS[3].1) {
        for event in batch(&payload).events {
            let Event::Stored(stored) = event else {
                continue;
            };
            let mut parent = stored.parent;
            let blocks = stored.tokens.chunks(stored.block_size as usize);
            for (hash, tokens) in stored.hashes.iter().zip(blocks) {
                assert_eq!(block_hash(parent.as_ref(), tokens, &[]), *hash);
                parent = Some(*hash);
                hashes += 1;
            }
        }
    }
    assert_eq!(hashes, RECORDED_CBOR_HASHES);
}

const RECORDED_CBOR_HASHES: usize = 8;

#[test]
fn extra_keys_change_the_hash() {
    let lora = ExtraKey::Lora {
        name: "ada".to_owned(),
        path: "/adapters/ada".to_owned(),
    };
    let salt = ExtraKey::CacheSalt("tenant-a".to_owned());
    let variants = [
        vec![],
        vec![lora.clone()],
        vec![salt.clone()],
        vec![lora, salt],
    ];
    let hashes: std::collections::BTreeSet<_> = variants
        .iter()
        .map(|extra| block_hash(None, &[1, 70_000], extra))
        .collect();
    assert_eq!(hashes.len(), variants.len());
}

#[test]
fn salt_is_in_the_first_block_of_a_sequence_only() {
    let mut stored = Stored {
        hashes: vec![[1; 32], [2; 32]],
        lora_name: Some("ada".to_owned()),
        salt: Some("tenant-a".to_owned()),
        ..Stored::default()
    };
    let first = [Some(vec!["ada", "tenant-a"]), Some(vec!["ada"])];
    assert_eq!(stored.extra_keys(), first);
    stored.parent = Some([3; 32]);
    let later = [Some(vec!["ada"]), Some(vec!["ada"])];
    assert_eq!(stored.extra_keys(), later);
}

#[test]
fn arrays_have_the_tag_first() {
    let events = vec![
        Event::Stored(Stored {
            hashes: vec![[7; 32]],
            tokens: vec![5, 6],
            block_size: 2,
            session_id: Some("not told by arrays".to_owned()),
            ..Stored::default()
        }),
        Event::Removed(Removed {
            hashes: vec![[7; 32]],
        }),
        Event::Cleared,
    ];
    let batch = Batch {
        ts: 1.5,
        events,
        rank: 3,
    };
    let bytes = batch.encode(Form::Arrays, HashForm::Int);
    let value = rmpv::decode::read_value(&mut &bytes[..]).unwrap();
    let hash = "[506381209866536711]";
    let stored = format!(r#"["BlockStored", {hash}, nil, [5, 6], 2, nil, "GPU", nil]"#);
    let removed = format!(r#"["BlockRemoved", {hash}, "GPU"]"#);
    let expected = format!(r#"[1.5, [{stored}, {removed}, ["AllBlocksCleared"]], 3]"#);
    assert_eq!(value.to_string(), expected);
}
