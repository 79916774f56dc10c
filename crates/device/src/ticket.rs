//! Tickets: one per submitted request, shared by everyone who waits for it.

use crate::DeviceError;
use std::sync::{Arc, OnceLock};

/// Handle of a submitted request. Clones name the same request; dropping one cancels nothing.
#[derive(Debug, Clone, Default)]
pub struct Ticket(Arc<OnceLock<Result<(), DeviceError>>>);

impl Ticket {
    /// A request still in flight.
    pub fn pending() -> Ticket {
        Ticket::default()
    }

    /// A request that is already complete.
    pub fn completed(result: Result<(), DeviceError>) -> Ticket {
        let ticket = Ticket::default();
        ticket.complete(result);
        ticket
    }

    /// The result, once there is one.
    pub fn result(&self) -> Option<Result<(), DeviceError>> {
        self.0.get().cloned()
    }

    /// Whether both name one request.
    pub fn is_same(&self, other: &Ticket) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub fn is_complete(&self) -> bool {
        self.0.get().is_some()
    }

    /// Called by the device, once.
    pub fn complete(&self, result: Result<(), DeviceError>) {
        self.0.set(result).expect("a request completes once");
    }
}
