package records

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/weir-social/weir/internal/atproto/syntax"
	"github.com/weir-social/weir/internal/lexicon/records"
	"github.com/weir-social/weir/internal/web"
	"github.com/weir-social/weir/schema"
)

const (
	maxShownRecord = 64 << 10 // bytes of a record that are shown
	maxShownLine   = 4 << 10  // characters of one of its lines
)

// The collections whose records have a title of their own.
const (
	noteCollection    = "nostr.1"
	articleCollection = "nostr.30023"
)

// recordPage is the page of a stored record. Its texts are sanitised.
type recordPage struct {
	web.Frame
	Heading string
	URI     string
	Open    string // the address that shows a Nostr event; empty: it is not one
	Account web.Person
	verdictView
	CID    string
	Stored *web.Timestamp
	Value  []targetView // the record in parts; some are links
	Cut    bool
	referencesView
	API   string
	Graph string
}

// verdictView is what validation says about the record.
type verdictView struct {
	Verdict  string
	Dangling bool
	Refused  bool // nothing is derived from the record
	Problems []string
	Warnings []string
	WaitsFor []targetView
}

// referencesView are the records that the record refers to, and those that refer to it.
type referencesView struct {
	References     []targetView
	MoreReferences string // the address of all references; empty: all are shown
	Referrers      []targetView
	MoreReferrers  string
}

// targetView is a text that may be a link to the page of a record.
type targetView struct {
	Text  string
	Href  string // empty: there is none
	Path  string // path of the reference
	State string // state of the record; empty: it is stored
}

// serveRecordPage shows a record.
func (s *server) serveRecordPage(w http.ResponseWriter, r *http.Request, k schema.Key, q *recordQuery) {
	if q.err != nil {
		s.WriteError(w, r, http.StatusBadRequest, q.err.Error())
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), web.QueryTimeout)
	defer cancel()
	d, err := s.record(ctx, k, defaultReferences)
	if err != nil {
		s.writeRecordUnreadable(w, r, q, err)
		return
	}
	w.Header().Set("Cache-Control", "no-cache")
	s.Render(w, http.StatusOK, "record", s.newRecordPage(k, &d))
}

func (s *server) newRecordPage(k schema.Key, d *records.Detail) recordPage {
	api := recordHref("/api/v1/records/", k)
	page := recordPage{
		Frame: s.NewFrame(), Heading: recordTitle(k.Collection), URI: web.PlainLine(k.URI(), web.MaxDetail),
		Open: s.RecordURL(k.URI()), Account: s.NewPerson(k.DID),
		verdictView: verdictView{Verdict: say("record_verdict_" + d.Verdict), Dangling: d.Dangling, Refused: d.Projection == "refused",
			Problems: problemLines(d.Problems), Warnings: problemLines(d.Warnings)}, CID: web.PlainLine(d.CID, web.MaxDetail),
		Stored: web.NewTimestamp(d.IndexedAt, s.Now()),
		API:    api, Graph: "/api/v1/graph/" + segment(k.DID) + "/" + segment(k.Collection) + "/" + segment(k.Rkey),
	}
	page.Value, page.Cut = linked(d.Value)
	for _, uri := range d.WaitsFor {
		page.WaitsFor = append(page.WaitsFor, newTarget(uri, ""))
	}
	for _, ref := range d.References.List {
		view := newTarget(ref.Target, ref.Path)
		if ref.State != "" && ref.State != records.Stored {
			view.State, view.Href = say("record_state_"+ref.State), ""
		}
		page.References = append(page.References, view)
	}
	for _, from := range d.Referrers.List {
		page.Referrers = append(page.Referrers, newTarget(from.URI, from.Path))
	}
	if d.References.Next != "" {
		page.MoreReferences = api + "/references"
	}
	if d.Referrers.Next != "" {
		page.MoreReferrers = api + "/referrers"
	}
	return page
}

// recordTitle names a record by its collection.
func recordTitle(collection string) string {
	switch collection {
	case noteCollection:
		return say("record_title_note")
	case articleCollection:
		return say("record_title_article")
	}
	if strings.HasPrefix(collection, "nostr.") {
		return say("record_title_nostr", web.PlainLine(collection, web.MaxDetail))
	}
	return say("record_title", web.PlainLine(collection, web.MaxDetail))
}

// newTarget returns a link to the record that an at-uri names. For any other target it
// returns text.
func newTarget(target, path string) targetView {
	v := targetView{Text: web.PlainLine(target, web.MaxDetail), Path: web.PlainLine(path, web.MaxURL)}
	if did, collection, rkey, ok := syntax.RecordOf(target); ok {
		v.Href = recordHref("/records/", schema.Key{Collection: collection, DID: did, Rkey: rkey})
	}
	return v
}

// recordHref returns the address of a record below a path.
func recordHref(path string, k schema.Key) string {
	return path + segment(k.Collection) + "/" + segment(k.DID) + "/" + segment(k.Rkey)
}

// segment escapes a part of a path. A colon after the first slash needs no escape.
func segment(text string) string {
	return strings.ReplaceAll(url.PathEscape(text), "%3A", ":")
}

// problemLines returns the problems of a verdict, one per line.
func problemLines(raw json.RawMessage) (lines []string) {
	var problems []struct{ Rule, Path, Expected, Received string }
	if json.Unmarshal(raw, &problems) != nil {
		return nil
	}
	for _, p := range problems {
		lines = append(lines, say("record_problem_line", web.PlainLine(p.Rule, web.MaxName), web.PlainLine(p.Path, web.MaxURL),
			web.PlainLine(p.Expected, web.MaxURL), web.PlainLine(p.Received, web.MaxURL)))
	}
	return lines
}

var atURI = regexp.MustCompile(`at://[^"\\\s]+`)

// indented returns the beginning of a record with one line for each of its values. The
// indentation of many deep values would be hundreds of times as long as the record, so it
// writes only what is shown.
func indented(record []byte) (text string, cut bool) {
	asWritten := []jsontext.Options{
		jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true), jsontext.PreserveRawStrings(true),
		jsontext.WithIndent("  "),
	}
	var b bytes.Buffer
	from, to := jsontext.NewDecoder(bytes.NewReader(record), asWritten[:3]...), jsontext.NewEncoder(&b, asWritten...)
	for b.Len() <= maxShownRecord {
		token, err := from.ReadToken()
		if err == nil {
			err = to.WriteToken(token)
		}
		if err != nil {
			break
		}
	}
	text = strings.TrimSpace(b.String())
	return text[:min(len(text), maxShownRecord)], len(text) > maxShownRecord
}

// linked returns the beginning of a record, indented, with the at-uris in it as links.
func linked(record json.RawMessage) (parts []targetView, cut bool) {
	text, cut := indented(record)
	for line := range strings.Lines(text) {
		bare := strings.TrimLeft(line, " ")
		indent := line[:len(line)-len(bare)]
		shown := web.PlainLine(bare, maxShownLine)
		cut = cut || strings.HasSuffix(shown, "…")
		at := 0
		for _, found := range atURI.FindAllStringIndex(shown, -1) {
			target := newTarget(shown[found[0]:found[1]], "")
			if target.Href == "" {
				continue
			}
			target.Text = shown[found[0]:found[1]]
			parts = append(parts, targetView{Text: indent + shown[at:found[0]]}, target)
			at, indent = found[1], ""
		}
		parts = append(parts, targetView{Text: indent + shown[at:] + "\n"})
	}
	return parts, cut
}
