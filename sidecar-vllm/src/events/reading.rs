//! The form of a batch: an array or a map of arrays or maps.

use baton_sidecar_core::mirror::event::BlockItem;
use baton_sidecar_core::mirror::oddity::Tally;

use super::cursor::{Cursor, Malformed, Value};
use super::decoder::Event;
use super::event;
use super::field::{self, Field, Fields, Numbers, REMOVED, STORED, Sent};
use super::oddity::Oddity;

/// A batch being read.
#[derive(Debug, Default)]
pub(super) struct Reading<'d> {
    pub(super) time: Option<f64>,
    pub(super) rank: Option<u32>,
    pub(super) has_events: bool,
    pub(super) oddities: Tally<Oddity>,
    pub(super) events: Vec<Event<'d>>,
    pub(super) items: Vec<BlockItem<'d>>,
}

impl<'d> Reading<'d> {
    /// `[ts, events, data_parallel_rank]`, or a map with these keys.
    pub(super) fn batch(
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
                        1 => self.all_events(cursor, numbers)?,
                        2 => self.rank(cursor)?,
                        _ => self.unknown_field(cursor)?,
                    }
                }
            }
            Value::Map(pairs) => {
                for _ in 0..pairs {
                    match cursor.value()? {
                        Value::Text(b"ts") => self.time(cursor)?,
                        Value::Text(b"events") => self.all_events(cursor, numbers)?,
                        Value::Text(b"data_parallel_rank") => self.rank(cursor)?,
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

    fn all_events(
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
                Value::Map(pairs) => self.map(pairs, &mut fields, cursor, numbers)?,
                Value::Array(length) => self.array(length, &mut fields, cursor, numbers)?,
                _ => {
                    *cursor = before;
                    cursor.skip()?;
                }
            }
            self.finish_event(&fields)?;
        }
        Ok(())
    }

    fn map(
        &mut self,
        pairs: u32,
        fields: &mut Fields<'d>,
        cursor: &mut Cursor<'d>,
        numbers: &mut Numbers,
    ) -> Result<(), Malformed> {
        for _ in 0..pairs {
            let Value::Text(name) = cursor.value()? else {
                return Err(cursor.malformed("a key that is no text"));
            };
            match Field::named(name) {
                Some(field) => fields.read(field, cursor, numbers)?,
                None => self.unknown_field(cursor)?,
            }
        }
        Ok(())
    }

    fn array(
        &mut self,
        length: u32,
        fields: &mut Fields<'d>,
        cursor: &mut Cursor<'d>,
        numbers: &mut Numbers,
    ) -> Result<(), Malformed> {
        let mut order: Option<&[Field]> = None;
        for place in 0..length {
            if place == 0 {
                fields.read(Field::Type, cursor, numbers)?;
                order = match fields.kind {
                    Sent::Value(b"BlockStored") => Some(STORED),
                    Sent::Value(b"BlockRemoved") => Some(REMOVED),
                    Sent::Value(b"AllBlocksCleared") => Some(&[]),
                    _ => None,
                };
                continue;
            }
            let behind_tag = usize::try_from(place - 1).unwrap_or(usize::MAX);
            match order.map(|order| order.get(behind_tag)) {
                Some(Some(field)) => fields.read(*field, cursor, numbers)?,
                Some(None) => self.unknown_field(cursor)?,
                // Nobody knows what the fields of an unknown event are.
                None => cursor.skip()?,
            }
        }
        Ok(())
    }

    fn finish_event(&mut self, fields: &Fields<'d>) -> Result<(), Malformed> {
        let strange = u64::try_from(fields.strange()).unwrap_or(u64::MAX);
        if strange > 0 {
            self.oddities.add_many(Oddity::FieldType, strange);
        }
        let event = event::of(fields, &mut self.items, &mut self.oddities)?;
        self.events.extend(event);
        Ok(())
    }
}
