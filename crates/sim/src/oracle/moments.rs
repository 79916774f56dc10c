//! What has to be durable because it is old (C9): the model remembers what there was at a moment, and comes back to
//! it once that was long enough ago for the background to have made it durable.

use super::Model;
use crate::history::FileEvent;

impl Model {
    /// It is so late (in nanoseconds); [`Model::age`] may come back to what there is now.
    pub fn note_moment(&mut self, now: i64) {
        let metas = self.metas();
        let moment = self.moments.len();
        self.moments.push((now, metas));
        self.files.values_mut().for_each(|history| history.record(metas, FileEvent::Moment(moment, None)));
        self.stamps.values_mut().for_each(|history| history.note_moment(metas, moment));
    }

    /// What there was at the last moment noted, not later than `until`, is durable: a sync of its own (C9).
    pub fn age(&mut self, until: i64) {
        let moment = self.moments.iter().rposition(|(at, _)| *at <= until);
        let Some(moment) = moment.filter(|_| moment > self.aged) else { return };
        self.aged = Some(moment);
        let (_, metas) = self.moments[moment];
        // A sync since then reaches further.
        self.syncs.push(self.syncs.last().map_or(metas, |last| metas.max(*last)));
        let id = self.syncs.len();
        self.files.values_mut().for_each(|history| history.age(moment, id));
        self.stamps.values_mut().for_each(|history| history.age(moment, id));
    }
}
