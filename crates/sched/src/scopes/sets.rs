//! Disjoint sets of small numbers.
//!
//! Owns: the forest. Never: splits a set; a forest is forgotten and built anew.
//! Invariant: two numbers have one root exactly when a chain of unions joins them.

/// Union by size with path halving (Tarjan and van Leeuwen, 1984): near constant per operation.
#[derive(Clone, Debug)]
pub struct Sets {
    parent: Vec<u32>,
    size: Vec<u32>,
}

impl Sets {
    /// Every number below `count` alone.
    pub fn new(count: u32) -> Sets {
        Sets { parent: (0..count).collect(), size: vec![1; count as usize] }
    }

    /// Every number alone again.
    pub fn reset(&mut self) {
        for (number, (parent, size)) in (0..).zip(self.parent.iter_mut().zip(&mut self.size)) {
            (*parent, *size) = (number, 1);
        }
    }

    /// Becomes equal to `other`, which has as many numbers.
    pub fn copy_from(&mut self, other: &Sets) {
        self.parent.copy_from_slice(&other.parent);
        self.size.copy_from_slice(&other.size);
    }

    /// The number that stands for the set of `number`.
    pub fn root(&self, mut number: u32) -> u32 {
        while self.parent[number as usize] != number {
            number = self.parent[number as usize];
        }
        number
    }

    /// Joins the sets of `a` and `b`.
    pub fn join(&mut self, a: u32, b: u32) {
        let (a, b) = (self.halve(a), self.halve(b));
        if a == b {
            return;
        }
        let (small, large) = if self.size[a as usize] < self.size[b as usize] { (a, b) } else { (b, a) };
        self.parent[small as usize] = large;
        self.size[large as usize] += self.size[small as usize];
    }

    fn halve(&mut self, mut number: u32) -> u32 {
        while self.parent[number as usize] != number {
            let up = self.parent[number as usize];
            self.parent[number as usize] = self.parent[up as usize];
            number = up;
        }
        number
    }
}
