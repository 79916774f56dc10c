//! How much memory this process takes at most for a while.

use std::fs;
use std::io;

/// Begins with the moment at which it is made.
pub(crate) struct Peak {
    resident: Option<u64>,
}

impl Peak {
    /// Has the kernel forget the process's peak so far.
    pub(crate) fn begin() -> io::Result<Peak> {
        // 5: the peak of resident memory becomes what is resident now (proc_pid_clear_refs(5)).
        match fs::write("/proc/self/clear_refs", "5") {
            Ok(()) => Ok(Peak { resident: kib("VmRSS:")? }),
            Err(_) => Ok(Peak { resident: None }),
        }
    }

    /// Bytes by which the process was larger at most than at the beginning; `None` where the kernel does not tell.
    pub(crate) fn grown(&self) -> io::Result<Option<u64>> {
        let peak = kib("VmHWM:")?;
        Ok(peak.zip(self.resident).map(|(peak, then)| peak.saturating_sub(then) << 10))
    }
}

fn kib(field: &str) -> io::Result<Option<u64>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    Ok(line.and_then(|line| line.split_whitespace().next()?.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_allocated_meanwhile_counts_although_it_is_gone() {
        let peak = Peak::begin().expect("procfs");
        let large = std::hint::black_box(vec![1_u8; 64 << 20]);
        assert_eq!(large.iter().step_by(4096).map(|byte| usize::from(*byte)).sum::<usize>(), 16 << 10);
        drop(large);
        // Where the kernel does not tell, nothing is claimed.
        if let Some(grown) = peak.grown().expect("procfs") {
            assert!(grown >= 60 << 20, "{grown}");
        }
    }
}
