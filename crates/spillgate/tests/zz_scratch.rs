use spillgate::rules::{Rules, RulesFile};
use std::time::Instant;
fn t(name: &str, text: String) { let s=Instant::now(); let r=Rules::parse(&[RulesFile{name:"x".into(),text}]); let e=s.elapsed(); let s2=Instant::now(); let m = match &r {Ok(_)=>"ok".to_string(),Err(e)=>{e.report().len().to_string()}}; println!("{name}: {e:?} report {:?} {m}", s2.elapsed()); }
#[test] fn scratch() {
  for n in [2500,5000,10000] {
    let mut text = String::from("domain: d\ndescriptors:\n");
    for i in 0..n { text.push_str(&format!("  - {{key: user, value: u{i}, rate_limit: {{unit: second, limit: {i}}}}}\n")); }
    t(&format!("flow {n}"), text);
    let mut text = String::from("domain: d\ndescriptors:\n");
    for i in 0..n { text.push_str(&format!("  - key: user\n    value: u{i}\n    rate_limit:\n      unit: second\n      limit: {i}\n")); }
    t(&format!("block {n}"), text);
  }
  t("[", "[".repeat(100_000));
  t("{a: ", "{a: ".repeat(100_000));
  t("- ", "- ".repeat(100_000));
  t("? ", "? ".repeat(10_000));
  t("~", format!("domain: d\ndescriptors: [{}]", "~,".repeat(100_000)));
  t("1M", format!("domain: d\ndescriptors: [{{key: {}}}]", "k".repeat(1 << 20)));
  t("*a", format!("domain: d\ndescriptors: [{{key: k, value: '{}'}}]", "*a".repeat(10_000)));
}
