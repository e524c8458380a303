//! Routes as words: `a>b via c,d rails 0,1 kind forwarded`.

use std::fmt;
use std::str::FromStr;

use super::{FileError, MAX_FUNCTIONS, MAX_HOSTS, RouteEntry};

/// Most letters a route may have.
const MAX_TEXT: usize = 4096;

impl FromStr for RouteEntry {
    type Err = FileError;

    /// Reads `FROM>TO [via HOST,HOST…] [rails N,N…] [kind direct|forwarded|relayed]`; words in any order after the
    /// first. Whether the hosts exist is not looked at.
    fn from_str(text: &str) -> Result<Self, FileError> {
        let wrong = |why: String| FileError::Route { route: text.chars().take(120).collect(), why };
        if text.len() > MAX_TEXT {
            return Err(wrong(format!("it is longer than {MAX_TEXT} bytes")));
        }
        // Blanks around '>' and ',' are how people write lists.
        let joined = text.replace('>', " > ").replace(',', " , ");
        let words: Vec<&str> = joined.split_whitespace().collect();
        let (from, to, mut rest) =
            match words.as_slice() {
                [from, ">", to, rest @ ..] => ((*from).to_owned(), (*to).to_owned(), rest),
                _ => return Err(wrong(
                    "it does not begin with FROM>TO; write 'a>b via c rails 0,1 kind forwarded'"
                        .to_owned(),
                )),
            };
        let mut route = Self { from, to, via: Vec::new(), kind: None, rails: Vec::new() };
        while let [word, after @ ..] = rest {
            let (list, left) = list(after);
            if list.is_empty() {
                return Err(wrong(format!("nothing follows {word:?}")));
            }
            let twice = match *word {
                "via" => !std::mem::replace(
                    &mut route.via,
                    list.into_iter().map(str::to_owned).collect(),
                )
                .is_empty(),
                "rails" => {
                    let numbers: Result<Vec<usize>, _> =
                        list.iter().map(|number| number.parse()).collect();
                    let numbers = numbers.map_err(|_| {
                        wrong(format!(
                            "{:?} after rails is no list of numbers such as 0,1",
                            list.join(",")
                        ))
                    })?;
                    !std::mem::replace(&mut route.rails, numbers).is_empty()
                }
                "kind" => match list.as_slice() {
                    [kind] => route.kind.replace((*kind).to_owned()).is_some(),
                    _ => return Err(wrong("a route has one kind".to_owned())),
                },
                other => {
                    return Err(wrong(format!("{other:?} is none of via, rails and kind")));
                }
            };
            if twice {
                return Err(wrong(format!("it says {word:?} twice")));
            }
            rest = left;
        }
        route.check_form()?;
        Ok(route)
    }
}

/// The words of a list with commas at the head of some words, and the words after it.
fn list<'a, 'b>(mut words: &'a [&'b str]) -> (Vec<&'b str>, &'a [&'b str]) {
    let mut list = Vec::new();
    while let [item, after @ ..] = words {
        list.push(*item);
        match after {
            [",", more @ ..] => words = more,
            _ => return (list, after),
        }
    }
    // A comma at the end announces an item that does not come: the caller sees an empty list and says so.
    (Vec::new(), words)
}

impl fmt::Display for RouteEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}>{}", self.from, self.to)?;
        if !self.via.is_empty() {
            write!(f, " via {}", self.via.join(","))?;
        }
        if !self.rails.is_empty() {
            let rails: Vec<String> = self.rails.iter().map(ToString::to_string).collect();
            write!(f, " rails {}", rails.join(","))?;
        }
        if let Some(kind) = &self.kind {
            write!(f, " kind {kind}")?;
        }
        Ok(())
    }
}

impl RouteEntry {
    /// Refuses what no cabling could make right.
    pub(super) fn check_form(&self) -> Result<(), FileError> {
        let wrong = |why: String| Err(FileError::Route { route: self.to_string(), why });
        if self.from == self.to {
            return wrong(format!("it leads from {} to itself", self.from));
        }
        if self.via.len() > MAX_HOSTS - 2 {
            return wrong(format!(
                "{} hosts between; a cluster has at most {MAX_HOSTS} hosts",
                self.via.len()
            ));
        }
        for (i, host) in self.via.iter().enumerate() {
            if *host == self.from
                || *host == self.to
                || self.via.iter().take(i).any(|earlier| earlier == host)
            {
                return wrong(format!("it visits {host} twice"));
            }
        }
        for (i, number) in self.rails.iter().enumerate() {
            if *number >= MAX_FUNCTIONS {
                return wrong(format!(
                    "rail {number}: functions of a port are numbered 0 to {}",
                    MAX_FUNCTIONS - 1
                ));
            }
            if self.rails.iter().take(i).any(|earlier| earlier == number) {
                return wrong(format!("it names rail {number} twice"));
            }
        }
        match self.kind.as_deref() {
            None | Some("relayed") => Ok(()),
            Some("direct") if self.via.is_empty() => Ok(()),
            Some("direct") => wrong(
                "a direct path has no hosts between: leave out via, or take kind relayed"
                    .to_owned(),
            ),
            Some("forwarded") => Ok(()),
            Some(other) => {
                wrong(format!("kind {other:?} is none of direct, forwarded and relayed"))
            }
        }
    }
}
