//! The tests of the rules, in one program, so that only one program has to be linked.

mod broken;
mod files;
mod hostile;
mod matching;
mod plan;
mod reference;
mod regions;
mod warnings;
mod written;
