//! Tests that the text of a rule is what its file has, whatever the style of the file.
//!
//! An operator reads this text to find out why a request was refused. A text that lacks a line, or that has a line of
//! another rule, would mislead.

use proptest::prelude::*;
use spillgate_rules::{Rule, Rules, RulesFile};

fn parse(text: &str) -> Rules {
    let file = RulesFile { name: "rules.yaml".into(), text: text.into() };
    Rules::parse(&[file]).unwrap_or_else(|errors| panic!("{errors}\n{text}"))
}

fn texts(text: &str) -> Vec<String> {
    let rules = parse(text);
    rules.rules().map(|rule| rules.written(rule).to_owned()).collect()
}

/// Returns what a rule does, without its place in the file. The first `skip` levels of its path are left out.
fn meaning(rule: &Rule, skip: usize) -> String {
    let limits: Vec<_> = rule
        .limits
        .iter()
        .map(|limit| (limit.name.clone(), limit.quota.identity(), limit.requests_per_unit, limit.replaces.len()))
        .collect();
    let flags = (rule.unlimited, rule.binding(), rule.detailed_metric, rule.value_to_metric, &rule.insight_by);
    let steps = &rule.steps[skip..];
    format!("{steps:?} {limits:?} {flags:?} {:?}", rule.metadata)
}

/// Loads the text of each rule as the only descriptor of a file. The result must be the same rule, with the rules that
/// are nested in it.
fn each_text_is_its_rule(text: &str) {
    let rules = parse(text);
    let all: Vec<&Rule> = rules.rules().collect();
    for (number, rule) in all.iter().enumerate() {
        let written = rules.written(rule);
        let again = match written.trim_start().starts_with(['#', '-']) {
            true => format!("domain: d\ndescriptors:\n{written}\n"),
            false => format!("domain: d\ndescriptors: [\n{written}\n]\n"),
        };
        let again = parse(&again);
        let levels = rule.steps.len();
        let nested =
            all[number + 1..].iter().take_while(|next| next.domain == rule.domain && next.steps.len() > levels);
        let expected: Vec<_> = [rule].into_iter().chain(nested).map(|rule| meaning(rule, levels - 1)).collect();
        let found: Vec<_> = again.rules().map(|rule| meaning(rule, 0)).collect();
        assert_eq!(found, expected, "{}\n{written}\n{text}", rule.origin);
    }
}

/// Rules in many styles. The key of each rule names its style.
const STYLES: &str = r##"# {[
domain: styles
descriptors:
- key: not_indented # "with ' a comment {
  rate_limit: {unit: second, requests_per_unit: 1}

# a comment of the next rule
- key: braces
  rate_limits: [
    {unit: second, requests_per_unit: 2, name: "a \"} name"},
    {unit: hour, requests_per_unit: 3, name: 'it''s'} ]
-
  key: on_its_own_line
  # inside, with an empty line

  rate_limit:
    unit: minute
# less indented, but inside
    requests_per_unit: 4
  # at the end

