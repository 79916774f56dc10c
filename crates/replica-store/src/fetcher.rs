//! [`Fetcher`]: what a device asks for that reads from a replica.

use crate::address::Address;
use crate::client::carry_out_in_time;
use futures_util::StreamExt;
use futures_util::future::{BoxFuture, FutureExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use syncline_replica::{Answer, Operation, Source, StoreError};

/// Requests of one caller under way, at most. Many are asked for only where each brings a few blocks; what they cost is
/// how long the store takes to answer.
const IN_FLIGHT_MAX: usize = 64;
/// How long what may work later is tried again.
const PATIENCE: Duration = Duration::from_secs(60);
/// First pause before that, and the longest.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Asks an object store for threads that wait.
pub struct Fetcher {
    address: Address,
    runtime: tokio::runtime::Runtime,
    ended: Arc<AtomicBool>,
}

impl Fetcher {
    /// # Errors
    /// The runtime cannot be made.
    pub fn new(address: &Address) -> std::io::Result<Fetcher> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Fetcher { address: address.apart()?, runtime, ended: Arc::default() })
    }

    /// What ends the repetitions, once it is set.
    pub fn ender(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.ended)
    }

    fn ask(&self, wanted: &[(usize, &Operation)]) -> Vec<(usize, Result<Answer, StoreError>)> {
        let address = &self.address;
        let asked = wanted.iter().map(|&(number, operation)| -> BoxFuture<'_, _> {
            async move { (number, carry_out_in_time(address, operation).await) }.boxed()
        });
        let asked: Vec<_> = asked.collect();
        self.runtime.block_on(futures_util::stream::iter(asked).buffer_unordered(IN_FLIGHT_MAX).collect())
    }
}

impl Source for Fetcher {
    fn get(&self, operations: &[Operation]) -> Vec<Result<Answer, StoreError>> {
        let deadline = Instant::now() + PATIENCE;
        let mut answers: Vec<Option<Result<Answer, StoreError>>> = vec![None; operations.len()];
        let mut pause = PAUSE;
        loop {
            let is_open = |answer: &Option<Result<Answer, StoreError>>| {
                matches!(answer, None | Some(Err(StoreError::Unavailable(_))))
            };
            let wanted: Vec<(usize, &Operation)> =
                operations.iter().enumerate().filter(|(number, _)| is_open(&answers[*number])).collect();
            for (number, answer) in self.ask(&wanted) {
                answers[number] = Some(answer);
            }
            let is_over = Instant::now() >= deadline || self.ended.load(Ordering::Relaxed);
            if is_over || !answers.iter().any(is_open) {
                break;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
        let no_answer = || Err(StoreError::Unavailable("no answer".to_owned()));
        answers.into_iter().map(|answer| answer.unwrap_or_else(no_answer)).collect()
    }
}
