package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-social/weir/schema"
)

const (
	pageLetters = 100      // how many the list shows
	maxInput    = 16 << 10 // bytes of an input that are shown
	maxCause    = 2000
)

// lettersView is the list of dead letters.
type lettersView struct {
	Title  string
	Stages []stageView
	State  string // empty: those that need somebody
	States []stateView
	Rows   []letterView
	Full   bool // there may be more
	CSS    string
	Icon   string
}

// stageView is a stage to choose; one without a name is all of them.
type stageView struct {
	Name    string
	Count   string // that need somebody
	Href    string
	Current bool
}

type stateView struct {
	Name    string
	Href    string
	Current bool
}

// letterView is a dead letter, its texts made harmless.
type letterView struct {
	schema.Letter
	About     string
	Seen      *moment
	First     *moment
	Cause     string
	Path      string
	Expected  string
	Received  string
	LastCause string
	Times     string
	Input     string // its beginning
	Size      string // of the whole, in bytes
	Cut       bool
}

// letterPage is one dead letter.
type letterPage struct {
	Title  string
	Letter letterView
	CSS    string
	Icon   string
}

// serveLetters lists the dead letters, of a stage and in a state where they are
// given. It is for operators: it shows what strangers wrote. Nothing can be
// changed here: the page names the commands.
func (s *server) serveLetters(w http.ResponseWriter, r *http.Request) {
	f, err := parseLetters(r.URL.RawQuery)
	if err != nil {
		s.refuse(w, r, http.StatusBadRequest, err.Error())
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), queryTimeout)
	defer cancel()
	letters, err := schema.Letters(ctx, s.db, f, pageLetters)
	if err != nil {
		s.noLetters(w, r, err)
		return
	}
	counts, err := schema.CountLetters(ctx, s.db)
	if err != nil {
		s.noLetters(w, r, err)
		return
	}
	page := lettersView{Title: s.title, State: f.State, Stages: stagesOf(f, counts), States: statesOf(f), Full: len(letters) == pageLetters,
		CSS: s.assets.url("page.css"), Icon: s.assets.url("icon.svg")}
	for i := range letters {
		page.Rows = append(page.Rows, s.letter(&letters[i]))
	}
	w.Header().Set("Cache-Control", "no-store")
	s.render(w, http.StatusOK, "letters", page)
}

// serveLetter shows one dead letter with the beginning of its input.
func (s *server) serveLetter(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil {
		s.serveNotFound(w, r)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), queryTimeout)
	defer cancel()
	found, err := schema.FindLetter(ctx, s.db, id, maxInput)
	switch {
	case errors.Is(err, schema.ErrNoRows):
		s.refuse(w, r, http.StatusNotFound, fmt.Sprintf("There is no dead letter %d: it may have expired. All of them are at /deadletters.", id))
		return
	case err != nil:
		s.noLetters(w, r, err)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	s.render(w, http.StatusOK, "letter", letterPage{Title: s.title, Letter: s.letter(&found), CSS: s.assets.url("page.css"), Icon: s.assets.url("icon.svg")})
}

func (s *server) noLetters(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() == nil {
		s.log.Error("dead_letters_not_read", "error", err)
	}
	s.unavailable(w, r)
}

// parseLetters reads what the list is asked for. A misspelt parameter is an
// error: it would silently show something else.
func parseLetters(raw string) (schema.LetterFilter, error) {
	var f schema.LetterFilter
	query, err := url.ParseQuery(raw)
	if err != nil {
		return f, errors.New("the query cannot be read: leave it out, or send one like ?stage=commit")
	}
	for name := range query {
		var field *string
		var known []string
		switch name {
		case "stage":
			field, known = &f.Stage, schema.Stages()
		case "state":
			field, known = &f.State, schema.LetterStates()
		default:
			return f, fmt.Errorf("there is no parameter %q: send stage and state, or nothing", shorten(name, 40))
		}
		if *field, err = single(query, name, ""); err != nil {
			return f, err
		}
		if !slices.Contains(known, *field) {
			return f, fmt.Errorf("%s is %q: send one of %s", name, shorten(*field, 40), strings.Join(known, ", "))
		}
	}
	return f, nil
}

// lettersURL is the list that a filter chooses.
func lettersURL(f schema.LetterFilter) string {
	query := url.Values{}
	if f.Stage != "" {
		query.Set("stage", f.Stage)
	}
	if f.State != "" {
		query.Set("state", f.State)
	}
	if len(query) == 0 {
		return "/deadletters"
	}
	return "/deadletters?" + query.Encode()
}

func stagesOf(f schema.LetterFilter, counts []schema.StageCount) []stageView {
	total := 0
	for _, c := range counts {
		total += c.Count
	}
	views := []stageView{{"all", grouped(total), lettersURL(schema.LetterFilter{State: f.State}), f.Stage == ""}}
	for _, c := range counts {
		views = append(views, stageView{c.Stage, grouped(c.Count), lettersURL(schema.LetterFilter{Stage: c.Stage, State: f.State}), f.Stage == c.Stage})
	}
	return views
}

func statesOf(f schema.LetterFilter) []stateView {
	views := []stateView{{"unsettled", lettersURL(schema.LetterFilter{Stage: f.Stage}), f.State == ""}}
	for _, state := range schema.LetterStates() {
		views = append(views, stateView{state, lettersURL(schema.LetterFilter{Stage: f.Stage, State: state}), f.State == state})
	}
	return views
}

func (s *server) letter(l *schema.Letter) letterView {
	now := s.now()
	view := letterView{
		Letter: *l, Seen: newMoment(l.LastSeen, now), First: newMoment(l.FirstSeen, now), Times: grouped(int(l.Count)),
		Cause: plain(l.Cause, maxCause), Path: plain(l.Path, maxDetail), Expected: plain(l.Expected, maxDetail), Received: plain(l.Received, maxDetail),
		LastCause: plain(l.LastCause, maxCause), Input: plain(string(l.Raw), maxInput), Size: grouped(int(l.RawBytes)), Cut: l.RawBytes > int64(len(l.Raw)),
	}
	if view.Cause == "" {
		view.Cause = "for no reason that can be shown"
	}
	switch {
	case l.Kind != "":
		view.About = plain(l.Kind, maxDetail)
	case l.DID != "":
		view.About = plain("at://"+l.Subject(), maxDetail)
	}
	return view
}
