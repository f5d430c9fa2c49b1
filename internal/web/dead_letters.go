package web

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-social/weir/schema"
)

const (
	maxDeadLetters = 100      // rows of the list
	maxInput       = 16 << 10 // bytes of an input that are shown
	maxCause       = 2000     // characters
)

// deadLettersView is the list of dead letters.
type deadLettersView struct {
	Frame
	Stages []tabView
	State  string // empty: open and retrying
	States []tabView
	Rows   []deadLetterView
	Full   bool // there may be more
}

// tabView is a link to the dead letters of a stage or state, or to all.
type tabView struct {
	Name    string
	Count   string // open and retrying, of a stage
	Href    string
	Current bool
}

// deadLetterView is a dead letter with sanitised texts.
type deadLetterView struct {
	schema.StoredDeadLetter
	Subject   string
	Seen      *Timestamp
	First     *Timestamp
	Cause     string
	Path      string
	Expected  string
	Received  string
	LastCause string
	Times     string
	Input     string // the beginning of the input
	Size      string // size of the complete input
	Cut       bool
}

// deadLetterPage is the page of one dead letter.
type deadLetterPage struct {
	Frame
	DeadLetter deadLetterView
}

// serveDeadLetters lists the dead letters, optionally of one stage or state. It is for
// operators, because it shows what strangers wrote. The page is read-only and names
// the commands that change dead letters.
func (s *Server) serveDeadLetters(w http.ResponseWriter, r *http.Request) {
	f, err := parseDeadLetterFilter(r.URL.RawQuery)
	if err != nil {
		s.WriteError(w, r, http.StatusBadRequest, err.Error())
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), QueryTimeout)
	defer cancel()
	found, err := schema.ListDeadLetters(ctx, s.DB, f, maxDeadLetters)
	if err != nil {
		s.deadLettersUnavailable(w, r, err)
		return
	}
	counts, err := schema.CountDeadLetters(ctx, s.DB)
	if err != nil {
		s.deadLettersUnavailable(w, r, err)
		return
	}
	page := deadLettersView{
		Frame: s.NewFrame(), State: f.State, Stages: stagesOf(f, counts), States: statesOf(f),
		Full: len(found) == maxDeadLetters,
	}
	for i := range found {
		page.Rows = append(page.Rows, s.newDeadLetter(&found[i]))
	}
	w.Header().Set("Cache-Control", "no-store")
	s.Render(w, http.StatusOK, "dead_letters", page)
}

// handleDeadLetterAPI adds the list of dead letters as JSON, and what can be done with one. Pages
// of other sites, which a browser of the operator may show, cannot do that.
func (s *Server) handleDeadLetterAPI(mux *http.ServeMux, allowed func(http.Handler) http.Handler) {
	handle := func(pattern string, handler http.HandlerFunc) {
		mux.Handle(pattern, allowed(http.NewCrossOriginProtection().Handler(s.Buffered(handler))))
	}
	handle("GET /api/v1/deadletters", func(w http.ResponseWriter, r *http.Request) {
		f, err := parseDeadLetterFilter(r.URL.RawQuery)
		if err != nil {
			s.WriteError(w, r, http.StatusBadRequest, err.Error())
			return
		}
		s.answerDeadLetters(w, r, func(ctx context.Context) (any, error) {
			found, err := schema.ListDeadLetters(ctx, s.DB, f, maxDeadLetters)
			return map[string]any{"dead_letters": append([]schema.StoredDeadLetter{}, found...), "full": len(found) == maxDeadLetters}, err
		})
	})
	act := func(action string, do func(ctx context.Context, id int64) error) {
		handle("POST /api/v1/deadletters/{id}/"+action, func(w http.ResponseWriter, r *http.Request) {
			s.answerDeadLetters(w, r, func(ctx context.Context) (any, error) {
				id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
				if err != nil {
					return nil, schema.ErrNoRows
				}
				if _, err = schema.FindDeadLetter(ctx, s.DB, id, 0); err == nil {
					err = do(ctx, id)
				}
				if err != nil {
					return nil, err
				}
				return schema.FindDeadLetter(ctx, s.DB, id, 0)
			})
		})
	}
	act("retry", func(ctx context.Context, id int64) error {
		_, err := schema.RetryDeadLetter(ctx, s.DB, id)
		return err
	})
	act("dismiss", func(ctx context.Context, id int64) error { return schema.DismissDeadLetter(ctx, s.DB, id) })
}

