//! What has to hold after each step (docs/contract.md, C13 and C15).

use super::protocol::Scope;
use super::world::{Manifest, Object, Stamp, World};

/// Whether what is in the store now keeps every promise; if not, what is broken, in words.
pub fn judge(world: &World, scope: &Scope) -> Result<(), String> {
    let store = &world.store;
    if let Some(number) = store.created_twice {
        return Err(format!("manifest {number} was deleted, and created again with other bytes"));
    }
    for branch in store.branches.iter().filter(|branch| branch.promised) {
        if let Some(object) = branch.objects.iter().find(|object| !store.has(**object)) {
            return Err(format!("a branch has lost {}", tell(*object)));
        }
    }
    let newest = store.newest().map_or_else(Manifest::before_any, |(_, manifest)| manifest.clone());
    let history = store
        .restore(&newest, scope)
        .map_err(|object| format!("{} is missing, which the newest manifest names", tell(object)))?;
    judge_history(world, &history, &world.counted)
}

/// Whether a restored volume is one that was written, and holds what it must.
pub fn judge_history(world: &World, history: &[Stamp], must: &[Stamp]) -> Result<(), String> {
    let mut before = 0;
    for stamp in history {
        let parent = world.parents[usize::from(*stamp) - 1];
        if parent != before {
            return Err(format!(
                "what is restored is no volume that ever was: write {stamp} was made over {parent}, and is \
                 restored over {before}"
            ));
        }
        before = *stamp;
    }
    match must.iter().find(|stamp| !history.contains(stamp)) {
        Some(lost) => Err(format!("write {lost} counted and is not restored; {history:?} is")),
        None => Ok(()),
    }
}

pub fn tell(object: Object) -> String {
    match object {
        Object::Unit((claim, number)) => format!("unit {claim}/{number}"),
        Object::Pack(pack) => format!("pack {pack}"),
        Object::Manifest(number) => format!("manifest {number}"),
    }
}
