//! The written inventory of metrics is what the daemons serve.

use baton_integration::fleet::Setup;
use baton_integration::telemetry;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/telemetry.md");

#[test]
fn the_inventory_is_up_to_date() {
    let now = telemetry::inventory();
    if std::env::var_os("BATON_BLESS_DOCS").is_some() {
        std::fs::write(FILE, &now).unwrap();
    }
    let written = std::fs::read_to_string(FILE).unwrap_or_default();
    assert_eq!(
        written, now,
        "docs/telemetry.md is stale: run this test with BATON_BLESS_DOCS=1 and look at what changed"
    );
}

#[test]
fn names_follow_one_rule() {
    for line in telemetry::inventory()
        .lines()
        .filter_map(|line| line.strip_prefix("| `baton_"))
    {
        let name = line.split('`').next().unwrap();
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
        assert!(name.bytes().all(plain) && !name.contains("__"), "{name}");
        assert!(
            name.starts_with("router_") || name.starts_with("sidecar_"),
            "{name}"
        );
        assert!(!name.contains("_total_total"), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_served_is_in_the_inventory() {
    let fleet = Setup::split().start().await;
    fleet
        .complete(r#"{"model":"tiny","prompt":"count me","max_tokens":4}"#)
        .await
        .served();
    fleet.complete("{").await.refused(400);
    let inventory = telemetry::inventory();
    for page in [
        fleet.router_page().await,
        fleet.sidecar_page("p0").await,
        fleet.sidecar_page("d0").await,
    ] {
        assert!(
            page.text().ends_with("# EOF\n"),
            "OpenMetrics ends with EOF"
        );
        for name in page
            .text()
            .lines()
            .filter_map(|line| line.strip_prefix("# HELP "))
        {
            let name = name.split(' ').next().unwrap();
            assert!(
                inventory.contains(&format!("| `{name}")),
                "{name} is not in the inventory"
            );
        }
    }
    fleet.finish().await;
}
