//! Failure codes and sets of them.
//!
//! Owns: the numbers 0 to 63 and their names. Never: carries details; an error enum of the operation does that.
//! Invariant: a set is one word, so that matching a code is one test.

use std::fmt;

/// Why a task failed, in a number below 64.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Code(u8);

/// First code that a component may give its own meaning.
const OWN_FIRST: u8 = 32;
/// Codes there are.
const CODES: u8 = 64;

impl Code {
    /// A bad argument.
    pub const DOMAIN: Code = Code(0);
    /// A result that cannot be computed.
    pub const RANGE: Code = Code(1);
    /// An argument that is wrong for the object's state, an answer nobody asked for.
    pub const STATE: Code = Code(2);
    /// A state that should not exist.
    pub const LOGIC: Code = Code(3);
    /// A panic that the driver caught.
    pub const PANIC: Code = Code(4);
    /// A violated invariant that was noticed before it did harm.
    pub const INVARIANT: Code = Code(5);
    /// A fault that was injected on purpose.
    pub const INJECTED: Code = Code(6);
    /// A time that ran out.
    pub const TIMEOUT: Code = Code(7);
    /// A drive or a socket that answered with an error.
    pub const IO: Code = Code(8);
    /// Something that is full or taken now and will not be for ever.
    pub const BUSY: Code = Code(9);
    /// Another task of the same recovery group failed: clean up with it.
    pub const GROUP: Code = Code(10);
    /// An inner block gives the task up. Blocks that list it are corrected on the way; none can stop it.
    pub const ABORTED: Code = Code(11);

    /// The `n`-th code of a component's own, 0 to 31.
    ///
    /// # Panics
    /// When `n` is above 31.
    pub const fn own(n: u8) -> Code {
        assert!(n < CODES - OWN_FIRST, "a component has 32 codes of its own");
        Code(OWN_FIRST + n)
    }

    /// The number, 0 to 63.
    pub const fn number(self) -> u8 {
        self.0
    }

    /// The code of a number.
    ///
    /// # Panics
    /// When the number is above 63.
    pub const fn from_number(number: u8) -> Code {
        assert!(number < CODES, "codes are below 64");
        Code(number)
    }

    /// A name for reports; `own` for a component's own.
    pub const fn name(self) -> &'static str {
        match self.0 {
            0 => "domain",
            1 => "range",
            2 => "state",
            3 => "logic",
            4 => "panic",
            5 => "invariant",
            6 => "injected",
            7 => "timeout",
            8 => "io",
            9 => "busy",
            10 => "group",
            11 => "aborted",
            OWN_FIRST.. => "own",
            _ => "reserved",
        }
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeSet(u64);

impl CodeSet {
    /// No code.
    pub const NONE: CodeSet = CodeSet(0);
    /// Every code, [`Code::ABORTED`] included.
    pub const ALL: CodeSet = CodeSet(u64::MAX);

    /// The set of these codes.
    pub const fn of(codes: &[Code]) -> CodeSet {
        let (mut bits, mut i) = (0, 0);
        while i < codes.len() {
            bits |= 1 << codes[i].0;
            i += 1;
        }
        CodeSet(bits)
    }

    /// The set whose code `n` is in it when bit `n` is set.
    pub const fn from_bits(bits: u64) -> CodeSet {
        CodeSet(bits)
    }

    /// Whether `code` is in the set.
    pub const fn contains(self, code: Code) -> bool {
        self.0 >> code.0 & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_hold_what_they_were_made_of() {
        let set = CodeSet::of(&[Code::DOMAIN, Code::PANIC, Code::own(31)]);
        let inside: Vec<u8> = (0..64).filter(|&n| set.contains(Code::from_number(n))).collect();
        assert_eq!(inside, [0, 4, 63]);
        assert_eq!((0..64).filter(|&n| CodeSet::ALL.contains(Code::from_number(n))).count(), 64);
        assert!(!CodeSet::NONE.contains(Code::DOMAIN));
    }

    #[test]
    fn codes_have_names() {
        assert_eq!(
            (Code::GROUP.to_string(), Code::own(1).name(), Code(20).name()),
            ("group".into(), "own", "reserved")
        );
        assert_eq!(format!("{:?}", Code::own(1)), "own(33)");
    }
}
