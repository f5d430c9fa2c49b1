-- A search with many matches looks up here which of their links are merged: few are. The condition is one that no other statement has: with
-- merged_into IS NOT NULL, those that look for the links merged into one might read this index whole.
CREATE INDEX links_merged ON links (id) INCLUDE (counts_as) WHERE counts_as <> id;
