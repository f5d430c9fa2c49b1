package web

import (
	"context"
	"net/http"
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
	host := PlainLine(st.Host, MaxSite)
	if host == "" {
		host = say("the_stream")
	}
	in := func(level, name string, values ...any) Status {
		return Status{Level: level, Word: say("word_" + name), Detail: say("detail_"+name, values...)}
	}
	switch state := st.Current(); state {
	case schema.StateNoConsumer:
		return in(LevelBad, "no_consumer")
	case schema.StateLive:
		return in(LevelGood, "live", host)
	case schema.StateQuiet:
		return in(LevelGood, "quiet", host)
	case schema.StateCatchingUp:
		return in(LevelWait, "catching_up", host)
	case schema.StateConnecting:
		return in(LevelWait, "connecting")
	case schema.StateNoNetwork:
		v := in(LevelBad, "no_network")
		if !st.Leased {
			v.Detail = say("detail_silent")
		}
		return v
	case schema.StateDraining:
		return in(LevelWait, "draining")
	default:
		return Status{Level: LevelWait, Word: PlainLine(state, MaxName)}
	}
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
