//! The bytes of one case, measured as a report measures them: in a process of its own. In the process of the unit
//! tests, the memory that other tests allocate and free would be counted too.

use std::process::Command;

#[test]
fn a_case_counts_the_bytes_of_its_keys() {
    let arguments = ["memory-case", "--case", "governor", "--keys", "20000", "--max-keys", "20000"];
    let output = Command::new(env!("CARGO_BIN_EXE_inprocess")).args(arguments).output().unwrap();
    let line = String::from_utf8_lossy(&output.stdout);
    let live: usize = line.split(' ').next().unwrap().parse().unwrap_or_else(|_| panic!("{output:?}"));
    assert!(live > 20_000 * 16, "{line}");
}
