//! P9: a store is used only if it can do what the protocol needs.

use crate::client::Client;
use crate::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};
use syncline_replica::{Answer, Operation, Part, StoreError};

/// Creators of one name.
const CREATORS: u8 = 8;
const ROUNDS: u8 = 8;
/// Rounds in the place of one that was disturbed.
const TRIES_MAX: u32 = 8;
const PAUSE: Duration = Duration::from_millis(100);
/// Behind this none is run again.
const TIME_MAX: Duration = Duration::from_secs(60);

/// Tries the store out, below a name of its own, which is removed again.
///
/// # Errors
/// [`Error::Unfit`] says what the store does that it must not; [`Error::Unreachable`] that it could not be asked.
pub fn probe(client: &Client, nonce: u64) -> Result<(), Error> {
    let folder = format!("probe-{nonce:016x}");
    let (mut names, began) = (Vec::new(), Instant::now());
    let result = (0..ROUNDS).try_for_each(|round| {
        let mut tries = 0;
        loop {
            let name = format!("{folder}/{round}-{tries}");
            names.push(name.clone());
            tries += 1;
            match race(client, &name) {
                // A round that was disturbed tells nothing: it is run again, under another name.
                Err(Error::Unreachable { error: StoreError::Unavailable(_), .. })
                    if tries < TRIES_MAX && began.elapsed() < TIME_MAX =>
                {
                    std::thread::sleep(PAUSE);
                }
                result => return result,
            }
        }
    });
    // What is left over of a probe harms nobody.
    let _ = client.one(&Operation::Delete { names });
    result
}

/// Several create one name at the same time; what one of them put is there, and stays.
fn race(client: &Client, name: &str) -> Result<(), Error> {
    let url = &client.address().url;
    let unfit = |why: &str| Error::Unfit { url: url.clone(), why: why.to_owned() };
    let create = |byte: u8| Operation::Create { name: name.to_owned(), bytes: Arc::new(vec![byte; 64]) };
    let creations: Vec<Operation> = (0..CREATORS).map(create).collect();
    let mut winners = Vec::new();
    for (creator, result) in (0..).zip(client.together(&creations)) {
        match result {
            Ok(_) => winners.push(creator),
            Err(StoreError::Exists) => {}
            Err(error) => return Err(Error::Unreachable { url: url.clone(), error }),
        }
    }
    let [winner] = winners[..] else {
        return Err(unfit(match winners.len() {
            0 => "of several creations of one name none succeeds, so nobody could ever claim the replica",
            _ => {
                "several creations of one name succeed, so two machines could write to the replica at the same time"
            }
        }));
    };
    match client.one(&Operation::Get { name: name.to_owned(), part: Part::All }) {
        Ok(Answer::Bytes { bytes, .. }) if bytes == [winner; 64] => {}
        Ok(_) => return Err(unfit("a name that was created holds what a creation that failed has brought")),
        Err(StoreError::Missing) => return Err(unfit("what was put is not seen by a GET behind it")),
        Err(error) => return Err(Error::Unreachable { url: url.clone(), error }),
    }
    match client.one(&create(255)) {
        Err(StoreError::Exists) => {}
        Ok(_) => return Err(unfit("a creation over a name that exists succeeds")),
        Err(error) => return Err(Error::Unreachable { url: url.clone(), error }),
    }
    let prefix = name.rsplit_once('/').map_or(name, |(folder, _)| folder).to_owned();
    match client.one(&Operation::List { prefix }) {
        Ok(Answer::Names(names)) if names.iter().any(|listed| listed == name) => Ok(()),
        Ok(_) => Err(unfit("what was put is not seen by a LIST behind it")),
        Err(error) => Err(Error::Unreachable { url: url.clone(), error }),
    }
}
