package web

import (
	"cmp"
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/weir-social/weir/schema"
)

// A level sets the colour of a status.
const (
	LevelGood = "good" // the ranking is up to date
	LevelWait = "wait" // it will be, without intervention
	LevelBad  = "bad"  // it is not, and may need an operator
)

// Status is the state of one stream.
type Status struct {
	Level     string
	Word      string
	Detail    string
	Stream    string // the name of the stream, if there are several streams
	LastEvent *Timestamp
}

// NewStatuses describes every stream.
func NewStatuses(all []schema.StreamStatus, now time.Time) (views []Status) {
	for _, st := range all {
		view := NewStatus(st)
		if len(all) > 1 {
			view.Stream = PlainLine(st.Name, MaxName)
		}
		if st.LastEvent != nil {
			view.LastEvent = NewTimestamp(*st.LastEvent, now)
		}
		views = append(views, view)
	}
	return views
}

// NewStatus describes the state of a stream for readers. The stored detail, such as an
// error with addresses, is for operators and is shown in /health.
func NewStatus(st schema.StreamStatus) Status {
	host := cmp.Or(PlainLine(st.Host, MaxSite), say("the_stream"))
	return Status{
		Level: Level(st), Word: cmp.Or(say("word_"+StateName(st)), PlainLine(st.Current(), MaxName)),
		Detail: say("detail_"+StateName(st), host),
	}
}

// Level returns the level of a stream's state.
func Level(st schema.StreamStatus) string {
	switch st.Current() {
	case schema.StateLive, schema.StateQuiet:
		return LevelGood
	case schema.StateNoConsumer, schema.StateNoNetwork:
		return LevelBad
	}
	return LevelWait
}

// StateName returns the name of a stream's state in the keys of texts.
func StateName(st schema.StreamStatus) string {
	if st.Current() == schema.StateNoNetwork && !st.Leased {
		return "silent"
	}
	return strings.ReplaceAll(st.Current(), " ", "_")
}

// startPage is the page at / if no part has one.
type startPage struct {
	Frame
	Statuses []Status
}

func (s *Server) serveStart(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), QueryTimeout)
	defer cancel()
	streams, err := schema.StreamStatuses(ctx, s.DB)
	if err != nil {
		s.Log.Error("stream_status_read_failed", "error", err)
		s.WriteUnavailable(w, r)
		return
	}
	w.Header().Set("Cache-Control", "no-cache")
	s.Render(w, http.StatusOK, "start", startPage{s.NewFrame(), NewStatuses(streams, s.Now())})
}
