//! A table of values at small stable numbers that are reused.
//!
//! Owns: the slots. Never: shrinks, or moves a value to another number.
//! Invariant: a number is live from `insert` to `remove`.

use std::ops::{Index, IndexMut};

pub(crate) struct Slab<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(crate) fn with_capacity(count: usize) -> Slab<T> {
        Slab { slots: Vec::with_capacity(count), free: Vec::with_capacity(count) }
    }

    pub(crate) fn insert(&mut self, value: T) -> u32 {
        match self.free.pop() {
            Some(at) => {
                self.slots[at as usize] = Some(value);
                at
            }
            None => {
                self.slots.push(Some(value));
                (self.slots.len() - 1) as u32
            }
        }
    }

    pub(crate) fn remove(&mut self, at: u32) -> T {
        let value = self.slots[at as usize].take().expect("the number is live");
        self.free.push(at);
        value
    }

    pub(crate) fn get(&self, at: u32) -> Option<&T> {
        self.slots.get(at as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        self.slots.get_mut(at as usize)?.as_mut()
    }

    /// All that are live, in the order of their numbers.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().flatten()
    }

    /// How many are live.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One more than the largest number ever given.
    pub(crate) fn end(&self) -> u32 {
        self.slots.len() as u32
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;
    fn index(&self, at: u32) -> &T {
        self.slots[at as usize].as_ref().expect("the number is live")
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, at: u32) -> &mut T {
        self.slots[at as usize].as_mut().expect("the number is live")
    }
}
