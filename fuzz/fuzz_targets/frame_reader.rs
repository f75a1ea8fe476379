//! A stream of frames, cut in pieces whose lengths come from the input, too.

#![no_main]

use baton_proto::frame::{FrameReader, to_bytes};
use baton_proto::watch::WatchFrame;
use libfuzzer_sys::fuzz_target;

/// The frames that were read, whether the stream went wrong, and whether it may end here.
#[derive(Debug, PartialEq)]
struct Heard {
    frames: Vec<Vec<u8>>,
    broken: bool,
    may_end: bool,
}

fn hear<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Heard {
    let mut reader = FrameReader::default();
    let mut frames = Vec::new();
    for piece in pieces {
        reader.push(piece);
        loop {
            match reader.next::<WatchFrame>() {
                Ok(Some(frame)) => frames.push(to_bytes(&frame)),
                Ok(None) => break,
                Err(_) => return Heard { frames, broken: true, may_end: false },
            }
        }
    }
    Heard { frames, broken: false, may_end: reader.finish().is_ok() }
}

fuzz_target!(|data: &[u8]| {
    let Some((steer, wire)) = baton_fuzz::steered(data) else { return };
    let whole = hear(std::iter::once(wire));
    assert_eq!(hear(wire.chunks(steer % 32 + 1)), whole);
    let (first, second) = wire.split_at(steer.min(wire.len()));
    assert_eq!(hear([first, second].into_iter()), whole);
});