- key: outer
  descriptors:
    - key: inner
      value: "two
        lines"
      rate_limit: {unit: day, requests_per_unit: 5}
    - {key: flow, value: it's, # } ' "
       rate_limit: {unit: day, requests_per_unit: 6, name: a b'c}}
  metadata:
    note: |
      - key: not a rule
        # not a comment
    other: >-
      }
- {"key":"json","descriptors":[{"key":"a","rate_limit":{"unit":"second","requests_per_unit":7}},{"key":"b#","metadata":{"x":[{},1]}}]}
- ? key
  : with question marks
  ? rate_limit
  : {unit: second,
     requests_per_unit: 8}
- key: ключ
  value: é
  rate_limit: {unit: second, requests_per_unit: 9}
"##;

#[test]
fn each_style_has_its_text() {
    each_text_is_its_rule(STYLES);
    each_text_is_its_rule(&STYLES.replace('\n', "\r\n"));
    each_text_is_its_rule(&STYLES.replace('\n', "\r"));
    each_text_is_its_rule(&format!("\u{feff}{STYLES}"));
    let texts = texts(STYLES);
    let not_indented = "- key: not_indented # \"with ' a comment {\n  rate_limit: {unit: second, requests_per_unit: 1}";
    assert_eq!(texts[0], not_indented);
    assert!(texts[1].starts_with("# a comment of the next rule\n- key: braces\n"), "{}", texts[1]);
    let own_line = "-\n  key: on_its_own_line\n  # inside, with an empty line\n\n  rate_limit:\n    unit: minute\n\
                    # less indented, but inside\n    requests_per_unit: 4\n  # at the end";
    assert_eq!(texts[2], own_line);
    assert!(texts[3].ends_with("note: |\n      - key: not a rule\n        # not a comment\n    other: >-\n      }"));
    assert_eq!(texts[8], r##"{"key":"b#","metadata":{"x":[{},1]}}"##);
}

#[test]
fn the_rules_of_the_examples_have_their_texts() {
    for text in [
        include_str!("../../../examples/quickstart.yaml"),
        include_str!("../../../examples/reference.yaml"),
        include_str!("../../../examples/login.yaml"),
    ] {
        each_text_is_its_rule(text);
    }
}

/// Each pair is the first rule of a list, and its expected text. A rule `last` follows on the same line in brackets, or
/// on the next line.
#[test]
fn brackets_quotes_and_comments_are_read_as_yaml_reads_them() {
    for (rule, written) in [
        (r#"{key: a, value: !!str "}", metadata: {note: 1}}"#, None),
        (r#"{key: a, value: &v "}", metadata: {note: 1}}"#, None),
        ("{key: a, value: # the odd one }\n   \"}\", metadata: {note: 1} # }\n  , # }\n  }", None),
        ("{key: a, metadata: {x: [ # list\n   \"}\", \"]\"], y: 1}}", None),
        ("{key: a, value: x:'y}", None),
        ("{key: a, metadata: {x: a::\"}}", None),
        ("{key: a, value: what?\n   'tis}", None),
        ("{key: a, value: b\u{a0}#}", None),
        ("{key: a, metadata: {}}", None),
        ("{key: a, value: , metadata: {x: }}", None),
        ("{? key : a, ? value : \"}\"}", None),
        ("!!map {key: a}", Some("{key: a}")),
        ("&rule {key: a}", Some("{key: a}")),
        ("key: a", None),
        ("{value: &n#a a, key: *n#a }", None),
    ] {
        let text = format!("domain: d\ndescriptors: [{rule}, {{key: last}}]\n");
        assert_eq!(texts(&text), [written.unwrap_or(rule), "{key: last}"].map(str::to_owned)[..], "{text}");
    }
    for rule in [
        "- key: a\n    value: ",
        "- key: a\n    metadata: {x: 1} # }",
        "- key: a\n    metadata:\n      x:\n      - b\n    # the end",
        "- key: a\n    value: |\n      {\n      # }",
        "- key: a\n    value: \"{\n      }\"",
        "- &rule\n    key: a",
        "- &rule # one\n  # two\n    !!map\n\n    key: a",
        "-\n# one\n    key: a",
        "-\tkey: a",
        "- value: &b b\n    key: *b # }",
        "- value: b\u{a0}\n    key: a",
        "- {key: a, value: 'a''}b'} # one",
        "- {key: a, value: what?'s}",
        "- &rule {key: a}",
        "# one\n  # two\n  - key: a",
        "- key: a\n    metadata:\n      note: |",
        "- key: a\n    metadata:\n      note: |+\n\n",
        "- key: a\n    metadata:\n      note: |2+ # }\n          x\n\n",
        "- key: a\n    ? value",
        "- key: a\n    metadata:\n      list:\n      - x\n      -",
        "- key: &k a\n    value:\n      *k # }",
        "- key: a\n    metadata:\n      x: &x [1, { # }\n }]\n      y:\n      - 2\n      - *x",
        "- key: a\n    metadata:\n      x: &x {z: 1}\n      <<:\n        *x",
        "- key: a\n    metadata:\n      x: &x {z: [1]}\n      y: &y [*x]\n      z:\n        - [*y]",
        // YAML does not allow less indentation in brackets, but the reader does.
        "- key: a\n    metadata: {\n      x: 1\n  } # end",
        "- key: a\n    metadata: {list: [{x: 1\n}, {y: 2}]}\n    value: b",
        "- key: a\n    metadata: {list: [\n  {x: 1},\n# a\n  ]}",
    ] {
        let before = "domain: d\n# of the list\ndescriptors:\n  # of the list\n\n # of the list\n";
        for gap in ["", "\n"] {
            let text = format!("{before}  {rule}\n{gap}  # of the next rule\n  - key: last\n");
            let own = format!("  {}", rule.trim_end_matches([' ', '\n']));
            let expected = [&*own, "  # of the next rule\n  - key: last"];
            assert_eq!(texts(&text), expected, "{text}");
            let expected = expected.map(|text| text.replace('\n', "\r\n"));
            assert_eq!(texts(&text.replace('\n', "\r\n")), expected, "{text}");
        }
    }
}

#[test]
fn a_repeated_rule_has_the_text_where_it_was_written() {
    let text = "domain: d\ndescriptors:\n  - key: a\n    descriptors: &below\n      - key: b\n        rate_limit: {unit: day, requests_per_unit: 1}\n  - {key: c, descriptors: *below}\n  - key: d\n    descriptors: *below # the same\n  - key: e\n    descriptors:\n      *below\n";
    let inner = "      - key: b\n        rate_limit: {unit: day, requests_per_unit: 1}";
    let texts = texts(text);
    assert_eq!([1, 3, 5, 7].map(|number: usize| &*texts[number]), [inner; 4]);
    assert_eq!(texts[2], "  - {key: c, descriptors: *below}");
    assert_eq!(texts[4], "  - key: d\n    descriptors: *below # the same");
    assert_eq!(texts[6], "  - key: e\n    descriptors:\n      *below");
}

#[test]
fn a_map_that_another_one_adds_is_part_of_the_text() {
    let text = "domain: d\ndescriptors:\n  - &base\n    key: a\n    rate_limit: {unit: day, requests_per_unit: 1}\n  - value: b\n    <<: *base\n  - {value: c, <<: *base}\n  - value: d\n    <<: {key: a, value: e}\n";
    let texts = texts(text);
    let expected =
        ["  - value: b\n    <<: *base", "  - {value: c, <<: *base}", "  - value: d\n    <<: {key: a, value: e}"];
    assert_eq!(texts[1..], expected);
}

#[test]
fn the_text_is_that_of_the_file_of_the_rule() {
    let file = |domain: &str| RulesFile {
        name: format!("{domain}.yaml"),
        text: format!("domain: {domain}\ndescriptors: [{{key: of_{domain}}}]\n"),
    };
    let rules = Rules::parse(&[file("first"), file("second")]).unwrap_or_else(|errors| panic!("{errors}"));
    let texts: Vec<_> = rules.rules().map(|rule| rules.written(rule)).collect();
    assert_eq!(texts, ["{key: of_first}", "{key: of_second}"]);
    let others = parse("domain: third\ndescriptors: [{key: a}]");
    assert_eq!(rules.written(others.rules().next().expect("a rule")), "");
    // Positions that are outside the text, within a character, or in another rule.
    let text = format!("domain: first\ndescriptors: [{{key: a, value: {}}}]", "é".repeat(40));
    let rules = parse(&text);
    for start in 0..text.len() + 2 {
        let others = parse(&format!("domain: first # {}\ndescriptors: [{{key: a, value: b}}]", "x".repeat(start)));
        let written = rules.written(others.rules().next().expect("a rule"));
        assert!(text.contains(written), "{written}");
    }
}

/// Values that are easily misread. The first four are only for rules without brackets.
const VALUES: [&str; 13] = [
    "|",
    "|\n__- key: no rule\n__# no comment }",
    ">-\n__folded {\n\n__again",
    "plain\n__in two lines",
    "\"}] \\\" # {\"",
    "'it''s [ # no comment'",
    "it's",
    "x:'y",
    "!!str \"}\"",
    "a#b",
    "",
    "~",
    "\"two\n__lines }\"",
];

/// A rule that the property test writes.
#[derive(Clone, Debug)]
struct Draft {
    in_brackets: bool,
    in_one_line: bool,
    value: usize,
    indentation: usize,
    nested: Vec<Draft>,
}

fn drafts() -> impl Strategy<Value = Vec<Draft>> {
    let draft = |nested: BoxedStrategy<Vec<Draft>>| {
        (any::<bool>(), any::<bool>(), 0..VALUES.len(), 0..3_usize, nested).prop_map(
            |(in_brackets, in_one_line, value, indentation, nested)| Draft {
                in_brackets,
                in_one_line,
                value,
                indentation,
                nested,
            },
        )
    };
    let leaf = draft(Just(Vec::new()).boxed());
    let tree = leaf.prop_recursive(3, 20, 3, move |inner| draft(prop::collection::vec(inner, 0..4).boxed()));
    prop::collection::vec(tree, 1..4)
}

/// Writes rules. Each rule and each comment has a mark, such as `<7>`.
#[derive(Default)]
struct Writer {
    text: String,
    marks: usize,
    /// For each rule, in the order of the file, the marks that its text must have.
    expected: Vec<Vec<String>>,
}

impl Writer {
    /// Writes text with a mark in place of each `@`. `rules` are the numbers of the rules to which the text belongs.
    fn write(&mut self, rules: &[usize], text: &str) {
        for (number, part) in text.split('@').enumerate() {
            if number > 0 {
                let mark = format!("<{}>", self.marks);
                self.marks += 1;
                self.text += &mark;
                rules.iter().for_each(|rule| self.expected[*rule].push(mark.clone()));
            }
            self.text += part;
        }
    }

    /// Writes a rule that is nested in the rules `outer`.
    fn rule(&mut self, draft: &Draft, outer: &[usize], indentation: &str, in_brackets: bool) {
        let all = [outer, &[self.expected.len()]].concat();
        if in_brackets {
            self.expected.push(Vec::new());
            return self.with_brackets(draft, &all, indentation, true);
        }
        self.write(outer, &format!("{indentation}# @\n\n"));
        self.expected.push(Vec::new());
        self.write(&all, &format!("{indentation}# @\n{indentation}- "));
        if draft.in_brackets {
            self.with_brackets(draft, &all, indentation, draft.in_one_line);
            self.write(&all, " # @\n");
        } else {
            self.without_brackets(draft, &all, &format!("{indentation}  "));
        }
    }

    fn with_brackets(&mut self, draft: &Draft, all: &[usize], indentation: &str, in_one_line: bool) {
        let line = format!("\n{indentation}      ");
        let next = if in_one_line { " ".to_owned() } else { format!(" # @{line}") };
        let value = VALUES[4 + draft.value % 9].replace("\n__", &line);
        let limit = format!("rate_limit: {{unit: day, limit: {}}}", draft.value);
        self.write(all, &format!("{{key: k@,{next}value: {value},{next}{limit},{next}descriptors: ["));
        for nested in &draft.nested {
            self.rule(nested, all, indentation, true);
            self.write(all, ", ");
        }
        self.write(all, "]}");
    }

    fn without_brackets(&mut self, draft: &Draft, all: &[usize], own: &str) {
        let value = VALUES[draft.value].replace("\n__", &format!("\n{own}   "));
        let limit = format!("rate_limit: {{unit: day, limit: {}}}", draft.value);
        self.write(all, &format!("key: k@ # @\n{own}value: {value}\n{own}{limit}\n\n# @\n{own}descriptors:\n"));
        let below = format!("{own}{}", " ".repeat(draft.indentation));
        for nested in &draft.nested {
            self.rule(nested, all, &below, false);
        }
        self.write(all, &format!("{own}# @\n"));
    }
}

proptest! {
    /// The text of a rule has each mark of the rule and of the rules that are nested in it, and no other mark.
    #[test]
    fn a_text_has_all_lines_of_its_rule_and_no_other_line(drafts in drafts(), in_brackets in any::<bool>()) {
        let mut writer = Writer::default();
        writer.write(&[], if in_brackets { "domain: d\ndescriptors: [" } else { "domain: d\ndescriptors:\n" });
        for draft in &drafts {
            writer.rule(draft, &[], "", in_brackets);
            writer.write(&[], if in_brackets { ", " } else { "# @\n\n" });
        }
        writer.write(&[], if in_brackets { "]\n" } else { "" });
        let text = writer.text;
        let rules = parse(&text);
        prop_assert_eq!(rules.rules().count(), writer.expected.len());
        for (rule, expected) in rules.rules().zip(&writer.expected) {
            let written = rules.written(rule);
            let marks: Vec<_> = written.split('<').skip(1).map(|part| format!("<{}>", part.split('>').next().unwrap_or_default())).collect();
            prop_assert_eq!(&marks, expected, "{}\n{}", written, text);
        }
        each_text_is_its_rule(&text);
    }
}
