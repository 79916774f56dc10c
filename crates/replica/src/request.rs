//! What is asked of a store, and what it answers.

use std::sync::Arc;

/// Tells the requests of one state machine apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Which bytes of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    All,
    /// From an offset on, so many.
    Range(u64, u64),
    /// The last so many, or all if there are fewer.
    Last(u64),
}

/// What a store can do. Each is atomic by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Replaces what is there.
    Put {
        name: String,
        bytes: Arc<Vec<u8>>,
    },
    /// Fails with [`StoreError::Exists`] if the name is taken.
    Create {
        name: String,
        bytes: Arc<Vec<u8>>,
    },
    Get {
        name: String,
        part: Part,
    },
    /// Removes names; one that is not there is no error.
    Delete {
        names: Vec<String>,
    },
    /// All names that begin so, in any order.
    List {
        prefix: String,
    },
}

impl Operation {
    /// The name, or the beginning of names, that it is about.
    pub fn name(&self) -> &str {
        match self {
            Operation::Put { name, .. } | Operation::Create { name, .. } | Operation::Get { name, .. } => {
                name
            }
            Operation::List { prefix } => prefix,
            Operation::Delete { names } => names.first().map_or("", String::as_str),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub id: RequestId,
    pub operation: Operation,
}

/// What a store answers when it could do what was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Done,
    /// The part that was asked for, and how long the whole object is.
    Bytes {
        bytes: Vec<u8>,
        length: u64,
    },
    Names(Vec<String>),
}

/// What a store answers when it could not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Nothing has this name.
    #[error("the object store has no such object")]
    Missing,
    /// The name to be created is taken.
    #[error("the object exists already")]
    Exists,
    /// It may work later: the network, an overloaded store, an answer that never came.
    #[error("the object store cannot be reached: {0}")]
    Unavailable(String),
    /// It will not work until somebody changes something: credentials, a bucket, a permission.
    #[error("the object store refuses: {0}")]
    Refused(String),
}
