//! Workers of which only the view and the load are known.

use super::*;

#[test]
fn who_is_observed_only_is_given_nothing_and_serves_nothing() {
    let index: Arc<Index> = Arc::default();
    let observed = of_role(&index, "o", Role::Observed);
    assert!(!observed.takes_work() && !observed.is_well());
    let scene = Scene::new(&index, [observed]);
    let refused = scene.chosen(&planning(&[])).unwrap_err();
    assert_eq!(refused, "no worker is ready");
}

#[test]
fn beside_others_it_is_in_no_plan_and_that_is_explained() {
    let index: Arc<Index> = Arc::default();
    let workers = [("o", Role::Observed), ("a", Role::Local)];
    let scene = Scene::new(&index, workers.map(|(id, role)| of_role(&index, id, role)));
    let planning = planning(&[]);
    assert_eq!(scene.chosen(&planning).unwrap(), ["a"]);
    let explained = explain(&planning, &scene.question());
    let why = explained["excluded"]["o"].as_str().unwrap();
    assert!(why.starts_with("it is observed only"), "{why}");
}