// answerDeadLetters sends the result of a query as JSON.
func (s *Server) answerDeadLetters(w http.ResponseWriter, r *http.Request, query func(context.Context) (any, error)) {
	ctx, cancel := context.WithTimeout(r.Context(), QueryTimeout)
	defer cancel()
	found, err := query(ctx)
	switch {
	case errors.Is(err, schema.ErrNoRows):
		s.WriteError(w, r, http.StatusNotFound, say("error_dead_letter", PlainLine(r.PathValue("id"), MaxDetail)))
	case err != nil:
		s.deadLettersUnavailable(w, r, err)
	default:
		w.Header().Set("Cache-Control", "no-store")
		WriteJSON(w, http.StatusOK, found)
	}
}

// serveDeadLetter shows one dead letter with the beginning of its input.
func (s *Server) serveDeadLetter(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil {
		s.ServeNotFound(w, r)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), QueryTimeout)
	defer cancel()
	found, err := schema.FindDeadLetter(ctx, s.DB, id, maxInput)
	switch {
	case errors.Is(err, schema.ErrNoRows):
		s.WriteError(w, r, http.StatusNotFound, say("error_dead_letter", strconv.FormatInt(id, 10)))
		return
	case err != nil:
		s.deadLettersUnavailable(w, r, err)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	s.Render(w, http.StatusOK, "dead_letter", deadLetterPage{Frame: s.NewFrame(), DeadLetter: s.newDeadLetter(&found)})
}

func (s *Server) deadLettersUnavailable(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() == nil {
		s.Log.Error("dead_letter_read_failed", "error", err)
	}
	s.WriteUnavailable(w, r)
}

// parseDeadLetterFilter reads the parameters of the list. A misspelt parameter is an
// error, because the page would silently show something else.
func parseDeadLetterFilter(raw string) (schema.DeadLetterFilter, error) {
	var f schema.DeadLetterFilter
	query, err := ParseParameters(raw, []string{"stage", "state"}, "?stage=commit")
	if err != nil {
		return f, err
	}
	for name, field := range map[string]*string{"stage": &f.Stage, "state": &f.State} {
		valid := schema.Stages()
		if name == "state" {
			valid = schema.DeadLetterStates()
		}
		if *field = query.Get(name); query.Has(name) && !slices.Contains(valid, *field) {
			return f, WrongValue(name, *field, say("expected_one_of", strings.Join(valid, ", ")))
		}
	}
	return f, nil
}

// deadLettersURL returns the URL of the list with a filter.
func deadLettersURL(f schema.DeadLetterFilter) string {
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

func stagesOf(f schema.DeadLetterFilter, counts []schema.StageCount) []tabView {
	total := 0
	for _, c := range counts {
		total += c.Count
	}
	views := []tabView{{say("letters_all"), Grouped(total), deadLettersURL(schema.DeadLetterFilter{State: f.State}), f.Stage == ""}}
	for _, c := range counts {
		views = append(views, tabView{
			c.Stage, Grouped(c.Count), deadLettersURL(schema.DeadLetterFilter{Stage: c.Stage, State: f.State}), f.Stage == c.Stage,
		})
	}
	return views
}

func statesOf(f schema.DeadLetterFilter) []tabView {
	views := []tabView{{say("letters_unsettled"), "", deadLettersURL(schema.DeadLetterFilter{Stage: f.Stage}), f.State == ""}}
	for _, state := range schema.DeadLetterStates() {
		views = append(views, tabView{state, "", deadLettersURL(schema.DeadLetterFilter{Stage: f.Stage, State: state}), f.State == state})
	}
	return views
}

func (s *Server) newDeadLetter(l *schema.StoredDeadLetter) deadLetterView {
	now := s.Now()
	view := deadLetterView{
		StoredDeadLetter: *l, Seen: NewTimestamp(l.LastSeen, now), First: NewTimestamp(l.FirstSeen, now),
		Times: say("letter_times", int(l.Count)),
		Cause: PlainLine(l.Cause, maxCause), Path: PlainLine(l.Path, MaxDetail), Expected: PlainLine(l.Expected, MaxDetail),
		Received:  PlainLine(l.Received, MaxDetail),
		LastCause: PlainLine(l.LastCause, maxCause), Input: PlainLine(string(l.Raw), maxInput),
		Size: say("letter_size", int(l.RawBytes)), Cut: l.RawBytes > int64(len(l.Raw)),
	}
	if view.Cause == "" {
		view.Cause = say("letter_unknown_cause")
	}
	switch {
	case l.Kind != "":
		view.Subject = PlainLine(l.Kind, MaxDetail)
	case l.DID != "":
		view.Subject = PlainLine("at://"+l.Subject(), MaxDetail)
	}
	return view
}
