//! Pieces of SVG: numbers, text, elements, and the colours of light and dark.

use super::layout::Point;

/// Colours and type. No fonts but the reader's own.
pub(super) const STYLE: &str = r#"
text { font-family: ui-sans-serif, system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1d2433; }
.mono { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; font-size: 11px; }
.title { font-size: 20px; font-weight: 650; }
.host { font-size: 15px; font-weight: 650; }
.quiet { fill: #667085; }
.small { font-size: 12px; }
.paper { fill: #f7f8fb; }
.box { fill: #ffffff; stroke: #c9d0dd; stroke-width: 1.2; }
.rule { stroke: #e4e8f0; stroke-width: 1; }
.switch { fill: #e9edf6; stroke: #9aa6bd; stroke-width: 1.2; }
.port { fill: #1d2433; stroke: #f7f8fb; stroke-width: 2; }
.f0 { stroke: #2f6fde; }
.f1 { stroke: #10a37f; }
.f2 { stroke: #b7791f; }
.f3 { stroke: #8250df; }
.rail { fill: none; stroke-linecap: round; }
.idle { stroke-opacity: 0.3; }
.way { fill: none; stroke-width: 2.6; stroke-dasharray: 7 5; stroke-linejoin: round; }
.w0 { stroke: #e2542b; }
.w1 { stroke: #c026a3; }
.a0 { fill: #e2542b; }
.a1 { fill: #c026a3; }
.label { fill: #f7f8fb; }
@media (prefers-color-scheme: dark) {
text { fill: #e6e9f0; }
.quiet { fill: #98a2b3; }
.paper { fill: #12151c; }
.box { fill: #1b202b; stroke: #3a4356; }
.rule { stroke: #2a3140; }
.switch { fill: #242b3a; stroke: #55617a; }
.port { fill: #e6e9f0; stroke: #12151c; }
.f0 { stroke: #6ea2ff; }
.f1 { stroke: #3ccfa7; }
.f2 { stroke: #e0a84a; }
.f3 { stroke: #b38bff; }
.w0 { stroke: #ff8a5c; }
.w1 { stroke: #f074d8; }
.a0 { fill: #ff8a5c; }
.a1 { fill: #f074d8; }
.label { fill: #12151c; }
}
"#;

/// A number with at most one digit after the point: machines differ in the last digits of a sine.
pub(super) fn number(value: f64) -> String {
    let tenths = (value * 10.0).round() / 10.0;
    let text = format!("{tenths:.1}");
    let text = text.strip_suffix(".0").unwrap_or(&text);
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// Text that can stand in XML, in an element or an attribute. What XML cannot hold at all becomes U+FFFD.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for mark in text.chars() {
        match mark {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            mark if mark.is_control() => out.push('\u{fffd}'),
            mark => out.push(mark),
        }
    }
    out
}

/// A line of text. `anchor` is `start`, `middle` or `end`.
pub(super) fn text(out: &mut String, at: Point, class: &str, anchor: &str, content: &str) {
    out.push_str(&format!(
        "<text x=\"{}\" y=\"{}\" class=\"{class}\" text-anchor=\"{anchor}\">{}</text>\n",
        number(at.x),
        number(at.y),
        escaped(content)
    ));
}

/// A rectangle with round corners, named by its centre.
pub(super) fn rectangle(
    out: &mut String,
    centre: Point,
    half: (f64, f64),
    round: f64,
    class: &str,
) {
    out.push_str(&format!(
        "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"{}\" class=\"{class}\"/>\n",
        number(centre.x - half.0),
        number(centre.y - half.1),
        number(half.0 * 2.0),
        number(half.1 * 2.0),
        number(round)
    ));
}

/// A straight line with a width and what to say of it.
pub(super) fn line(out: &mut String, a: Point, b: Point, class: &str, width: f64, title: &str) {
    out.push_str(&format!(
        "<path d=\"M{} {}L{} {}\" class=\"{class}\" stroke-width=\"{}\"><title>{}</title></path>\n",
        number(a.x),
        number(a.y),
        number(b.x),
        number(b.y),
        number(width),
        escaped(title)
    ));
}
