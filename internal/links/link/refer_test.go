package link

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/nostr"
)

// signed returns an event of an author, and its JSON.
func signed(t *testing.T, kind int, content string, tags ...[]string) (*nostr.Event, string) {
	t.Helper()
	e := &nostr.Event{CreatedAt: 1_700_000_000, Kind: kind, Tags: tags, Content: content}
	require.NoError(t, e.Sign([32]byte{31: 9}))
	return e, string(e.AppendJSON(nil))
}

func hexOf(b [32]byte) string { return hex.EncodeToString(b[:]) }

// TestSubjectsOfEventReposts shows that a signed text names its author itself, and that a text
// other than the event that the tag names is not used.
func TestSubjectsOfEventReposts(t *testing.T) {
	t.Parallel()
	note, text := signed(t, 1, "https://news.example/a")
	article, articleText := signed(t, 30023, "x", []string{"d", "my/article"})
	id, by, other := hexOf(note.ID), hexOf(note.PubKey), strings.Repeat("a", 64)
	forged := *note // with the right id for its content
	forged.PubKey = [32]byte{1}
	forged.ID = forged.Hash()
	theNote := Subject{CollectionNote, nostr.DID(note.PubKey), id}
	theArticle := Subject{CollectionArticle, nostr.DID(note.PubKey), "my/article"}
	byOther := Subject{CollectionNote, "did:nostr:" + other, id}
	e, p := []string{"e", id, "wss://relay.example"}, func(key string) []string { return []string{"p", key} }
	address := []string{"a", "30023:" + by + ":my/article"}
	for _, c := range []struct {
		rule, kind, content string
		tags                [][]string
		want                Subject
	}{
		{"by its tags", "6", "", [][]string{e, p(by)}, theNote},
		{"by its text", "6", text, [][]string{e}, theNote},
		{"the text is surer than the tag", "6", text, [][]string{e, p(other)}, theNote},
		{"a text that its author did not sign", "6", string(forged.AppendJSON(nil)), [][]string{{"e", hexOf(forged.ID)}}, Subject{}},
		{"a forged text", "6", strings.Replace(text, by, other, 1), [][]string{e, p(by)}, theNote},
		{"a text with a changed link", "6", strings.Replace(text, "/a", "/b", 1), [][]string{e}, Subject{}},
		{"the text of another note", "6", text, [][]string{{"e", other}, p(by)}, Subject{CollectionNote, theNote.DID, other}},
		{"no tag", "6", text, nil, Subject{}},
		{"no author", "6", "", [][]string{e}, Subject{}},
		{"a tag that is no key", "6", "", [][]string{e, p("npub1")}, Subject{}},
		{"capitals are no key", "6", "", [][]string{{"e", strings.ToUpper(id)}, p(by)}, Subject{}},
		{"a note as another event", "16", "", [][]string{e, p(by), {"k", "1"}}, theNote},
		{"an article by its address", "16", "", [][]string{e, p(other), {"k", "30023"}, address}, theArticle},
		{"an article by its text", "16", articleText, [][]string{{"e", hexOf(article.ID)}}, theArticle},
		{"an article without its address", "16", "", [][]string{e, p(by), {"k", "30023"}}, Subject{}},
		{"a kind without links", "16", "", [][]string{e, p(by), {"k", "7"}}, Subject{}},
		{"no kind", "16", "", [][]string{e, p(by)}, Subject{}},
		{"an address of another kind", "16", "", [][]string{{"a", "30024:" + by + ":x"}}, Subject{}},
		{"whoever is named", "6", "", [][]string{e, p(other)}, byOther},
	} {
		got, _, err := InEventRepost("nostr."+c.kind, eventOf(t, c.content, c.tags...))
		require.NoError(t, err, c.rule)
		require.Equal(t, c.want, got, c.rule)
	}
	_, _, err := InEventRepost(CollectionNoteRepost, []byte(`[]`))
	require.Error(t, err)
	got, _, err := InEventRepost(CollectionNoteRepost, eventOf(t, strings.Repeat(`{"tags":[`, 100_000), e, p(by)))
	require.NoError(t, err)
	require.Equal(t, theNote, got)
}

func TestSubjectsOfQuotes(t *testing.T) {
	t.Parallel()
	note, _ := signed(t, 1, "x")
	id, by, other := hexOf(note.ID), hexOf(note.PubKey), strings.Repeat("a", 64)
	theNote := Subject{CollectionNote, nostr.DID(note.PubKey), id}
	for _, c := range []struct {
		rule, content string
		tags          [][]string
		want          Subject
	}{
		{"by its tag", "look", [][]string{{"q", id, "wss://relay.example", by}}, theNote},
		{"the author of p", "look", [][]string{{"q", id}, {"p", by}}, theNote},
		{"the tag is surer", "look", [][]string{{"q", id, "", by}, {"p", other}}, theNote},
		{"no author", "look", [][]string{{"q", id, "", "npub1"}}, Subject{}},
		{"an article", "look", [][]string{{"q", "30023:" + by + ":d", "", ""}}, Subject{CollectionArticle, theNote.DID, "d"}},
		{"the first that can be read", "look", [][]string{
			{"q"}, {"q", "x"}, {"q", "30024:" + by + ":d"}, {"q", id, "", by}, {"q", other, "", by},
		}, theNote},
		{"an answer is no quote", "look", [][]string{{"e", id, "", "root", by}, {"p", by}}, Subject{}},
	} {
		got, err := InNote(eventOf(t, c.content, c.tags...))
		require.NoError(t, err, c.rule)
		require.Equal(t, c.want, got.Quoted, c.rule)
	}
}
