//! Figures for people.

use super::Figure;

/// Prints a line for each row of the matrix, then what belongs to none.
pub(super) fn print(figures: &[Figure]) {
    let header = [
        "",
        "requests/s",
        "p50 ms",
        "p99 ms",
        "CPU us/request",
        "ratio",
        "router's",
    ];
    let units = [
        "",
        "baton / relay / direct",
        "baton / relay / direct",
        "baton / relay / direct",
        "baton / relay",
        "to relay",
        "baton / relay",
    ];
    let rows = rows(figures);
    if !rows.is_empty() {
        let lines: Vec<_> = [header, units]
            .iter()
            .map(|line| line.map(str::to_owned))
            .chain(rows.iter().map(|row| line(figures, row)))
            .collect();
        print_aligned(&lines);
        println!();
    }
    let in_row = |name: &str| rows.iter().any(|row| name.ends_with(&format!(".{row}")));
    for figure in figures.iter().filter(|figure| !in_row(&figure.name)) {
        print_alone(figure);
    }
    println!(
        "CPU of router and sidecars, not of engines or client. relay: a minimal relay over the same hops in the same run; \
         direct: the engine itself. Medians; --json has the spread and each process's own."
    );
}

/// Rows of which anything was measured, in order.
fn rows(figures: &[Figure]) -> Vec<String> {
    let mut rows: Vec<String> = Vec::new();
    for figure in figures {
        let mut parts = figure.name.split('.');
        let row = (parts.next() == Some("overhead"))
            .then(|| parts.nth(1))
            .flatten();
        if let Some(row) = row.filter(|row| !row.starts_with("chunk"))
            && rows.last().is_none_or(|last| last != row)
        {
            rows.push(row.to_owned());
        }
    }
    rows
}

fn line(figures: &[Figure], row: &str) -> [String; 7] {
    let find = |metric: &str| {
        let name = format!("overhead.{metric}.{row}");
        figures.iter().find(|figure| figure.name == name)
    };
    let cell = |metric: &str| find(metric).map_or_else(|| "-".to_owned(), compared);
    let ratio = find("cpu_us").and_then(|cpu| Some(cpu.value / cpu.reference?));
    [
        row.to_owned(),
        cell("rps"),
        cell("p50_ms"),
        cell("p99_ms"),
        cell("cpu_us"),
        ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}")),
        cell("router_cpu_us"),
    ]
}

fn compared(figure: &Figure) -> String {
    let all = [Some(figure.value), figure.reference, figure.direct];
    let shown: Vec<String> = all.into_iter().flatten().map(short).collect();
    shown.join(" / ")
}

/// Three digits.
pub(super) fn short(value: f64) -> String {
    match value.abs() {
        big if big >= 100.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

pub(super) fn print_alone(figure: &Figure) {
    let [smallest, largest] = figure.spread.map(short);
    let reference = figure.reference.map_or_else(String::new, |reference| {
        format!(
            "  reference {}  ratio {:.2}",
            short(reference),
            figure.value / reference
        )
    });
    println!(
        "{}: {} {}  [{smallest}..{largest}]{reference}",
        figure.name,
        short(figure.value),
        figure.unit
    );
}

fn print_aligned<const COLUMNS: usize>(lines: &[[String; COLUMNS]]) {
    let widths: [usize; COLUMNS] = std::array::from_fn(|column| {
        let cells = lines.iter().map(|line| line[column].chars().count());
        cells.max().unwrap_or(0)
    });
    for line in lines {
        let cells: Vec<String> = line
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        println!("{}", cells.join("  ").trim_end());
    }
}
