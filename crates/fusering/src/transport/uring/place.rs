//! Where a deputy runs: on its queue's CPU, or anywhere.
//!
//! Beside a lone caller that waits for each answer nothing is as near as the caller's own CPU. Beside one whose large
//! reads the kernel makes ahead of it, that CPU is the busy one: what the deputy does there, and what the kernel
//! copies into the page cache when it submits the answer, takes the caller's time.

use super::super::cpus;
use std::cell::Cell;

/// Belongs to the deputy's thread.
pub(super) struct Place {
    /// Its own CPU and all that it may use; `None` if it has no CPU of its own, or no choice.
    choice: Option<[libc::cpu_set_t; 2]>,
    roams: Cell<bool>,
}

impl Place {
    /// Ties the calling thread to `cpu` if it is allowed to run there. `pin`: false to stay wherever the scheduler
    /// wants.
    pub fn beside(cpu: u16, pin: bool) -> Place {
        let all = cpus::allowed().filter(|all| pin && cpus::count(all) > 1);
        let own = pin && cpus::pin_to(cpu);
        let choice = all.filter(|_| own).map(|all| [cpus::only(usize::from(cpu)), all]);
        Place { choice, roams: Cell::new(false) }
    }

    /// The calling thread serves a stream: it runs where there is time.
    pub fn roam(&self) {
        self.go(true);
    }

    /// It serves a caller that waits.
    pub fn stay(&self) {
        self.go(false);
    }

    fn go(&self, roams: bool) {
        if let Some([own, all]) = &self.choice
            && self.roams.replace(roams) != roams
            && !cpus::confine(if roams { all } else { own })
        {
            tracing::debug!(roams, "a deputy stays where it was");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deputy_leaves_its_cpu_for_a_stream_and_comes_back() {
        let all = cpus::allowed().expect("the machines of tests have few CPUs");
        let Some(cpu) = (0..1024).rev().find(|&cpu| cpus::holds(&all, usize::from(cpu))) else { return };
        std::thread::spawn(move || {
            let here = || {
                let mask = cpus::allowed().expect("as above");
                (cpus::count(&mask), cpus::holds(&mask, usize::from(cpu)))
            };
            let place = Place::beside(cpu, true);
            assert_eq!(here(), (1, true));
            for _ in 0..2 {
                place.roam();
                assert_eq!(here(), (cpus::count(&all), true));
                place.stay();
                assert_eq!(here(), (1, true));
            }
        })
        .join()
        .expect("the thread's own assertions hold");
    }

    #[test]
    fn one_that_is_tied_to_no_cpu_goes_nowhere() {
        std::thread::spawn(|| {
            let all = cpus::allowed().expect("the machines of tests have few CPUs");
            for place in [Place::beside(0, false), Place::beside(u16::MAX, true)] {
                place.stay();
                place.roam();
                place.stay();
                assert_eq!(cpus::allowed().map(|mask| cpus::count(&mask)), Some(cpus::count(&all)));
            }
        })
        .join()
        .expect("the thread's own assertions hold");
    }
}
