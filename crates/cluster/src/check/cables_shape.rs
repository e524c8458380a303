//! The shape that cables make, in words.

use std::collections::{BTreeMap, BTreeSet};

/// A shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// What it is, without names: equal for equal shapes.
    pub(super) kind: String,
    /// What it is, with names.
    pub(super) text: String,
}

/// What the cables between these hosts make. Two cables between the same hosts count once.
pub(super) fn describe(names: &[&str], cables: impl IntoIterator<Item = (usize, usize)>) -> Shape {
    let mut near: BTreeMap<usize, BTreeSet<usize>> =
        (0..names.len()).map(|host| (host, BTreeSet::new())).collect();
    for (a, b) in cables {
        if a != b && a < names.len() && b < names.len() {
            near.entry(a).or_default().insert(b);
            near.entry(b).or_default().insert(a);
        }
    }
    let mut parts = Vec::new();
    let mut left: BTreeSet<usize> = near.keys().copied().collect();
    while let Some(first) = left.pop_first() {
        let mut part = BTreeSet::from([first]);
        let mut ends = vec![first];
        while let Some(host) = ends.pop() {
            for next in near.get(&host).into_iter().flatten() {
                if part.insert(*next) {
                    ends.push(*next);
                }
            }
        }
        left.retain(|host| !part.contains(host));
        parts.push(describe_part(names, &near, &part));
    }
    parts.sort_by(|a: &Shape, b| a.kind.cmp(&b.kind).then_with(|| a.text.cmp(&b.text)));
    let join = |words: Vec<&str>| words.join(" and ");
    Shape {
        kind: join(parts.iter().map(|part| part.kind.as_str()).collect()),
        text: join(parts.iter().map(|part| part.text.as_str()).collect()),
    }
}

/// One connected part: leaves are taken off until a cycle or nothing is left.
fn describe_part(
    names: &[&str],
    near: &BTreeMap<usize, BTreeSet<usize>>,
    part: &BTreeSet<usize>,
) -> Shape {
    let degree = |host: usize, within: &BTreeSet<usize>| {
        near.get(&host).map_or(0, |others| others.intersection(within).count())
    };
    let list = |hosts: &BTreeSet<usize>| {
        let hosts: Vec<&str> = hosts.iter().filter_map(|host| names.get(*host).copied()).collect();
        hosts.join(", ")
    };
    let shape = |kind: &str, hosts: &BTreeSet<usize>| Shape {
        kind: format!("{kind} of {}", hosts.len()),
        text: format!("{kind} of {}", list(hosts)),
    };
    let size = part.len();
    let joints: usize = part.iter().map(|host| degree(*host, part)).sum::<usize>() / 2;
    let most = part.iter().map(|host| degree(*host, part)).max().unwrap_or(0);
    if size == 1 {
        return Shape { kind: "one host alone".to_owned(), text: format!("{} alone", list(part)) };
    }
    if size == 2 {
        return shape("a pair", part);
    }
    if joints + 1 == size {
        return shape(if most <= 2 { "a path" } else { "a tree" }, part);
    }
    let mut core = part.clone();
    while let Some(leaf) = core.iter().copied().find(|host| degree(*host, &core) <= 1) {
        core.remove(&leaf);
    }
    let tails: BTreeSet<usize> = part.difference(&core).copied().collect();
    let all_two = core.iter().all(|host| degree(*host, &core) == 2);
    let cycle = match (all_two, core.len()) {
        (true, 3) => shape("a triangle", &core),
        (true, _) => shape("a ring", &core),
        (false, _) => shape("a mesh", &core),
    };
    if tails.is_empty() {
        return cycle;
    }
    Shape {
        kind: format!("{} with a tail of {}", cycle.kind, tails.len()),
        text: format!("{} with a tail of {}", cycle.text, list(&tails)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(hosts: usize, cables: &[(usize, usize)]) -> String {
        describe(&["a", "b", "c", "d", "e"][..hosts], cables.iter().copied()).text
    }

    #[test]
    fn shapes_have_names() {
        assert_eq!(text(1, &[]), "a alone");
        assert_eq!(text(2, &[(0, 1), (1, 0)]), "a pair of a, b");
        assert_eq!(text(3, &[(0, 1), (1, 2), (2, 0)]), "a triangle of a, b, c");
        assert_eq!(text(4, &[(0, 1), (1, 2), (2, 3), (3, 0)]), "a ring of a, b, c, d");
        assert_eq!(text(4, &[(0, 1), (1, 2), (2, 3)]), "a path of a, b, c, d");
        assert_eq!(text(4, &[(0, 1), (0, 2), (0, 3)]), "a tree of a, b, c, d");
        assert_eq!(
            text(4, &[(0, 1), (1, 2), (2, 0), (2, 3)]),
            "a triangle of a, b, c with a tail of d"
        );
        assert_eq!(text(4, &[(0, 1), (1, 2), (2, 0)]), "a triangle of a, b, c and d alone");
        assert_eq!(text(4, &[(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)]), "a mesh of a, b, c, d");
        assert_eq!(
            text(5, &[(0, 1), (1, 2), (2, 3), (3, 0), (0, 4)]),
            "a ring of a, b, c, d with a tail of e"
        );
    }

    #[test]
    fn kinds_do_not_depend_on_who_is_where() {
        let kind = |cables: &[(usize, usize)]| {
            describe(&["a", "b", "c", "d"], cables.iter().copied()).kind
        };
        assert_eq!(
            kind(&[(0, 1), (1, 2), (2, 3), (3, 0)]),
            kind(&[(0, 2), (2, 1), (1, 3), (3, 0)])
        );
        assert_eq!(
            kind(&[(0, 1), (1, 2), (2, 0), (2, 3)]),
            kind(&[(3, 1), (1, 2), (2, 3), (2, 0)])
        );
        assert_ne!(
            kind(&[(0, 1), (1, 2), (2, 0), (2, 3)]),
            kind(&[(0, 1), (1, 2), (2, 3), (3, 0)])
        );
    }

    #[test]
    fn cables_to_nowhere_are_left_out() {
        assert_eq!(text(2, &[(0, 1), (1, 7), (1, 1)]), "a pair of a, b");
    }
}
