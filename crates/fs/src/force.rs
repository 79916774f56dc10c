//! Forces, for a caller that commits and forces on its own: the library's tickets do.

use crate::{Fs, Result};
use syncline_format::Lsn;

impl Fs {
    /// Everything up to here is durable.
    pub fn durable_lsn(&self) -> Lsn {
        self.store.durable_lsn()
    }

    /// Waits until everything up to `lsn` is durable. Errors: the cause for which the volume failed (C8).
    pub fn force_up_to(&self, lsn: Lsn) -> Result<()> {
        Ok(self.store.force(lsn)?)
    }

    /// Starts making everything up to `lsn` durable. `done` is called when it is, perhaps before this returns, on the
    /// thread that drives the force: [`Fs::force_up_to`] drives all of them, and so does [`Fs::drive_forces`].
    pub fn start_force_up_to(&self, lsn: Lsn, done: Box<dyn FnOnce(Result<()>) + Send>) {
        self.store.start_force(lsn, Box::new(|result| done(result.map_err(Into::into))));
    }

    /// Drives started forces as far as they go without waiting for the device.
    pub fn drive_forces(&self) {
        self.store.drive();
    }
}
