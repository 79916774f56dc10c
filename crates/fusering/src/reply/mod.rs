//! Answers.

pub(crate) mod slot;
