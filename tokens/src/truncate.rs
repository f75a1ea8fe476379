//! `truncate_prompt_tokens`: the engine keeps that many tokens, the last ones unless the request says the first.

use crate::chat::present;
use crate::json::{Json, Object};
use crate::unknown::Unknown;

/// What a request asks to be cut off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Truncation {
    keep: Option<usize>,
    side: Option<Side>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

impl Truncation {
    pub(crate) fn of(members: &Object) -> Result<Truncation, Unknown> {
        let keep = match present(members, "truncate_prompt_tokens") {
            None => return Ok(Truncation::default()),
            Some(Json::Int(-1)) => {
                return Err(Unknown::Unsupported(
                    "truncation to the context length".into(),
                ));
            }
            Some(Json::Int(keep)) => usize::try_from(*keep).ok(),
            Some(_) => None,
        };
        let keep = keep.ok_or_else(|| Unknown::Refused("this truncate_prompt_tokens".into()))?;
        let side = match present(members, "truncation_side").map(Json::as_str) {
            None => None,
            Some(Some("left")) => Some(Side::Left),
            Some(Some("right")) => Some(Side::Right),
            Some(_) => return Err(Unknown::Refused("this truncation_side".into())),
        };
        Ok(Truncation {
            keep: Some(keep),
            side,
        })
    }

    /// Cuts tokens that begin and end with so many special ones. With a side named, the engine cuts what it has; without,
    /// its tokenizer cuts the text's own tokens and leaves the special ones.
    pub(crate) fn apply(
        self,
        tokens: Vec<u32>,
        special: Option<(usize, usize)>,
    ) -> Result<Vec<u32>, Unknown> {
        let Some(keep) = self.keep.filter(|&keep| keep < tokens.len()) else {
            return Ok(tokens);
        };
        if keep <= special.map_or(0, |(_, after)| after) && self.side.is_none() {
            return Ok(tokens[tokens.len() - keep..].to_vec());
        }
        let unsupported = || Unknown::Unsupported("truncation among special tokens".into());
        let around = if self.side.is_some() {
            Some((0, 0))
        } else {
            special
        };
        let (before, after) = around.ok_or_else(unsupported)?;
        let room = keep.checked_sub(before + after).ok_or_else(unsupported)?;
        let own = &tokens[before..tokens.len() - after];
        let own = if self.side == Some(Side::Right) {
            &own[..room]
        } else {
            &own[own.len() - room..]
        };
        Ok([&tokens[..before], own, &tokens[tokens.len() - after..]].concat())
    }
}
