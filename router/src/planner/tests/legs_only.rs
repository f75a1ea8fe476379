//! Engines that serve legs of split requests only.

use super::*;

/// A prefill and a decode worker whose engines refuse whole requests.
fn legs(index: &Arc<Index>) -> [WorkerView; 2] {
    [("p", Role::Prefill), ("d", Role::Decode)].map(|(id, role)| {
        let whole = of_role(index, id, role);
        let info = whole.info().unwrap().clone();
        let legs_only = true;
        worker(id, index, WorkerInfo { legs_only, ..info })
    })
}

fn one_token() -> Facts {
    Facts {
        local: Some("at most one token is wanted"),
        ..facts()
    }
}

fn several() -> Facts {
    Facts {
        local: Some("several choices are wanted"),
        whole: true,
        ..facts()
    }
}

#[test]
fn where_nobody_serves_alone_everything_that_can_be_is_split() {
    let index: Arc<Index> = Arc::default();
    let mut scene = Scene::new(&index, legs(&index));
    let split = Ok(vec!["p".to_owned(), "d".to_owned()]);
    assert_eq!(scene.chosen(&planning(&[])), split);
    assert_eq!(scene.chosen(&planning(&["--force", "local"])), split);
    scene.facts = one_token();
    assert_eq!(scene.chosen(&planning(&[])), split);
    scene.facts = facts();
    scene.lessons.local_only = true;
    assert_eq!(scene.chosen(&planning(&[])), split, "two splits failed");
    scene.lessons = Lessons::default();
    scene.facts = several();
    let refused = scene.chosen(&planning(&[])).unwrap_err();
    assert_eq!(
        refused,
        "none of the 2 ready workers can serve this request alone, and several choices are wanted"
    );
}

#[test]
fn who_serves_alone_gets_what_is_not_to_be_split() {
    let index: Arc<Index> = Arc::default();
    let [prefill, decode] = legs(&index);
    let alone = of_role(&index, "a", Role::Local);
    let mut scene = Scene::new(&index, [prefill, decode, alone]);
    for facts in [one_token(), several()] {
        scene.facts = facts;
        assert_eq!(scene.chosen(&planning(&[])).unwrap(), ["a"]);
    }
    scene.facts = facts();
    scene.lessons.local_only = true;
    assert_eq!(scene.chosen(&planning(&[])).unwrap(), ["a"]);
}
