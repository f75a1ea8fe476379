//! The form of a batch: an array or a map of arrays or maps.

use baton_sidecar_core::mirror::event::BlockItem;
use baton_sidecar_core::mirror::oddity::Tally;

use crate::cursor::{Cursor, Malformed, Value};
use crate::decoder::Event;
use crate::dialect::Dialect;
use crate::event;
use crate::field::{self, Field, Fields, Numbers, Sent};
use crate::oddity::Oddity;

/// A batch being read.
#[derive(Debug, Default)]
pub(crate) struct Reading<'d> {
    pub(crate) time: Option<f64>,
    pub(crate) rank: Option<u32>,
    pub(crate) has_events: bool,
    pub(crate) oddities: Tally<Oddity>,
    pub(crate) events: Vec<Event<'d>>,
    pub(crate) items: Vec<BlockItem<'d>>,
}

impl<'d> Reading<'d> {
    /// `[ts, events, data_parallel_rank]`, or a map with these keys.
    pub(crate) fn batch<D: Dialect>(
        &mut self,
        cursor: &mut Cursor<'d>,
        numbers: &mut Numbers,
    ) -> Result<(), Malformed> {
        let start = *cursor;
        match cursor.value()? {
            Value::Array(length) => {
                for place in 0..length {
                    match place {
                        0 => self.time(cursor)?,
                        1 => self.all_events::<D>(cursor, numbers)?,
                        2 => self.rank(cursor)?,
                        _ => self.unknown_field(cursor)?,
                    }
                }
            }
            Value::Map(pairs) => {
                for _ in 0..pairs {
                    match cursor.value()? {
                        Value::Text(b"ts") => self.time(cursor)?,
                        Value::Text(b"events") => self.all_events::<D>(cursor, numbers)?,
                        Value::Text(b"data_parallel_rank" | b"attn_dp_rank") => {
                            self.rank(cursor)?
                        }
                        Value::Text(_) => self.unknown_field(cursor)?,
                        _ => return Err(cursor.malformed("a key that is no text")),
                    }
                }
            }
            _ => return Err(start.malformed("neither an array nor a map")),
        }
        Ok(())
    }

    fn unknown_field(&mut self, cursor: &mut Cursor<'d>) -> Result<(), Malformed> {
        self.oddities.add(Oddity::UnknownField);
        cursor.skip()
    }

    fn time(&mut self, cursor: &mut Cursor<'d>) -> Result<(), Malformed> {
        let start = *cursor;
        #[expect(clippy::cast_precision_loss, reason = "seconds since 1970")]
        let time = match cursor.value()? {
            Value::Float(time) => time,
            Value::Unsigned(time) => time as f64,
            _ => return Err(start.malformed("a time that is no number")),
        };
        self.time = Some(time);
        Ok(())
    }

    fn rank(&mut self, cursor: &mut Cursor<'d>) -> Result<(), Malformed> {
        match field::scalar(cursor, field::small)? {
            Sent::Nothing => {}
            Sent::Value(rank) => self.rank = Some(rank),
            Sent::Strange => self.oddities.add(Oddity::FieldType),
        }
        Ok(())
    }

    fn all_events<D: Dialect>(
        &mut self,
        cursor: &mut Cursor<'d>,
        numbers: &mut Numbers,
    ) -> Result<(), Malformed> {
        let start = *cursor;
        let Value::Array(length) = cursor.value()? else {
            return Err(start.malformed("events that are no array"));
        };
        self.has_events = true;
        for _ in 0..length {
            let mut fields = Fields::default();
            let before = *cursor;
            match cursor.value()? {
                Value::Map(pairs) => fields.map::<D>(pairs, cursor, numbers)?,
                Value::Array(length) => array::<D>(length, &mut fields, cursor, numbers)?,
                _ => {
                    *cursor = before;
                    cursor.skip()?;
                }
            }
            self.finish_event::<D>(&fields, numbers)?;
        }
        Ok(())
    }

    fn finish_event<D: Dialect>(
        &mut self,
        fields: &Fields<'d>,
        numbers: &Numbers,
    ) -> Result<(), Malformed> {
        if fields.unknown > 0 {
            self.oddities.add_many(Oddity::UnknownField, fields.unknown);
        }
        let strange = u64::try_from(fields.strange()).unwrap_or(u64::MAX);
        if strange > 0 {
            self.oddities.add_many(Oddity::FieldType, strange);
        }
        let event = event::of::<D>(fields, numbers, &mut self.items, &mut self.oddities)?;
        self.events.extend(event);
        Ok(())
    }
}

/// An event's kind, then its fields in the order of the dialect.
fn array<'d, D: Dialect>(
    length: u32,
    fields: &mut Fields<'d>,
    cursor: &mut Cursor<'d>,
    numbers: &mut Numbers,
) -> Result<(), Malformed> {
    let mut order: Option<&[Field]> = None;
    for place in 0..length {
        if place == 0 {
            fields.read::<D>(Field::Type, cursor, numbers)?;
            order = match fields.kind {
                Sent::Value(b"BlockStored") => Some(D::STORED),
                Sent::Value(b"BlockRemoved") => Some(D::REMOVED),
                Sent::Value(b"AllBlocksCleared") => Some(&[]),
                _ => None,
            };
            continue;
        }
        let behind_tag = usize::try_from(place - 1).unwrap_or(usize::MAX);
        match order.map(|order| order.get(behind_tag)) {
            Some(Some(field)) => fields.read::<D>(*field, cursor, numbers)?,
            Some(None) => fields.pass_over(cursor)?,
            // Nobody knows what the fields of an unknown event are.
            None => cursor.skip()?,
        }
    }
    Ok(())
}
