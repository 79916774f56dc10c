//! Several answers given in one go.

use crate::abi::{self, IoctlFlags};
use crate::errno::Errno;
use crate::reply::slot::{ReplySink, ShortAnswer, Ticket};
use crate::reply::{Reply, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyWrite};
use crate::types::Entry;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Collects short answers and sends them together: one wake-up for each queue of io_uring that is concerned, whatever
/// their number. For many fsyncs that one group commit completes. Over /dev/fuse each answer is a system call of
/// its own.
///
/// Dropping it sends what is in it. It keeps its memory when it is used again.
#[derive(Default)]
pub struct ReplyBatch {
    sinks: Vec<Collected>,
}

struct Collected {
    sink: Arc<dyn ReplySink>,
    answers: Vec<(Ticket, ShortAnswer)>,
}

impl ReplyBatch {
    pub fn new() -> ReplyBatch {
        ReplyBatch::default()
    }

    pub fn ok(&mut self, reply: ReplyEmpty) {
        self.add(reply, ShortAnswer::data(&[]));
    }

    pub fn written(&mut self, reply: ReplyWrite, bytes: u32) {
        self.add(reply, ShortAnswer::data(abi::WriteOut { size: bytes, padding: 0 }.as_bytes()));
    }

    /// What was looked up or made.
    pub fn entry(&mut self, reply: ReplyEntry, entry: &Entry) {
        self.add(reply, ShortAnswer::data(entry.to_wire().as_bytes()));
    }

    /// An ioctl that returns 0 and has no output.
    pub fn controlled(&mut self, reply: ReplyIoctl) {
        let answer = abi::IoctlOut { result: 0, flags: IoctlFlags::empty(), in_iovs: 0, out_iovs: 0 };
        self.add(reply, ShortAnswer::data(answer.as_bytes()));
    }

    pub fn error(&mut self, reply: impl Reply, errno: Errno) {
        self.add(reply, ShortAnswer::error(errno));
    }

    /// Answers in the batch.
    pub fn len(&self) -> usize {
        self.sinks.iter().map(|collected| collected.answers.len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sends all answers; the batch can be used again.
    pub fn send(&mut self) {
        for collected in &mut self.sinks {
            if !collected.answers.is_empty() {
                collected.sink.send_many(&mut collected.answers);
                collected.answers.clear();
            }
        }
    }

    fn add(&mut self, reply: impl Reply, answer: ShortAnswer) {
        let (sink, ticket) = reply.into_slot().0.into_parts();
        // One for each queue or descriptor: a handful, so that looking through them is cheapest.
        let known = self.sinks.iter_mut().find(|collected| Arc::ptr_eq(&collected.sink, &sink));
        match known {
            Some(collected) => collected.answers.push((ticket, answer)),
            None => self.sinks.push(Collected { sink, answers: vec![(ticket, answer)] }),
        }
    }
}

impl Drop for ReplyBatch {
    fn drop(&mut self) {
        self.send();
    }
}
