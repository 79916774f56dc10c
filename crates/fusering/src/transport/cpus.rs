//! Which CPUs the kernel may ever have, which of them this process may use, where a thread runs, and tying one to a
//! CPU.
//!
//! Over io_uring the kernel makes a queue of its own for every *possible* CPU and puts a request on the queue of the
//! CPU that its caller runs on; it switches to the queues only when each of them has an entry. So all of them are
//! served, those of CPUs that are offline or outside this process's affinity mask by threads that the scheduler may
//! put anywhere.

/// The kernel's list of possible CPUs.
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// How many CPUs the kernel can ever have, which is how many queues it wants.
///
/// `None` when this machine does not say.
pub(super) fn possible_count() -> Option<u16> {
    let listed = std::fs::read_to_string(POSSIBLE).ok();
    listed.as_deref().and_then(count_in_list).filter(|&count| count > 0)
}

/// Ties the calling thread to `cpu`; false when the machine or this process's affinity mask does not allow it.
pub(super) fn pin_to(cpu: u16) -> bool {
    let cpu = usize::from(cpu);
    // Widening the mask would escape the limits that the administrator set for this process.
    if cpu >= libc::CPU_SETSIZE as usize || !allowed().is_some_and(|mask| holds(&mask, cpu)) {
        return false;
    }
    confine(&only(cpu))
}

/// The set of one CPU, which is below CPU_SETSIZE.
pub(crate) fn only(cpu: usize) -> libc::cpu_set_t {
    // SAFETY: all zeros is the empty set.
    let mut only: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the caller keeps `cpu` within the set.
    unsafe { libc::CPU_SET(cpu, &mut only) };
    only
}

/// Lets the calling thread run on these CPUs only; false when the system does not.
pub(crate) fn confine(to: &libc::cpu_set_t) -> bool {
    confine_thread(0, to)
}

/// The same for another thread of this process; 0 is the calling one.
pub(super) fn confine_thread(thread: libc::pid_t, to: &libc::cpu_set_t) -> bool {
    // SAFETY: a valid set of the size given.
    unsafe { libc::sched_setaffinity(thread, size_of_val(to), std::ptr::from_ref(to)) == 0 }
}

/// Where the calling thread may run; `None` on machines with more CPUs than the set has room for.
pub(crate) fn allowed() -> Option<libc::cpu_set_t> {
    // SAFETY: all zeros is the empty set.
    let mut mask: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `mask` is a valid set of the size given; 0 is the calling thread.
    let result = unsafe { libc::sched_getaffinity(0, size_of_val(&mask), &raw mut mask) };
    (result == 0).then_some(mask)
}

pub(super) fn holds(mask: &libc::cpu_set_t, cpu: usize) -> bool {
    // SAFETY: the set is looked at within its size only.
    cpu < libc::CPU_SETSIZE as usize && unsafe { libc::CPU_ISSET(cpu, mask) }
}

/// How many CPUs a set has.
pub(crate) fn count(mask: &libc::cpu_set_t) -> usize {
    // SAFETY: a valid set.
    usize::try_from(unsafe { libc::CPU_COUNT(mask) }).unwrap_or(0)
}

/// The CPU that a thread of any process runs on, or ran on last.
pub(super) fn of_thread(thread: u32) -> Option<usize> {
    let told = std::fs::read_to_string(format!("/proc/{thread}/stat")).ok()?;
    processor_in(&told)
}

/// Field 39 of a `stat` file. The name, which is in parentheses and the second one, may contain anything.
fn processor_in(stat: &str) -> Option<usize> {
    let (_, behind_name) = stat.rsplit_once(')')?;
    behind_name.split_ascii_whitespace().nth(36)?.parse().ok()
}

/// The number of CPUs in a list such as `0-3,8,10-11`.
fn count_in_list(list: &str) -> Option<u16> {
    let mut count: u16 = 0;
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        let length = last.checked_sub(first)?.checked_add(1)?;
        count = count.checked_add(length)?;
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_counted() {
        assert_eq!(count_in_list("0\n"), Some(1));
        assert_eq!(count_in_list("0-1\n"), Some(2));
        assert_eq!(count_in_list("0-3,8,10-11"), Some(7));
        assert_eq!(count_in_list(""), None);
        assert_eq!(count_in_list("3-1"), None);
        assert_eq!(count_in_list("0-65535"), None);
        assert_eq!(count_in_list("none"), None);
    }

    #[test]
    fn a_thread_with_any_name_tells_where_it_runs() {
        let fields: Vec<String> = (3..=52).map(|field| field.to_string()).collect();
        assert_eq!(processor_in(&format!("7 (a) b) {}\n", fields.join(" "))), Some(39));
        assert_eq!(processor_in("7 (a) S 1 2"), None);
        // SAFETY: takes no arguments.
        let own = of_thread(unsafe { libc::gettid() } as u32).expect("this thread is in /proc");
        assert!(allowed().is_some_and(|mask| holds(&mask, own)));
    }

    #[test]
    fn a_thread_is_not_pinned_outside_its_mask() {
        std::thread::spawn(|| {
            let mask = allowed().expect("the machines of tests have few CPUs");
            let allowed: Vec<u16> = (0..1024).filter(|&cpu| holds(&mask, cpu.into())).collect();
            let (first, last) = (allowed[0], *allowed.last().expect("some CPU runs this"));
            assert!(pin_to(first));
            // SAFETY: takes no arguments.
            assert_eq!(unsafe { libc::sched_getcpu() }, i32::from(first));
            if first != last {
                assert!(!pin_to(last), "the mask holds only CPU {first} now");
            }
            assert!(!pin_to(u16::MAX));
        })
        .join()
        .expect("the thread's own assertions hold");
    }
}
