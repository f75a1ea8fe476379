//! The matrix, and the names of all figures. Names are stable: figures of different versions are compared by them.

use std::fmt;

/// How requests are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Arrangement {
    /// Prefill on one engine, decode on another.
    Split,
    /// One engine does it all.
    Local,
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// One whole answer.
    Unary,
    /// A stream of [`TOKENS`] chunks.
    Stream,
}

/// Tokens of every answer.
pub const TOKENS: usize = 16;

/// One cell of the matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Row {
    /// How requests are served.
    pub arrangement: Arrangement,
    /// Words of the prompt.
    pub words: usize,
    /// What is asked for.
    pub form: Form,
    /// Requests at a time.
    pub concurrency: usize,
}

/// The concurrency that names leave out.
const USUAL_CONCURRENCY: usize = 64;

/// The row whose load the footprint is read after, and the one with which it makes the cost of a chunk.
const UNARY: Row = Row {
    arrangement: Arrangement::Split,
    words: 512,
    form: Form::Unary,
    concurrency: USUAL_CONCURRENCY,
};

impl Arrangement {
    /// Names of Baton's processes, and of the relay's in their places.
    pub fn processes(self) -> &'static [&'static str] {
        match self {
            Self::Split => &["router", "prefill_sidecar", "decode_sidecar"],
            Self::Local => &["router", "sidecar"],
        }
    }

    /// The word in names.
    pub fn word(self) -> &'static str {
        match self {
            Self::Split => "split",
            Self::Local => "local",
        }
    }
}

impl Row {
    /// The whole matrix.
    pub fn all() -> Vec<Self> {
        let mut rows = Vec::new();
        for arrangement in [Arrangement::Split, Arrangement::Local] {
            for words in [512, 8192] {
                for form in [Form::Unary, Form::Stream] {
                    rows.extend([USUAL_CONCURRENCY, 1].map(|concurrency| Self {
                        arrangement,
                        words,
                        form,
                        concurrency,
                    }));
                }
            }
        }
        rows
    }

    /// Names of this row's figures.
    pub fn figures(self) -> Vec<String> {
        let fixed = [
            "rps",
            "p50_ms",
            "p99_ms",
            "cpu_us",
            "engine_cpu_us",
            "client_cpu_us",
        ];
        let processes = self.arrangement.processes().iter();
        fixed
            .into_iter()
            .map(str::to_owned)
            .chain(processes.map(|process| format!("{process}_cpu_us")))
            .map(|metric| format!("overhead.{metric}.{self}"))
            .collect()
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self.words {
            8192 => "8k".to_owned(),
            words => words.to_string(),
        };
        let form = match self.form {
            Form::Unary => "unary",
            Form::Stream => "stream16",
        };
        let arrangement = self.arrangement.word();
        write!(f, "{arrangement}_{words}_{form}")?;
        match self.concurrency {
            USUAL_CONCURRENCY => Ok(()),
            few => write!(f, "_c{few}"),
        }
    }
}

/// What a stream costs above a whole answer, per chunk, at one concurrency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// The row with whole answers.
    pub unary: Row,
    /// The row with streams.
    pub stream: Row,
}

impl Chunk {
    /// At both concurrencies.
    pub fn all() -> [Self; 2] {
        [USUAL_CONCURRENCY, 1].map(|concurrency| {
            let unary = Row {
                concurrency,
                ..UNARY
            };
            let stream = Row {
                form: Form::Stream,
                ..unary
            };
            Self { unary, stream }
        })
    }

    /// Names of its figures, each with the metric that it is made from.
    pub fn figures(self) -> [(String, &'static str); 2] {
        let suffix = match self.unary.concurrency {
            USUAL_CONCURRENCY => String::new(),
            few => format!("_c{few}"),
        };
        ["cpu_us", "router_cpu_us"]
            .map(|metric| (format!("overhead.{metric}.chunk{suffix}"), metric))
    }
}

/// Names of the figures of memory, each with the process that it is of.
pub const FOOTPRINTS: [(&str, &str); 2] = [
    ("footprint.router_rss_mb", "router"),
    ("footprint.sidecar_rss_mb", "prefill_sidecar"),
];

/// Every name, in the order in which figures are printed.
pub fn names() -> Vec<String> {
    let rows = Row::all().into_iter().flat_map(Row::figures);
    let chunks = Chunk::all().into_iter().flat_map(Chunk::figures);
    rows.chain(chunks.map(|(name, _)| name))
        .chain(FOOTPRINTS.map(|(name, _)| name.to_owned()))
        .collect()
}

/// The rows that must be measured for the figures whose names begin so.
pub fn needed(beginning: &str) -> Vec<Row> {
    let wanted = |name: &str| name.starts_with(beginning);
    let in_chunk = |row: &Row| {
        Chunk::all().iter().any(|chunk| {
            let made_of = chunk.unary == *row || chunk.stream == *row;
            made_of && chunk.figures().iter().any(|(name, _)| wanted(name))
        })
    };
    let footprint = FOOTPRINTS.iter().any(|(name, _)| wanted(name));
    Row::all()
        .into_iter()
        .filter(|row| {
            row.figures().iter().any(|name| wanted(name))
                || in_chunk(row)
                || (footprint && *row == UNARY)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_promised_names_are_there_and_none_twice() {
        let all = names();
        for promised in [
            "overhead.rps.split_512_unary",
            "overhead.cpu_us.split_512_unary",
            "overhead.router_cpu_us.split_512_unary",
            "overhead.p50_ms.split_512_unary_c1",
            "overhead.p99_ms.local_8k_stream16",
            "overhead.cpu_us.chunk",
            "footprint.sidecar_rss_mb",
            "footprint.router_rss_mb",
        ] {
            assert!(all.iter().any(|name| name == promised), "{promised}");
        }
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
        assert_eq!(Row::all().len(), 16);
    }

    #[test]
    fn a_prefix_measures_what_it_needs_and_no_more() {
        assert_eq!(needed("").len(), 16);
        assert_eq!(needed("overhead.cpu_us.local").len(), 8);
        assert_eq!(needed("footprint"), [UNARY]);
        let of_chunk: Vec<String> = needed("overhead.cpu_us.chunk")
            .iter()
            .map(Row::to_string)
            .collect();
        assert_eq!(
            of_chunk,
            [
                "split_512_unary",
                "split_512_unary_c1",
                "split_512_stream16",
                "split_512_stream16_c1"
            ]
        );
        assert_eq!(needed("nothing").len(), 0);
    }
}
