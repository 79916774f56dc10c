//! Shrinking: the smallest workload that still fails (delta debugging, Zeller and Hildebrandt 2002).

use crate::operation::Op;

/// Drops operations as long as `fails` says that the rest still fails; at the end none can be left out alone.
pub fn shrink(ops: &[Op], fails: &mut dyn FnMut(&[Op]) -> bool) -> Vec<Op> {
    let mut ops = ops.to_vec();
    let mut chunk = ops.len().div_ceil(2).max(1);
    loop {
        let mut at = 0;
        let mut shrunk = false;
        while at < ops.len() {
            let mut fewer = ops[..at].to_vec();
            fewer.extend_from_slice(&ops[(at + chunk).min(ops.len())..]);
            if !fewer.is_empty() && fails(&fewer) {
                ops = fewer;
                shrunk = true;
            } else {
                at += chunk;
            }
        }
        if chunk == 1 && !shrunk {
            return ops;
        }
        if !shrunk {
            chunk = chunk.div_ceil(2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::from_text;

    #[test]
    fn only_what_is_needed_is_left() {
        let ops = from_text("creat:a;creat:b;sync;creat:c;truncate:a:1;sync;checkpoint;creat:d")
            .expect("operations");
        let mut tries = 0;
        let small = shrink(&ops, &mut |ops| {
            tries += 1;
            ops.contains(&Op::Sync) && ops.contains(&Op::Creat("c".into()))
        });
        assert_eq!(small.len(), 2);
        assert!(tries < 60);
    }
}
