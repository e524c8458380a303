//! The script that captures a host, made from the table in [`super::capture`].

use std::fmt::Write as _;

use super::capture::{
    Each, FILE_LIMIT_BYTES, FILES, HEADER, LINKS, MARKERS, PRESENT, TOOL_LIMIT_S, TOOLS,
    TOTAL_LIMIT_BYTES, Tool, VARIABLES,
};

/// The tool that reads the host's clock.
const CLOCK: &str = "clock";

/// Bytes the kernel keeps of a program's name.
const COMM_BYTES: usize = 15;

/// What the script starts with: how frames are printed and tools are run.
///
/// All of it is one function, so that a script cut off on its way runs nothing, and its tools, whose input is not the
/// shell's, cannot swallow the rest of it.
const HEAD: &str = r#"#!/bin/sh
# Prints the state of this host as Railweave reads it. It only reads.
LC_ALL=C PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
export LC_ALL PATH

frame() { # kind, name, content
  total=$((total + ${#3}))
  if [ "$total" -gt "$all_limit" ]; then
    total=$((total - ${#3}))
    set -- X "$2" "left out: the capture has more than $all_limit bytes"
  fi
  printf '%s %s %s\n%s\n' "$1" "$2" "${#3}" "$3"
}

limited() {
  if command -v timeout >/dev/null; then timeout "$tool_limit" "$@"; else "$@"; fi
}

run() { # name, command ...
  name=$1
  shift
  if ! command -v "$1" >/dev/null; then
    frame X "$name" 'not installed'
  elif out=$(limited "$@"); then
    if [ "${#out}" -gt "$file_limit" ]; then
      frame X "$name" "printed more than $file_limit bytes"
    else
      frame T "$name" "$out"
    fi
  else
    status=$?
    case $status in
      124) out="no answer within $tool_limit s" ;;
      *) out=$(limited "$@" 2>&1 >/dev/null | head -n 5) ;;
    esac
    frame X "$name" "${out:-ended with status $status}"
  fi
}

files() { # reads names, each ended by a NUL
  xargs -0 grep -a -s -H '' | awk -v limit="$file_limit" -v all="$all_limit" '
    function done() {
      if (name == "") return
      total += length(text)
      if (total <= all && length(text) <= limit) printf "F %s %d\n%s\n", name, length(text), text
      name = text = ""
    }
    {
      at = index($0, ":")
      path = substr($0, 1, at - 1)
      line = substr($0, at + 1)
      if (path in keep && index(line, keep[path]) != 1) next
      if (path ~ /\/gids\// && line ~ /^[0:]*$/) next
      if (path != name) { done(); name = path }
      if (length(text) <= limit) text = text line "\n"
    }
    BEGIN {KEEP}
    END { done() }'
}
"#;

/// How links are read: their names, then where they lead, in one process.
const LINKS_READ: &str = r#"
links() {
  names=
  for name; do
    [ -L "$name" ] && names="$names $name"
  done
  [ -z "$names" ] && return
  readlink $names | for name in $names; do
    read -r target && printf 'L %s %s\n%s\n' "$name" "${#target}" "$target"
  done
}

present() {
  for name; do
    [ -d "$name" ] && printf 'F %s 0\n\n' "$name"
  done
}

binary() {
  file=$(command -v railweave) && sha256sum "$file"
}
"#;

/// The script for `sh -s`.
pub fn script() -> String {
    let files: Vec<&str> = FILES.iter().map(|(pattern, _)| *pattern).collect();
    script_of(|_| true, &files)
}

/// Tools that tell what passes packets on and what marks them.
const RULE_TOOLS: &[&str] = &["ip-address", "tc-qdisc", "tc-filter", "tc-egress", "markers"];

/// Files that tell by which netdevs, and whether the kernel's own forwarding had a part in it.
const RULE_FILES: &[&str] = &[
    "/sys/class/net/*/address",
    "/sys/class/net/*/mtu",
    "/sys/class/net/*/ifindex",
    "/sys/class/net/*/flags",
    "/proc/sys/kernel/hostname",
    "/proc/net/snmp",
];

/// A shorter script, which reads only what passes packets on and what marks them, with their counters: it can be run
/// before and after something is sent.
pub fn rules_script() -> String {
    script_of(|tool| RULE_TOOLS.contains(&tool.name), RULE_FILES)
}

fn script_of(wanted: impl Fn(&Tool) -> bool, files: &[&str]) -> String {
    let mut text = HEAD.replace("{KEEP}", &kept());
    text.push_str(LINKS_READ);
    text.push_str(&variables());
    text.push_str(&markers());
    text.push_str("\ncapture() {\n");
    let settings = format!(
        "  total=0 all_limit={TOTAL_LIMIT_BYTES} file_limit={FILE_LIMIT_BYTES} tool_limit={TOOL_LIMIT_S}\n"
    );
    text.push_str(&settings);
    // The reader notes when the first byte arrives: the clock must have been read by then.
    for tool in TOOLS.iter().filter(|tool| tool.name == CLOCK) {
        let command = tool.command.join(" ");
        // Writing into a string cannot fail.
        let _ = write!(
            text,
            "  clock=$(limited {command})\n  echo {HEADER}\n  frame T {CLOCK} \"$clock\"\n"
        );
    }
    for tool in TOOLS.iter().filter(|tool| tool.name != CLOCK && wanted(tool)) {
        text.push_str(&call(tool));
    }
    text.push_str("  present");
    append(&mut text, PRESENT.iter().copied());
    text.push_str("\n  links");
    append(&mut text, LINKS.iter().copied());
    text.push_str("\n  printf '%s\\0'");
    append(&mut text, files.iter().copied());
    text.push_str(" | files\n  frame Z end ''\n}\n\ncapture </dev/null 2>/dev/null\n");
    text
}

fn append<'a>(text: &mut String, words: impl Iterator<Item = &'a str>) {
    for word in words {
        text.push_str(" \\\n    ");
        text.push_str(word);
    }
}

/// The files of which only some lines are kept, as an awk array.
fn kept() -> String {
    FILES.iter().filter_map(|(path, prefix)| Some((path, (*prefix)?))).fold(
        String::from("{"),
        |mut text, (path, prefix)| {
            // Writing into a string cannot fail.
            let _ = write!(text, " keep[\"{path}\"] = \"{prefix}\";");
            text
        },
    ) + " }"
}

fn variables() -> String {
    format!(
        "\nvariables() {{\n  for name in {}; do\n    eval \"value=\\${{$name-}}\"\n    \
         [ -n \"$value\" ] && printf '%s=%s\\n' \"$name\" \"$value\"\n  done\n  :\n}}\n",
        VARIABLES.join(" ")
    )
}

/// Markers by the names of their programs. Where other people's processes are hidden, nothing is said about any.
fn markers() -> String {
    let names = MARKERS
        .iter()
        .map(|name| format!("line == \"{}\"", name.get(..COMM_BYTES).unwrap_or(name)))
        .collect::<Vec<_>>()
        .join(" || ");
    format!(
        r#"
markers() {{
  if ! [ -r /proc/1/comm ]; then
    echo 'the processes of other users are hidden' >&2
    return 1
  fi
  printf '%s\0' /proc/[0-9]*/comm | xargs -0 grep -s -H '' | awk '
    {{ at = index($0, ":"); line = substr($0, at + 1) }}
    {names} {{ split(substr($0, 1, at - 1), part, "/"); print part[3] }}' |
    while read -r pid; do
      echo "pid $pid"
      tr '\n\0' ' \n' </proc/$pid/cmdline | sed 's/^/arg /'
    done
}}
"#
    )
}

/// The lines that run one tool.
fn call(tool: &Tool) -> String {
    let words = tool.command.join(" ");
    let name = tool.name;
    // A function of the script is run as it is: `timeout` starts programs only.
    let own = matches!(words.as_str(), "binary" | "variables" | "markers");
    if own {
        return format!(
            "  if out=$({words} 2>&1); then frame T {name} \"$out\"; else frame X {name} \"${{out:-not installed}}\"; fi\n"
        );
    }
    let of_each = words.replace('@', "$each");
    match tool.each {
        Each::Host => {
            let keep = if name == "tc-qdisc" { "  disciplines=$out\n" } else { "" };
            format!("  run {name} {words}\n{keep}")
        }
        Each::Device => format!(
            "  for each in /sys/class/net/*/device; do\n    [ -e \"$each\" ] || continue\n    \
             each=${{each%/device}} each=${{each##*/}}\n    run \"{name}.$each\" {of_each}\n  done\n"
        ),
        Each::Ingress => format!(
            "  case $disciplines in\n    *'\"clsact\"'* | *'\"ingress\"'*)\n      \
             for each in $(printf '%s' \"$disciplines\" | tr '{{}}' '\\n\\n' |\n        \
             sed -n '/\"kind\":\"\\(clsact\\|ingress\\)\"/s/.*\"dev\":\"\\([^\"]*\\)\".*/\\1/p'); do\n        \
             run \"{name}.$each\" {of_each}\n      done\n      ;;\n  esac\n"
        ),
        Each::Function => format!(
            "  for each in /sys/class/infiniband/*/device; do\n    [ -e \"$each\" ] || continue\n    \
             each=$(readlink \"$each\") each=${{each##*/}}\n    case $each in\n      \
             *:*:*.*) run \"{name}.$each\" {of_each} ;;\n    esac\n  done\n"
        ),
    }
}

#[cfg(test)]
#[path = "script_tests.rs"]
mod tests;
