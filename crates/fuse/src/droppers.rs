//! Threads that have the kernel drop what it cached of groups that are over.
//!
//! The kernel waits for pages that are being read and for directories whose names are being changed, which may be up
//! to any other thread of the daemon, or to a program that lets its own call wait. So it is done on threads of their
//! own, one for each user who has something to be dropped: however many groups end at once, and whatever one user's
//! directories wait for, others' ends are answered.
//!
//! Lock: `queues` is innermost; no work is done under it.

use fusering::scheduling::leave_inherited_class;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;

type Work = Box<dyn FnOnce() + Send>;

/// The system gives no thread; what there is to do is still to be done.
pub(crate) struct NoThread {
    pub(crate) error: io::Error,
    pub(crate) works: Vec<Work>,
}

#[derive(Default)]
pub(crate) struct Droppers {
    /// By user, for whom there is a thread as long as there is an entry.
    queues: Arc<Mutex<HashMap<u32, VecDeque<Work>>>>,
}

impl Droppers {
    /// Has `work` done behind what the user has queued up before. Where no thread can be started it is given back,
    /// with what was queued up meanwhile.
    pub(crate) fn run(&self, uid: u32, work: Work) -> Result<(), NoThread> {
        let first = {
            let mut queues = self.queues.lock();
            let is_first = !queues.contains_key(&uid);
            queues.entry(uid).or_default().push_back(work);
            is_first
        };
        if !first {
            return Ok(());
        }
        let queues = self.queues.clone();
        let thread = std::thread::Builder::new().name("syncline-drop".to_owned());
        let run = move || {
            leave_inherited_class();
            work_off(&queues, uid);
        };
        match thread.spawn(run) {
            Ok(_) => Ok(()),
            Err(error) => {
                let works = self.queues.lock().remove(&uid).map_or_else(Vec::new, Vec::from);
                Err(NoThread { error, works })
            }
        }
    }
}

fn work_off(queues: &Mutex<HashMap<u32, VecDeque<Work>>>, uid: u32) {
    loop {
        let work = {
            let mut queues = queues.lock();
            match queues.get_mut(&uid).and_then(VecDeque::pop_front) {
                Some(work) => work,
                None => {
                    queues.remove(&uid);
                    return;
                }
            }
        };
        work();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::time::Duration;

    #[test]
    fn a_users_work_is_done_in_order_on_one_thread_and_holds_up_no_other_user() {
        let droppers = Droppers::default();
        let (tell, told) = channel();
        let (go_on, may_go_on) = channel::<()>();
        let note = |number: u32| {
            let tell = tell.clone();
            Box::new(move || tell.send((number, std::thread::current().id())).expect("is told")) as Work
        };
        let held = Box::new(move || may_go_on.recv().expect("the test lets it go on"));
        assert!(droppers.run(1, held).is_ok());
        for number in 0..100 {
            assert!(droppers.run(1, note(number)).is_ok());
        }
        assert!(droppers.run(2, note(1000)).is_ok());
        let (number, other) = told.recv().expect("the other user's");
        assert_eq!(number, 1000);
        assert_eq!(told.recv_timeout(Duration::ZERO), Err(RecvTimeoutError::Timeout), "behind what is held");
        go_on.send(()).expect("it waits");
        let done: Vec<_> = (0..100).map(|_| told.recv().expect("is done")).collect();
        assert!(done.iter().map(|(number, _)| *number).eq(0..100));
        assert!(done.iter().all(|(_, thread)| *thread == done[0].1 && *thread != other));
        while !droppers.queues.lock().is_empty() {
            std::thread::yield_now();
        }
    }
}
