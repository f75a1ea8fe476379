//! What is counted of what an engine says.

/// What was strange about a message or an event, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Oddity {
    /// `frames`: messages that are not of a topic, a sequence number and a payload.
    Frames,
    /// `malformed`: payloads that are no batch of events in MessagePack.
    Malformed,
    /// `unknown_event`: events of a kind that is not known, passed over.
    UnknownEvent,
    /// `unknown_field`: fields that are not known, passed over.
    UnknownField,
    /// `missing_field`: events without a field that they cannot be read without.
    MissingField,
    /// `field_type`: fields whose value is of another type than expected, taken for unknown.
    FieldType,
    /// `unknown_medium`: events of a storage medium that is not known, passed over.
    UnknownMedium,
    /// `untold_keys`: stored blocks of an engine too old to say what else than tokens sets blocks apart (before 0.17),
    /// taken for plain text.
    UntoldKeys,
    /// `foreign_rank`: payloads of another data-parallel rank than the one whose stream they came by, taken for unread.
    ForeignRank,
    /// `older`: messages that came again, or too late.
    Older,
}

impl Oddity {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Frames,
        Self::Malformed,
        Self::UnknownEvent,
        Self::UnknownField,
        Self::MissingField,
        Self::FieldType,
        Self::UnknownMedium,
        Self::UntoldKeys,
        Self::ForeignRank,
        Self::Older,
    ];

    /// Its name in metrics and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Frames => "frames",
            Self::Malformed => "malformed",
            Self::UnknownEvent => "unknown_event",
            Self::UnknownField => "unknown_field",
            Self::MissingField => "missing_field",
            Self::FieldType => "field_type",
            Self::UnknownMedium => "unknown_medium",
            Self::UntoldKeys => "untold_keys",
            Self::ForeignRank => "foreign_rank",
            Self::Older => "older",
        }
    }
}
