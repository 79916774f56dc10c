//! The rules of the protocol as switches, and how large a world is explored.

/// A rule of docs/replication-format.md, section 4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rule {
    /// P1: a claim is created, never overwritten.
    ClaimCreated,
    /// P2: the end of the claims before is looked for after one's own claim is there.
    ProbeAfterClaim,
    /// P2: no unit of a claim counts before the claim's first manifest tells where those before it end.
    EndRecorded,
    /// P3: a unit counts after a look for the next claim.
    Looked,
    /// P3: that look is issued after the unit's PUT was answered.
    LookedAfterPut,
    /// P3: a unit counts when the one before it does.
    Chained,
    /// P4: what is put again under a name is the same bytes.
    SameBytes,
    /// P5: a volume that is behind the newest claim is not continued.
    NotBehind,
    /// P6: a manifest is created, never overwritten.
    ManifestCreated,
    /// P6: a manifest is not laid over one of a later claim.
    ManifestOrder,
    /// P7: what the newest manifest names is not deleted.
    Named,
    /// P7: what it does not name is deleted when whoever reads an older one has had time to end.
    Grace,
    /// P7: what a branch names is not deleted.
    Branches,
    /// P7: deletion looks for the next claim behind everything else that it looks at.
    LookedBeforeDelete,
    /// P7: the first manifest of a claim stays.
    FirstManifests,
    /// P8: a branch is whole if the newest manifest, read behind its creation, still names all of it.
    ReadAgain,
}

impl Rule {
    pub const ALL: [Rule; 16] = [
        Rule::ClaimCreated,
        Rule::ProbeAfterClaim,
        Rule::EndRecorded,
        Rule::Looked,
        Rule::LookedAfterPut,
        Rule::Chained,
        Rule::SameBytes,
        Rule::NotBehind,
        Rule::ManifestCreated,
        Rule::ManifestOrder,
        Rule::Named,
        Rule::Grace,
        Rule::Branches,
        Rule::LookedBeforeDelete,
        Rule::FirstManifests,
        Rule::ReadAgain,
    ];

    /// The rule's name in documents.
    pub fn name(self) -> &'static str {
        match self {
            Rule::ClaimCreated => "P1",
            Rule::ProbeAfterClaim => "P2",
            Rule::EndRecorded => "P2, recorded",
            Rule::Looked => "P3",
            Rule::LookedAfterPut => "P3, after the PUT",
            Rule::Chained => "P3, chain",
            Rule::SameBytes => "P4",
            Rule::NotBehind => "P5",
            Rule::ManifestCreated => "P6",
            Rule::ManifestOrder => "P6, order",
            Rule::Named => "P7",
            Rule::Grace => "P7, grace",
            Rule::Branches => "P7, branches",
            Rule::LookedBeforeDelete => "P7, claim",
            Rule::FirstManifests => "P7, first manifests",
            Rule::ReadAgain => "P8",
        }
    }

    /// A scope in which the rule matters.
    pub fn scope(self) -> Scope {
        match self {
            Rule::Grace => READERS,
            Rule::Named | Rule::LookedBeforeDelete | Rule::FirstManifests => DELETION,
            Rule::ManifestCreated | Rule::ManifestOrder => DELETION,
            Rule::Branches | Rule::ReadAgain => BRANCHES,
            Rule::SameBytes | Rule::Chained => NETWORK,
            _ => TAKEOVER,
        }
    }
}

/// How often things may still happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Budget {
    pub opens: u8,
    pub writes: u8,
    /// PUTs whose answer is not waited for: they arrive at any time, or never.
    pub delays: u8,
    /// Deaths of a process.
    pub crashes: u8,
    pub packs: u8,
    pub deletions: u8,
    pub readers: u8,
    pub branches: u8,
}

#[derive(Debug, Clone, Copy)]
pub struct Scope {
    pub name: &'static str,
    pub budget: Budget,
    /// The rule that is switched off.
    pub off: Option<Rule>,
}

impl Scope {
    pub fn on(&self, rule: Rule) -> bool {
        self.off != Some(rule)
    }

    pub fn without(mut self, rule: Rule) -> Scope {
        self.off = Some(rule);
        self
    }
}

const NOTHING: Budget =
    Budget { opens: 0, writes: 0, delays: 0, crashes: 0, packs: 0, deletions: 0, readers: 0, branches: 0 };

/// Machines that claim against each other.
pub const TAKEOVER: Scope = Scope {
    name: "takeover",
    budget: Budget { opens: 3, writes: 2, delays: 1, crashes: 1, ..NOTHING },
    off: None,
};

/// Requests that arrive late or twice.
pub const NETWORK: Scope = Scope {
    name: "network",
    budget: Budget { opens: 2, writes: 3, delays: 2, crashes: 0, ..NOTHING },
    off: None,
};

/// Compaction and deletion by whoever writes and by whoever did.
pub const DELETION: Scope = Scope {
    name: "deletion",
    budget: Budget { opens: 2, writes: 2, packs: 2, deletions: 1, ..NOTHING },
    off: None,
};

/// A restore while others compact and delete.
pub const READERS: Scope = Scope {
    name: "readers",
    budget: Budget { opens: 2, writes: 2, packs: 1, deletions: 1, readers: 1, ..NOTHING },
    off: None,
};

/// A branch is made while others compact and delete.
pub const BRANCHES: Scope = Scope {
    name: "branches",
    budget: Budget { opens: 1, writes: 2, packs: 2, deletions: 2, branches: 2, ..NOTHING },
    off: None,
};

/// All of them.
pub const SMALL: [Scope; 5] = [TAKEOVER, NETWORK, DELETION, READERS, BRANCHES];

/// Larger ones.
pub const LARGE: [Scope; 2] = [
    Scope {
        name: "takeover, larger",
        budget: Budget { opens: 4, writes: 3, delays: 2, crashes: 1, packs: 1, ..NOTHING },
        off: None,
    },
    Scope {
        name: "deletion, larger",
        budget: Budget { opens: 3, writes: 2, packs: 2, deletions: 2, readers: 1, crashes: 1, ..NOTHING },
        off: None,
    },
];
