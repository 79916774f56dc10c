//! Static tracepoints (USDT) of provider `syncline`, for bpftrace(8), perf(1), gdb and SystemTap.
//!
//! | probe | arguments | when |
//! |---|---|---|
//! | `sync_start` | thread | a sync was asked for of the mount |
//! | `seal` | sequence, bytes | a record of the journal is put together and about to be written |
//! | `flush_end` | LSN | a flush has made everything up to this LSN durable |
//! | `reply` | thread, nanoseconds | a sync is answered, so long after its start |
//!
//! A probe is one `nop` in the code, and a note in a section that is not loaded: where the nop is, what it is called,
//! and which registers hold the arguments. Who traces puts a breakpoint there. The notes are those of SystemTap's
//! version 3 (<https://sourceware.org/systemtap/wiki/UserSpaceProbeImplementation>).
//!
//! The engine calls these functions, and depends on nothing for them: this crate has no dependency. On machines other
//! than x86-64 and 64-bit ARM they do nothing.

/// Notes a place in the code. Arguments are unsigned and of eight bytes.
macro_rules! probe {
    ($name:literal, $($place:literal $argument:expr),+) => {
        // SAFETY: a nop; the rest of the text goes to sections of its own. The arguments are only read.
        #[cfg(all(target_os = "linux", target_pointer_width = "64", target_arch = "x86_64"))]
        unsafe {
            std::arch::asm!(
                probe!(@text $name, concat!($("8@{", $place, "} "),+)),
                $(in(reg) $argument,)+
                options(att_syntax, readonly, nostack, preserves_flags)
            );
        }
        // SAFETY: as above.
        #[cfg(all(target_os = "linux", target_pointer_width = "64", target_arch = "aarch64"))]
        unsafe {
            std::arch::asm!(
                probe!(@text $name, concat!($("8@{", $place, "} "),+)),
                $(in(reg) $argument,)+
                options(readonly, nostack, preserves_flags)
            );
        }
        #[cfg(not(all(
            target_os = "linux",
            target_pointer_width = "64",
            any(target_arch = "x86_64", target_arch = "aarch64")
        )))]
        let _ = ($($argument,)+);
    };
    (@text $name:literal, $arguments:expr) => {
        concat!(
            "990: nop\n",
            ".pushsection .note.stapsdt,\"\",\"note\"\n",
            ".balign 4\n",
            ".4byte 992f-991f, 994f-993f, 3\n",
            "991: .asciz \"stapsdt\"\n",
            "992: .balign 4\n",
            // The place, what tells of prelinking, and no semaphore.
            "993: .8byte 990b\n",
            ".8byte _.stapsdt.base\n",
            ".8byte 0\n",
            ".asciz \"syncline\"\n",
            ".asciz \"", $name, "\"\n",
            ".asciz \"", $arguments, "\"\n",
            "994: .balign 4\n",
            ".popsection\n",
            ".ifndef _.stapsdt.base\n",
            ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n",
            ".weak _.stapsdt.base\n",
            ".hidden _.stapsdt.base\n",
            "_.stapsdt.base: .space 1\n",
            ".size _.stapsdt.base, 1\n",
            ".popsection\n",
            ".endif\n",
        )
    };
}

/// A thread has asked the mount for a sync.
#[inline(always)]
pub fn sync_start(thread: u32) {
    probe!("sync_start", "0" u64::from(thread));
}

/// A record is put together: its sequence, and its bytes without what fills its last block.
#[inline(always)]
pub fn seal(sequence: u64, bytes: u64) {
    probe!("seal", "0" sequence, "1" bytes);
}

/// A flush has ended; everything up to this LSN is durable.
#[inline(always)]
pub fn flush_end(lsn: u64) {
    probe!("flush_end", "0" lsn);
}

/// A sync that a thread has asked for is answered, so many nanoseconds later.
#[inline(always)]
pub fn reply(thread: u32, nanoseconds: u64) {
    probe!("reply", "0" u64::from(thread), "1" nanoseconds);
}
