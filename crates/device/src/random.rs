//! Random numbers, from the kernel and nowhere else.
//!
//! A generator in the process' memory would be copied by a fork (and by a snapshot of the machine) with all that it
//! is about to draw: two sessions would name their records alike.
#![allow(unsafe_code)]

use std::io::{self, Read};

/// A random number from the kernel.
pub fn random_number() -> u64 {
    let mut bytes = [0; 8];
    if !draw(&mut bytes) {
        // A sandbox may refuse the call and still have the device.
        let read = std::fs::File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bytes));
        assert!(read.is_ok(), "neither getrandom(2) nor /dev/urandom gives random numbers: {read:?}");
    }
    u64::from_le_bytes(bytes)
}

/// False if the kernel refuses.
fn draw(bytes: &mut [u8; 8]) -> bool {
    loop {
        // SAFETY: the kernel writes at most as many bytes as there are.
        let drawn = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        match drawn {
            // So few bytes are never cut short.
            8 => return true,
            _ if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::tests::in_child;

    #[test]
    fn a_child_and_its_parent_draw_different_numbers() {
        let before = random_number();
        let theirs = in_child(random_number);
        let again = in_child(random_number);
        let mine = random_number();
        let all = std::collections::BTreeSet::from([before, theirs, again, mine]);
        assert_eq!(all.len(), 4);
    }
}
