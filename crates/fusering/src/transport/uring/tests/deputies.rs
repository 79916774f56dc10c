//! Who comes by a deputy, and who does not.

use super::*;

/// Notes by which threads requests come. As many as it is told of what comes by those that may wait wait until they
/// are let go; what comes by the others is answered as by a thread that collects answers.
#[derive(Default)]
struct Noting {
    by_waiters: Mutex<Vec<bool>>,
    waits: Mutex<Waits>,
    changed: Condvar,
    /// Where the others are kept meanwhile, if they are not to be answered.
    keeps: Mutex<Option<mpsc::Sender<ReplySlot>>>,
}

#[derive(Default)]
struct Waits {
    /// How many more are to wait,
    left: usize,
    /// and whether they still do.
    held: bool,
}

impl Noting {
    /// Waits until so many requests have come.
    fn await_requests(&self, count: usize) {
        let mut patience = PATIENCE;
        while self.by_waiters.lock().len() < count {
            patience = patience.checked_sub(Duration::from_millis(1)).expect("the request comes");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// 0: those that wait are let go.
    fn set_waits(&self, waits: usize) {
        *self.waits.lock() = Waits { left: waits, held: waits > 0 };
        self.changed.notify_all();
    }

    /// Whether the requests since the last call came by a thread that may wait.
    fn noted(&self) -> Vec<bool> {
        std::mem::take(&mut *self.by_waiters.lock())
    }
}

impl Handler for Noting {
    fn header_bytes(&self, opcode: Opcode) -> Option<usize> {
        opcode.header_bytes(false)
    }

    fn handle(&self, source: &dyn Source, _: RawRequest<'_>, slot: ReplySlot) {
        let mut by_waiters = self.by_waiters.lock();
        by_waiters.push(source.may_wait());
        drop(by_waiters);
        if !source.may_wait() {
            if let Some(kept) = &*self.keeps.lock() {
                return kept.send(slot).expect("the test waits");
            }
            let (sink, ticket) = slot.into_parts();
            let answer = move || sink.send_many(&mut vec![(ticket, ShortAnswer::data(&TOTALS))]);
            std::thread::spawn(answer);
            return;
        }
        let mut waits = self.waits.lock();
        let is_to_wait = waits.left > 0;
        waits.left -= usize::from(is_to_wait);
        while is_to_wait && waits.held {
            assert!(!self.changed.wait_for(&mut waits, PATIENCE).timed_out(), "it is let go");
        }
        drop(waits);
        slot.bytes(&TOTALS);
    }
}

/// A thread on CPU 0 that calls statfs when it is told to, and says when it has returned.
struct Caller {
    tell: mpsc::Sender<()>,
    returned: mpsc::Receiver<i32>,
}

impl Caller {
    fn of(mounted: &Mounted) -> Caller {
        let target = c_string(mounted.at.path());
        let ((tell, told), (returns, returned)) = (mpsc::channel(), mpsc::channel());
        std::thread::spawn(move || {
            assert!(cpus::pin_to(0), "tests run on any CPU");
            while told.recv().is_ok() {
                let _ = returns.send(totals(&target).err().unwrap_or(0));
            }
        });
        Caller { tell, returned }
    }

    fn begin(&self) {
        self.tell.send(()).expect("it waits to be told");
    }

    fn end(&self) {
        assert_eq!(self.returned.recv_timeout(PATIENCE), Ok(0));
    }

    fn call(&self) {
        self.begin();
        self.end();
    }
}

#[test]
fn a_lone_caller_comes_by_the_deputy_which_waits_while_others_are_served() {
    let Some(mounted) = Mounted::new("a_lone_caller_comes_by_the_deputy_which_waits_while_others_are_served")
    else {
        return;
    };
    let noting = Arc::new(Noting::default());
    let prepared = prepare(&settings(4), PAYLOAD_BYTES).expect("rings are to be had");
    let handler = Arc::clone(&noting) as Arc<dyn Handler>;
    let transport = prepared
        .start(Arc::clone(&mounted.connection), handler, &Arc::default())
        .expect("the kernel takes the entries");
    let (one, other) = (Caller::of(&mounted), Caller::of(&mounted));

    // An answer that comes before the handler has returned leaves it where it is.
    let goes_over = || {
        (0..1000).any(|_| {
            one.call();
            noting.noted() == [true]
        })
    };
    assert!(goes_over(), "its requests come by the deputy in the end");

    noting.set_waits(1);
    one.begin();
    noting.await_requests(1);
    (0..3).for_each(|_| other.call());
    noting.set_waits(0);
    one.end();
    let noted = noting.noted();
    assert_eq!((noted.len(), &noted[..2]), (4, &[true, false][..]), "the others went past who waits");

    other.call();
    one.call();
    assert_eq!(noting.noted(), [true, false], "a second caller gives the entry back");
    assert!(goes_over(), "and the first one has it again");

    // An end while the deputy has an entry, and its caller waits for it.
    noting.set_waits(1);
    one.begin();
    abort_connection(&mounted.connection).expect("the connection's number is known");
    noting.set_waits(0);
    one.returned.recv_timeout(PATIENCE).expect("the abort frees the caller");
    transport.join().expect("an abort is no error of the transport");
}

#[test]
fn a_lone_caller_comes_by_a_deputy_again_when_an_entry_lies_above_that_of_the_first_one() {
    let test = "a_lone_caller_comes_by_a_deputy_again_when_an_entry_lies_above_that_of_the_first_one";
    let Some(mounted) = Mounted::new(test) else { return };
    let noting = Arc::new(Noting::default());
    let prepared = prepare(&settings(4), PAYLOAD_BYTES).expect("rings are to be had");
    let handler = Arc::clone(&noting) as Arc<dyn Handler>;
    let transport = prepared
        .start(Arc::clone(&mounted.connection), handler, &Arc::default())
        .expect("the kernel takes the entries");
    let [one, other, third] = [(); 3].map(|()| Caller::of(&mounted));
    let goes_over = || {
        (0..1000).any(|_| {
            one.call();
            noting.noted() == [true]
        })
    };
    assert!(goes_over(), "its requests come by the deputy in the end");

    // As behind RELEASE: another request overlaps with the caller's, and is answered last.
    noting.set_waits(1);
    one.begin();
    noting.await_requests(1);
    let (keep, kept) = mpsc::channel();
    *noting.keeps.lock() = Some(keep);
    other.begin();
    noting.await_requests(2);
    noting.set_waits(0);
    one.end();
    // Longer than it takes the deputy to return from the system call that answers.
    let returns = || std::thread::sleep(Duration::from_millis(50));
    returns();
    kept.recv_timeout(PATIENCE).expect("it came by the first thread").bytes(&TOTALS);
    other.end();
    returns();
    *noting.keeps.lock() = None;
    noting.noted();
    one.call();
    assert_eq!(noting.noted(), [false], "the kernel takes the upper entry");
    assert!(goes_over(), "and that one comes to a deputy, too");

    // Each of the two has one entry: while both wait, the others go past them.
    returns();
    noting.set_waits(2);
    for caller in [&one, &other] {
        caller.begin();
    }
    noting.await_requests(2);
    third.call();
    noting.set_waits(0);
    one.end();
    other.end();
    assert_eq!(noting.noted(), [true, true, false]);

    mounted.unmount();
    transport.join().expect("unmounting is no error");
}
