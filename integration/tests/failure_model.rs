//! The written failure model is whole, and the tests that it names exist.

use std::path::{Path, PathBuf};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

const STAGES: [&str; 11] = [
    "Body",
    "Plan",
    "Prefill sent",
    "Prefill admitted",
    "Prefill running",
    "Ticket ready",
    "Decode sent",
    "Decode running",
    "Settle",
    "Stream",
    "Release",
];

const FAULTS: [&str; 11] = [
    "client disconnects",
    "deadline",
    "peer refuses",
    "peer dies",
    "peer hangs",
    "peer answers late",
    "peer answers twice",
    "peer restarts under its name",
    "router dies",
    "sidecar dies",
    "drain",
];

/// One cell of the model.
#[derive(Debug)]
struct Cell {
    stage: String,
    fault: String,
    rule: String,
    test: String,
}

fn read(path: &str) -> String {
    let path = Path::new(ROOT).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn cells(page: &str) -> Vec<Cell> {
    let mut stage = String::new();
    let mut cells = Vec::new();
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            let named = heading.split_once(". ");
            stage = named.map_or(String::new(), |(_, name)| name.to_owned());
        }
        let columns: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, fault, rule, test, _] = columns[..] else {
            continue;
        };
        if stage.is_empty() || fault == "what goes wrong" || fault.starts_with('-') {
            continue;
        }
        cells.push(Cell {
            stage: stage.clone(),
            fault: fault.to_owned(),
            rule: rule.to_owned(),
            test: test.to_owned(),
        });
    }
    cells
}

/// Where a test is that the model names as `file::name`.
fn home(file: &str) -> PathBuf {
    let root = Path::new(ROOT);
    if file.contains('/') {
        root.join(file)
    } else {
        root.join("integration/tests")
            .join(file)
            .with_extension("rs")
    }
}

fn exists(test: &str) -> Result<(), String> {
    let (file, name) = test
        .rsplit_once("::")
        .ok_or_else(|| format!("{test} does not look like `file::name`"))?;
    let source = std::fs::read_to_string(home(file)).map_err(|error| format!("{file}: {error}"))?;
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let heads = [format!("fn {name}("), format!("async fn {name}(")];
    let head = lines
        .iter()
        .position(|line| heads.iter().any(|head| line.starts_with(head.as_str())))
        .ok_or_else(|| format!("there is no {name} in {file}"))?;
    let above = lines[..head].iter().rev();
    let belongs = |line: &&&str| line.starts_with("#[") || line.starts_with("//");
    let attributes: Vec<&str> = above.take_while(belongs).copied().collect();
    let is_test = |line: &&str| line.starts_with("#[tokio::test") || *line == "#[test]";
    if !attributes.iter().any(is_test) {
        return Err(format!("{name} in {file} is no test"));
    }
    if attributes.iter().any(|line| line.starts_with("#[ignore")) {
        return Err(format!("{name} in {file} is ignored"));
    }
    Ok(())
}

#[test]
fn every_stage_has_a_rule_for_everything_that_goes_wrong() {
    let cells = cells(&read("docs/failure-model.md"));
    let named = cells
        .iter()
        .map(|cell| (cell.stage.as_str(), cell.fault.as_str()));
    let wanted = STAGES
        .iter()
        .flat_map(|stage| FAULTS.iter().map(move |fault| (*stage, *fault)));
    assert_eq!(named.collect::<Vec<_>>(), wanted.collect::<Vec<_>>());
    for cell in &cells {
        assert!(cell.rule.ends_with('.'), "one sentence: {cell:?}");
        assert!(cell.rule.len() < 180, "one short sentence: {cell:?}");
    }
}

#[test]
fn every_rule_is_shown_by_a_test_or_owns_up() {
    let gaps = read("docs/gaps.md");
    let mut wrong = Vec::new();
    for cell in cells(&read("docs/failure-model.md")) {
        let impossible = cell.rule.starts_with("Cannot occur: ");
        let test = cell.test.trim_matches('`');
        let judged = match test {
            "–" if impossible => Ok(()),
            _ if impossible => Err("what cannot occur needs no test".to_owned()),
            "not tested" => {
                let line = format!("{} × {}", cell.stage, cell.fault);
                let listed = gaps.contains(&line);
                listed
                    .then_some(())
                    .ok_or(format!("{line} is not in docs/gaps.md"))
            }
            test => exists(test),
        };
        if let Err(why) = judged {
            wrong.push(format!("{} × {}: {why}", cell.stage, cell.fault));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The rows of a section that is no stage: what goes wrong with its rule, and the test.
fn rows<'a>(page: &'a str, heading: &str) -> Vec<(&'a str, &'a str)> {
    let (_, section) = page.split_once(heading).expect("the section is there");
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    rows.skip(1)
        .map(|row| row.rsplit_once(" | ").expect("a row has a test"))
        .collect()
}

/// The tables of handoffs whose legs run at once and of engines of several kinds have rows of their own.
#[test]
fn every_rule_beside_the_stages_is_shown_by_a_test() {
    let page = read("docs/failure-model.md");
    let both_legs = rows(&page, "## Both legs at once");
    let kinds = rows(&page, "## Engines of several kinds");
    assert!(both_legs.len() > 20, "{both_legs:?}");
    assert_eq!(kinds.len(), 2, "{kinds:?}");
    let wrong: Vec<String> = both_legs
        .into_iter()
        .chain(kinds)
        .filter_map(|(row, test)| {
            let why = exists(test.trim_matches('`')).err()?;
            Some(format!("{row}: {why}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_test_that_does_not_exist_is_noticed() {
    assert_eq!(
        exists("membership::a_router_that_crashed_is_found_again"),
        Ok(())
    );
    for bad in [
        "membership::no_such_test",
        "no_such_file::a_router_that_crashed_is_found_again",
        "membership::serves",
        "membership",
    ] {
        assert!(exists(bad).is_err(), "{bad}");
    }
}
