-- Comparing a day with a relay of Nostr reads the events of that day, by the authors' dates.

CREATE INDEX records_other_dated ON records_other (collection, left(rev, 16)) WHERE collection >= 'nostr.' AND collection < 'nostr/';
