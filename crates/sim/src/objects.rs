//! An object store with a bad network.
//!
//! Each name is linearizable: a request takes effect at one moment between its sending and its answer. Everything else
//! is as bad as the seed makes it: requests arrive late and out of order, arrive twice (the second time at any later
//! time), their answers are lost, or the store answers that it has trouble, before or behind the effect.
//!
//! A client that stalls is one that its owner does not poll: the store knows nothing of it.
//!
//! The store notes every object whose bytes change after they were put, which nobody of Syncline may ever do.

use crate::random::Random;
use std::collections::BTreeMap;
use std::sync::Arc;
use syncline_replica::{Answer, Operation, Part, Request, RequestId, StoreError};

/// How bad the network is: one in so many requests; 0 for never.
#[derive(Debug, Clone, Copy)]
pub struct Network {
    /// Longest way of a request or an answer, in nanoseconds.
    pub delay: u64,
    pub lost_answers: u64,
    pub twice: u64,
    /// The store has trouble and does nothing.
    pub trouble: u64,
    /// Longest time until a request that arrives twice does so.
    pub late: u64,
    /// A request takes a long way: up to a quarter of `late`.
    pub slow: u64,
    /// So does a request, or an answer, of every other client, and up to `late`: what such a client asked first may be
    /// answered last, while others are served at once.
    pub far: u64,
}

impl Network {
    pub const GOOD: Network =
        Network { delay: 1000, lost_answers: 0, twice: 0, trouble: 0, late: 4, slow: 0, far: 0 };
    pub const BAD: Network = Network {
        delay: 50_000_000,
        lost_answers: 9,
        twice: 7,
        trouble: 11,
        late: 20_000_000_000,
        slow: 13,
        far: 0,
    };
    pub const WORSE: Network = Network { late: 40_000_000_000, far: 3, ..Network::BAD };
}

/// Who asked.
pub type Client = usize;

enum Event {
    Arrives { client: Client, id: RequestId, operation: Operation, answered: bool },
    Answered { client: Client, id: RequestId, result: Result<Answer, StoreError> },
}

/// The store.
pub struct SimStore {
    objects: BTreeMap<String, Arc<Vec<u8>>>,
    events: BTreeMap<(u64, u64), Event>,
    sent: u64,
    network: Network,
    random: Random,
    /// Names whose bytes were changed.
    pub changed: Vec<String>,
    /// What units and packs were put with, also when they are deleted.
    ever: BTreeMap<String, u64>,
}

impl SimStore {
    pub fn new(network: Network, seed: u64) -> SimStore {
        SimStore {
            objects: BTreeMap::new(),
            events: BTreeMap::new(),
            sent: 0,
            network,
            random: Random::new(seed),
            changed: Vec::new(),
            ever: BTreeMap::new(),
        }
    }

    pub fn objects(&self) -> &BTreeMap<String, Arc<Vec<u8>>> {
        &self.objects
    }

    /// Damage, or loss.
    pub fn replace(&mut self, name: &str, bytes: Option<Vec<u8>>) {
        match bytes {
            Some(bytes) => self.objects.insert(name.to_owned(), Arc::new(bytes)),
            None => self.objects.remove(name),
        };
    }

    pub fn send(&mut self, client: Client, now: u64, requests: Vec<Request>) {
        for Request { id, operation } in requests {
            let changes = !matches!(operation, Operation::Get { .. } | Operation::List { .. });
            if changes && self.happens(self.network.twice) {
                let late = now + 1 + self.random.below(self.network.late);
                let operation = operation.clone();
                self.schedule(late, Event::Arrives { client, id, operation, answered: false });
            }
            let mut longest =
                if self.happens(self.network.slow) { self.network.late / 4 } else { self.network.delay };
            if self.is_far(client) {
                longest = self.network.late;
            }
            let at = now + 1 + self.random.below(longest);
            self.schedule(at, Event::Arrives { client, id, operation, answered: true });
        }
    }

    /// When the next thing happens.
    pub fn next(&self) -> Option<u64> {
        self.events.first_key_value().map(|((at, _), _)| *at)
    }

    /// Lets everything happen up to a time; the answers that arrived.
    pub fn advance(&mut self, now: u64) -> Vec<(Client, RequestId, Result<Answer, StoreError>)> {
        let mut answers = Vec::new();
        while let Some(entry) = self.events.first_entry() {
            let at = entry.key().0;
            if at > now {
                break;
            }
            match entry.remove() {
                Event::Answered { client, id, result } => answers.push((client, id, result)),
                Event::Arrives { operation, answered: false, .. } => drop(self.carry_out(&operation)),
                Event::Arrives { client, id, operation, answered: true } => {
                    let trouble = Err(StoreError::Unavailable("503 Slow Down".to_owned()));
                    let result = match self.happens(self.network.trouble) {
                        true => trouble,
                        false => self.carry_out(&operation),
                    };
                    let lost = Err(StoreError::Unavailable("no answer".to_owned()));
                    let result = if self.happens(self.network.lost_answers) { lost } else { result };
                    let longest = if self.is_far(client) { self.network.late } else { self.network.delay };
                    let back = at + 1 + self.random.below(longest);
                    self.schedule(back, Event::Answered { client, id, result });
                }
            }
        }
        answers
    }

    /// Carries a request out at once.
    pub fn carry_out(&mut self, operation: &Operation) -> Result<Answer, StoreError> {
        match operation {
            Operation::Put { name, bytes } => {
                let sum = syncline_format::checksum(bytes);
                if *self.ever.entry(name.clone()).or_insert(sum) != sum {
                    self.changed.push(name.clone());
                }
                self.objects.insert(name.clone(), Arc::clone(bytes));
                Ok(Answer::Done)
            }
            Operation::Create { name, .. } if self.objects.contains_key(name) => Err(StoreError::Exists),
            Operation::Create { name, bytes } => {
                self.objects.insert(name.clone(), Arc::clone(bytes));
                Ok(Answer::Done)
            }
            Operation::Get { name, part } => {
                let object = self.objects.get(name).ok_or(StoreError::Missing)?;
                let length = object.len() as u64;
                let range = match *part {
                    Part::All => 0..length,
                    Part::Range(from, count) => from.min(length)..(from + count).min(length),
                    Part::Last(count) => length.saturating_sub(count)..length,
                };
                let bytes = object[range.start as usize..range.end as usize].to_vec();
                Ok(Answer::Bytes { bytes, length })
            }
            Operation::Delete { names } => {
                names.iter().for_each(|name| drop(self.objects.remove(name)));
                Ok(Answer::Done)
            }
            Operation::List { prefix } => {
                let names = self.objects.range(prefix.clone()..).map(|(name, _)| name);
                Ok(Answer::Names(names.take_while(|name| name.starts_with(prefix)).cloned().collect()))
            }
        }
    }

    /// Whether what goes to a client, or comes from it, takes a long way now.
    fn is_far(&mut self, client: Client) -> bool {
        client % 2 == 1 && self.happens(self.network.far)
    }

    fn happens(&mut self, one_in: u64) -> bool {
        one_in > 0 && self.random.one_in(one_in)
    }

    fn schedule(&mut self, at: u64, event: Event) {
        self.sent += 1;
        self.events.insert((at, self.sent), event);
    }
}
