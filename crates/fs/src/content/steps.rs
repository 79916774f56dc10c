//! Points between two steps of an operation. Tests have others act there, or count them; otherwise a point is nothing.

/// What has been done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The batch is admitted, the turn is not taken yet.
    Admitted,
    /// A writer has looked at the file, and not yet at what is stored of it.
    Looked,
    /// What is stored of pages that are to be changed in part was looked up.
    LookedUp,
    /// Pages were read for somebody.
    Fetched,
    /// One more extent that a snapshot has as well was read, to be written to other blocks.
    TakenOver,
    /// A name was looked up. Locks may be held, so that nobody can act here.
    NameLookedUp,
}

/// The operation has come so far.
#[cfg(not(test))]
pub(crate) fn passed(_: Step) {}

#[cfg(test)]
pub(crate) use tests::{count, meanwhile, passed};

#[cfg(test)]
mod tests {
    use super::Step;
    use std::cell::RefCell;

    type Act = Box<dyn FnOnce()>;

    thread_local! {
        static WAITING: RefCell<Vec<(Step, Act)>> = const { RefCell::new(Vec::new()) };
        static PASSED: RefCell<Vec<Step>> = const { RefCell::new(Vec::new()) };
    }

    /// How often `f` passes a point.
    pub(crate) fn count(step: Step, f: impl FnOnce()) -> usize {
        PASSED.take();
        f();
        PASSED.take().into_iter().filter(|passed| *passed == step).count()
    }

    /// Has others act when an operation of this thread comes so far for the first time.
    pub(crate) fn meanwhile(step: Step, act: impl FnOnce() + 'static) {
        WAITING.with_borrow_mut(|waiting| waiting.push((step, Box::new(act))));
    }

    pub(crate) fn passed(step: Step) {
        PASSED.with_borrow_mut(|passed| passed.push(step));
        let act = WAITING.with_borrow_mut(|waiting| {
            let at = waiting.iter().position(|(at, _)| *at == step)?;
            Some(waiting.remove(at).1)
        });
        if let Some(act) = act {
            act();
        }
    }
}
