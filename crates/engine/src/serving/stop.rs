//! Stop strings: a text ends where one is completed, and no part of it is ever given out.
//!
//! The result does not depend on how the text was cut into tokens: the stop string that is completed first counts,
//! and of two that are completed at the same byte the longer one.

/// Passes text on up to the first stop string, holding back what may still become one.
#[derive(Debug, Clone)]
pub(super) struct StopFilter {
    stops: Vec<String>,
    /// Text not yet given out.
    held: String,
    stopped: bool,
}

impl StopFilter {
    /// A filter that ends at the first of `stops`. Empty stop strings are ignored.
    pub(super) fn new(stops: &[String]) -> Self {
        let stops = stops.iter().filter(|stop| !stop.is_empty()).cloned().collect();
        Self { stops, held: String::new(), stopped: false }
    }

    /// True once a stop string was completed. From then on there is no more text.
    pub(super) fn stopped(&self) -> bool {
        self.stopped
    }

    /// Takes the text of one token and returns the text that is now certain, possibly none.
    pub(super) fn push(&mut self, text: &str) -> String {
        if self.stopped {
            return String::new();
        }
        let before = self.held.len();
        self.held.push_str(text);
        if let Some(start) = self.stop_start(before) {
            self.stopped = true;
            self.held.truncate(start);
            return std::mem::take(&mut self.held);
        }
        let certain = self.certain_len();
        self.held.drain(..certain).collect()
    }

    /// Ends the text and returns what was held back.
    pub(super) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Where the stop string begins that is completed first after byte `from`.
    fn stop_start(&self, from: usize) -> Option<usize> {
        let held = self.held.as_bytes();
        (from + 1..=held.len()).find_map(|end| {
            let ending = self.stops.iter().filter(|stop| held[..end].ends_with(stop.as_bytes()));
            ending.map(String::len).max().map(|longest| end - longest)
        })
    }

    /// How many of the held bytes can be part of no stop string any more; always whole characters.
    fn certain_len(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let first = (self.held.len() + 1).saturating_sub(longest);
        (first..self.held.len())
            .filter(|&at| self.held.is_char_boundary(at))
            .find(|&at| self.stops.iter().any(|stop| stop.starts_with(&self.held[at..])))
            .unwrap_or(self.held.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (Vec<String>, bool) {
        let stops: Vec<String> = stops.iter().map(|&stop| stop.to_owned()).collect();
        let mut filter = StopFilter::new(&stops);
        let mut out: Vec<String> = pieces.iter().map(|piece| filter.push(piece)).collect();
        out.push(filter.finish());
        (out, filter.stopped())
    }

    #[test]
    fn text_without_stops_passes_at_once() {
        assert_eq!(run(&[], &["ab", "c"]), (vec!["ab".into(), "c".into(), String::new()], false));
    }

    #[test]
    fn a_stop_across_tokens_never_shows_a_part_of_it() {
        let (out, stopped) = run(&["</end>"], &["hi <", "/e", "nd", "> more"]);
        assert_eq!(out, ["hi ", "", "", "", ""]);
        assert!(stopped);
    }

    #[test]
    fn what_only_looked_like_a_stop_is_given_out() {
        let (out, stopped) = run(&["</end>"], &["a</", "e", "x"]);
        assert_eq!(out, ["a", "", "</ex", ""]);
        assert!(!stopped);
    }

    #[test]
    fn a_start_of_a_stop_at_the_end_is_flushed() {
        assert_eq!(run(&["STOP"], &["go ST"]).0, ["go ", "ST"]);
    }

    #[test]
    fn a_stop_of_several_bytes_per_character_matches_across_tokens() {
        let (out, stopped) = run(&["🙂é"], &["aé🙂", "éb"]);
        assert_eq!(out, ["aé", "", ""]);
        assert!(stopped);
        assert_eq!(run(&["🙂é"], &["a🙂", "🙂", "b"]).0, ["a", "🙂", "🙂b", ""]);
    }

    #[test]
    fn of_two_stops_the_one_completed_first_counts() {
        assert_eq!(run(&["abc", "b"], &["xabc"]).0.concat(), "xa");
        assert_eq!(run(&["ab", "b"], &["xabc"]).0.concat(), "x");
    }

    fn whole(stops: &[String], text: &str) -> (String, bool) {
        let ends = text.char_indices().map(|(at, char)| at + char.len_utf8());
        let first = ends.into_iter().find_map(|end| {
            let ending = stops.iter().filter(|stop| text[..end].ends_with(stop.as_str()));
            ending.map(String::len).max().map(|longest| end - longest)
        });
        (text[..first.unwrap_or(text.len())].to_owned(), first.is_some())
    }

    proptest! {
        #[test]
        fn the_cut_into_tokens_does_not_matter(
            pieces in proptest::collection::vec("[aé🙂b]{0,3}", 0..8),
            stops in proptest::collection::vec("[aé🙂b]{1,3}", 0..3),
        ) {
            let mut filter = StopFilter::new(&stops);
            let mut out = String::new();
            for piece in &pieces {
                out.push_str(&filter.push(piece));
                let (expected, _) = whole(&stops, &pieces.concat());
                prop_assert!(expected.starts_with(&out), "{out:?} shows a part of a stop string");
            }
            out.push_str(&filter.finish());
            prop_assert_eq!((out, filter.stopped()), whole(&stops, &pieces.concat()));
        }
    }
}
