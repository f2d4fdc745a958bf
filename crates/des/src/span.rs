//! Spans of virtual time in which something differs.
//!
//! Owns: the list of spans and what holds at an instant. Never: schedules an event.
//! Invariant: a span holds from its first nanosecond and no longer at its end.

use segue_types::Nanos;

/// From an instant, until another or for ever.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// First nanosecond of the span.
    pub from_ns: Nanos,
    /// First nanosecond after it; `None` until somebody ends it.
    pub until_ns: Option<Nanos>,
}

impl Span {
    /// `from_ns..until_ns`.
    pub const fn new(from_ns: Nanos, until_ns: Nanos) -> Span {
        Span { from_ns, until_ns: Some(until_ns) }
    }

    /// From an instant on, without an end yet.
    pub const fn from(from_ns: Nanos) -> Span {
        Span { from_ns, until_ns: None }
    }

    /// True when `at_ns` lies in it.
    pub fn holds(&self, at_ns: Nanos) -> bool {
        self.overlaps(at_ns, at_ns)
    }

    /// True when it shares an instant with `first_ns..=last_ns`.
    pub fn overlaps(&self, first_ns: Nanos, last_ns: Nanos) -> bool {
        self.from_ns <= last_ns && self.until_ns.is_none_or(|until| first_ns < until)
    }
}

/// Spans that each carry a value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Spans<T>(Vec<(Span, T)>);

impl<T: Copy> Spans<T> {
    pub(crate) const fn none() -> Spans<T> {
        Spans(Vec::new())
    }

    pub(crate) fn add(&mut self, span: Span, value: T) {
        assert!(span.until_ns.is_none_or(|until| span.from_ns <= until), "a span ends before it begins");
        self.0.push((span, value));
    }

    /// Ends every span without an end, and those that would end later, at `now`.
    pub(crate) fn end(&mut self, now: Nanos) {
        for (span, _) in &mut self.0 {
            if span.until_ns.is_none_or(|until| until > now) {
                span.until_ns = Some(now.max(span.from_ns));
            }
        }
        self.0.retain(|(span, _)| span.until_ns.is_some_and(|until| span.from_ns < until));
    }

    /// Ends the spans that hold at `now`, and leaves those planned for later.
    pub(crate) fn end_present(&mut self, now: Nanos) {
        for (span, _) in self.0.iter_mut().filter(|(span, _)| span.holds(now)) {
            span.until_ns = Some(now);
        }
        self.0.retain(|(span, _)| span.until_ns.is_none_or(|until| span.from_ns < until));
    }

    /// The values that hold at an instant, oldest first.
    pub(crate) fn at(&self, at_ns: Nanos) -> impl Iterator<Item = (Span, T)> {
        self.0.iter().copied().filter(move |(span, _)| span.holds(at_ns))
    }

    /// True when a span shares an instant with `first_ns..=last_ns`.
    pub(crate) fn any(&self, first_ns: Nanos, last_ns: Nanos) -> bool {
        self.0.iter().any(|(span, _)| span.overlaps(first_ns, last_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_hold_from_their_start_to_before_their_end() {
        let span = Span::new(10, 20);
        assert_eq!([9, 10, 19, 20].map(|at| span.holds(at)), [false, true, true, false]);
        assert!(span.overlaps(0, 10) && span.overlaps(19, 30) && !span.overlaps(20, 30) && !span.overlaps(0, 9));
        assert!(Span::from(5).holds(u64::MAX) && !Span::from(5).holds(4));
    }

    #[test]
    fn an_open_span_ends_when_told_and_the_past_stays() {
        let mut spans = Spans::none();
        spans.add(Span::new(1, 3), 'a');
        spans.add(Span::from(5), 'b');
        spans.add(Span::from(90), 'c');
        spans.end(8);
        assert!(spans.any(2, 2) && spans.any(7, 9) && !spans.any(8, 1000), "{spans:?}");
        assert_eq!(spans.at(7).map(|(_, v)| v).collect::<Vec<_>>(), ['b']);
    }
}
