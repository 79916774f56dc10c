//! The device that the engine sees.

use super::{LazyDevice, blocks_of};
use std::ops::Range;
use std::sync::Arc;
use syncline_device::{Buffer, Device, DeviceCounters, DeviceError, Operation, ReadRequest, Reading, Ticket};
use syncline_format::{BLOCK_BYTES, BlockNo};

impl Device for LazyDevice {
    fn blocks(&self) -> u64 {
        self.partial.blocks
    }

    fn read(&self, at: BlockNo, into: &mut [u8]) -> Result<(), DeviceError> {
        let run = self.run(Operation::Read, at, (into.len() / BLOCK_BYTES) as u64)?;
        if self.is_whole() {
            return self.local.read(at, into);
        }
        self.waits(|| self.want(std::slice::from_ref(&run)))?;
        if !self.is_aside(&run) {
            return self.local.read(at, into);
        }
        let _aside = self.aside.lock();
        if self.is_whole() {
            return self.local.read(at, into);
        }
        let mut blocks = run.zip(into.chunks_exact_mut(BLOCK_BYTES));
        blocks.try_for_each(|(block, into)| self.local.read(self.routed(BlockNo(block)), into))
    }

    fn read_many(&self, requests: &mut [ReadRequest<'_>]) -> Result<(), DeviceError> {
        let runs: Result<Vec<Range<u64>>, DeviceError> =
            requests.iter().map(|request| self.read_run(request)).collect();
        let runs = runs?;
        self.waits(|| self.want(&runs))?;
        match self.is_whole() || !runs.iter().any(|run| self.is_aside(run)) {
            true => self.local.read_many(requests),
            false => requests.iter_mut().try_for_each(|request| self.read(request.at, request.into)),
        }
    }

    fn submit_read(&self, at: BlockNo, blocks: usize) -> Reading {
        let run = match self.run(Operation::Read, at, blocks as u64) {
            Ok(run) => run,
            Err(error) => return Reading::failed(error),
        };
        if !self.is_whole() && self.is_aside(&run) {
            let mut together = Buffer::for_overwrite(blocks.max(1));
            let result = self.read(at, &mut together[..blocks * BLOCK_BYTES]);
            return Reading::ended(result, blocks, together);
        }
        match self.waits(|| self.want(std::slice::from_ref(&run))) {
            Ok(()) => self.local.submit_read(at, blocks),
            Err(error) => Reading::failed(error),
        }
    }

    fn submit_write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Ticket {
        let run = match self.run(Operation::Write, at, blocks_of(&data)) {
            Ok(run) => run,
            Err(error) => return Ticket::completed(Err(error)),
        };
        if self.is_whole() {
            return self.local.submit_write(at, data);
        }
        if self.writes_here(&run) {
            return Ticket::completed(self.write_here(run, &data));
        }
        let ticket = self.local.submit_write(at, data);
        self.note(run, &ticket);
        ticket
    }

    fn submit_flush(&self) -> Ticket {
        let flushing = self.flushing.lock();
        match !self.is_whole() && self.has_to_settle() {
            true => Ticket::completed(self.flush_and_settle(&flushing)),
            false => self.local.submit_flush(),
        }
    }

    fn wait(&self, ticket: &Ticket) -> Result<(), DeviceError> {
        ticket.result().unwrap_or_else(|| self.local.wait(ticket))
    }

    fn poll(&self) {
        self.local.poll();
    }

    fn write(&self, at: BlockNo, data: Vec<Arc<Buffer>>) -> Result<(), DeviceError> {
        let run = self.run(Operation::Write, at, blocks_of(&data))?;
        if self.is_whole() {
            return self.local.write(at, data);
        }
        if self.writes_here(&run) {
            return self.write_here(run, &data);
        }
        let result = self.local.write(at, data);
        self.note(run, &Ticket::completed(result.clone()));
        result
    }

    fn flush(&self) -> Result<(), DeviceError> {
        if self.is_whole() {
            return self.local.flush();
        }
        let flushing = self.flushing.lock();
        match !self.is_whole() && self.has_to_settle() {
            true => self.flush_and_settle(&flushing),
            false => self.local.flush(),
        }
    }

    /// Not carried out where something is, or was, absent: it would have to be remembered.
    fn discard(&self, at: BlockNo, blocks: u64) -> Result<(), DeviceError> {
        let run = self.run(Operation::Discard, at, blocks)?;
        if !self.is_whole() {
            let state = self.state.lock();
            let known = state.absence.stored.first_in(run.clone()).is_none() && !self.is_aside(&run);
            if !known {
                return Ok(());
            }
        }
        self.local.discard(at, blocks)
    }

    fn discard_blocks_min(&self) -> Option<u64> {
        self.local.discard_blocks_min()
    }

    fn bulk_bytes_max(&self) -> u64 {
        self.local.bulk_bytes_max()
    }

    fn hole(&self, at: BlockNo) -> Option<Range<BlockNo>> {
        let mut from = at;
        loop {
            let hole = self.local.hole(from)?;
            let (start, end) = (hole.start.0.max(at.0), hole.end.0.min(self.partial.blocks));
            if start >= end {
                return None;
            }
            if self.is_whole() {
                return Some(BlockNo(start)..BlockNo(end));
            }
            let state = self.state.lock();
            // What is absent is no hole, nor is what lies aside.
            let mut part = start;
            while part < end {
                let absent = state.absence.stored.first_in(part..end).unwrap_or(end);
                let aside =
                    self.partial.aside().iter().map(|block| block.0).filter(|block| *block >= part).min();
                let stop = absent.min(aside.unwrap_or(end)).min(end);
                if part < stop {
                    return Some(BlockNo(part)..BlockNo(stop));
                }
                part = match absent == part {
                    true => state.absence.stored.first_out(part..end).unwrap_or(end),
                    false => part + 1,
                };
            }
            drop(state);
            from = BlockNo(end);
        }
    }

    fn counters(&self) -> DeviceCounters {
        self.local.counters()
    }
}
