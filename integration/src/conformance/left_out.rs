//! Recordings that no case sends again, each with the reason. A test sees to it that none is left out silently.

/// Recorded exchanges that no case uses: name, reason.
pub const EXCHANGES: &[(&str, &str)] = &[(
    "c2_chat_prefill_neither",
    "ends where the recorded weights happened to draw the end of sequence, after 3139 tokens; what its ticket tells of \
         so many tokens is a law",
)];

/// Recordings that were not taken over at all, since no exchange can be made of them: name, reason.
pub const NOT_TAKEN: &[(&str, &str)] = &[
    ("push_*", "NixlPushConnector, which Baton refuses"),
    (
        "server_info_json, c5_server_info_*",
        "a dump of the engine's whole configuration that takes it 15 seconds to make; Baton does not ask for it",
    ),
    (
        "c4_prefill_disconnect, c7_decode_disconnect",
        "summaries of many runs against a clock; fault tests have clients that vanish",
    ),
    (
        "oot_connector_log, kv_connector_base_signatures",
        "Python inside of an engine",
    ),
    (
        "openapi_excerpt",
        "schemas; what they allow is in the exchanges",
    ),
    (
        "release/*",
        "what an outside NIXL agent may do: needs NIXL, and belongs to the transfer crate",
    ),
];
