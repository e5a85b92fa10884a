//! Lines that real servers wrote.
