//! The tests of the rules. One program has them all, so that there is one to link. Each module says what it tests.

mod broken;
mod files;
mod hostile;
mod matching;
mod plan;
mod reference;
mod warnings;
mod written;
