//! What a filesystem wants of its connection.

/// Of the transport over io_uring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UringSettings {
    /// Requests that one CPU's queue can have open at once. Each takes memory for one message.
    pub depth: u16,
    /// Whether each queue's thread runs on its own CPU only.
    pub pin: bool,
}

impl Default for UringSettings {
    fn default() -> UringSettings {
        UringSettings { depth: 64, pin: true }
    }
}
