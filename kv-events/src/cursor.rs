//! A cursor over MessagePack: no tree, no recursion, no allocation.

/// Bytes that are no batch of events in MessagePack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {at} of the payload")]
pub struct Malformed {
    /// What is wrong.
    pub what: &'static str,
    /// Where, in bytes from the payload's beginning.
    pub at: usize,
}

/// A value, or for an array or a map how many values or pairs of them follow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    /// Nothing.
    Nil,
    /// A truth value.
    Bool,
    /// A number of 0 or more.
    Unsigned(u64),
    /// A number below zero.
    Negative(i64),
    /// A number with a fraction.
    Float(f64),
    /// Text, as its bytes.
    Text(&'a [u8]),
    /// Bytes.
    Bytes(&'a [u8]),
    /// So many values follow.
    Array(u32),
    /// So many pairs of key and value follow.
    Map(u32),
    /// A value of a type that the format does not know.
    Extension,
}

/// A place in a payload.
#[derive(Debug, Clone, Copy)]
pub struct Cursor<'a> {
    rest: &'a [u8],
    length: usize,
}

impl<'a> Cursor<'a> {
    /// At the beginning of a payload.
    pub fn new(payload: &'a [u8]) -> Self {
        Self {
            rest: payload,
            length: payload.len(),
        }
    }

    /// What follows.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Goes on behind the next `bytes` bytes, or as many as there are.
    pub fn advance(&mut self, bytes: usize) {
        self.rest = self.rest.get(bytes..).unwrap_or_default();
    }

    /// Something is wrong here.
    pub fn malformed(&self, what: &'static str) -> Malformed {
        Malformed {
            what,
            at: self.length - self.rest.len(),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let Some((bytes, rest)) = self.rest.split_first_chunk() else {
            return Err(self.malformed("a value is cut off"));
        };
        self.rest = rest;
        Ok(*bytes)
    }

    fn bytes(&mut self, length: u32) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let Some((bytes, rest)) = self.rest.split_at_checked(length) else {
            return Err(self.malformed("a value is cut off"));
        };
        self.rest = rest;
        Ok(bytes)
    }

    fn u8(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from(u8::from_be_bytes(self.array()?)))
    }

    fn u16(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from(u16::from_be_bytes(self.array()?)))
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    /// The next value. Of an array or a map only its length: its content comes next.
    pub fn value(&mut self) -> Result<Value<'a>, Malformed> {
        let [marker] = self.array()?;
        let low = |mask: u8| u32::from(marker & mask);
        Ok(match marker {
            0x00..=0x7f => Value::Unsigned(u64::from(marker)),
            0x80..=0x8f => Value::Map(low(0x0f)),
            0x90..=0x9f => Value::Array(low(0x0f)),
            0xa0..=0xbf => Value::Text(self.bytes(low(0x1f))?),
            0xc0 => Value::Nil,
            0xc1 => return Err(self.malformed("a marker that does not exist")),
            0xc2 | 0xc3 => Value::Bool,
            0xc4 => self
                .u8()
                .and_then(|length| self.bytes(length))
                .map(Value::Bytes)?,
            0xc5 => self
                .u16()
                .and_then(|length| self.bytes(length))
                .map(Value::Bytes)?,
            0xc6 => self
                .u32()
                .and_then(|length| self.bytes(length))
                .map(Value::Bytes)?,
            0xc7 => self.u8().and_then(|length| self.extension(length))?,
            0xc8 => self.u16().and_then(|length| self.extension(length))?,
            0xc9 => self.u32().and_then(|length| self.extension(length))?,
            0xca => Value::Float(f64::from(f32::from_be_bytes(self.array()?))),
            0xcb => Value::Float(f64::from_be_bytes(self.array()?)),
            0xcc => Value::Unsigned(u64::from(self.u8()?)),
            0xcd => Value::Unsigned(u64::from(self.u16()?)),
            0xce => Value::Unsigned(u64::from(self.u32()?)),
            0xcf => Value::Unsigned(u64::from_be_bytes(self.array()?)),
            0xd0 => signed(i8::from_be_bytes(self.array()?).into()),
            0xd1 => signed(i16::from_be_bytes(self.array()?).into()),
            0xd2 => signed(i32::from_be_bytes(self.array()?).into()),
            0xd3 => signed(i64::from_be_bytes(self.array()?)),
            0xd4..=0xd8 => self.extension(1 << (marker - 0xd4))?,
            0xd9 => self
                .u8()
                .and_then(|length| self.bytes(length))
                .map(Value::Text)?,
            0xda => self
                .u16()
                .and_then(|length| self.bytes(length))
                .map(Value::Text)?,
            0xdb => self
                .u32()
                .and_then(|length| self.bytes(length))
                .map(Value::Text)?,
            0xdc => Value::Array(self.u16()?),
            0xdd => Value::Array(self.u32()?),
            0xde => Value::Map(self.u16()?),
            0xdf => Value::Map(self.u32()?),
            0xe0..=0xff => signed(i8::from_be_bytes([marker]).into()),
        })
    }

    fn extension(&mut self, length: u32) -> Result<Value<'a>, Malformed> {
        self.u8()?;
        self.bytes(length)?;
        Ok(Value::Extension)
    }

    /// Passes over the next value with all that is in it. Counts what is still to be passed over instead of descending,
    /// so no depth can exhaust a stack; a claimed length costs nothing until its content is there.
    pub fn skip(&mut self) -> Result<(), Malformed> {
        let mut values: u64 = 1;
        while values > 0 {
            values -= 1;
            match self.value()? {
                Value::Array(length) => values += u64::from(length),
                Value::Map(pairs) => values += 2 * u64::from(pairs),
                _ => {}
            }
        }
        Ok(())
    }
}

fn signed(number: i64) -> Value<'static> {
    u64::try_from(number).map_or(Value::Negative(number), Value::Unsigned)
}
