package records

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/web"
)

// TestNoteOfNostrIsARecord shows that an event of Nostr has a title of its own and leads to a page that
// any browser can show.
func TestNoteOfNostrIsARecord(t *testing.T) {
	t.Parallel()
	r := newRig(t, web.Part{Network: web.Network{Record: func(uri string) string { return "https://njump.me/nevent1" + uri[len(uri)-64:] }}})
	const author, id = "did:nostr:84dee6e676e5bb67b4ad4e042cf70cbd8681155db535942fcc6a0533858a7240",
		"3f1ab5b5a6a1c3b5c2e8d6f4a7b9c0d1e2f3041526374859606162738495a6b7"
	r.Exec(`INSERT INTO accounts (did) VALUES ($1)`, author)
	for collection, title := range map[string]string{
		"nostr.1": "A note on Nostr", "nostr.30023": "An article on Nostr", "nostr.7": "An event of Nostr: nostr.7",
	} {
		r.Exec(`INSERT INTO records (collection, did, rkey, rev, cid, created_at, record)
			VALUES ($1, $2, $3, '1', 'c', $4, '{"kind":1,"tags":[],"content":"A note"}')`, collection, author, id, r.Now)
		record := r.Get("/records/" + collection + "/" + author + "/" + id)
		r.Audit(record)
		require.Contains(t, record, title)
		require.Contains(t, record, "https://njump.me/n")
	}
}
