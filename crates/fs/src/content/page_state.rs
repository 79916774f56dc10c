//! [`PageState`]: where a cached page's newest content is, and how that changes.

use crate::core::account::Standing;

/// Where the content of a cached page is besides in memory.
///
/// Each transition panics where the rules of the *turn* (module `content`) do not allow it: going on could lose what
/// was acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PageState {
    /// At its place, or nowhere because it is a hole: the page can be dropped.
    Clean,
    /// Nowhere: newer than anything logged.
    Dirty,
    /// In an image in the journal, its only durable copy.
    Logged,
    /// Nowhere; an image has older content.
    DirtyLogged,
    /// On its way to its place by the holder of the turn.
    Writing {
        /// The content on its way is newer than anything logged.
        newer: bool,
        /// An image has this or older content.
        logged: bool,
        /// The page was written to since: the content in memory is newer than the one on its way.
        again: bool,
    },
}

impl PageState {
    /// Its content is newer than anything logged, and nobody writes it.
    pub(crate) fn is_dirty(self) -> bool {
        matches!(self, PageState::Dirty | PageState::DirtyLogged | PageState::Writing { again: true, .. })
    }

    /// An image of it is live in the journal.
    pub(crate) fn is_logged(self) -> bool {
        matches!(self, PageState::Logged | PageState::DirtyLogged | PageState::Writing { logged: true, .. })
    }

    pub(crate) fn is_writing(self) -> bool {
        matches!(self, PageState::Writing { .. })
    }

    /// What is on its way is newer than anything logged.
    pub(crate) fn writes_newer(self) -> bool {
        matches!(self, PageState::Writing { newer: true, .. })
    }

    pub(crate) fn standing(self) -> Standing {
        Standing {
            dirty: self.is_dirty(),
            logged: self.is_logged(),
            unlogged: self.is_dirty() || self.writes_newer(),
            pinned: self != PageState::Clean,
        }
    }

    /// Somebody has written to the page.
    pub(crate) fn write(&mut self) {
        *self = match *self {
            PageState::Clean | PageState::Dirty => PageState::Dirty,
            PageState::Logged | PageState::DirtyLogged => PageState::DirtyLogged,
            PageState::Writing { newer, logged, .. } => PageState::Writing { newer, logged, again: true },
        };
    }

    /// An image of its content is committed, or was found by recovery.
    pub(crate) fn log(&mut self) {
        assert!(!self.is_writing(), "an image of a page was logged while the page was written: {self:?}");
        *self = PageState::Logged;
    }

    /// The holder of the turn takes the content for its next batch.
    pub(crate) fn choose(&mut self) {
        assert!(
            !self.is_writing() && *self != PageState::Clean,
            "a page is chosen twice, or for nothing: {self:?}"
        );
        *self = PageState::Writing { newer: self.is_dirty(), logged: self.is_logged(), again: false };
    }

    /// The chosen content is not written; the page is what it was.
    pub(crate) fn put_back(&mut self) {
        let PageState::Writing { newer, logged, again } = *self else {
            panic!("a page is put back that was not chosen: {self:?}");
        };
        *self = match (newer || again, logged) {
            (false, false) => PageState::Clean,
            (true, false) => PageState::Dirty,
            (false, true) => PageState::Logged,
            (true, true) => PageState::DirtyLogged,
        };
    }

    /// The batch with the chosen content's place is committed, and has voided the images.
    pub(crate) fn store(&mut self) {
        let PageState::Writing { again, .. } = *self else {
            panic!("a page is stored that was not chosen: {self:?}");
        };
        *self = if again { PageState::Dirty } else { PageState::Clean };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_is_written_to_on_its_way_stays_dirty_and_one_put_back_is_what_it_was() {
        for (from, dirty, logged) in [
            (PageState::Dirty, true, false),
            (PageState::Logged, false, true),
            (PageState::DirtyLogged, true, true),
        ] {
            let mut state = from;
            state.choose();
            assert_eq!(
                (state.is_dirty(), state.is_logged(), state.standing().unlogged),
                (false, logged, dirty)
            );
            let mut stored = state;
            stored.store();
            assert_eq!(stored, PageState::Clean);
            let mut back = state;
            back.put_back();
            assert_eq!(back, from);
            state.write();
            let mut back = state;
            back.put_back();
            assert_eq!((back.is_dirty(), back.is_logged()), (true, logged));
            state.store();
            assert_eq!(state, PageState::Dirty);
        }
    }

    #[test]
    #[should_panic(expected = "while the page was written")]
    fn no_image_is_logged_of_a_page_on_its_way() {
        let mut state = PageState::Dirty;
        state.choose();
        state.log();
    }
}
