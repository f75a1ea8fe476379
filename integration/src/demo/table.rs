//! Tables for a terminal: columns as wide as they must be, numbers to the right.

use std::fmt::{self, Display};

/// A table with headings.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings.
    pub fn new<T: Display>(headings: impl IntoIterator<Item = T>) -> Self {
        let mut table = Self::default();
        table.row(headings);
        table
    }

    /// Adds a row.
    pub fn row<T: Display>(&mut self, cells: impl IntoIterator<Item = T>) {
        let cells = cells.into_iter().map(|cell| cell.to_string());
        self.rows.push(cells.collect());
    }

    fn cells(&self, column: usize) -> impl Iterator<Item = &String> {
        self.rows.iter().filter_map(move |row| row.get(column))
    }

    /// A column of numbers, whatever its heading is.
    fn is_of_numbers(&self, column: usize) -> bool {
        self.cells(column)
            .skip(1)
            .all(|cell| cell.parse::<f64>().is_ok())
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.first().map_or(0, Vec::len);
        let layout: Vec<(bool, usize)> = (0..columns)
            .map(|column| {
                let widths = self.cells(column).map(|cell| cell.chars().count());
                (self.is_of_numbers(column), widths.max().unwrap_or(0))
            })
            .collect();
        for row in &self.rows {
            let cells = row.iter().zip(&layout);
            let line: Vec<String> = cells
                .map(|(cell, (number, width))| match number {
                    true => format!("{cell:>width$}"),
                    false => format!("{cell:<width$}"),
                })
                .collect();
            writeln!(f, "  {}", line.join("  ").trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_to_the_right_and_words_to_the_left() {
        let mut table = Table::new(["what", "ms"]);
        table.row(["a", "7.5"]);
        table.row(["longer", "100.0"]);
        assert_eq!(
            table.to_string(),
            "  what       ms\n  a         7.5\n  longer  100.0\n"
        );
    }
}
